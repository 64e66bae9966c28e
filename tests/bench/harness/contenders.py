# SPDX-License-Identifier: Apache-2.0
"""How each contender is started, on this machine and on a throw-away cluster."""

import collections
import functools
import os
import signal
import subprocess
import sys
import time

from . import driver, mpi
from .group import ContenderFailed, ContenderHung, ContenderMissing, Group
from .measure import REFILL_SECONDS

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.dirname(os.path.dirname(HERE))
CLUSTER = os.path.join(TREE, "slurm", "cluster")
ON_NODE = ("ddp", "ddp-user", "ddp-own", "gloo", *mpi.names("node"), "plain", "memcpy")
ON_LINK = ("ddp", "ddp-user", "gloo", *mpi.names("link"), "wire")
# What rank_ddp reduces: memory of ddp_mem_alloc(), of the program, of ddp_mem_alloc_local().
DDP_MEMORY = {"ddp": "library", "ddp-user": "user", "ddp-own": "own"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Says whether a Python's torch lacks libuv, which its own default asks for since 2.4. Stores before 2.2 know no such word.
LACKS_LIBUV = """
import torch.distributed as dist
try:
    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
except (RuntimeError, TypeError) as error:
    print(isinstance(error, RuntimeError) and "libuv" in str(error))
"""


class Programs:
    """Where the contenders' programs are. `python` has torch."""

    def __init__(self, python):
        self.python, self.mpis = python, mpi.Installed(os.environ.get("BENCH_PEERS") or os.path.join(driver.PROGRAMS, "peers"))

    def path(self, name):
        path = os.path.join(driver.PROGRAMS, name)
        if not os.access(path, os.X_OK):
            raise ContenderMissing(f"{path} is not there; 'make bench-allreduce' builds and finds it")
        return path

    def gloo(self):
        return [self.python, os.path.join(HERE, "rank_gloo.py")]

    @functools.cached_property
    def torch_env(self):
        """What ranks and agents of torch need where they meet by a store of TCP: Debian 13's PyTorch lacks libuv."""
        try:
            done = subprocess.run([self.python, "-c", LACKS_LIBUV], capture_output=True, text=True, check=False)
        except OSError:  # a Python that is not there is told where it is to run
            return {}
        return {"USE_LIBUV": "0"} if done.stdout.strip() == "True" else {}

    def torch_train(self, numbers, folder):
        """Rank's command for rank_train.py, whose ranks meet in a file there."""
        return [self.python, os.path.join(HERE, "rank_train.py"), *numbers, os.path.join(folder, "rendezvous")]


def start_on_node(name, ranks, most_bytes, programs, folder):
    """A Group of `ranks` ranks of a contender on this machine."""
    if name in DDP_MEMORY:
        memory = DDP_MEMORY[name]
        return Group(name, [programs.path("rank_ddp"), memory, str(ranks)], ranks, folder)
    if name in ("plain", "memcpy"):
        argv = [programs.path("rank_plain"), name, str(ranks), str(most_bytes)]
        return Group(name, argv, ranks, folder)
    if name != "gloo":
        argv, env = programs.mpis.on_node(name, ranks)
        return Group(name, argv, ranks, folder, env)
    env = {**ONE_THREAD, "GLOO_SOCKET_IFNAME": "lo"}
    script = " ".join(
        ["for rank in $(seq 0 $((RANKS - 1))); do"]
        + ['"$@" "$RENDEZVOUS" "$rank" "$RANKS" &']
        + ["done; wait"]
    )
    env.update(RANKS=str(ranks), RENDEZVOUS=os.path.join(folder, "gloo.rendezvous"))
    return Group(name, ["/bin/sh", "-c", script, "gloo", *programs.gloo()], ranks, folder, env)


class Attempts:
    """A peer that fails or hangs is tried once more. If it fails again, it is left out of this cell and of all that follow.
    What others have, and what it has in earlier cells, stays. `told` has a sentence for each of these. A failure of a
    contender in `ours` is raised."""

    def __init__(self, ours):
        self.ours, self.told, self.out = ours, [], set()

    def at(self, name, measure, *arguments):
        """What measure(*arguments) returns; None: the contender is left out."""
        if name in self.out:
            return None
        failures = []
        while len(failures) < 2:
            try:
                result = measure(*arguments)
            except ContenderFailed as failure:
                if name in self.ours:
                    raise
                failures.append(str(failure))
                if isinstance(failure, ContenderMissing):
                    break
                print(f"{failure}; {'it is left out' if len(failures) == 2 else 'it is tried once more'}", file=sys.stderr)
            else:
                self.told += [f"{failure}; it was tried once more and went well" for failure in failures]
                return result
        self.out.add(name)
        again = "; it is left out here and in what follows" if len(failures) == 2 else ""
        self.told.append("; once more: ".join(failures) + again)
        return None

    def add(self, cell, name, measure, *arguments):
        """Adds what at() gives to the rounds of this contender in `cell`. One that is left out loses those that it has
        there: the median of some of the rounds would pass for that of all."""
        result = self.at(name, measure, *arguments)
        if result is None:
            cell.pop(name, None)
        else:
            cell.setdefault(name, []).append(result)

    def sentences(self):
        """What is told, each sentence once."""
        return [text if count == 1 else f"{text} ({count} times)" for text, count in collections.Counter(self.told).items()]


def kill_group(child):
    """Ends the children of a child that leads a session, too."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Cluster:
    """A throw-away SLURM of its own; rate limits its links, None does not.

    ddp_option is what srun needs for ranks to find each other: the plugin, or PMIx."""

    def __init__(self, nodes, rate, programs, cpus=256):
        self.nodes, self.programs, self.rate = nodes, programs, rate
        self.name = f"bench-{os.getpid()}"
        self.ddp_option = ["--ddp"] if driver.PLUGIN else ["--mpi=pmix"]
        given = ["--plugin", driver.PLUGIN] if driver.PLUGIN else ["--no-plugin"]
        # All contenders' ranks are there at once, each on a CPU that SLURM counts.
        given += ["--cpus", str(cpus)] if cpus else []
        if rate:
            given += ["--rate", rate]
        self._call("start", "--nodes", str(nodes), "--for", str(os.getpid()), *given)

    def _call(self, *words):
        argv = [CLUSTER, words[0], "--name", self.name, *words[1:]]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ContenderFailed(f"slurm/cluster {words[0]}: {done.stderr.strip()[-500:]}")

    def run(self, *command, user=None):
        return [CLUSTER, "run", "--name", self.name, *(("--user", user) if user else ()), "--", *command]

    def launch(self, name, argv, env, limit):
        """What a step prints that `argv` starts. At the limit the step is ended, so that its ranks do not compute beside
        those of the next contender."""
        with subprocess.Popen(self.run(*argv), env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
            # A signal may also come while the steps are ended.
            try:
                try:
                    out, errors = child.communicate(timeout=limit)
                except subprocess.TimeoutExpired:
                    raise ContenderHung(f"{name}: it did not end within {limit:.0f} s", self.end_steps(child)) from None
            except BaseException:
                kill_group(child)
                raise
        if child.returncode:
            raise ContenderFailed(f"{name}: it ended with code {child.returncode}: {errors.strip()[-400:]}")
        return out

    def end_steps(self, child):
        """Ends all jobs, and waits until their nodes are free. What the child has printed."""
        deadline = time.monotonic() + 30
        while True:
            for words in ((), ("--signal", "KILL")):
                subprocess.run(self.run("scancel", *words, "--user", str(os.geteuid())), check=False, capture_output=True)
            jobs = subprocess.run(self.run("squeue", "--noheader"), check=False, capture_output=True, text=True)
            if jobs.returncode == 0 and not jobs.stdout.strip() or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        kill_group(child)
        return child.communicate()[0]

    def mpi_startup(self, srun):
        """By the name of each MPI that is there, the command of a rank that tells when its first all-reduce was done, and
        its environment; and why others are left out."""
        found, left_out = {}, []
        for name in mpi.MPIS:
            try:
                words, env = self.programs.mpis.by_srun(name, "rank_startup_mpi")
                found[name] = ([*srun, *words], env)
            except ContenderFailed as failure:
                left_out.append(str(failure))
        return found, left_out

    def start(self, name, ranks_per_node, folder):
        """A Group of a contender, the same number of ranks on each node."""
        ranks, env = self.nodes * ranks_per_node, {}
        srun = ["srun", "--quiet", "-N", str(self.nodes), "-n", str(ranks), "-c", "1",
                "--ntasks-per-node", str(ranks_per_node), "--export=ALL"]
        if name in DDP_MEMORY:
            memory = DDP_MEMORY[name]
            command = [*srun, *self.ddp_option, self.programs.path("rank_ddp"), memory]
        elif name == "wire":
            ranks = self.nodes
            command = ["srun", "--quiet", "-N", str(ranks), "-n", str(ranks), "-c", "1", "--export=ALL",
                       self.programs.path("rank_wire"), os.path.join(folder, "wire.rendezvous")]
        elif name == "gloo":
            command = [*srun, *self.programs.gloo(), os.path.join(folder, "gloo.rendezvous")]
        else:
            words, env = self.programs.mpis.by_srun(name, "rank_mpi")
            command = [*srun, *words]
        rest = {"BENCH_REST_US": str(round(REFILL_SECONDS * 1e6)) if self.rate else ""}
        # A node has cores of its own: ranks of two nodes never meet on one.
        pin = {"BENCH_PIN": "1" if ranks <= len(os.sched_getaffinity(0)) else ""}
        return Group(name, self.run(*command), ranks, folder, {**ONE_THREAD, **env, **rest, **pin})

    def stop(self):
        self._call("stop")
