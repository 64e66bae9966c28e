# SPDX-License-Identifier: Apache-2.0
"""The bars that the communicator has to clear, judged from the points."""

from dataclasses import dataclass

from .mpi import MPIS
from .units import KIB, MIB, size_text


@dataclass
class Bar:
    text: str
    wanted: str
    measured: str
    met: object  # True, False, or None: not measured

    @property
    def verdict(self):
        return {True: "yes", False: "NO", None: "not measured"}[self.met]


def times_faster(ours, other):
    """How many times faster ours is: by medians, and the rounds' range."""
    by_round = [b / a for a, b in zip(ours.round_medians, other.round_medians)]
    return other.median / ours.median, min(by_round), max(by_round)


def ratio_text(ratio):
    return "{:.2f}x ({:.2f} to {:.2f})".format(*ratio)


class Judge:
    """Of points whose buffers stay in caches, and between nodes whose links have a limit."""

    def __init__(self, points):
        self.points = {
            (point.nodes, point.ranks, point.contender, point.size): point for point in points
            if not point.rewritten and (point.nodes == 1 or point.bits_per_second)
        }

    def find(self, ranks, contender, size, nodes=1):
        return self.points.get((nodes, ranks, contender, size))

    def faster(self, ranks, other, size, least):
        text = f"{ranks} ranks on a node, {size_text(size)}: times faster than {other}"
        ours, theirs = self.find(ranks, "ddp", size), self.find(ranks, other, size)
        if not ours or not theirs:
            return Bar(text, f">= {least}x", "-", None)
        ratio = times_faster(ours, theirs)
        return Bar(text, f">= {least}x", ratio_text(ratio), ratio[0] >= least)

    def near_plain(self, ranks, size, most):
        text = f"{ranks} ranks on a node, {size_text(size)}: time over the plain loop's"
        ours, plain = self.find(ranks, "ddp", size), self.find(ranks, "plain", size)
        if not ours or not plain:
            return Bar(text, f"<= {most}x", "-", None)
        ratio = times_faster(plain, ours)
        return Bar(text, f"<= {most}x", ratio_text(ratio), ratio[0] <= most)

    def never_slower(self, ranks):
        """Than any MPI with any of its settings, at every size; what is shown is the worst."""
        text = f"{ranks} ranks on a node: times faster than the best MPI at its worst size"
        ratios = [
            (point.median / ours.median, size, name.partition(":")[0]) for (nodes, of_ranks, name, size), point in self.points.items()
            if nodes == 1 and of_ranks == ranks and name.partition(":")[0] in MPIS and (ours := self.find(ranks, "ddp", size))
        ]
        if not ratios:
            return Bar(text, ">= 1x", "-", None)
        worst, size, name = min(ratios)
        return Bar(text, ">= 1x", f"{worst:.2f}x ({name}, {size_text(size)})", worst >= 1)

    def link_share(self, nodes, ranks, size, least):
        text = f"{nodes} nodes, {ranks} ranks, {size_text(size)}: share of the link's rate"
        ours = self.find(ranks, "ddp", size, nodes)
        if not ours:
            return Bar(text, f">= {least:.0%}", "-", None)
        by_round = [
            ours.bus_bandwidth * ours.median / seconds * 8 / ours.bits_per_second
            for seconds in ours.round_medians
        ]
        share = ours.bus_bandwidth * 8 / ours.bits_per_second
        return Bar(text, f">= {least:.0%}",
                   f"{share:.1%} ({min(by_round):.1%} to {max(by_round):.1%})", share >= least)


def judge(points):
    judged = Judge(points)
    bars = [
        judged.faster(2, "gloo", KIB, 100),
        judged.faster(2, "gloo", 64 * KIB, 30),
        judged.faster(2, "gloo", 25 * MIB, 8),
    ]
    bars += [judged.near_plain(2, size, 1.5) for size in (KIB, 64 * KIB, 25 * MIB)]
    on_node = sorted({ranks for nodes, ranks, *_ in judged.points if nodes == 1} | {2})
    bars += [judged.never_slower(ranks) for ranks in on_node]
    small = sorted(
        {size for nodes, ranks, _, size in judged.points
         if nodes == 1 and ranks == 4 and size <= 64 * KIB} | {64 * KIB}
    )
    bars += [judged.faster(4, "gloo", size, 20) for size in small]
    across = {
        (nodes, ranks, size) for nodes, ranks, _, size in judged.points
        if nodes > 1 and size >= 25 * MIB
    }
    bars += [judged.link_share(*which, 0.95) for which in sorted(across or {(2, 2, 25 * MIB)})]
    return bars
