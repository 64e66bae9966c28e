# SPDX-License-Identifier: Apache-2.0
"""Failures at random while trainings run under `srun --ddp=restart=N,spare=K`: each training has to end with code 0
and with the bytes of one that was not disturbed. With --survive ranks keep their processes where they can, and others
join them. A node whose power is gone is out of its step for good, also when it
comes back, so that a training survives as many of these as it has spares. There are several trainings, one after the
other, and all nodes come back in between. It runs as root on the cluster's head; tests/cluster/failures.sh starts it."""

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "storm"))

from cluster import SHARDS, Cluster, say, wait_for  # noqa: E402
from harm import KINDS, draw  # noqa: E402
from training import STEP_US, USERS, Layout, Training, Watch, Wrong, full_neighbour_tables, pause  # noqa: E402

STEPS_EACH = 120  # of a training, for each failure
PAUSE_SECONDS = 1.5
START_SECONDS, STALL_SECONDS = 30, 4
CALM_STEPS, CALM_STEP_US = 10**8, 50000  # more than any time allows
LEAST_SECONDS = 2  # in which a failure that harms nobody has to change nothing


def parse_arguments():
    parser = argparse.ArgumentParser(prog="failures", description=__doc__)
    add = parser.add_argument
    add("--cluster", required=True, help="the cluster's folder")
    add("--place", required=True, help="a folder of all nodes, where storm_probe is")
    add("--keep", required=True, help="where the files of wrong trainings go")
    add("--failures", type=int, default=12, help="at least so many (default: 12)")
    add("--each", type=int, default=12, help="failures of a training (default: 12)")
    add("--seed", type=int, default=1, help="(default: 1)")
    add("--only", type=int, help="the number of a training, to repeat that one alone")
    add("--active", type=int, default=3, help="nodes that have ranks (default: 3)")
    add("--spares", type=int, default=2, help="nodes that wait (default: 2)")
    add("--per-node", type=int, default=2, help="ranks of a node (default: 2)")
    add("--silence", type=int, default=5, help="seconds (default: 5)")
    add("--survive", action="store_true", help="ranks survive others (option survive of ddp_train())")
    add("--shard", default="auto", choices=SHARDS,
        help="what of the model is spread over ranks; what is has buddy copies (default: auto)")
    add("--pause", type=float, default=PAUSE_SECONDS,
        help=f"seconds between two failures, at most (default: {PAUSE_SECONDS})")
    add("--minutes", type=float, help="begin no training after so many")
    add("--kinds", help="only these, with commas: " + ", ".join(KINDS))
    add("--calm", type=float, metavar="SECONDS", help="no failures: a training of so many seconds has no restart")
    add("--load", type=int, default=0, help="with --calm: so many processes compute meanwhile")
    return parser.parse_args()


class Row:
    def __init__(self):
        self.failures = self.restarts = self.joins = 0
        self.seconds = []

    def add(self, restarts, joins, seconds):
        self.failures += 1
        self.restarts += restarts
        self.joins += joins
        self.seconds += [seconds] if seconds is not None else []

    def cells(self):
        if not self.seconds:
            return [self.failures, self.restarts, self.joins, "", "", ""]
        return [self.failures, self.restarts, self.joins, *(f"{seconds:.2f}" for seconds in (
            statistics.median(self.seconds), min(self.seconds), max(self.seconds)))]


