# SPDX-License-Identifier: Apache-2.0
"""The kinds of faults: when they come, what does the harm, and what has to follow.

A kind is a function of a round. It may change what the round starts, and gives the harm, a function
that is called at the round's moment, and what is expected.
"""

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field

from cluster import SPREAD, both_lost, comm_of, say, sharding, wait_for

NONE, STARTED, TRAINING, SAVING, FINALIZED, EXITS = range(6)  # of storm_probe.c
STEPS, CODES = 60, 256
EXIT_LIBRARY, EXIT_STOPPED = 3, 75
GRACE = 5  # KillWait of the cluster

EVERY_MOMENT = ("init", "training", "checkpoint", "end", "finalized")
WHILE_TRAINING = ("training", "checkpoint", "end")
BEFORE_FINALIZE = ("init", "training", "checkpoint", "end")
SEVERAL_NODES = ((2, 1), (4, 1), (2, 2), (4, 2))


@dataclass
class Expected:
    codes: set  # srun's exit code is one of these; empty: any
    line: str = ""  # the plugin's one line matches it; NODE: the rank's node; empty: there is none
    seconds: float = 8  # from the harm to the end of srun, of an idle machine
    line_seconds: float = 3  # to the line
    also: str = ""  # lines behind the first one that may be there
    words: str = ""  # anything that the output has to have
    alike: bool = False  # checkpoints have other last bits, as fewer ranks have made them


@dataclass
class Kind:
    name: str
    moments: tuple
    plan: object
    weight: int = 1
    batch: bool = False
    layouts: tuple = ()  # empty: all


KINDS = {}


def kind(name, moments, **more):
    def add(plan):
        KINDS[name] = Kind(name, moments, plan, **more)
        return plan

    return add


def fine():
    return Expected({0})


def killed(r, number, **more):
    """The line about the hurt rank, killed by a signal."""
    name = signal.Signals(number).name
    line = rf"ddp: {r.named()} was killed by signal {number} \({name}\)"
    return Expected({128 + number}, line, **more)


# ---- nothing, or nothing that matters -----------------------------------------------


@kind("calm", ("training",))
def calm(r):
    return (lambda: None), fine()


@kind("stop-continue", WHILE_TRAINING)
def stop_continue(r):
    """A rank is stopped for less than what anybody waits for."""

    def harm():
        r.signal(signal.SIGSTOP)
        time.sleep(r.random.uniform(0.1, 0.8))
        r.signal(signal.SIGCONT)

    return harm, fine()


# ---- one rank ends -------------------------------------------------------------------


@kind("kill", EVERY_MOMENT, weight=4)
def kill(r):
    number = r.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT,
                              signal.SIGBUS))
    r.note = number.name
    return (lambda: r.signal(number)), killed(r, number)


@kind("terminate", EVERY_MOMENT, weight=2)
def terminate(r):
    """By kill PID, of which Slurm knows nothing. Ranks that do not miss it go on for grace=."""
    number = r.random.choice((signal.SIGTERM, signal.SIGINT))
    r.note = number.name
    return (lambda: r.signal(number)), killed(r, number, seconds=8 + GRACE, line_seconds=3 + GRACE)


@kind("terminate-handled", ("training", "checkpoint"))
def terminate_handled(r):
    """The program ends in order on one rank's signal, on all ranks, with a code of its own."""
    r.action = ("stop", -1, 0)
    line = rf"ddp: rank \d+ of {r.world} on n\d exited with code {EXIT_STOPPED}"
    return (lambda: r.signal(signal.SIGTERM)), Expected({EXIT_STOPPED}, line)


@kind("exit-code", ("training", "end"), weight=2)
def exit_code(r):
    code = r.random.randint(1, 100)
    r.note = f"code {code}"
    step = r.random.randint(1, STEPS) if r.moment == "training" else STEPS
    r.action = ("exit", r.rank, step * CODES + code)
    return r.leaves, Expected({code}, rf"ddp: {r.named()} exited with code {code} after")


