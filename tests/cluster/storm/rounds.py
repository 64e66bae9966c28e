# SPDX-License-Identifier: Apache-2.0
"""One round: a training that is hurt, what has to follow, and a resume that has to be exact."""

import array
import hashlib
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import threading
import time

from cluster import POLL, say, wait_for
from faults import EXITS, FINALIZED, KINDS, SAVING, STARTED, STEPS, TRAINING

LAYOUTS = ((2, 1), (4, 1), (1, 4), (2, 2), (4, 2))  # nodes, ranks on each
USER = 65534  # nobody, who is an ordinary user
DELAYS = {"init": 0.08, "training": 0.02, "checkpoint": 0.004, "end": 0.01, "finalized": 0.3}
STILL_SECONDS = 0.25
START_SECONDS = 20  # to the first rank's program
LAST = f"step-{STEPS:08d}.safetensors"
FILES = r"\.lock|\.generation-start-[0-9.-]+|step-\d{8}\.safetensors"
# Ends as soon as a batch job that has begun no longer runs.
WHILE_IT_RUNS = """job=$(sbatch --parsable "$@") || exit
until [ "$(squeue -h -j "$job" -o %T)" = RUNNING ]; do sleep 0.05; done
while [ "$(squeue -h -j "$job" -o %T)" = RUNNING ]; do sleep 0.2; done"""


class Wrong(Exception):
    """What is not as it should be."""


def draw(seed, number):
    """The kind of a round: each deck has all kinds, in an order of its own."""
    deck = [kind for kind in KINDS.values() for _ in range(kind.weight)]
    random.Random(f"{seed}/deck/{(number - 1) // len(deck)}").shuffle(deck)
    return deck[(number - 1) % len(deck)]


