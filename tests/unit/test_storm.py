#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""What the storm and the failures on a cluster share: how they wait, by a clock of this test's own."""
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(SOURCE / "tests/support"), str(SOURCE / "tests/cluster/storm")]
import cluster
from checks import check, finish


class Clock:
    def __init__(self):
        self.now = 1000.0
        self.rested = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.rested += seconds


def wait(looks, seconds=60.0):
    """Looks that take so long each, the last of which sees it. Gives the clock, what was seen, and the longest rest."""
    clock = cluster.time = Clock()
    left = list(looks)
    rests = []

    def look():
        rests.append(clock.rested - sum(rests))
        clock.now += left.pop(0)
        return not left

    return clock, cluster.wait_for(seconds, look), max(rests)


clock, seen, longest = wait([0.001] * 100)
check("it sees what comes", seen, clock.now)
check("looking takes a fifth of the time at most", clock.rested >= 4 * 0.001 * 90, clock.rested)
clock, seen, longest = wait([0.001] + [0.03] * 100)
check("also when looks have become slower", clock.rested >= 4 * 0.03 * 90, clock.rested)
clock, seen, longest = wait([0.001, 0.3, 0.001, 0.001])
check("one slow look makes no long rest", longest <= 0.01, longest)
clock, seen, longest = wait([0.3, 0.001, 0.001])
check("not even the first one", longest <= 0.01, longest)
clock, seen, longest = wait([0.04] * 100)
check("slow looks are seldom", 0.1 < longest <= 0.2 and clock.rested >= 4 * 0.04 * 90, (longest, clock.rested))
clock, seen, longest = wait([0.01] * 1000, seconds=1)
check("it ends in time", not seen and clock.now < 1001.3, clock.now)

finish()
