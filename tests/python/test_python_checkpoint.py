#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Checkpoint: whole or not at all, whenever the program is killed; keep, latest, background."""
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from support import Forked, PageTest, environment, main, needs_torch, page
from test_python_stop import Ranks

from slurm_ddp import Checkpoint

WRITER = """
import os, sys, time
from slurm_ddp import Checkpoint
def write(state, folder):
    for name in ("a", "b", "c"):
        with open(os.path.join(folder, name), "w") as file:
            for _ in range(50):
                file.write("%d\\n" % state)
                file.flush()
        os.mkdir(os.path.join(folder, "of_" + name))
checkpoint = Checkpoint(sys.argv[1], keep=2, format=write, background=len(sys.argv) > 2)
step = checkpoint.latest_step()
print("ready", flush=True)
while True:
    step += 1
    checkpoint.save(step, step)
    if step % 3 == 0:
        checkpoint.save(step, step)
"""


def write(state, folder):
    Path(folder, "state").write_text(str(state))


def read(path):
    return Path(path, "state").read_text()


# Each rank has a folder of its own, as if its node's view of a shared one were older or newer than another's.
VIEWS = """
import os, sys, threading, time
from slurm_ddp import Checkpoint, stopping
rank, seen = int(os.environ["RANK"]), {0: [2, 10, 10**20], 1: [2], 2: [2, 10, 30]}
os.makedirs(sys.argv[1] + "/%d" % rank)
os.chdir(sys.argv[1] + "/%d" % rank)
def write(state, folder):
    open(folder + "/state", "w").close()
def sees(step):
    os.makedirs("run/step-%08d" % step)
for step in seen[rank]:
    sees(step)
if rank == 1:
    threading.Timer(0.5, sees, (10,)).start()
checkpoint = Checkpoint("run", format=write)
said = [checkpoint.latest_step(), checkpoint.latest()]
other = Checkpoint("best", format=write)
said += [other.latest_step(), other.latest()]
end = time.monotonic() + 60
def await_that(condition):
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
def meet(name):
    open("../%d.%s" % (rank, name), "w").close()
    await_that(lambda: len([one for one in os.listdir("..") if one.endswith(name)]) == 3)
meet("up")
other.save(7, None)
await_that(lambda: other.latest_step() == 7)  # one rank may ask more often than another
meet("saved")
stopping.renew(b"anew")  # as survive() does
await_that(lambda: other.latest_step() == 7)
child = os.fork()
if child == 0:
    os._exit(0 if other.latest_step() == (7 if rank == 0 else 0) else 1)  # what the child sees itself
assert os.waitpid(child, 0)[1] == 0
meet("end")
if rank != 0:
    await_that(lambda: other.latest_step() == 0)  # rank 0 has left
print(*said)
"""