class Round:
    def __init__(self, cluster, place, seed, number):
        self.cluster, self.place, self.number = cluster, place, number
        self.random = random.Random(f"{seed}/{number}")
        self.kind = draw(seed, number)
        self.nodes, self.per_node = self.random.choice(self.kind.layouts or LAYOUTS)
        self.world = self.nodes * self.per_node
        self.rank = self.random.randrange(self.world)
        self.moment = self.random.choice(self.kind.moments)
        self.step = self.random.randint(2, STEPS - 20)
        self.user = self.random.choice((0, USER))
        self.strict = self.random.random() < 0.4
        self.folder = os.path.join(place, f"round-{number}")
        self.checkpoints = os.path.join(self.folder, "checkpoints")
        # Not on the small disk, which may be full.
        self.output = os.path.join(cluster.folder, "work", f"round-{number}.output")
        # What a kind may change:
        self.keys, self.srun_options, self.timeout, self.note = [], [], 60, ""
        self.action, self.partition, self.other, self.variables = None, None, None, {}
        # What comes out of it:
        self.pids, self.job, self.srun, self.hurt_at, self.log = {}, None, None, None, []
        self.line_seconds, self.code, self.exact = None, None, None
        self.still = 0  # seconds in which the machine let nobody run
        self.where = r"n\d"  # the rank's node, as far as it was seen
        if self.moment == "finalized":
            self.action = ("linger", self.rank, int(1500 * cluster.slowness))
        self.harm, self.expected = self.kind.plan(self)

    def title(self):
        return ", ".join([
            f"round {self.number}: {self.kind.name}{' ' + self.note if self.note else ''}",
            self.moment, self.layout(), f"rank {self.rank}",
            "an ordinary user" if self.user else "root",
            *(["KillOnBadExit=1 WaitTime=1"] if self.strict else [])])

    # ---- what kinds use ------------------------------------------------------------

    def stretched_seconds(self, seconds):
        return max(seconds, round(seconds * min(self.cluster.slowness, 5)))

    def node(self):
        """The node of the hurt rank."""
        if self.where not in self.cluster.init:
            raise ProcessLookupError("the rank has ended")
        return self.where

    def named(self):
        return f"rank {self.rank} of {self.world} on NODE"

    def scancel_term(self):
        self.as_user("scancel", "-s", "TERM", f"{self.job}.0")

    def pid(self):
        return self.pids[self.rank]

    def signal(self, number):
        os.kill(self.pid(), number)

    def as_user(self, *command):
        return subprocess.run(self.become(command), check=False, capture_output=True)

    def runs(self):
        return self.srun.poll() is None

    def leaves(self):
        """The rank ends by itself."""
        wait_for(60, lambda: not self.runs() or self.states()[self.rank][0] >= STARTED and
                 self.rank not in self.cluster.ranks())

    def any_leaves(self):
        wait_for(60, lambda: not self.runs() or max(self.states())[0] >= STARTED and
                 len(self.cluster.ranks()) < sum(place >= STARTED for place, _ in self.states()))

    def fill_disk(self):
        """Leaves room for less than the training wants to keep."""
        size = os.path.getsize(os.path.join(self.place, "whole", self.layout(), LAST))
        about = os.statvfs(self.place)
        leave = int(size * self.random.uniform(0.1, 3.5))
        self.filler = os.path.join(self.place, "filler")
        with open(self.filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, about.f_bavail * about.f_frsize - leave)

    # ---- the training ------------------------------------------------------------------

    def layout(self):
        return f"{self.nodes}x{self.per_node}"

    def become(self, command):
        if self.user == 0:
            return list(command)
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups",
                *command]

    def environment(self):
        conf = os.path.join(self.place, "strict.conf" if self.strict else "plain.conf")
        return {**os.environ, **self.variables, "SLURM_CONF": conf, "TMPDIR": os.path.join(self.folder, "tmp")}

    def command(self, keys, action, output):
        layout = [f"-N{self.nodes}", f"--ntasks-per-node={self.per_node}"]
        words = ["srun", "--ddp=" + ",".join(keys), *layout, *self.srun_options,
                 os.path.join(self.place, "storm_probe"), self.checkpoints,
                 os.path.join(self.folder, "state"), *(str(word) for word in action or ())]
        self.log.append("$ " + " ".join(words))
        if not self.kind.batch or output != self.output:
            return words
        return ["sh", "-c", WHILE_IT_RUNS, "sh", "--requeue", *layout,
                *(["-p", self.partition] if self.partition else []), "-o", self.output,
                "--open-mode=append", "--wrap", "exec " + " ".join(words)]

    def start(self, keys, action, output):
        with open(os.path.join(self.folder, "state"), "wb") as file:
            file.write(bytes(8 * self.world))
        os.chown(file.name, self.user, self.user)
        said = output + ".sbatch" if self.kind.batch and output == self.output else output
        for name in {output, said}:
            with open(name, "wb"):
                os.chown(name, self.user, self.user)
        with open(said, "ab") as file:
            return subprocess.Popen(self.become(self.command(keys, action, output)), stdout=file,
                                    stderr=file, stdin=subprocess.DEVNULL, cwd=self.folder,
                                    env=self.environment())

    def states(self):
        with open(os.path.join(self.folder, "state"), "rb") as file:
            return list(struct.iter_unpack("<ii", file.read()))

    def lines(self):
        """The plugin's lines."""
        try:
            with open(self.output, encoding="utf-8", errors="replace") as file:
                return [line.rstrip("\n") for line in file if re.search(r"\bddp: ", line)]
        except FileNotFoundError:
            return []

    def find_ranks(self):
        """As many as the moment needs: in `init` the hurt one."""
        self.pids = self.cluster.ranks()
        needed = {self.rank} if self.moment == "init" else set(range(self.world))
        return not self.runs() or needed <= set(self.pids)

    def is_time(self):
        place, step = self.states()[self.rank]
        return not self.runs() or {
            "init": place >= STARTED,
            "training": place == TRAINING and step >= self.step,
            "checkpoint": place == SAVING and step >= self.step,
            "end": place == TRAINING and step >= STEPS - 1 or place > TRAINING and step == STEPS,
            "finalized": place == FINALIZED,
        }[self.moment]

    def wait_for_moment(self):
        if not wait_for(START_SECONDS * self.cluster.slowness, self.find_ranks):
            raise Wrong(f"only the ranks {sorted(self.pids)} have started")
        self.job = say("squeue", "-h", "-o", "%A").split("\n")[0]
        if not wait_for(20 * self.cluster.slowness, self.is_time):
            raise Wrong(f"its moment did not come: {self.states()}")
        self.where = self.cluster.node_name(self.pids.get(self.rank)) or self.where
        time.sleep(self.random.uniform(0, DELAYS[self.moment]))

    def watch_line(self):
        """Notes when the plugin's first line came, and how long the machine stood still."""
        looked_at = time.monotonic()
        while self.runs() and not self.lines():
            time.sleep(POLL)
            gap = time.monotonic() - looked_at
            looked_at += gap
            self.still += gap if gap > STILL_SECONDS else 0
        self.line_at = time.monotonic()

    # ---- what has to follow -----------------------------------------------------------------

    def hurt(self):
        self.srun = self.start([f"timeout={self.timeout}", *self.keys], self.action, self.output)
        ends_itself = self.harm in (self.leaves, self.any_leaves)
        if not ends_itself:
            self.wait_for_moment()
        before = self.states()
        watcher = threading.Thread(target=self.watch_line)
        self.hurt_at = time.monotonic()
        watcher.start()
        try:
            self.harm()
        except (OSError, KeyError):
            self.log.append("(the rank had ended before)")
        if ends_itself:
            self.hurt_at = time.monotonic()
        self.log.append(f"(states {before}, then {self.states()})")
        limit = self.expected.seconds * self.cluster.slowness
        try:
            code = self.srun.wait(limit)
        except subprocess.TimeoutExpired:
            self.cluster.measure()
            try:
                code = self.srun.wait(max(1, self.expected.seconds * self.cluster.slowness - limit))
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - self.hurt_at
                raise Wrong(f"it still runs {seconds:.1f} s after the harm") from None
        seconds = time.monotonic() - self.hurt_at
        watcher.join()
        self.code = code
        self.log.append(f"(srun's code {code}, {seconds:.2f} s after the harm; "
                        f"the machine stood still for {self.still:.2f} s)")
        self.judge(code)

    def judge(self, code):
        lines, expected = self.lines(), self.expected
        wanted, also = (text.replace("NODE", self.where) for text in (expected.line, expected.also))
        if lines:
            self.line_seconds = max(0, self.line_at - self.hurt_at)
        if all(place == EXITS for place, _ in self.states()) and code == 0 and not lines:
            return  # all had ended before it could harm them
        # A node that srun did not answer may have spoken by itself.
        lines = lines[:1] + [line for line in lines[1:] if not re.match(also or "$", line)]
        if len(lines) > 1:
            raise Wrong(f"{len(lines)} lines instead of one")
        if lines and not expected.line:
            raise Wrong("there is a line")
        if not re.search(expected.words, self.text()):
            raise Wrong(f"the output has not: {expected.words}")
        if wanted and not lines:
            raise Wrong(f"no line, but wanted: {wanted}")
        if lines and not re.search(wanted, lines[0]):
            raise Wrong(f"the line is not: {wanted}")
        if expected.codes and code not in expected.codes:
            raise Wrong(f"srun's code is {code}, not {sorted(expected.codes)}")
        limit = expected.line_seconds * self.cluster.slowness + 2 * self.still
        if lines and self.line_seconds > limit:
            raise Wrong(f"the line came after {self.line_seconds:.1f} s")

    def waits_to_run_again(self):
        return say("squeue", "-h", "-j", self.job, "-o", "%T") == "PENDING"

    def clear(self):
        """Mends what the harm has broken, and sees that nothing is left of the step."""
        if self.other:
            self.other.wait(60)
        for node in self.cluster.init:
            self.cluster.start_slurmd(node)
        if self.kind.batch and self.job:
            if not wait_for(20 * self.cluster.slowness, self.waits_to_run_again):
                raise Wrong("the job does not wait to run again")
            say("scancel", self.job)
        if os.path.exists(os.path.join(self.place, "filler")):
            os.remove(os.path.join(self.place, "filler"))
        limit = 15 * self.cluster.slowness
        if not wait_for(limit, lambda: not self.cluster.left()):
            raise Wrong(f"left behind: {self.cluster.left()}")
        if not wait_for(limit, lambda: not self.cluster.busy()):
            raise Wrong(f"not idle: {self.cluster.busy()}")
        if names := os.listdir(os.path.join(self.folder, "tmp")):
            raise Wrong(f"temporary files: {names}")

    def resume(self):
        """Ends the training, which then has the bytes of one that nothing has disturbed."""
        output = self.output + ".resumed"
        self.srun = self.start(["timeout=60"], None, output)
        try:
            code = self.srun.wait(60 * self.cluster.slowness)
        except subprocess.TimeoutExpired:
            raise Wrong("the resumed training does not end") from None
        with open(output, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if code != 0 or "ddp:" in text:
            self.log += ["the resumed training:", text]
            raise Wrong(f"the resumed training ended with code {code}")

    def compare(self):
        whole = os.path.join(self.place, "whole", self.layout())
        self.exact = is_like(self.checkpoints, whole) if self.expected.alike else digest(self.checkpoints) == digest(whole)
        if not self.exact:
            raise Wrong("the resumed training has other bytes than one that was not disturbed")
        names = sorted(os.listdir(self.checkpoints))
        known = [name for name in names if re.fullmatch(FILES, name)]
        # Restarts leave a file that says so.
        steps = [len([name for name in found if name.startswith("step-")]) for found in (names, os.listdir(whole))]
        if known != names or steps[0] != steps[1]:
            raise Wrong(f"beside checkpoints there are other files: {names}")

    # ---- all of it -------------------------------------------------------------------------------

    def prepare(self):
        for folder in (self.folder, self.checkpoints, os.path.join(self.folder, "tmp")):
            os.mkdir(folder)
            os.chown(folder, self.user, self.user)

    def run(self):
        """None, or what is wrong."""
        wrong = []
        self.prepare()
        for part in (self.hurt, self.clear, self.resume, self.compare):
            try:
                part()
            except Wrong as error:
                wrong.append(str(error))
                self.give_up()
        self.log += ["output:", *self.text().splitlines()]
        return wrong

    def text(self):
        try:
            with open(self.output, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def give_up(self):
        """Ends what is left, so that the next round begins on an idle cluster."""
        for node in self.cluster.init:
            subprocess.run(["ip", "link", "set", node, "up"], check=False)
        say("scancel", "-s", "KILL", "--state=RUNNING")
        say("scancel", "--state=PENDING")
        for pid in self.cluster.processes("storm_probe"):
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

    def keep(self, folder):
        target = os.path.join(folder, f"round-{self.number}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder, target)
        with open(os.path.join(target, "log"), "w", encoding="utf-8") as file:
            file.write("\n".join([self.title(), *self.log, ""]))

    def remove(self):
        shutil.rmtree(self.folder)
        for end in ("", ".resumed", ".sbatch"):
            if os.path.exists(self.output + end):
                os.remove(self.output + end)


def numbers(folder):
    """Parameters and the optimizer's state, all in f32."""
    try:
        with open(os.path.join(folder, LAST), "rb") as file:
            file.seek(struct.unpack("<Q", file.read(8))[0], os.SEEK_CUR)
            return array.array("f", file.read())
    except FileNotFoundError:
        return []


def is_like(folder, whole):
    """A step more or less would change parameters by ten times as much."""
    found, wanted = numbers(folder), numbers(whole)
    return len(found) == len(wanted) > 0 and max(abs(a - b) for a, b in zip(found, wanted)) < 1e-3


def digest(folder):
    try:
        with open(os.path.join(folder, LAST), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return "no file"


class Undisturbed(Round):
    """A training of one layout that the others are compared with."""

    def __init__(self, cluster, place, nodes, per_node):
        super().__init__(cluster, place, 0, 1)
        self.kind, self.action, self.user, self.strict = KINDS["calm"], None, 0, False
        self.nodes, self.per_node, self.world = nodes, per_node, nodes * per_node
        self.folder = os.path.join(place, "whole", self.layout() + ".round")
        self.checkpoints = os.path.join(place, "whole", self.layout())

    def run(self):
        self.prepare()
        self.resume()
