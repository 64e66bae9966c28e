# SPDX-License-Identifier: Apache-2.0
"""Hurts trainings at random on a throw-away cluster, and wants each to end in time, with the right
verdict and exit code, with nothing left behind, and to resume to the bytes of one that was not
disturbed. It runs as root on the cluster's head; tests/cluster/storm.sh starts it."""

import argparse
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True

from cluster import Cluster  # noqa: E402
from faults import KINDS  # noqa: E402
from rounds import LAYOUTS, Round, Undisturbed, Wrong, draw  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(prog="storm", description=__doc__)
    add = parser.add_argument
    add("--cluster", required=True, help="the cluster's folder")
    add("--place", required=True, help="a folder of all nodes on a small disk")
    add("--keep", required=True, help="where the files of wrong rounds go")
    add("--rounds", type=int, default=20, help="(default: 20)")
    add("--seed", type=int, default=1, help="(default: 1)")
    add("--only", type=int, help="the number of a round, to repeat that one alone")
    add("--times", type=int, default=1, help="repeat it so often (default: 1)")
    add("--kinds", help="only rounds of these kinds, with commas: " + ", ".join(KINDS))
    return parser.parse_args()


class Row:
    def __init__(self):
        self.rounds = self.wrong = self.resumed = self.exact = 0
        self.seconds = []

    def add(self, done, wrong):
        self.rounds += 1
        self.wrong += bool(wrong)
        self.resumed += done.exact is not None
        self.exact += done.exact is True
        if done.line_seconds is not None:
            self.seconds.append(done.line_seconds)

    def cells(self):
        times = [statistics.median(self.seconds), max(self.seconds)] if self.seconds else []
        return [self.rounds, self.wrong, f"{self.exact} of {self.resumed}",
                *(f"{seconds:.2f}" for seconds in times), *[""] * (2 - len(times))]


def print_table(rows):
    total = Row()
    print("| kind | rounds | wrong verdicts | resumes exact "
          "| seconds to the line, median | the most |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        print("|", " | ".join(str(cell) for cell in [name, *row.cells()]), "|")
        for field in ("rounds", "wrong", "resumed", "exact"):
            setattr(total, field, getattr(total, field) + getattr(row, field))
        total.seconds += row.seconds
    print("|", " | ".join(str(cell) for cell in ["all", *total.cells()]), "|")
    return total


def numbers(args):
    """The rounds that are asked for."""
    if args.only is not None:
        return [args.only] * args.times
    kinds = set(args.kinds.split(",")) if args.kinds else set(KINDS)
    found, number = [], 0
    while len(found) < args.rounds:
        number += 1
        if draw(args.seed, number).name in kinds:
            found.append(number)
    return found


def main():
    args = parse_arguments()
    cluster = Cluster(args.cluster)
    cluster.measure()
    print(f"seed {args.seed}; a plain step takes {cluster.slowness:.1f} times an idle machine's",
          flush=True)
    os.makedirs(os.path.join(args.place, "whole"))
    for nodes, per_node in LAYOUTS:
        Undisturbed(cluster, args.place, nodes, per_node).run()
    rows = {}
    for number in numbers(args):
        began = time.monotonic()
        storm = Round(cluster, args.place, args.seed, number)
        wrong = storm.run()
        seconds = time.monotonic() - began
        line = "no line"
        if storm.line_seconds is not None:
            line = f"{storm.line_seconds:.2f} s to the line"
        print(f"{'WRONG' if wrong else 'right'} {storm.title()}: {line}, code {storm.code}, "
              f"{seconds:.1f} s", flush=True)
        if wrong:
            print(f"  --seed {args.seed} --only {number}", *wrong, *storm.log, sep="\n  ",
                  flush=True)
            storm.keep(args.keep)
        storm.remove()
        rows.setdefault(storm.kind.name, Row()).add(storm, wrong)
        if number % 5 == 0:
            cluster.measure()
    total = print_table(dict(sorted(rows.items())))
    return total.wrong > 0 or total.exact < total.rounds


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as error:
        sys.exit(f"storm: {error}")