class Views(unittest.TestCase):
    def test_all_ranks_take_what_rank_0_sees(self):
        ends = Ranks(self, 3, program=VIEWS).ends()
        self.assertEqual([end[:2] for end in ends], [(0, "10 run/step-00000010 0 None")] * 3, ends)

    def test_folder_that_a_rank_does_not_see_is_named(self):
        program = VIEWS.replace("if rank == 1:", "from slurm_ddp import checkpoints\ncheckpoints._SEE_SECONDS = 1.0\nif rank == 3:")
        ends = Ranks(self, 3, program=program).ends_of(1)
        self.assertRegex(ends[2], "OSError: rank 1 on .* does not see run/step-00000010, which rank 0 does: ")

    def test_rank_without_rank_0_is_told_why(self):
        for variables, reason in ((["MASTER_ADDR=127.0.0.1"], "rank 1 has not reached rank 0 on 127.0.0.1"), ([], "None")):
            program = ("from slurm_ddp import Checkpoint, checkpoints\ncheckpoints._ASK_SECONDS = 1.0\n"
                       "print(Checkpoint('run', format=print).latest())")
            more = dict(variable.split("=") for variable in variables)
            ended = subprocess.run([sys.executable, "-c", program], cwd="/", timeout=60, capture_output=True, text=True, check=False,
                                   env=environment(RANK=1, WORLD_SIZE=2, DDP_KEY="step:" + os.urandom(32).hex(), **more))
            self.assertIn(reason, ended.stdout + ended.stderr)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name, "run/checkpoints")

    def test_newest_are_kept(self):
        checkpoint = Checkpoint(self.folder, keep=2, format=write)
        self.assertEqual((checkpoint.latest(), checkpoint.latest_step(), checkpoint.steps(), checkpoint.load()), (None, 0, [], None))
        for step in (5, 100, 20):
            checkpoint.save(step, f"of {step}")
        self.assertEqual(checkpoint.steps(), [20, 100])
        self.assertEqual((checkpoint.latest_step(), read(checkpoint.latest())), (100, "of 100"))
        self.assertEqual(sorted(os.listdir(self.folder)), ["step-00000020", "step-00000100"])
        with self.assertRaisesRegex(ValueError, "only the function that wrote"):
            checkpoint.load()

    def test_all_are_kept_with_0(self):
        checkpoint = Checkpoint(self.folder, keep=0, format=write)
        for step in range(6):
            checkpoint.save(step, "")
        self.assertEqual(checkpoint.steps(), [0, 1, 2, 3, 4, 5])

    def test_repeated_step_replaces_the_first(self):
        checkpoint = Checkpoint(self.folder, keep=3, format=write)
        for number in range(3):
            checkpoint.save(7, number)
            self.assertEqual(read(checkpoint.latest()), str(number))
        self.assertEqual(len(os.listdir(self.folder)), 1)

    def test_failed_write_leaves_nothing(self):
        def fail(state, folder):
            write(state, folder)
            raise OSError("no space")

        Checkpoint(self.folder, format=write).save(1, "good")
        with self.assertRaisesRegex(OSError, "no space"):
            Checkpoint(self.folder, format=fail).save(2, "torn")
        self.assertEqual(os.listdir(self.folder), ["step-00000001"])

    def test_unfinished_and_strange_names_are_no_checkpoints(self):
        self.folder.mkdir(parents=True)
        for name in (".step-00000009.new-x", "step-9", "step-00000009x", "step-%d" % (1 << 48), "step-00000009.65534", "other"):
            Path(self.folder, name).mkdir()
        Path(self.folder, "step-00000010").write_text("a file")
        self.assertIsNone(Checkpoint(self.folder, format=write).latest())
        os.utime(Path(self.folder, ".step-00000009.new-x"), (0, 0))
        Checkpoint(self.folder, format=write).save(1, "")
        self.assertNotIn(".step-00000009.new-x", os.listdir(self.folder))

    def test_background_write_ends_later_and_tells_its_error(self):
        gate, begun = threading.Event(), threading.Event()

        def slow(state, folder):
            begun.set()
            gate.wait(60)
            write(state["x"], folder)
            if state["x"] == [2]:
                raise OSError("no space")

        checkpoint = Checkpoint(self.folder, background=True, format=slow)
        state = {"x": [1]}
        checkpoint.save(1, state)
        state["x"][0] = 77  # the training goes on
        begun.wait(60)
        self.assertIsNone(checkpoint.latest())
        gate.set()
        checkpoint.wait()
        self.assertEqual(read(checkpoint.latest()), "[1]")
        checkpoint.save(2, {"x": [2]})
        with self.assertRaisesRegex(OSError, "no space"):
            checkpoint.save(3, {"x": [3]})
        checkpoint.close()
        self.assertEqual(checkpoint.steps(), [1])

    def test_background_write_without_a_thread_is_done_at_once(self):
        checkpoint = Checkpoint(self.folder, background=True, format=write)
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            checkpoint.save(1, "now")
            self.assertEqual(read(checkpoint.latest()), "now")
            checkpoint.wait()
        checkpoint.save(2, "later")
        checkpoint.close()
        self.assertEqual(checkpoint.steps(), [1, 2])

    def test_other_ranks_write_nothing(self):
        program = "import sys; from slurm_ddp import Checkpoint; Checkpoint(sys.argv[1], format=print).save(1, 2)"
        ended = subprocess.run([sys.executable, "-c", program, str(self.folder)], env=environment(RANK=1, WORLD_SIZE=2), timeout=60,
                               capture_output=True, text=True, check=False)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "", ""))
        self.assertFalse(self.folder.exists())

    def test_wrong_words_are_refused(self):
        for arguments in ({"format": "pickle"}, {"keep": -1}, {"background": True, "all_ranks": True}):
            with self.assertRaises(ValueError):
                Checkpoint(self.folder, **arguments)

    def test_killed_writer_never_leaves_a_torn_latest(self):
        environ = environment(SLURM_JOB_ID=7, DDP_RESTART_COUNT=0)
        for number in range(24):
            environ["DDP_RESTART_COUNT"] = str(number)
            before = Checkpoint(self.folder, format=write).latest_step()
            arguments = [sys.executable, "-c", WRITER, str(self.folder)] + (["background"] if number % 2 else [])
            writer = subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, text=True)
            self.assertEqual(writer.stdout.readline(), "ready\n")
            deadline = time.monotonic() + 60
            while Checkpoint(self.folder, format=write).latest_step() <= before and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(random.random() * 0.02)
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
            checkpoint = Checkpoint(self.folder, format=write)
            self.assertGreater(checkpoint.latest_step(), before)
            for path in [path for _, _, path in checkpoint._found()]:
                step = int(path.rpartition("step-")[2].split(".")[0])
                for name in ("a", "b", "c"):
                    self.assertEqual(Path(path, name).read_text(), f"{step}\n" * 50)
                    self.assertTrue(Path(path, "of_" + name).is_dir())
        # What killed starts have left is removed by the next one.
        self.assertLessEqual(len([name for name in os.listdir(self.folder) if name.startswith(".")]), 2)