@kind("leave", ("training", "end"), weight=2)
def leave(r):
    """It exits with 0 before the end."""
    step = r.random.randint(1, STEPS) if r.moment == "training" else STEPS
    r.action = ("exit", r.rank, step * CODES)
    line = rf"ddp: {r.named()} (had ended with code 0|was lost; )"
    return r.leaves, Expected({EXIT_LIBRARY}, line)


@kind("never", ("init",))
def never(r):
    """It exits before ddp_init()."""
    code = r.random.choice((0, 0, 9))
    r.note = f"code {code}"
    r.action = ("never", r.rank, code)
    end = "had ended with code 0" if code == 0 else f"exited with code {code}"
    line = rf"ddp: {r.named()} {end}"
    return r.leaves, Expected({code or 1}, line, line_seconds=6, seconds=12)


@kind("flip", ("training",), layouts=((4, 1),))
def flip(r):
    """A bit of a parameter flips, and all ranks hear of it at the next checkpoint, or comparison."""
    r.action = ("flip", r.rank, r.random.randint(1, STEPS - 1))
    line = rf"ddp: {r.named()} exited with code {EXIT_LIBRARY} .*: rank {r.rank} on NODE has other parameters than 3 of 4 ranks"
    return r.any_leaves, Expected({EXIT_LIBRARY}, line)


# ---- the others keep their processes --------------------------------------------------------


def survives(r, shards=("auto", *SPREAD)):
    """Of one that is killed. All ways to spread the model give the same bits."""
    shard = r.random.choice(shards)
    r.keys += ["restart=3"]
    r.note = f"{r.note} {shard}".lstrip()
    r.variables |= {"STORM_SURVIVE": "1", **sharding(shard)}
    line = rf"ddp: {r.named()} was killed by signal 9 \(SIGKILL\).*; restart 1 of 3: the other ranks keep their processes"
    return Expected({0}, line, seconds=15)


def maybe_survives(r):
    """A step that SLURM ends is not taken for one that has lost a rank."""
    if r.random.random() < 0.5:
        survives(r)
        r.note = f"{r.note} survivors".lstrip()


STARTS_AGAIN = r".*ddp: .*; restart [23] of 3: (the other ranks keep their processes|all ranks start again)"


def process_of(r, rank):
    """A handle: the number may be another process's by the time at which the rank is to die."""
    return os.pidfd_open(r.pids[rank])


def kill_early(r, rank, *processes):
    """Not in the last steps: there is no restart if another rank has ended well. Several are killed at once, as nobody
    recovers from the first one's death without a rank that is stopped."""
    early = r.runs() and r.states()[rank][1] < STEPS - 3
    for number in (*([signal.SIGSTOP] if len(processes) > 1 else []), signal.SIGKILL):
        for process in processes if early else ():
            signal.pidfd_send_signal(process, number)
    for process in processes:
        os.close(process)


@kind("survive", ("training", "checkpoint"))
def survive(r):
    """The others go on as fewer."""
    expected = survives(r)
    r.keys.remove("restart=3")
    expected.line = rf"ddp: {r.named()} was killed by signal 9 \(SIGKILL\).*; the other ranks go on"
    expected.words, expected.alike = rf"{r.world - 1} of {r.world} ranks go on with step", True
    return (lambda: kill_early(r, r.rank, process_of(r, r.rank))), expected


@kind("join", ("training", "checkpoint"), weight=2)
def join(r):
    """Another process becomes the rank, and joins the others."""
    return (lambda: kill_early(r, r.rank, process_of(r, r.rank))), survives(r)


@kind("join-node", ("training", "checkpoint"), layouts=SEVERAL_NODES)
def join_node(r):
    """All ranks of a node, which come again."""
    expected = survives(r)
    expected.line = rf"ddp: (rank [0-9]+ of {r.world} on NODE was|all {r.per_node} tasks on NODE were) killed by signal 9 " \
                    r"\(SIGKILL\).*; restart 1 of 3: the other ranks keep their processes"

    def harm():
        first = r.rank - r.rank % r.per_node
        kill_early(r, r.rank, *(process_of(r, rank) for rank in range(first, first + r.per_node)))

    return harm, expected


