# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, stopped, or leave by an exception, and ends of processes."""

import datetime
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import ABORTS, NEW, BackendError, Ranks, on_ranks

RUNS = int(os.environ.get("DDP_TORCH_FAILURES", "12"))
# Within this time the other ranks hear of it. On an idle machine a second is enough; tests share theirs.
SECONDS = float(os.environ.get("DDP_TORCH_SECONDS", "10"))


def work_until_error(rank, size, how, victim, after, timeout):
    """Returns when and what this rank heard."""
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=timeout))
    ready = f"/tmp/ddp-torch-{os.getppid()}"
    number = random.Random(os.getppid() + rank)
    try:
        for i in range(1 << 30):
            if rank == victim and i == after:
                with open(ready, "w") as file:
                    file.write(repr(time.monotonic()))
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if how == "raise":
                    raise ValueError("bad batch 42")
                sys.exit(3)
            chosen = [dist.group.WORLD, group][i % 2]
            kind = i % 5
            t = torch.ones(1 + (i % 3) * 50000)
            if kind == 0:
                dist.all_reduce(t, group=chosen)
            elif kind == 1:
                dist.all_reduce(t, group=chosen, async_op=True).get_future().wait()
            elif kind == 2:
                dist.all_gather([torch.ones_like(t) for _ in range(size)], t, group=chosen)
            elif kind == 3:
                dist.barrier(chosen)
            else:
                work = dist.isend(t, (rank + 1) % size)
                dist.recv(torch.zeros_like(t), (rank - 1) % size)
                work.wait()
            if number.random() < 0.1:
                time.sleep(0.001)
    except BackendError as error:
        return time.monotonic(), str(error)


def hear_of(how, seed, timeout):
    """The longest time until a rank heard, and what the ranks heard."""
    draw = random.Random(seed)
    size = draw.choice([2, 3, 4])
    victim = draw.randrange(size)
    ready = f"/tmp/ddp-torch-{os.getpid()}"
    if os.path.exists(ready):
        os.unlink(ready)
    with Ranks(size, work_until_error, how, victim, draw.randrange(40), timeout, timeout=timeout) as ranks:
        others = [r for r in range(size) if r != victim]
        end = time.monotonic() + 120
        while any(ranks.processes[r].is_alive() for r in others) and time.monotonic() < end:
            time.sleep(0.02)
        codes = [process.exitcode for process in ranks.processes]
        if any(codes[r] != 0 for r in others):
            raise AssertionError(f"{how}, seed {seed}, victim {victim}: exit codes {codes}")
        with open(ready) as file:
            begin = float(file.read())
        heard = [ranks.result(r) for r in others]
    os.unlink(ready)
    for _, text in heard:
        if f"rank {victim} on " not in text:
            raise AssertionError(f"{how}, seed {seed}, victim {victim}: {text}")
    return max(when for when, _ in heard) - begin, [text for _, text in heard]


def leave_without_destroy(rank, size):
    t = torch.ones(1000)
    dist.all_reduce(t)
    global kept  # the process ends with a group, a tensor and a Work
    kept = (t, dist.all_reduce(t, async_op=True), dist.new_group())
    return True


def destroy_in_turn(rank, size):
    group = dist.new_group()
    for _ in range(20):
        dist.all_reduce(torch.ones(100), async_op=True, group=group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    dist.all_reduce(torch.ones(3))
    before = len(os.listdir("/proc/self/fd"))
    for i in range(30):
        part = dist.new_group()
        dist.all_reduce(torch.ones(3), group=part)
        dist.destroy_process_group(part)
    assert len(os.listdir("/proc/self/fd")) <= before + 3, (before, len(os.listdir("/proc/self/fd")))
    dist.destroy_process_group()
    return True


def read_by_workers(rank, size):
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    seen = 0
    for epoch in range(2):
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
        for (batch,) in loader:
            total = batch.sum()
            dist.all_reduce(total)
            seen += total.item()
    assert seen == 2 * size * sum(range(64)), seen
    # A forked child says why it cannot take part.
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            os._exit(0 if "forked child" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    dist.barrier()
    return True


def time_out(rank, size):
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.5))
    if rank == 0:
        begin = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1), group=group)
            return "no error"
        except BackendError as error:
            assert 0.4 < time.monotonic() - begin < 30
            assert "Timed out waiting 500ms" in str(error) and "rank 1" in str(error), error
    else:
        time.sleep(1)
    dist.all_reduce(torch.ones(1))  # another group still works
    return True