class Soak:
    def __init__(self, args):
        self.args = args
        self.cluster = Cluster(args.cluster)
        self.layout = Layout(args.active, args.spares, args.per_node)
        # Half of a longer pause is a part of the training, too.
        self.steps = args.each * round(STEPS_EACH + max(0, args.pause - PAUSE_SECONDS) / 2 * 1e6 / STEP_US)
        self.rows, self.wrong, self.whole, self.trainings = {}, 0, None, 0
        self.began = time.monotonic()
        self.keys = ["restart=1000", f"spare={args.spares}", f"silence={args.silence}", f"stall={STALL_SECONDS}", "timeout=60"]
        if args.kinds:
            for name in set(KINDS) - set(args.kinds.split(",")):
                del KINDS[name]

    def undisturbed(self):
        """A training without failures, and without the keys that survive them."""
        training = Training(self.cluster, self.args.place, "undisturbed", self.layout, self.steps, step_us=0,
                            survives=self.args.survive,
                            shard=self.args.shard)
        training.keys = ["timeout=60"]
        training.start(spares=0)
        training.end(START_SECONDS + self.steps * 0.05)
        self.whole = training.result()
        if self.whole[0] == "no file":
            raise Wrong("a training without failures has left no checkpoint of its last step")
        # The file begins as zeros, which would agree with the zeros of every other training.
        for step, loss in enumerate(self.whole[1], 1):
            if loss == 0 or not math.isfinite(loss):
                raise Wrong(f"a training without failures has left {loss!r} as the loss of step {step}")

    # ---- one training --------------------------------------------------------------------

    def one_failure(self, training, kind, source):
        """Returns the restarts that followed, in how many of them ranks joined others, and the seconds to the next step."""
        training.wait(START_SECONDS, lambda: len(training.ranks()) == self.layout.world,
                      f"all ranks before \"{kind.name}\"")
        before, restarts, joins = training.highest(), training.restarts(), training.joins()
        training.seen = len(training.text())
        if not training.runs():
            return 0, 0, None
        watch = Watch(training)
        done = kind.harm(training, source)
        if kind.name in ("again", "other"):
            watch = Watch(training, maybe_done=True)
        seconds = None
        if kind.restarts[0] > 0:
            limit = kind.seconds + self.args.silence + START_SECONDS
            if training.wait(limit, watch.has_new_step, f"the step after \"{kind.name}\" ({done})") is True and training.runs():
                seconds = watch.seconds()
        else:
            pause(LEAST_SECONDS)
        # A restart without a new step counts against the training, so the next failure waits for one.
        training.wait(START_SECONDS + 10, lambda: training.step() > before + 1, f"progress after \"{kind.name}\" ({done})")
        if kind.after is not None:
            kind.after(training, done)
        restarts, joins = training.restarts() - restarts, training.joins() - joins
        print(f"  {kind.name}, {done}: {restarts} restart{'' if restarts == 1 else 's'}{f', {joins} by joining' if joins else ''}"
              f"{'' if seconds is None else f', {seconds:.2f} s to the next step'}",
              *(training.from_checkpoint(training.seen) if self.args.survive else []),
              sep="\n    from the checkpoint: ", flush=True)
        if training.runs() and not kind.restarts[0] <= restarts <= kind.restarts[1]:
            raise Wrong(f"{restarts} restarts after \"{kind.name}\" ({done})")
        return restarts, joins, seconds

    def hurt(self, training, number):
        source = random.Random(f"{self.args.seed}/{number}")
        training.wait(START_SECONDS, lambda: training.step() > 1, "the first step")
        for kind in draw(source, self.args.each, self.args.spares):
            pause(source.uniform(0, self.args.pause))
            if training.is_over() or not training.runs():
                break
            self.rows.setdefault(kind.name, Row()).add(*self.one_failure(training, kind, source))
        training.end(START_SECONDS + self.steps * 0.05)
        digest, losses = training.result()
        if losses != self.whole[1]:
            step = next(i for i, (loss, whole) in enumerate(zip(losses, self.whole[1])) if loss != whole)
            raise Wrong(f"the loss of step {step + 1} is {losses[step]!r}, "
                        f"and without failures {self.whole[1][step]!r}")
        if digest != self.whole[0]:
            raise Wrong("the last checkpoint has other bytes than that of a training without failures")
        if names := training.left_files():
            raise Wrong(f"unfinished files are left: {names}")

    def clear(self, training):
        """All nodes come back, and nothing is left of the training. slurmctld would tell a node that was away of the
        job's end only a minute later, so that its administrator says that it was down."""
        for node in self.cluster.init:
            self.cluster.give_power(node)
        for node in training.lost:
            say("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")
            say("scontrol", "update", f"NodeName={node}", "State=RESUME")
        limit = 30 * self.cluster.slowness
        if not wait_for(limit, lambda: not self.cluster.left()):
            raise Wrong(f"left behind: {self.cluster.left()}")
        if not wait_for(limit, lambda: not self.cluster.busy()):
            raise Wrong(f"not idle: {self.cluster.busy()}")
        training.lost = set()

    def train(self, number):
        self.trainings += 1
        training = Training(self.cluster, self.args.place, f"training-{number}", self.layout, self.steps, keys=self.keys,
                            survives=self.args.survive, shard=self.args.shard)
        training.user = USERS[number % len(USERS)]
        print(f"training {number}, seed {self.args.seed}, {'an ordinary user' if training.user else 'root'}:", flush=True)
        training.start()
        began, wrong, full = time.monotonic(), [], full_neighbour_tables()
        for part in (lambda: self.hurt(training, number), lambda: self.clear(training)):
            try:
                part()
            except Wrong as error:
                wrong.append(str(error))
                training.give_up()
        print(f"{'WRONG' if wrong else 'right'} training {number}: {training.restarts()} restarts, ranks went on in memory "
              f"{training.went_on()} times, code {training.srun.returncode}, {time.monotonic() - began:.1f} s", flush=True)
        if wrong:
            self.wrong += 1
            if full_neighbour_tables() > full:
                wrong.append("the kernel's table of neighbours was full meanwhile (net.ipv4.neigh.default.gc_thresh3): do other "
                             "networks of this machine have many nodes?")
            print(f"  --seed {self.args.seed} --only {number}", *wrong, "output:", *training.text().splitlines(), sep="\n  ",
                  flush=True)
            training.keep(self.args.keep)

    # ---- all of it ---------------------------------------------------------------------------

    def settle(self):
        """Until a plain step runs on all nodes again."""
        wait_for(60, lambda: not self.cluster.busy())
        try:
            self.cluster.measure()
        except subprocess.CalledProcessError as error:
            raise Wrong(f"a plain step on all nodes fails: {error.stderr.decode(errors='replace')}") from None

    def failures(self):
        return sum(row.failures for row in self.rows.values())

    def run(self):
        self.cluster.measure()
        print(f"seed {self.args.seed}; a plain step takes {self.cluster.slowness:.1f} times an idle machine's", flush=True)
        self.undisturbed()
        number = self.args.only or 1
        while True:
            self.train(number)
            number += 1
            late = self.args.minutes is not None and time.monotonic() - self.began > 60 * self.args.minutes
            if self.args.only or late or self.wrong >= 3 or self.failures() >= self.args.failures:
                break
            self.settle()
        self.print_table()
        # A rank and its buddy may take all ranks back to the checkpoint.
        restarted = [row for name, row in self.rows.items() if row.restarts > 0 and name != "buddies"]
        if self.args.survive and not self.args.only and restarted and not any(row.joins for row in restarted):
            raise Wrong("with --survive, ranks kept their processes in no restart")
        return self.wrong > 0

    def print_table(self):
        total = Row()
        print("| kind | failures | restarts | of them by joining | seconds to the next step, median | the least | the most |")
        print("|---|---|---|---|---|---|---|")
        for name, row in sorted(self.rows.items()):
            print("|", " | ".join(str(cell) for cell in [name, *row.cells()]), "|")
            total.failures += row.failures
            total.restarts += row.restarts
            total.joins += row.joins
            total.seconds += row.seconds
        print("|", " | ".join(str(cell) for cell in ["all", *total.cells()]), "|")
        print(f"{self.failures()} failures in {self.trainings} trainings and {(time.monotonic() - self.began) / 60:.1f} minutes, "
              f"{self.wrong} wrong", flush=True)

    def calm(self):
        """No false alarm, however busy the machine is."""
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.args.load)]
        training = Training(self.cluster, self.args.place, "calm", self.layout, CALM_STEPS, CALM_STEP_US, self.keys)
        loads, patience = [], time.monotonic() + 120
        try:
            training.start()
            while training.runs() and training.step() == 0 and time.monotonic() < patience:
                time.sleep(0.1)
            end = time.monotonic() + self.args.calm
            while time.monotonic() < end and training.runs():
                time.sleep(1)
                loads.append(os.getloadavg()[0])
            lines, steps = training.lines(), training.step()
            if not training.runs():
                lines.append(f"srun ended before its time, with code {training.srun.returncode}")
            elif steps == 0:
                lines.append("no step was made")
        finally:
            for burner in burners:
                burner.kill()
        print(f"calm: {self.args.calm:.0f} s, {steps} steps, {self.args.load} processes compute beside them, load "
              f"{statistics.median(loads):.1f} ({min(loads):.1f} to {max(loads):.1f}): {training.restarts()} restarts, "
              f"{len(lines)} lines", *lines, sep="\n  ", flush=True)
        if lines:
            training.keep(self.args.keep)
        training.give_up()
        self.clear(training)
        return bool(lines)


def main():
    soak = Soak(parse_arguments())
    return soak.calm() if soak.args.calm else soak.run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as error:
        sys.exit(f"failures: {error}")
