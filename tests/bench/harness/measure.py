# SPDX-License-Identifier: Apache-2.0
"""Rounds: contenders take turns at each size, so that noise hits them all."""

import statistics
from dataclasses import dataclass

from .group import ContenderFailed

BATCH_SECONDS = 200e-6  # below this a clock's and a barrier's cost would show
# A limited link has a bucket, which is full when a batch begins, because ranks rest until then: a contender whose barrier is
# slow would have more of it than others. A batch goes far beyond the bucket if the link is what limits it.
REFILL_SECONDS = 5e-3    # a bucket holds 4 ms
LINK_BATCH_SECONDS = 40e-3
SMALL_BATCH_SECONDS = 1e-3
MOST_BATCHES = 1000     # per round
MOST_OPERATIONS = 20000  # per batch
LONG_SECONDS = 0.5       # an operation that takes longer gets
LONG_ROUNDS = 3          # no more rounds than these
HOPELESS_SECONDS = 2     # whose operation takes longer is left out


@dataclass
class Point:
    """One contender at one size: seconds per operation."""

    place: str
    ranks: int
    nodes: int
    contender: str
    size: int
    rewritten: bool      # each rank writes its buffer before each operation, within the time
    seconds: dict        # min, p25, median, p75, max of all samples
    round_medians: list
    samples: int
    bits_per_second: float = None  # of each node's link; None: no limit

    @classmethod
    def of(cls, place, ranks, nodes, contender, size, rounds, rewritten=False, bits_per_second=None):
        """From the samples of each round."""
        samples = sorted(sample for of_round in rounds for sample in of_round)
        seconds = {
            "min": samples[0],
            "p25": quantile(samples, 0.25),
            "median": statistics.median(samples),
            "p75": quantile(samples, 0.75),
            "max": samples[-1],
        }
        medians = [statistics.median(of_round) for of_round in rounds]
        return cls(place, ranks, nodes, contender, size, rewritten, seconds, medians, len(samples), bits_per_second)

    @property
    def median(self):
        return self.seconds["median"]

    @property
    def algorithm_bandwidth(self):
        """Bytes of one rank's buffer per second."""
        return self.size / self.median

    @property
    def bus_bandwidth(self):
        """Bytes per second in and out of each rank (of each node, on a link):
        what an all-reduce must move, 2 (n - 1) / n of its buffer."""
        n = self.nodes if self.nodes > 1 else self.ranks
        return self.algorithm_bandwidth * 2 * (n - 1) / n


def quantile(ordered, fraction):
    """Linear interpolation between the closest ranks of a sorted list."""
    at = fraction * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class Contest:
    """Contenders in one place (a node, or nodes and their links, which may be limited to so many bits per second)."""

    def __init__(self, place, ranks, nodes, groups, say, bits_per_second=None):
        self.place, self.ranks, self.nodes, self.say = place, ranks, nodes, say
        self.bits_per_second = bits_per_second
        self.groups = dict(groups)
        self.failures = {}
        self._estimates = {}

    def measure(self, size, rounds, budget_s, rewritten=False):
        """The points of one size, with buffers that stay in caches or are rewritten. A contender that fails is left out from
        there on; self.failures keeps why."""
        taken = {}
        for round_number in range(rounds):
            names = list(self.groups)
            turn = round_number % len(names) if names else 0
            for name in names[turn:] + names[:turn]:
                if round_number >= LONG_ROUNDS and self._estimates[name, size, rewritten][1] > LONG_SECONDS:
                    continue
                try:
                    samples = self._visit(name, size, rewritten, budget_s, round_number == 0)
                except ContenderFailed as failure:
                    self.failures[name] = str(failure)
                    self.say(f"left out from here on: {failure}")
                    self.groups.pop(name).stop()
                    taken.pop(name, None)
                    continue
                taken.setdefault(name, []).append(samples)
        return [
            Point.of(self.place, self.ranks, self.nodes, name, size, of_rounds, rewritten, self.bits_per_second)
            for name, of_rounds in taken.items()
        ]

    def _visit(self, name, size, rewritten, budget_s, first):
        """A turn. Results are checked each time, but those of long operations
        the first time only."""
        group = self.groups[name]
        group.open(size // 4)
        if first or self._estimates[name, size, rewritten][1] < budget_s:
            group.check()
        batch, seconds = self._calibrate(name, size, rewritten, budget_s)
        each = batch * seconds + (REFILL_SECONDS if self.bits_per_second else 0)
        samples = min(max(int(budget_s / each), 1), MOST_BATCHES)
        times = group.run(batch, samples, samples * each, rewritten)
        group.close()
        return times

    def batch_of(self, size, seconds):
        """How many operations of so many seconds make a batch."""
        if not self.bits_per_second:
            return max(1, min(int(BATCH_SECONDS / seconds) + 1, MOST_OPERATIONS))
        by_link = size * 8 / self.bits_per_second
        if by_link < BATCH_SECONDS / 2:
            return max(1, min(int(SMALL_BATCH_SECONDS / seconds) + 1, MOST_OPERATIONS))
        return int(LINK_BATCH_SECONDS / by_link) + 1

    def _calibrate(self, name, size, rewritten, budget_s):
        """Operations per batch, and about how long one takes."""
        if (name, size, rewritten) not in self._estimates:
            group = self.groups[name]
            seconds = group.run(1, 1, 0, rewritten)[0]
            if seconds > HOPELESS_SECONDS:
                raise ContenderFailed(f"{name}: an operation of {size} bytes takes {seconds:.1f} s")
            if seconds < budget_s:
                seconds = min(group.run(1, 3, 3 * seconds, rewritten))
            batch = self.batch_of(size, seconds)
            if batch > 1:
                seconds = statistics.median(group.run(batch, 5, batch * seconds * 5, rewritten))
                batch = self.batch_of(size, seconds)
            self._estimates[name, size, rewritten] = batch, seconds
        return self._estimates[name, size, rewritten]

    def stop(self):
        for group in self.groups.values():
            group.stop()
        self.groups = {}
