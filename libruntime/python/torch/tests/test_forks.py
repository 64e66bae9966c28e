# SPDX-License-Identifier: Apache-2.0
"""Forked children: they end, begin groups of their own, and are told what they cannot do with their parent's."""

import datetime
import os
import signal
import sys
import threading
import time
import unittest

import torch
import torch.distributed as dist
from ranks import ALLOCATES, NEW, RanksCase

import slurm_ddp_torch


def backend_of_world():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def take(count):
    return backend_of_world().allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))


def status_of(pid):
    """How a child has ended."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the child hangs")


def child_exits(rank, size):
    """A forked child ends as an interpreter does, while an operation of its parent is under way."""
    dist.all_reduce(torch.ones(10))
    t = torch.ones(100000)
    if rank == 1:
        time.sleep(0.5)
    work = dist.all_reduce(t, async_op=True)
    future = work.get_future().then(lambda f: 7)
    pid = os.fork()
    if pid == 0:
        del work, future
        sys.exit(0)
    assert status_of(pid) == 0
    assert future.wait() == 7 and t[0].item() == size
    dist.barrier()
    return True


def child_is_refused(rank, size):
    """A forked child says why it cannot wait for an operation of its parent, nor take part in a barrier."""
    if rank == 1:
        time.sleep(0.5)
    work = dist.all_reduce(torch.ones(100000), async_op=True)
    pid = os.fork()
    if pid == 0:
        calls = [work.wait, work.get_future] + ([backend_of_world().monitored_barrier] if NEW else [])
        for call in calls:
            try:
                call()
                os._exit(1)
            except RuntimeError as error:
                if "forked child" not in str(error):
                    os._exit(2)
        os._exit(3 if work.is_completed() else 0)
    assert status_of(pid) == 0
    work.wait()
    return True


def child_reads_what_has_ended(rank, size):
    """A forked child may ask for what an operation of its parent has given before the fork."""
    t = torch.ones(3)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    pid = os.fork()
    if pid == 0:
        given = work.get_future().wait()[0]
        os._exit(0 if work.wait() and work.is_completed() and given[0].item() == t[0].item() == size else 1)
    assert status_of(pid) == 0
    return True


def child_begins(rank, size, folder):
    """A forked child makes a group of its own."""
    dist.all_reduce(torch.ones(10))
    pid = os.fork()
    if pid == 0:
        dist.distributed_c10d._world.pg_map.clear()
        dist.distributed_c10d.GroupMember.WORLD = None
        store = dist.PrefixStore("child", dist.FileStore(f"{folder}/child", size))
        dist.init_process_group("ddp", store=store, rank=rank, world_size=size)
        t = torch.ones(3)
        dist.all_reduce(t)
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
        dist.destroy_process_group()
        os._exit(0 if t[0].item() == size else 1)
    assert status_of(pid) == 0
    dist.barrier()
    return True


def threads_of_a_child_begin(rank, size):
    """Threads of a forked child make their first groups at once, and the end of the child closes all of them."""

    def make(number):
        begin.wait()
        store, limit = dist.HashStore(), datetime.timedelta(seconds=60)
        made.append(slurm_ddp_torch._C.create(store, 0, 1, limit, "ddp", f"of thread {number}", []))

    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            made, begin = [], threading.Barrier(4)
            threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            slurm_ddp_torch._C.close_all("")
            closed = 0
            for group in made:
                try:
                    group.allreduce([torch.ones(1)])
                except RuntimeError as error:
                    closed += "closed" in str(error)
            os._exit(0 if closed == 4 else 1)
        assert status_of(pid) == 0
    return True


def child_frees(rank, size):
    """A forked child drops a tensor of its parent while a thread of the parent allocates."""
    ends = threading.Event()

    def allocate():
        for i in range(1 << 30):
            if ends.is_set():
                return
            take((1 << 20) + i % 100 * 1024)

    thread = threading.Thread(target=allocate)
    thread.start()
    kept = [take(1 << 16)]
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            kept.clear()
            os._exit(0)
        assert status_of(pid) == 0
    ends.set()
    thread.join()
    return True


class Forks(RanksCase):
    def test_child_exits(self):
        self.all_end(2, child_exits)

    def test_child_is_refused(self):
        self.all_end(2, child_is_refused)

    def test_child_reads_what_has_ended(self):
        self.all_end(2, child_reads_what_has_ended)

    def test_threads_of_a_child_begin(self):
        self.all_end(1, threads_of_a_child_begin)

    @unittest.skipUnless(NEW, "this torch cannot forget its groups")
    def test_child_begins(self):
        self.all_end(2, child_begins, self.folder())

    @unittest.skipUnless(ALLOCATES, "this torch does not ask backends for memory")
    def test_child_frees(self):
        self.all_end(1, child_frees)


if __name__ == "__main__":
    unittest.main(verbosity=2)
