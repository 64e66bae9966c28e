# SPDX-License-Identifier: Apache-2.0
"""Groups that go on without ranks: shrink_group() and reconfigure() of torch 2.15."""

import os
import signal
import time
import unittest

import torch
import torch.distributed as dist
from ranks import RECONFIGURES, BackendError, Ranks, RanksCase, on_ranks
from torch.nn.parallel import DistributedDataParallel

c10d = dist.distributed_c10d


def total(group=None):
    t = torch.ones(3)
    dist.all_reduce(t, group=group)
    return t[0].item()


def work_until_error():
    try:
        while True:
            total()
    except BackendError as error:
        return str(error)


def trains(rank):
    torch.manual_seed(1)
    net = DistributedDataParallel(torch.nn.Linear(200, 300))
    for _ in range(3):
        net(torch.full((2, 200), rank + 1.0)).sum().backward()
    sums = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, net.module.weight.grad.sum().reshape(1))
    assert all(torch.equal(s, sums[0]) for s in sums)
    return True


def shrink_after_kill(rank, size):
    dead = 1
    extra = dist.new_group()
    total(extra)
    if rank == dead:
        os.kill(os.getpid(), signal.SIGKILL)
    heard = work_until_error()
    assert f"rank {dead} on " in heard, heard
    group = dist.shrink_group([dead])
    assert group is dist.group.WORLD and group.size() == size - 1 == dist.get_world_size()
    assert dist.get_rank() == rank - (rank > dead)
    assert total() == size - 1
    # New groups are made of the ranks that are left.
    part = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        assert total(part) == 2
    trains(dist.get_rank())
    return True


def shrink_without_failure(rank, size, dies):
    """The rank that is left out closes its groups when it likes, or ends without."""
    half = dist.new_group(list(range(size - 1)))
    if rank == size - 1:
        if dies:
            time.sleep(1)
            os._exit(0)
        return True
    small = dist.shrink_group([0], group=half) if rank > 0 else None
    if rank > 0:
        assert small.size() == size - 2 and total(small) == size - 2
    group = dist.shrink_group([size - 1])
    assert group.size() == size - 1 and total() == size - 1
    for _ in range(4):
        assert trains(rank)
        time.sleep(0.4)
    return total() == size - 1


def shrink_without_one_that_hangs(rank, size):
    """Nobody waits for it."""
    if rank == size - 1:
        time.sleep(30)
        os._exit(0)
    begin = time.monotonic()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    dist.shrink_group([size - 1], shrink_flags=c10d.SHRINK_ABORT)
    assert total() == size - 1
    assert time.monotonic() - begin < 25
    try:
        work.wait()
    except BackendError as error:
        assert "abort()" in str(error), error
        return True
    return False


def shrink_twice(rank, size):
    for left in range(size - 1, 0, -1):
        if rank == left:
            os._exit(0)
        assert f"rank {left} on " in work_until_error()
        assert dist.shrink_group([left]).size() == left
        assert total() == left
    return True


def handles(rank, size, folder):
    own = c10d._get_reconfigure_handle()
    with open(f"{folder}/new{rank}", "w") as file:
        file.write(own)
    os.rename(f"{folder}/new{rank}", f"{folder}/handle{rank}")
    names = [f"{folder}/handle{r}" for r in range(size)]
    while not all(os.path.exists(name) for name in names):
        time.sleep(0.01)
    found = []
    for name in names:
        with open(name) as file:
            found.append(file.read())
    assert found[rank] == own
    return found


def reconfigure(rank, size, folder):
    """A group is opened, loses a rank, and goes on without it in another order."""
    assert c10d._supports_reconfigure()
    all_handles = handles(rank, size, folder)
    try:
        total()
        return False
    except RuntimeError as error:
        assert "reconfigure() opens it" in str(error), error
    assert c10d._reconfigure(1, all_handles).wait()
    assert (dist.get_rank(), dist.get_world_size(), total()) == (rank, size, size)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert "rank 1 on " in work_until_error()
    rest = [h for r, h in enumerate(all_handles) if r != 1][::-1]
    assert c10d._reconfigure(2, rest).wait()
    assert dist.get_rank() == rest.index(all_handles[rank]) and total() == size - 1
    gathered = [None] * (size - 1)
    dist.all_gather_object(gathered, rank)
    assert gathered == [r for r in range(size) if r != 1][::-1], gathered
    # Without a failure, and without an order.
    assert c10d._reconfigure(3, set(rest)).wait()
    assert total() == size - 1
    dist.monitored_barrier()
    return True


@unittest.skipUnless(RECONFIGURES, f"groups of torch {torch.__version__} cannot shrink")
class Shrink(unittest.TestCase):
    def test_after_a_rank_was_killed(self):
        with Ranks(4, shrink_after_kill) as ranks:
            self.assertEqual(ranks.wait(), [0, -signal.SIGKILL, 0, 0])

    def test_without_a_failure(self):
        self.assertTrue(all(on_ranks(4, shrink_without_failure, False)))
        with Ranks(4, shrink_without_failure, True) as ranks:
            self.assertEqual(ranks.wait(), [0, 0, 0, 0])
            self.assertTrue(all(ranks.result(r) for r in range(3)))

    def test_without_a_rank_that_hangs(self):
        with Ranks(3, shrink_without_one_that_hangs) as ranks:
            self.assertEqual(ranks.wait(), [0, 0, 0])
            self.assertTrue(ranks.result(0) and ranks.result(1))

    def test_again(self):
        with Ranks(4, shrink_twice) as ranks:
            self.assertEqual(ranks.wait(), [0, 0, 0, 0])
            self.assertTrue(ranks.result(0))


@unittest.skipUnless(RECONFIGURES, f"torch {torch.__version__} has no reconfigure()")
class Reconfigure(RanksCase):
    def test_reconfigure(self):
        with Ranks(4, reconfigure, self.folder(), enable_reconfigure=True) as ranks:
            self.assertEqual(ranks.wait(), [0, -signal.SIGKILL, 0, 0])
            self.assertTrue(all(ranks.result(r) for r in (0, 2, 3)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
