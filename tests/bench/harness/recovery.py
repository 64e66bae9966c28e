# SPDX-License-Identifier: Apache-2.0
"""The part of `recovery` that runs on the cluster's head: it starts trainings, hurts them, and reads when their steps
were done. `python3 -m harness.recovery SETTINGS` writes what it found as JSON."""

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(HERE, "../../cluster/storm"))

from cluster import Cluster, address, comm_of, parent_of, say, variable_of, wait_for  # noqa: E402

SPARES, TASKS, SILENCE = 1, 2, 5
LIMIT, SECONDS = 60, 20  # after which nobody recovers any more; of a measurement without failures
FAILURES = ("kill", "power")
# Of gpt's 8 ranks on two nodes, those that are left go on in their processes, as fewer or with others that join them; or
# all start again. PyTorch has 4 ranks, as Pythons take long to start. Another program is "model" (rank_survive.c),
# whose steps are quick with many ranks, too.
WAYS = ("survive gpt", "join gpt", "srun gpt", "srun pytorch", "torchrun pytorch")
PROGRAMS = {"gpt": "gpt", "model": "rank_survive"}
MODEL_BYTES = 64
SURVIVE = f"--ddp=silence={SILENCE}"
RESTART = f"--ddp=restart=9,spare={SPARES},silence={SILENCE}"
# srun's options, by turns, whose launchers' processor time is measured without failures.
COST = ("--ddp=silence=0", "--ddp", "--ddp=restart=9")
# Without failures, steps of these trainings are compared with those of `--ddp`: srun's option, variables and options of
# the program, by the name that is shown. A comparison costs the same however often it is done, so that one in each step
# tells what one in a hundred steps costs. "before": an older build, if one is given.
STEPS_OF = {
    "restart=9": ("--ddp=restart=9", {}, []),
    "compare_every=1": ("--ddp", {"DDP_COMPARE_EVERY": "1"}, []),
    "--survive": ("--ddp", {}, ["--survive"]),
    "before": ("--ddp", {}, []),
}
SLICE = 0.25   # seconds for which a training runs while the other one is stopped
FIRST = 5      # steps that count no more in a slice: caches and clocks come back
LAUNCHER = ("slurmstepd", "ddp-witness", "ddp-keeper", "ddp-agent")
STEPS, EVERY = 1000000, 10
# Agents of torch after 2.3 keep one store for all generations of ranks. Ranks that are started again find in it the
# addresses of ranks that have ended, and never connect (PyTorch's issue 135712). This gives each generation its own store.
TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Run:
    """A training under way."""

    def __init__(self, settings, cluster, way, name="recovery"):
        self.settings, self.cluster = settings, cluster
        self.launcher, self.program = way.split()
        self.survives = self.launcher in ("survive", "join")
        self.tasks = TASKS if self.program == "pytorch" else settings["tasks"]
        self.nodes = settings["nodes"]
        self.count = self.nodes * self.tasks
        self.gpt = settings["gpt"]
        self.folder = os.path.join(settings["cluster"], "work", name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.mkdir(self.folder)
        self.process, self.log = None, os.path.join(self.folder, "log")

    def command(self):
        if self.program == "gpt":
            text = os.path.join(self.folder, "text")
            shutil.copy(os.path.join(HERE, "../README.md"), text)
            return [self.gpt, "--data", text, "--layers", "1", "--width", "64", "--heads", "2", "--length", "32",
                    "--batch", "2", "--threads", "1", "--steps", str(STEPS), "--checkpoint", os.path.join(self.folder, "gpt"),
                    "--checkpoint-every", str(EVERY * 5), "--resume", "--metrics", os.path.join(self.folder, "metrics"),
                    *(["--survive"] if self.survives else [])]
        if self.program == "model":
            return [os.path.join(self.settings["programs"], "rank_survive"), os.path.join(self.folder, "metrics"),
                    str(STEPS),
                    str(MODEL_BYTES)]
        return [self.settings["python"], os.path.join(HERE, "../rank_recovery.py"), self.folder, str(STEPS), str(EVERY)]

    def start(self, ddp=RESTART, spares=SPARES, variables=(), arguments=(), command=None):
        srun = ["srun", "--quiet", "-c1", f"-N{self.nodes + spares}"]
        if self.launcher == "survive":
            argv = ["srun", "--quiet", "-c1", f"-N{self.nodes}", f"--ntasks-per-node={self.tasks}", SURVIVE,
                    "--no-kill",
                    *self.command()]
        elif self.launcher in ("join", "srun"):
            argv = [*srun, f"--ntasks-per-node={self.tasks}", ddp, "--mpi=none", "--no-kill",
                    *(command or self.command()),
                    *arguments]
        else:
            # Redirects of a ninth rank, of nobody: torch 1.13 on Python 3.11 cannot read the default, "0".
            argv = [*srun, "--ntasks-per-node=1", "--no-kill", self.settings["python"], "-m", "torch.distributed.run",
                    "--nnodes", f"{self.nodes}:{self.nodes}", "--nproc_per_node", str(TASKS), "--max_restarts", "9",
                    "--monitor_interval", "0.1", "--redirects", "9:1", "--tee", "9:1", "--rdzv_backend", "c10d",
                    "--rdzv_endpoint", "n0:21999", "--rdzv_conf", f"keep_alive_interval=1,keep_alive_max_attempt={SILENCE}",
                    *self.command()[1:]]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env={**os.environ, "OMP_NUM_THREADS": "1", **self.settings["torch_env"], **TORCHRUN,
                                                 **dict(variables)})

    def runs(self):
        return self.process.poll() is None

    def output(self):
        """The end of what the launcher and the ranks have printed."""
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()[-3000:]

    def steps(self):
        """The steps of rank 0 in order, and when they ended, by CLOCK_MONOTONIC."""
        if self.program in PROGRAMS:
            ahead = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            return [(line["step"], line["time"] - ahead * 1e-9) for line in map(json.loads, self.lines("metrics"))]
        return [(int(step), int(ns) * 1e-9) for step, ns in map(str.split, self.lines("steps.0"))]

    def lines(self, name):
        try:
            with open(os.path.join(self.folder, name), encoding="ascii") as file:
                return [line for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def ranks(self):
        """Each rank's process: an interpreter of torchrun's has no RANK, and what a rank starts has its parent's."""
        name = PROGRAMS.get(self.program, self.settings["interpreter"])
        found = {}
        for pid in self.cluster.processes(name) + self.cluster.processes("python3"):
            rank = variable_of(pid, "RANK")
            if rank is not None and comm_of(pid) is not None and names_folder(pid, self.folder):
                found.setdefault(int(rank), pid)
        return found

    def end(self):
        say("scancel", "-s", "KILL", "--state=RUNNING")
        for node in self.cluster.init:
            self.cluster.give_power(node)
        for name in (*PROGRAMS.values(), "python3", self.settings["interpreter"]):
            for pid in self.cluster.processes(name):
                if pid != os.getpid() and self.cluster.node_name(pid) is not None:
                    kill(pid)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for state in ("DOWN", "RESUME"):
            for line in self.cluster.busy():
                if not line.startswith("job"):
                    say("scontrol", "update", f"NodeName={line.split()[0]}", f"State={state}", "Reason=power")
        if not wait_for(90, lambda: not self.cluster.busy()):
            raise SystemExit(f"recovery: the cluster is not idle: {self.cluster.busy()}")


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def names_folder(pid, folder):
    """Whether an argument of the process is the folder or in it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return any(word == folder or word.startswith(f"{folder}/") for word in os.fsdecode(file.read()).split("\0"))
    except OSError:
        return False


def started_at(pid):
    """When the process was made, by CLOCK_MONOTONIC but for the time that the machine slept."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def newest(run, before):
    """When the last of the ranks was started that join others; None: nobody does."""
    try:
        return max(map(started_at, set(run.ranks().values()) - before), default=None)
    except OSError:
        return None


def next_step(run, hurt_at, before):
    """The first step of ranks that have all started again, and when it ended; or of those that are left."""
    if run.survives:
        told_step = re.search(r"ranks go on with step (\d+)", run.output())
        found = [(step, at) for step, at in run.steps() if told_step is not None and step == int(told_step[1])]
        return (*found[0], newest(run, before) or found[0][1]) if found else None
    ranks = run.ranks()
    if len(ranks) < run.count or set(ranks.values()) & before:
        return None
    try:
        started = max(map(started_at, ranks.values()))
    except OSError:
        return None
    found = [(step, at) for step, at in run.steps() if at > max(started, hurt_at)]
    return (*found[0], started) if found else None


def hurt(run, failure, ranks, source):
    """When it did so: to find a rank takes a while where there are many."""
    if failure == "kill":
        # Metrics end with the first rank 0.
        pid = ranks[source.randrange(run.survives, run.count)]
        at = time.clock_gettime(time.CLOCK_MONOTONIC)
        kill(pid)
        return at
    # Not the node of rank 0, where torchrun's store is.
    nodes = sorted({run.cluster.node_name(pid) for pid in ranks.values()} - {run.cluster.node_name(ranks[0])})
    node = source.choice(nodes)
    at = time.clock_gettime(time.CLOCK_MONOTONIC)
    run.cluster.lose_power(node)
    return at


def measure(settings, cluster, way, failure, source):
    run = Run(settings, cluster, way)
    # Torchrun has no third agent for a kill: after the ranks have been started again, that agent stays in the list of those
    # that wait, and the other agents restart their ranks for it again and again.
    run.start(spares=SPARES if failure == "power" or run.launcher in ("join", "srun") else 0)
    try:
        row = {"way": way, "failure": failure, "seconds": None, "start": None, "again": None}
        if not wait_for(120, lambda: not run.runs() or len(run.steps()) >= 20 and len(run.ranks()) == run.count) or not run.runs():
            return told({**row, "log": f"it has not begun: {run.output()}"})
        time.sleep(source.uniform(0, 0.3))
        ranks = run.ranks()
        before = set(ranks.values())
        at = hurt(run, failure, ranks, source)
        found = wait_for(LIMIT, lambda: not run.runs() or next_step(run, at, before))
        if isinstance(found, tuple):
            step, ended, started = found
            # The difference between the clocks is read anew each time.
            highest = max(step for step, when in run.steps() if when < min(started, ended) - 0.001)
            row.update(seconds=ended - at, start=ended - started, again=max(0, highest - step + 1))
        else:
            row["log"] = run.output()
        return told(row)
    finally:
        run.end()


def told(row):
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


# ---- without failures ------------------------------------------------------------------------


def run_ns(pid):
    """Nanoseconds for which the threads of a process have run."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    except OSError:
        pass
    return total


def launcher_pids(run):
    """The launcher's processes on each node that has ranks, agents among them, and srun's."""
    ranks = run.ranks()
    nodes = {run.cluster.node_name(pid) for pid in ranks.values()}
    agents = {parent_of(pid) for pid in ranks.values()}
    found = {node: [] for node in nodes}
    for node in nodes:
        pids = {pid for name in LAUNCHER for pid in run.cluster.processes(name, node)}
        pids |= {pid for pid in agents if run.cluster.node_name(pid) == node}
        found[node] = sorted(pids - set(ranks.values()))
    return found, run.cluster.processes("srun")


def threads_of(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def cost(settings, cluster, options):
    """The processor time of the launcher."""
    run = Run(settings, cluster, "srun gpt")
    run.start(ddp=options, spares=0)
    try:
        await_steps(run)
        nodes, srun = launcher_pids(run)
        began = time.monotonic()
        before = {pid: run_ns(pid) for pids in [*nodes.values(), srun] for pid in pids}
        time.sleep(SECONDS)
        seconds = time.monotonic() - began
        used = {pid: (run_ns(pid) - ns) * 1e-3 / seconds for pid, ns in before.items()}
        return told({"options": options, "node_us": [sum(used[pid] for pid in pids) for pids in nodes.values()],
                     "srun_us": sum(used[pid] for pid in srun)})
    finally:
        run.end()


def await_steps(run):
    if not wait_for(120, lambda: not run.runs() or len(run.steps()) >= 20) or not run.runs():
        raise SystemExit(f"recovery: the training has not begun: {run.output()}")


class Turns:
    """Trainings of which one runs at a time, in slices."""

    def __init__(self, runs):
        self.runs = runs
        self.pids = [sorted(run.ranks().values()) for run in runs]
        self.slices = [[] for _ in runs]
        for number in range(len(runs)):
            self.signal(number, signal.SIGSTOP)

    def signal(self, number, which):
        for pid in self.pids[number]:
            kill(pid, which)

    def slice(self, number):
        used = sum(map(run_ns, self.pids[number]))
        self.signal(number, signal.SIGCONT)
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        time.sleep(SLICE)
        ended = time.clock_gettime(time.CLOCK_MONOTONIC)
        self.signal(number, signal.SIGSTOP)
        self.slices[number].append((began, ended, sum(map(run_ns, self.pids[number])) - used))

    def times(self, number):
        """Of each slice, the median of a step's milliseconds, and a rank's processor time in a step."""
        found, steps = [], [at for _, at in self.runs[number].steps()]
        for began, ended, used in self.slices[number]:
            inside = [at for at in steps if began < at < ended]
            gaps = [b - a for a, b in zip(inside[FIRST:], inside[FIRST + 1:])]
            found.append((statistics.median(gaps) * 1e3, used * 1e-6 / len(inside) / len(self.pids[number]))
                         if gaps else None)
        return found


def pairs(settings, cluster, name):
    """Steps of a training with these options, and of a plain one, in slices by turns: what else the machine does, and the
    clock of its cores, is the same for both."""
    options, variables, arguments = STEPS_OF[name]
    runs = [Run(settings, cluster, "srun gpt", which) for which in ("plain", "other")]
    runs[1].gpt = settings["before"] if name == "before" else settings["gpt"]
    try:
        runs[0].start(ddp="--ddp", spares=0)
        runs[1].start(ddp=options, spares=0, variables=variables.items(), arguments=arguments)
        for run in runs:
            await_steps(run)
        turns = Turns(runs)
        for number in range(int(SECONDS / SLICE / 2)):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                turns.slice(which)
        both = [(a, b) for a, b in zip(turns.times(0), turns.times(1)) if a and b]
        threads = [statistics.median_low(map(threads_of, pids)) for pids in turns.pids]
        row = {"name": name, "plain_ms": [a[0] for a, _ in both], "other_ms": [b[0] for _, b in both],
               "plain_cpu_ms": [a[1] for a, _ in both], "other_cpu_ms": [b[1] for _, b in both], "threads": threads}
        print(json.dumps({"name": name, "pairs": len(both), "threads": threads}), file=sys.stderr, flush=True)
        return row
    finally:
        for run in runs:
            if run.process:
                run.end()


# ---- a newcomer and a large model --------------------------------------------------------------

TRANSFER = """
import socket, sys, time
what, address, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "receive":
    with socket.create_server((address, 21998)) as server:
        print("ready", flush=True)
        peer, _ = server.accept()
        began, buffer = time.monotonic(), bytearray(1 << 20)
        while count > 0:
            count -= peer.recv_into(buffer, min(count, len(buffer)))
        print(time.monotonic() - began)
else:
    with socket.create_connection((address, 21998)) as peer:
        for at in range(0, count, 1 << 20):
            peer.sendall(bytes(min(count - at, 1 << 20)))
"""


def plain_transfer(cluster, nodes, count):
    """Seconds that so many bytes take from one node to another, by a connection of TCP."""
    def on(node, what):
        return subprocess.Popen(["nsenter", "--target", str(cluster.init[node]), "--net", sys.executable, "-c",
                                 TRANSFER, what,
                                 address(nodes[1]), str(count)], stdout=subprocess.PIPE, text=True)

    with on(nodes[1], "receive") as receiver:
        receiver.stdout.readline()
        with on(nodes[0], "send"):
            return float(receiver.stdout.readline())


def sent_by_nodes():
    """Bytes that each node has sent: the head has the other end of its link."""
    with open("/proc/self/net/dev", encoding="ascii") as file:
        rows = [line.replace(":", " ").split() for line in file if ":" in line]
    return {row[0]: int(row[1]) for row in rows if re.fullmatch(r"n\d+", row[0])}


def join(settings, cluster):
    """A rank dies in the first step, and another one joins the others."""
    run = Run(settings, cluster, "join model")
    count = int(settings["gigabytes"] * 1e9)
    before = sent_by_nodes()
    run.start(command=[os.path.join(settings["programs"], "rank_survive"), os.path.join(run.folder, "metrics"), "1",
                       str(count), "--die"])
    try:
        ended = wait_for(LIMIT, lambda: not run.runs())
        said = run.output()
        came = [int(ns) for ns in re.findall(r"@ \d+ came (\d+)", said)]
        joined = [int(ns) for ns in re.findall(r"@ \d+ joined (\d+)", said)]
        if not ended or not came or len(joined) != run.count:
            raise SystemExit(f"recovery: nobody has joined: {said}")
        sent = {node: now - before[node] for node, now in sent_by_nodes().items()}
    finally:
        run.end()
    link = plain_transfer(cluster, sorted(cluster.init)[:2], count)
    return told({"bytes": count, "seconds": (max(joined) - max(came)) * 1e-9, "link_seconds": link, "sent": sent})


def name_of(python):
    """What a process of it is called: it may be a script that starts the interpreter."""
    said = subprocess.run([python, "-c", "print(open('/proc/self/comm').read())"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def rounds_of(settings, cluster):
    """The results, one after the other."""
    for number in range(settings["rounds"]):
        if settings["what"] == "join":
            yield join(settings, cluster)
        elif settings["what"] == "cost":
            for options in COST if number % 2 == 0 else COST[::-1]:
                yield cost(settings, cluster, options)
        elif settings["what"] == "steps":
            for name in STEPS_OF:
                if settings["before"] or name != "before":
                    yield pairs(settings, cluster, name)
        else:
            for way in settings["ways"].split(","):
                for failure in FAILURES:
                    yield measure(settings, cluster, way, failure, random.Random(f"{number}/{failure}"))


def main():
    settings = json.loads(sys.argv[1])
    settings["interpreter"] = name_of(settings["python"])
    cluster = Cluster(settings["cluster"])
    results = []
    for result in rounds_of(settings, cluster):
        results.append(result)
        # What was measured stays where a later contender stops the measurement.
        with open(settings["answers"], "w", encoding="utf-8") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
