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

from cluster import Cluster, comm_of, parent_of, say, variable_of, wait_for  # noqa: E402

NODES, SPARES, TASKS, SILENCE = 3, 1, 2, 5
FAILURES = ("kill", "power")
# Of gpt's 8 ranks on two nodes, those that are left go on in their processes, as fewer or with others that join them; or
# all start again. PyTorch has 4 ranks, as Pythons take long to start.
WAYS = ("survive gpt", "join gpt", "srun gpt", "srun pytorch", "torchrun pytorch")
GPT_TASKS = 4
SURVIVE = f"--ddp=silence={SILENCE}"
RESTART = f"--ddp=restart=9,spare={SPARES},silence={SILENCE}"
# By turns: what is measured without failures: srun's option, variables and options of the program, by the name that is
# shown. "before": an older build, if one is given.
COST = {
    "--ddp=silence=0": ("--ddp=silence=0", {}, []),
    "--ddp": ("--ddp", {}, []),
    "--ddp=restart=9": ("--ddp=restart=9", {}, []),
    "--ddp, compare_every=100": ("--ddp", {"DDP_COMPARE_EVERY": "100"}, []),
    "--ddp, --survive": ("--ddp", {}, ["--survive"]),
    "--ddp, before": ("--ddp", {}, []),
}
LAUNCHER = ("slurmstepd", "ddp-witness", "ddp-keeper", "ddp-agent")
STEPS, EVERY = 1000000, 10
# Agents of torch after 2.3 keep one store for all generations of ranks. Ranks that are started again find in it the
# addresses of ranks that have ended, and never connect (PyTorch's issue 135712). This gives each generation its own store.
TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Run:
    """A training under way."""

    def __init__(self, settings, cluster, way):
        self.settings, self.cluster = settings, cluster
        self.launcher, self.program = way.split()
        self.survives = self.launcher in ("survive", "join")
        self.tasks = GPT_TASKS if self.program == "gpt" else TASKS
        self.count = (NODES - SPARES) * self.tasks
        self.gpt = settings["gpt"]
        self.folder = os.path.join(settings["cluster"], "work", "recovery")
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
        return [self.settings["python"], os.path.join(HERE, "../rank_recovery.py"), self.folder, str(STEPS), str(EVERY)]

    def start(self, ddp=RESTART, nodes=NODES, variables=(), arguments=()):
        srun = ["srun", "--quiet", "-c1", f"-N{nodes}"]
        if self.launcher == "survive":
            argv = ["srun", "--quiet", "-c1", f"-N{NODES - SPARES}", f"--ntasks-per-node={self.tasks}", SURVIVE, "--no-kill",
                    *self.command()]
        elif self.launcher in ("join", "srun"):
            argv = [*srun, f"--ntasks-per-node={self.tasks}", ddp, "--mpi=none", "--no-kill", *self.command(), *arguments]
        else:
            # Redirects of a ninth rank, of nobody: torch 1.13 on Python 3.11 cannot read the default, "0".
            argv = [*srun, "--ntasks-per-node=1", "--no-kill", self.settings["python"], "-m", "torch.distributed.run",
                    "--nnodes", f"{NODES - SPARES}:{NODES - SPARES}", "--nproc_per_node", str(TASKS), "--max_restarts", "9",
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
        if self.program == "gpt":
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
        name = "gpt" if self.program == "gpt" else self.settings["interpreter"]
        found = {}
        for pid in self.cluster.processes(name) + self.cluster.processes("python3"):
            rank = variable_of(pid, "RANK")
            if rank is not None and comm_of(pid) is not None:
                found.setdefault(int(rank), pid)
        return found

    def end(self):
        say("scancel", "-s", "KILL", "--state=RUNNING")
        for node in self.cluster.init:
            self.cluster.give_power(node)
        for name in ("gpt", "python3", self.settings["interpreter"]):
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


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


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


def hurt(run, failure, source):
    ranks = run.ranks()
    if failure == "kill":
        # Metrics end with the first rank 0.
        kill(ranks[source.randrange(run.survives, run.count)])
        return
    # Not the node of rank 0, where torchrun's store is.
    nodes = sorted({run.cluster.node_name(pid) for pid in ranks.values()} - {run.cluster.node_name(ranks[0])})
    run.cluster.lose_power(source.choice(nodes))


def measure(settings, cluster, way, failure, source):
    run = Run(settings, cluster, way)
    # Torchrun has no third agent for a kill: after the ranks have been started again, that agent stays in the list of those
    # that wait, and the other agents restart their ranks for it again and again.
    run.start(nodes=NODES if failure == "power" or run.launcher in ("join", "srun") else NODES - SPARES)
    try:
        row = {"way": way, "failure": failure, "seconds": None, "start": None, "again": None}
        if not wait_for(120, lambda: not run.runs() or len(run.steps()) >= 20 and len(run.ranks()) == run.count) or not run.runs():
            return told({**row, "log": f"it has not begun: {run.output()}"})
        time.sleep(source.uniform(0, 0.3))
        before = set(run.ranks().values())
        at = time.clock_gettime(time.CLOCK_MONOTONIC)
        hurt(run, failure, source)
        found = wait_for(settings["limit"], lambda: not run.runs() or next_step(run, at, before))
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


def cost(settings, cluster, name):
    options, variables, arguments = COST[name]
    run = Run(settings, cluster, "srun gpt")
    run.gpt = settings["before"] if name.endswith("before") else run.gpt
    run.start(ddp=options, nodes=NODES - SPARES, variables=variables.items(), arguments=arguments)
    try:
        if not wait_for(120, lambda: not run.runs() or len(run.steps()) >= 20) or not run.runs():
            raise SystemExit(f"recovery: srun {name} has not begun: {run.output()}")
        nodes, srun = launcher_pids(run)
        began = time.monotonic()
        ranks = sorted(run.ranks().values())
        before = {pid: run_ns(pid) for pids in [*nodes.values(), srun, ranks] for pid in pids}
        first = len(run.steps())
        time.sleep(settings["seconds"])
        seconds = time.monotonic() - began
        used = {pid: (run_ns(pid) - ns) * 1e-3 / seconds for pid, ns in before.items()}
        times = [at for _, at in run.steps()[first:]]
        rank_us = statistics.mean(used[pid] for pid in ranks)
        row = {"options": name, "threads": statistics.median_low(map(threads_of, ranks)), "node_us": [sum(used[pid] for pid in pids) for pids in nodes.values()],
               "srun_us": sum(used[pid] for pid in srun),
               "rank_ms": rank_us * 1e-3 * seconds / len(times),
               "step_ms": statistics.median(b - a for a, b in zip(times, times[1:])) * 1e3}
        print(json.dumps(row), file=sys.stderr, flush=True)
        return row
    finally:
        run.end()


def name_of(python):
    """What a process of it is called: it may be a script that starts the interpreter."""
    said = subprocess.run([python, "-c", "print(open('/proc/self/comm').read())"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def rounds_of(settings, cluster):
    """The results, one after the other."""
    for number in range(settings["rounds"]):
        if settings["cost"]:
            names = [name for name in COST if settings["before"] or not name.endswith("before")]
            for name in names if number % 2 == 0 else names[::-1]:
                yield {**cost(settings, cluster, name), "round": number}
            continue
        for way in settings["ways"].split(","):
            for failure in settings["failures"].split(","):
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