@kind("join-again", ("training", "checkpoint"))
def join_again(r):
    """Another rank dies meanwhile, or soon after that."""
    expected, seconds = survives(r), r.random.uniform(0, 0.8)
    expected.line = r"ddp: .* killed by signal 9 \(SIGKILL\).*; restart 1 of 3"
    expected.also = STARTS_AGAIN
    second = r.random.choice([rank for rank in range(r.world) if rank != r.rank])
    r.note += f" and rank {second} {seconds:.1f} s later"

    def harm():
        other = process_of(r, second)
        kill_early(r, r.rank, process_of(r, r.rank))
        time.sleep(seconds)
        kill_early(r, second, other)

    return harm, expected


@kind("join-buddies", ("training", "checkpoint"), layouts=SEVERAL_NODES[1:])
def join_buddies(r):
    """A rank and the one that keeps a copy of its shard, on the next node: all ranks go back to the last checkpoint."""
    expected, buddy = survives(r, SPREAD), (r.rank + r.per_node) % r.world
    expected.line = rf"ddp: rank ({r.rank}|{buddy}) of .* killed by signal 9 \(SIGKILL\).*; restart 1 of 3"
    expected.also, expected.words = STARTS_AGAIN, both_lost(r.rank, buddy)
    return (lambda: kill_early(r, r.rank, process_of(r, r.rank), process_of(r, buddy))), expected


# ---- one rank does not come ------------------------------------------------------------


@kind("stall-kill", EVERY_MOMENT, weight=2)
def stall_kill(r):
    """stall= sees a stopped rank, and stall-action=kill ends the step."""
    seconds = r.stretched_seconds(1)
    r.keys += [f"stall={seconds}", "stall-action=kill"]
    line = rf"ddp: the step stalls: .*; {r.named()} is stopped by a signal or a debugger"
    return (lambda: r.signal(signal.SIGSTOP)), Expected({137}, line, seconds=8 + 3 * seconds,
                                                       line_seconds=4 + 3 * seconds)


@kind("stop-timeout", BEFORE_FINALIZE, weight=2)
def stop_timeout(r):
    """The others give up after libddp's timeout; the stopped rank leads the line."""
    r.timeout = r.stretched_seconds(2)
    line = rf"ddp: {r.named()} "
    return (lambda: r.signal(signal.SIGSTOP)), Expected({EXIT_LIBRARY}, line,
                                                       seconds=8 + 3 * r.timeout,
                                                       line_seconds=4 + 2 * r.timeout)


# ---- Slurm ends the step -----------------------------------------------------------------


@kind("scancel", EVERY_MOMENT)
def scancel(r):
    """The job or the step."""
    what = r.random.choice(("job", "step"))
    r.note = what
    maybe_survives(r)

    def harm():
        r.as_user("scancel", r.job if what == "job" else f"{r.job}.0")

    return harm, Expected({137, 143}, seconds=14)


@kind("scancel-term", EVERY_MOMENT)
def scancel_term(r):
    """scancel -s TERM of a program that does not handle it."""
    maybe_survives(r)
    return r.scancel_term, Expected({143}, seconds=14)


@kind("scancel-handled", ("training", "checkpoint"))
def scancel_handled(r):
    """The same of one that saves and ends."""
    r.action = ("stop", -1, 0)
    return r.scancel_term, Expected({EXIT_STOPPED}, seconds=14)


@kind("requeue", EVERY_MOMENT, batch=True)
def requeue(r):
    return (lambda: say("scontrol", "requeue", r.job)), Expected(set(), seconds=14)


