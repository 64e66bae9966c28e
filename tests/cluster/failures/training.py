# SPDX-License-Identifier: Apache-2.0
"""One training under `srun --ddp=restart=N,spare=K`, as the cluster's head sees it."""

import hashlib
import os
import re
import shutil
import signal
import struct
import subprocess
import time

from cluster import POLL, SPREAD, say, sharding, variable_of, wait_for

STARTED, TRAINING = 1, 2  # places of storm_probe.c
PROBE = "storm_probe"
STEP_US, EVERY = 20000, 25
STEPS_WITHOUT = 10  # so many show that no restart follows
USERS = (0, 65534)  # root, and nobody, who is an ordinary user, by turns
RESTART = re.compile(r"\bddp: .*\brestart (\d+) of \d+")


class Wrong(Exception):
    """What is not as it should be."""


class Layout:
    """How many nodes have ranks, how many wait, and how many ranks a node has."""

    def __init__(self, active, spares, per_node):
        self.active, self.spares, self.per_node = active, spares, per_node
        self.nodes, self.world = active + spares, active * per_node


class Training:
    def __init__(self, cluster, place, name, layout, steps, step_us=STEP_US, keys=(), survives=False, shard="auto"):
        self.cluster, self.place, self.layout, self.steps, self.step_us = cluster, place, layout, steps, step_us
        self.keys, self.user, self.survives, self.shard = keys, 0, survives, shard
        self.folder = os.path.join(place, name)
        self.checkpoints = os.path.join(self.folder, "checkpoints")
        self.state = os.path.join(self.folder, "state")
        self.losses = os.path.join(self.folder, "losses")
        self.output = os.path.join(self.folder, "output")
        self.srun = None
        self.lost = set()  # nodes that are out of the step
        self.seen = 0  # characters of its output before the last failure

    # ---- its life -----------------------------------------------------------------

    def start(self, spares=None):
        os.makedirs(self.checkpoints)
        with open(self.state, "wb") as file:
            file.write(bytes(8 * self.layout.world))
        with open(self.losses, "wb") as file:
            file.write(bytes(8 * (self.steps + 1)))
        for path in (self.folder, self.checkpoints, self.state, self.losses):
            os.chown(path, self.user, self.user)
        spares = self.layout.spares if spares is None else spares
        command = ["srun", "--ddp=" + ",".join(self.keys), f"-N{self.layout.active + spares}",
                   f"--ntasks-per-node={self.layout.per_node}", os.path.join(self.place, PROBE), self.checkpoints, self.state]
        environment = {**os.environ, "STORM_STEPS": str(self.steps), "STORM_EVERY": str(EVERY),
                       "STORM_STEP_US": str(self.step_us), "STORM_SURVIVE": str(int(self.survives)),
                       "STORM_LOSSES": self.losses, **sharding(self.shard)}
        with open(self.output, "w", encoding="utf-8") as file:
            print("$", *command, file=file, flush=True)
            self.srun = subprocess.Popen(self.become() + command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=self.folder,
                                         env=environment)
        return self

    def become(self):
        if self.user == 0:
            return []
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]

    def runs(self):
        return self.srun.poll() is None

    def end(self, seconds):
        """Waits until srun has ended, which must be well."""
        try:
            code = self.srun.wait(seconds * self.cluster.slowness)
        except subprocess.TimeoutExpired:
            raise Wrong(f"it has not ended after {seconds * self.cluster.slowness:.0f} s: {self.states()}") from None
        if code != 0:
            raise Wrong(f"srun's code is {code}")

    def give_up(self):
        say("scancel", "-s", "KILL", "--state=RUNNING")
        for pid in self.cluster.processes(PROBE):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.srun is not None and self.runs():
            try:
                self.srun.wait(10)
            except subprocess.TimeoutExpired:
                self.srun.kill()
                self.srun.wait()

    # ---- what it shows --------------------------------------------------------------

    def text(self):
        with open(self.output, encoding="utf-8", errors="replace") as file:
            return file.read()

    def lines(self, since=0):
        """The plugin's lines."""
        return [line for line in self.text()[since:].splitlines() if re.search(r"\bddp: ", line)]

    def restarts(self):
        return sum(RESTART.search(line) is not None for line in self.lines())

    def from_checkpoint(self, since=0):
        """What the plugin says of restarts in which all ranks start again."""
        return [line for line in self.lines(since) if RESTART.search(line) and "keep their processes" not in line]

    def joins(self):
        """Restarts in which ranks keep their processes, so that others may join them."""
        return sum("keep their processes" in line for line in self.lines())

    def went_on(self):
        """How often all ranks went on in memory, as libddp says. After some joins they start again nevertheless."""
        return len(re.findall(r"all \d+ ranks go on with step \d+", self.text()))

    def loses_shards(self):
        """With a rank and its buddy, whose copies are on another node."""
        return self.survives and self.shard in SPREAD and self.layout.active > 1

    def states(self):
        with open(self.state, "rb") as file:
            return list(struct.iter_unpack("<ii", file.read()))

    def step(self):
        """The step that all ranks have begun; 0: not all are training."""
        states = self.states()
        return min(step for _, step in states) if min(place for place, _ in states) >= TRAINING else 0

    def highest(self):
        return max(step for _, step in self.states())

    def is_over(self):
        return self.highest() >= self.steps

    def ranks(self):
        """Each rank's process."""
        return {int(rank): pid for pid in self.cluster.processes(PROBE) if (rank := variable_of(pid, "RANK"))}

    def nodes(self):
        """The nodes that have ranks."""
        return {self.cluster.node_name(pid) for pid in self.ranks().values()} - {None}

    def wait(self, seconds, condition, what):
        """Until the condition is true; None if the training has ended before."""
        found = wait_for(seconds * self.cluster.slowness, lambda: not self.runs() or condition())
        if not found:
            raise Wrong(f"{what} did not come within {seconds * self.cluster.slowness:.0f} s: {self.states()}")
        if not self.runs() and self.srun.returncode != 0:
            raise Wrong(f"srun has ended with code {self.srun.returncode} before {what}")
        return found

    def result(self):
        """The digest of the last checkpoint, and each step's loss."""
        with open(self.losses, "rb") as file:
            return self.digest(), [loss for loss, in struct.iter_unpack("<d", file.read())][1:]

    def digest(self):
        path = os.path.join(self.checkpoints, f"step-{self.steps:08d}.safetensors")
        try:
            with open(path, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except FileNotFoundError:
            return "no file"

    # ---- afterwards -------------------------------------------------------------------

    def left_files(self):
        """Unfinished files, which the next start should have removed."""
        return [name for name in os.listdir(self.checkpoints) if name.endswith(".tmp")]

    def keep(self, folder):
        target = os.path.join(folder, os.path.basename(self.folder))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
        shutil.copytree(os.path.join(self.cluster.folder, "log"), os.path.join(target, "log"))


class Watch:
    """Looks at the steps of all ranks from the moment of a failure."""

    def __init__(self, training, maybe_done=False):
        self.training, self.maybe_done = training, maybe_done
        self.began = time.monotonic()
        self.high = training.highest()
        self.restarts = training.restarts()
        self.seen = set()  # ranks whose program has started again
        self.first = None  # the step with which all ranks began again

    def has_new_step(self):
        """Whether the ranks have started again, and have done a step since."""
        if self.training.survives:
            return self.has_gone_on()
        for rank, (place, _) in enumerate(self.training.states()):
            if place == STARTED:
                self.seen.add(rank)
        if len(self.seen) < self.training.layout.world:
            return False
        step = self.training.step()
        if self.first is None and step > 0:
            self.first = step
        return self.first is not None and step > self.first

    def has_gone_on(self):
        """The same, where most ranks keep their processes. If a failure may be a part of one that came before
        (`maybe_done`), no further restart may follow."""
        if self.restarts is not None and self.training.restarts() > self.restarts:
            self.restarts, self.high = None, self.training.highest()
        if self.restarts is not None and not self.maybe_done:
            return False
        return self.training.step() > self.high + (0 if self.restarts is None else STEPS_WITHOUT)

    def seconds(self):
        return time.monotonic() - self.began


def full_neighbour_tables():
    """How often the kernel says that it had no room for another neighbour: all networks of the machine share its table,
    and where there is no room, ranks reach nobody for seconds."""
    return say("dmesg").count("neighbor table overflow")


def pause(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(POLL * 5, max(0, deadline - time.monotonic())))