def abort(rank, size):
    if rank == 1:
        time.sleep(0.3)
        dist.distributed_c10d._abort_process_group()
        return True
    try:
        dist.all_reduce(torch.ones(1))
    except BackendError as error:
        assert "rank 1" in str(error) and "abort() of the process group was called" in str(error), error
        return True
    return False


def survive(rank, size):
    """The survivors of a failure go on in a group of their own."""
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(1))
    except BackendError as error:
        assert f"rank {size - 1} on " in str(error), error
    group = dist.new_group(list(range(size - 1)), use_local_synchronization=True)
    t = torch.ones(1)
    dist.all_reduce(t, group=group)
    assert t.item() == size - 1
    return True


# Whole programs, whose interpreters end. Each is a fork of one process: to import torch takes longer than all they do.
SCRIPT = """
import os, sys, torch, torch.distributed as dist
import slurm_ddp_torch
children = []
for how, rank in (("end", "0"), ("end", "1"), ("raise", "0"), ("raise", "1")):
    children.append(os.fork())
    if children[-1] == 0:
        said = os.open(os.path.join(sys.argv[1], how + rank), os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv[1:] = [os.path.join(sys.argv[1], how), rank, how]
        break
else:
    print([os.waitpid(child, 0)[1] >> 8 for child in children])
    sys.exit()
dist.init_process_group("ddp", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
futures = [dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda f: f.value()) for _ in range(50)]
dist.barrier()
if sys.argv[2] == "1" and sys.argv[3] == "raise":
    raise ValueError("bad batch 42")
dist.all_reduce(torch.ones(1), async_op=sys.argv[3] != "raise")
"""


class Failures(unittest.TestCase):
    def fail_by(self, how, runs, timeout, extra):
        times, texts = [], []
        for seed in range(runs):
            seconds, heard = hear_of(how, seed, timeout)
            times.append(seconds)
            texts += heard
            self.assertLess(seconds, SECONDS + extra, heard)
        times.sort()
        print(f"{how}: {runs} runs, heard after {times[len(times) // 2]:.3f} s (most {times[-1]:.3f} s)", file=sys.stderr)
        return texts

    def test_killed_rank_is_named(self):
        self.fail_by("kill", RUNS, 60, 0)

    def test_exception_is_named(self):
        for text in self.fail_by("raise", RUNS, 60, 0):
            self.assertIn("ValueError: bad batch 42 (test_failures.py:", text)

    def test_rank_that_exits_is_named(self):
        self.fail_by("exit", RUNS // 3, 60, 0)

    def test_stopped_rank_is_named(self):
        self.fail_by("stop", RUNS // 3, 2, 2)

    def test_processes_end_without_destroy(self):
        for size in (1, 2, 4):
            self.assertTrue(all(on_ranks(size, leave_without_destroy, destroy=False)))

    def test_groups_are_destroyed(self):
        self.assertTrue(all(on_ranks(2, destroy_in_turn)))

    def test_forked_workers(self):
        self.assertTrue(all(on_ranks(2, read_by_workers)))

    def test_timeout_of_a_group(self):
        self.assertEqual(on_ranks(2, time_out), [True, True])

    @unittest.skipUnless(ABORTS, "this torch aborts NCCL only")
    def test_abort(self):
        self.assertTrue(all(on_ranks(2, abort)))

    @unittest.skipUnless(NEW, "in this torch all ranks call new_group()")
    def test_survivors_go_on(self):
        with Ranks(3, survive) as ranks:
            self.assertEqual(ranks.wait(), [0, 0, -signal.SIGKILL])

    def test_scripts(self):
        with tempfile.TemporaryDirectory() as folder:
            codes = subprocess.check_output([sys.executable, "-c", SCRIPT, folder], timeout=200, universal_newlines=True)
            said = [Path(folder, name).read_text() for name in ("end0", "end1", "raise0", "raise1")]
        self.assertEqual(codes, "[0, 0, 1, 1]\n", said)
        self.assertEqual(said[:2], ["", ""])
        self.assertIn("rank 1 on ", said[2])
        self.assertIn("left: ValueError: bad batch 42", said[2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
