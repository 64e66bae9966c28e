# SPDX-License-Identifier: Apache-2.0
"""The kinds of failures. Each harms a training, and says what has to follow."""

import os
import re
import signal
import time
from dataclasses import dataclass

from cluster import both_lost, parent_of, wait_for
from training import PROBE, Wrong

KINDS = {}


@dataclass
class Kind:
    name: str
    harm: object  # a function of a training and a source of random numbers, which returns what it did
    weight: int
    restarts: tuple  # the least and the most that follow
    nodes: int = 0   # of the step's nodes are lost
    seconds: float = 1  # to the restart, beside the start of the program
    after: object = None  # a function of the training and of what the harm returned, once ranks train again


def kind(name, weight, restarts=(1, 1), **more):
    def add(harm):
        KINDS[name] = Kind(name, harm, weight, restarts, **more)
        return harm

    return add


def draw(random, count, spares):
    """So many kinds; they cost no more nodes than there are spares."""
    kinds = []
    for _ in range(count):
        possible = [kind for kind in KINDS.values() if kind.nodes <= spares]
        kinds += random.choices(possible, [kind.weight for kind in possible])
        spares -= kinds[-1].nodes
    random.shuffle(kinds)
    return kinds


def hit(pid, number, send=os.kill):
    try:
        send(pid, number)
    except ProcessLookupError:
        pass


def hit_later(pid, seconds):
    """The number may be another process's by then."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    time.sleep(seconds)
    hit(process, signal.SIGKILL, signal.pidfd_send_signal)
    os.close(process)


def some_rank(training, random):
    rank, pid = random.choice(sorted(training.ranks().items()))
    return rank, pid, training.cluster.node_name(pid)


@kind("kill", 6)
def kill(training, random):
    rank, pid, node = some_rank(training, random)
    hit(pid, signal.SIGKILL)
    return f"rank {rank} on {node}"


@kind("several", 2)
def several(training, random):
    """All ranks of a node, at once."""
    _, _, node = some_rank(training, random)
    for pid in training.cluster.processes(PROBE, node):
        hit(pid, signal.SIGKILL)
    return f"all ranks on {node}"


@kind("stop", 3, seconds=8)
def stop(training, random):
    """The rank hangs; stall= finds it."""
    rank, pid, node = some_rank(training, random)
    hit(pid, signal.SIGSTOP)
    return f"rank {rank} on {node}"


@kind("again", 4, restarts=(1, 2))
def again(training, random):
    """A rank dies while the step restarts."""
    before = set(training.ranks().values())
    rank, pid, node = some_rank(training, random)
    hit(pid, signal.SIGKILL)
    new = wait_for(30 * training.cluster.slowness,
                   lambda: not training.runs() or sorted(set(training.ranks().values()) - before))
    seconds = random.uniform(0, 0.4)
    if isinstance(new, list):
        hit_later(new[-1], seconds)
    return f"rank {rank} on {node}, and another one as it starts"


@kind("other", 3, restarts=(1, 2))
def other(training, random):
    """A rank dies, and soon another one, which may wait for those that join, or give them what they need."""
    ranks = training.ranks()
    (rank, pid), (second, second_pid) = random.sample(sorted(ranks.items()), 2)
    hit(pid, signal.SIGKILL)
    hit_later(second_pid, random.uniform(0, 0.8))
    return f"rank {rank}, and then {second}"


def go_back(training, done):
    """Where a shard and its copy are lost, all ranks go back to the last checkpoint, and say why."""
    if not training.loses_shards():
        return
    why = both_lost(*re.findall(r"\d+", done))
    if not training.from_checkpoint(training.seen) or not re.search(why, training.text()[training.seen:]):
        raise Wrong(f"after \"buddies\" ({done}), not all ranks start again because of: {why}")


@kind("buddies", 2, restarts=(1, 2), after=go_back)
def buddies(training, random):
    """A rank and the one that keeps a copy of its shard, on the next node, at once."""
    ranks = training.ranks()
    rank = random.choice(sorted(ranks))
    buddy = (rank + training.layout.per_node) % training.layout.world
    # The others do not get far without a rank that is stopped.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        hit(ranks[rank], number)
        hit(ranks[buddy], number)
    return f"ranks {rank} and {buddy}"


@kind("rank-0", 2)
def rank_0(training, _):
    pid = training.ranks()[0]
    node = training.cluster.node_name(pid)
    hit(pid, signal.SIGKILL)
    return f"on {node}"


@kind("power", 3, nodes=1, seconds=8)
def power(training, random):
    node = random.choice(sorted(training.nodes()))
    training.cluster.lose_power(node)
    training.lost.add(node)
    return node


@kind("first", 2, nodes=1, seconds=8)
def first(training, random):
    """The power of the node that has rank 0."""
    node = training.cluster.node_name(training.ranks().get(0))
    training.cluster.lose_power(node)
    training.lost.add(node)
    return node


def reunite(training, node):
    """The ranks on the other side have ended by themselves before others took their places."""
    left = training.cluster.processes(PROBE, node)
    training.cluster.mend(node)
    if left:
        raise Wrong(f"while others have their ranks, on {node}, which was cut off, the processes {left} live")


@kind("partition", 2, nodes=1, seconds=8, after=reunite)
def partition(training, random):
    """A node is cut off, and comes back later."""
    node = random.choice(sorted(training.nodes()))
    training.cluster.cut(node)
    training.lost.add(node)
    return node


@kind("agent", 1, nodes=1)
def agent(training, random):
    """The parent of a rank, which starts it again."""
    rank, pid, node = some_rank(training, random)
    hit(parent_of(pid), signal.SIGKILL)
    training.lost.add(node)
    return f"rank {rank}'s on {node}"


@kind("stepd", 1, nodes=1, seconds=8)
def stepd(training, random):
    """Slurm's process of the step on a node."""
    _, pid, node = some_rank(training, random)
    hit(parent_of(parent_of(pid)), signal.SIGKILL)
    training.lost.add(node)
    return node


@kind("spare", 1, restarts=(0, 0), nodes=1)
def spare(training, random):
    """The power of a node that waits."""
    waiting = sorted(set(training.cluster.init) - training.nodes() - training.lost)
    if not waiting:
        return "there is none"
    node = random.choice(waiting)
    training.cluster.lose_power(node)
    training.lost.add(node)
    return node


@kind("slurmd", 2, restarts=(0, 0))
def slurmd(training, random):
    """slurmd ends, and comes again."""
    node = random.choice(sorted(set(training.cluster.init) - training.lost))
    for pid in training.cluster.processes("slurmd", node):
        hit(pid, random.choice((signal.SIGKILL, signal.SIGTERM)))
    wait_for(10, lambda: not training.cluster.processes("slurmd", node))
    time.sleep(random.uniform(0, 1))
    training.cluster.start_slurmd(node)
    return node


@kind("link", 2, restarts=(0, 0))
def link(training, random):
    """A link is away for less than a silence."""
    node = random.choice(sorted(training.nodes()))
    training.cluster.cut(node)
    time.sleep(random.uniform(0.5, 2))
    training.cluster.mend(node)
    return node


@kind("back", 1, restarts=(0, 0))
def back(training, random):
    """The power of a node that was lost comes back while the step goes on without it."""
    if not training.lost:
        return "none was lost"
    node = random.choice(sorted(training.lost))
    training.cluster.give_power(node)
    return node