class WithTorch(PageTest):
    @needs_torch
    def test_state_of_torch_comes_back(self):
        import torch
        with tempfile.TemporaryDirectory() as folder:
            for background in (False, True):
                model = torch.nn.Linear(3, 2)
                optimizer = torch.optim.Adam(model.parameters())
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                wanted = {name: value.clone() for name, value in model.state_dict().items()}
                with Checkpoint(Path(folder, str(background)), background=background) as checkpoint:
                    checkpoint.save(3, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3})
                    with torch.no_grad():
                        model.weight.zero_()
                state = checkpoint.load(map_location="cpu")
                self.assertTrue(all(torch.equal(state["model"][name], wanted[name]) for name in wanted))
                self.assertEqual(state["step"], 3)
                optimizer.load_state_dict(state["optimizer"])
                self.assertEqual(type(state["model"]).__name__, "OrderedDict")

    @needs_torch
    def test_all_ranks_write_one_checkpoint(self):
        program = """
import os, sys, time
import torch.distributed as dist
from slurm_ddp import Checkpoint
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=rank, world_size=2)
def write(state, folder):
    time.sleep(rank)
    open(os.path.join(folder, "shard%d" % rank), "w").close()
checkpoint = Checkpoint(sys.argv[1] + "/run", format=write, all_ranks=True)
checkpoint.save(4, None)
print(sorted(os.listdir(checkpoint.latest())), checkpoint.latest_step(), flush=True)
"""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.py")
            path.write_text(program)
            ranks = [Forked(path, [folder], environment(RANK=rank, WORLD_SIZE=2)) for rank in (0, 1)]
            for rank in ranks:
                self.assertEqual(rank.communicate(timeout=120)[0], "['shard0', 'shard1'] 4\n")

    def test_phase_is_told(self):
        ended = self.page.run("""
import sys, slurm_ddp
from slurm_ddp import page
slurm_ddp.install()
slurm_ddp.phase("forward")
def write(state, folder):
    print(page.slot().get("phase"))
slurm_ddp.Checkpoint(sys.argv[1], format=write).save(1, None)
print(page.slot().get("phase"))
""", tempfile.mkdtemp(), RANK=0)
        self.assertEqual(ended.stdout.split(), [str(page.PHASES["checkpoint"]), str(page.PHASES["forward"])], ended.stderr)


if __name__ == "__main__":
    main()