@kind("preempt", EVERY_MOMENT, batch=True)
def preempt(r):
    """A job of a partition with a higher priority wants the nodes."""
    r.srun_options += ["--exclusive"]
    r.partition = "low"

    def harm():
        r.other = subprocess.Popen(["srun", "-p", "high", f"-N{len(r.cluster.init)}", "--exclusive",
                                    "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return harm, Expected(set(), seconds=25)


@kind("time-limit", ("training",))
def time_limit(r):
    """The controller looks at limits twice a minute only."""
    r.action = ("linger", r.rank, 100000)

    def harm():
        say("scontrol", "update", f"JobId={r.job}", "EndTime=now")

    return harm, Expected({143}, seconds=60)


# ---- Slurm's own programs die --------------------------------------------------------------


@kind("slurmstepd", ("training", "checkpoint"))
def slurmstepd(r):
    def harm():
        with open(f"/proc/{r.pid()}/stat", encoding="utf-8") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        if comm_of(parent) != "slurmstepd":
            raise ProcessLookupError("the rank has ended")
        os.kill(parent, signal.SIGKILL)

    line = rf"ddp: slurmstepd on NODE has died, with {r.per_node} of the step's {r.world} tasks"
    return harm, Expected({137}, line, seconds=14)


def end_slurmd(r):
    for pid in r.cluster.processes("slurmd", r.node()):
        os.kill(pid, signal.SIGKILL)


@kind("slurmd", ("training", "checkpoint"))
def slurmd(r):
    """A step does not need it."""
    return (lambda: end_slurmd(r)), fine()


@kind("slurmd-kill", ("training", "checkpoint"))
def slurmd_kill(r):
    def harm():
        end_slurmd(r)
        r.signal(signal.SIGKILL)

    return harm, killed(r, signal.SIGKILL, seconds=14)


@kind("witness-kill", ("training",), weight=2)
def witness_kill(r):
    """A rank fails on a node whose witness is gone."""
    number = r.random.choice((signal.SIGKILL, signal.SIGSEGV))
    r.note = number.name

    def harm():
        for pid in r.cluster.processes("ddp-witness", r.node()):
            os.kill(pid, signal.SIGKILL)
        time.sleep(r.random.uniform(0, 0.1))
        r.signal(number)

    return harm, killed(r, number)


# ---- links and disks --------------------------------------------------------------------------


@kind("cut", ("training", "checkpoint"), weight=2, layouts=SEVERAL_NODES)
def cut(r):
    """A node is away for longer than libddp waits, and comes back for Slurm to end the step."""
    r.timeout = r.stretched_seconds(2)

    def harm():
        subprocess.run(["ip", "link", "set", r.node(), "down"], check=True)
        wait_for(4 * r.timeout, lambda: r.lines() or not r.runs())
        subprocess.run(["ip", "link", "set", r.node(), "up"], check=True)

    # Code 1 is that of a node's silence.
    return harm, Expected({EXIT_LIBRARY, 1}, rf"ddp: (rank \d+ of {r.world} on NODE|node NODE) ",
                          seconds=14 + 6 * r.timeout, line_seconds=4 + 3 * r.timeout,
                          also=r"(slurmstepd-NODE: |\[).*error: ddp: ")


@kind("cut-pair", ("training", "checkpoint"), layouts=SEVERAL_NODES)
def cut_pair(r):
    """Two nodes lose each other, while srun hears both."""
    r.timeout = r.stretched_seconds(2)

    def harm():
        others = {r.cluster.node_name(pid) for pid in r.pids.values()} - {r.node(), None}
        if not others:
            raise ProcessLookupError("the other node's ranks have ended")
        other = r.random.choice(sorted(others))
        pair = ((r.node(), other), (other, r.node()))
        r.where = f"({r.node()}|{other})"
        for node, peer in pair:
            r.cluster.lose(node, peer)
        wait_for(4 * r.timeout, lambda: r.lines() or not r.runs())
        for node, peer in pair:
            r.cluster.find(node, peer)

    return harm, Expected({EXIT_LIBRARY}, rf"ddp: rank \d+ of {r.world} on NODE ",
                          seconds=14 + 6 * r.timeout, line_seconds=4 + 3 * r.timeout)


@kind("cut-brief", ("training", "checkpoint"), layouts=SEVERAL_NODES)
def cut_brief(r):
    """A node is away for less than anybody waits."""

    def harm():
        subprocess.run(["ip", "link", "set", r.node(), "down"], check=True)
        time.sleep(r.random.uniform(0.1, 1.0))
        subprocess.run(["ip", "link", "set", r.node(), "up"], check=True)

    return harm, Expected({0}, seconds=14)


@kind("full-disk", ("training",), weight=2)
def full_disk(r):
    r.fill_disk()
    line = rf"ddp: rank \d+ of {r.world} on n\d exited with code {EXIT_LIBRARY} .*No space left"
    return r.any_leaves, Expected({EXIT_LIBRARY}, line)
