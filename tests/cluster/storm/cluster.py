# SPDX-License-Identifier: Apache-2.0
"""The throw-away cluster as its head's root sees it: nodes, processes, what is left."""

import os
import signal
import subprocess
import time

# Programs of a step: after a round, none may be left.
PROGRAMS = ("storm_probe", "slurmstepd", "ddp-witness", "ddp-keeper", "srun", "sbatch")
IDLE_STEP = 0.3  # seconds of a plain step on all nodes of an idle machine
POLL = 0.002
MOST_POLL = 0.2
SHARDS = ("auto", "none", "state", "gradients")  # by the numbers of ddp_shard
SPREAD = ("state", "gradients")  # over several nodes, each rank keeps the only copy of its shard, but for its buddy


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.init = {}  # a node's name: its process 1, in the head's numbers
        for name in sorted(os.listdir(folder)):
            if name.startswith("n") and name.endswith(".pid"):
                with open(os.path.join(folder, name), encoding="ascii") as file:
                    self.init[name[:-4]] = int(file.read().split()[0])
        self.node_of = {uts_of(pid): name for name, pid in self.init.items()}
        self.slowness = 1.0

    def measure(self):
        """Limits of time grow with how long a plain step takes just now."""
        began = time.monotonic()
        subprocess.run(["srun", f"-N{len(self.init)}", "true"], check=True, capture_output=True)
        self.slowness = max(1.0, (time.monotonic() - began) / IDLE_STEP)

    def processes(self, name, node=None):
        """The processes of this name, on one node or on all."""
        return [pid for pid in all_pids() if comm_of(pid) == name and
                (node is None or self.node_of.get(uts_of(pid)) == node)]

    def ranks(self):
        """Each rank's process, as far as they have started."""
        return {int(rank): pid for pid in self.processes("storm_probe")
                if (rank := variable_of(pid, "RANK")) is not None and rank.isdigit()}

    def node_name(self, pid):
        return self.node_of.get(uts_of(pid)) if pid else None

    def on_node(self, node, *command):
        subprocess.run(["nsenter", "--target", str(self.init[node]), "--mount", "--net", "--uts",
                        "--ipc", "--pid", *command], check=True, capture_output=True)

    def lose(self, node, peer):
        """The node sends what is for its peer to an address that nobody has."""
        self.on_node(node, "ip", "neigh", "replace", address(peer), "lladdr", "02:00:00:00:00:01",
                     "nud", "permanent", "dev", "eth0")

    def find(self, node, peer):
        self.on_node(node, "ip", "neigh", "del", address(peer), "dev", "eth0")

    def cut(self, node):
        """Takes the node's link away."""
        subprocess.run(["ip", "link", "set", node, "down"], check=True)

    def mend(self, node):
        subprocess.run(["ip", "link", "set", node, "up"], check=True)

    def lose_power(self, node):
        """The node's link goes down, and then all of its programs end, so that nobody hears a good-bye. What makes it a
        node stays."""
        self.cut(node)
        while pids := [pid for pid in all_pids() if self.node_of.get(uts_of(pid)) == node and self.has_power(node, pid)]:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def has_power(self, node, pid):
        """Whether a power loss ends this process."""
        name = comm_of(pid)
        mine = name in (None, "cluster.inside", "munged") or pid in (self.init[node], parent_of(self.init[node]))
        return not mine and not (name == "sleep" and parent_of(pid) == self.init[node])

    def give_power(self, node):
        """It takes a moment until the node reaches its controller."""
        self.mend(node)
        wait_for(30, lambda: self.has_slurmd(node))

    def has_slurmd(self, node):
        try:
            self.start_slurmd(node)
        except subprocess.CalledProcessError:
            time.sleep(0.2)
            return False
        return True

    def start_slurmd(self, node):
        if not self.processes("slurmd", node):
            self.on_node(node, "slurmd")

    def left(self):
        """What a step has left behind."""
        found = [f"process {pid} ({name})" for name in PROGRAMS for pid in self.processes(name)]
        for node, pid in self.init.items():
            found += [f"/dev/shm/{name} on {node}"
                      for name in os.listdir(f"/proc/{pid}/root/dev/shm")]
            with open(f"/proc/{pid}/net/unix", encoding="ascii", errors="replace") as file:
                found += [f"socket {name} on {node}" for line in file
                          if (name := line.split()[-1]).startswith("@ddp")]
        return found

    def busy(self):
        """Nodes that are not idle, and jobs that have not ended."""
        nodes = say("sinfo", "-hN", "-o", "%n %T").splitlines()
        jobs = say("squeue", "-h", "-o", "job %i %T").splitlines()
        return [line for line in nodes if not line.endswith(" idle")] + jobs


def sharding(shard):
    """The variables with which storm_probe spreads this over its ranks, with buddy copies."""
    return {"STORM_SHARD": str(SHARDS.index(shard)), "DDP_BUDDY": str(int(shard in SPREAD))}


def both_lost(rank, buddy):
    """libddp says this where a shard and its copy are lost. On two nodes each is the other's buddy."""
    pair = rf"(rank {rank} and rank {buddy}|rank {buddy} and rank {rank})"
    return rf"cannot go on .*{pair}, which kept a copy of its shard .*; go back to the last checkpoint"


def address(node):
    with open("/etc/hosts", encoding="ascii") as file:
        return next(line.split()[0] for line in file if line.split()[1:] == [node])


def say(*command):
    """What the command prints."""
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def wait_for(seconds, condition):
    """Waits until the condition is true, and gives what it gave last. A look at all processes takes milliseconds, which
    the training needs, so that looking takes a fifth of the time at most, but for the first looks, whose rests are
    short, and for looks that take more than a quarter of MOST_POLL. A look that was slow because others had the core
    tells nothing of what a look takes: the quicker one of the last two does."""
    began = time.monotonic()
    deadline = began + seconds
    before, longest_rest = MOST_POLL, POLL
    while not (found := condition()) and (now := time.monotonic()) < deadline:
        took = now - began
        time.sleep(min(max(POLL, 4 * min(before, took)), longest_rest))
        before = took
        longest_rest = min(2 * longest_rest, MOST_POLL)
        began = time.monotonic()
    return found


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def comm_of(pid):
    """Its name; None if it has ended, reaped or not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
        return None if rest.split()[0] == "Z" else head.partition("(")[2]
    except OSError:
        return None


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def uts_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")
    except OSError:
        return None


def variable_of(pid, name):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    return next((v[len(prefix):].decode() for v in variables if v.startswith(prefix)), None)
