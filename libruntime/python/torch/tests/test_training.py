# SPDX-License-Identifier: Apache-2.0
"""DDP and its hooks beside gloo, and buckets in memory that ranks share."""

import os
import unittest

import torch
import torch.distributed as dist
from ranks import NEW, Ranks, on_ranks
from torch.nn.parallel import DistributedDataParallel

import slurm_ddp_torch

C10D_BACKEND = getattr(torch._C._distributed_c10d, "Backend", None)


def losses(rank, size, group, hook=None, sparse=False):
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Embedding(100, 64, sparse=sparse),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 600),
        torch.nn.ReLU(),
        torch.nn.Linear(600, 100),
    )
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=1, gradient_as_bucket_view=not sparse)
    if hook is not None:
        ddp.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    seen = []
    for step in range(12):
        generator = torch.Generator().manual_seed(step * 1000 + rank)
        tokens = torch.randint(100, (16, 9), generator=generator)
        loss = torch.nn.functional.cross_entropy(ddp(tokens[:, :8]), tokens[:, 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    total = sum(p.detach().double().sum() for p in model.parameters())
    sums = [torch.zeros(1, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(sums, total.reshape(1))
    assert all(torch.equal(s, sums[0]) for s in sums), sums  # ranks have the same parameters
    return seen


def beside_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    for sparse in (False, True):
        ours, theirs = (losses(rank, size, g, sparse=sparse) for g in (dist.group.WORLD, gloo))
        assert max(abs(a - b) for a, b in zip(ours, theirs)) < 1e-5, (sparse, ours, theirs)
    return True


def with_hooks(rank, size):
    """gloo keeps the gradients of the whole; the wire is ddp's."""
    gloo = dist.new_group(backend="gloo")
    plain = losses(rank, size, gloo)
    wire = slurm_ddp_torch.bf16_wire(dist.new_group(backend="ddp"))
    halved = losses(rank, size, gloo, wire)
    assert max(abs(a - b) for a, b in zip(plain, halved)) < 0.02, (plain, halved)
    assert plain != halved
    return True


def with_powersgd(rank, size):
    gloo = dist.new_group(backend="gloo")
    plain = losses(rank, size, gloo)
    group = dist.new_group(backend="ddp")
    # A rank as high as the matrices gives the same gradients; a low one fewer bytes.
    exact = losses(rank, size, gloo, slurm_ddp_torch.powersgd_wire(group, rank=600, min_rate=1e-9))
    assert max(abs(a - b) for a, b in zip(plain, exact)) < 1e-3, (plain, exact)
    for settings in ({}, {"start": 3}, {"warm_start": False}, {"feedback": False})[: 4 if size == 2 else 1]:
        wire = slurm_ddp_torch.powersgd_wire(group, rank=4, **settings)
        seen = losses(rank, size, gloo, wire)
        assert wire[0].sent_bytes < wire[0].full_bytes / 10, (wire[0].sent_bytes, wire[0].full_bytes)
        means = torch.tensor([sum(seen[:4]), sum(seen[-4:])])
        dist.all_reduce(means)
        assert means[1] < means[0], (settings, seen)
        if "start" in settings:
            assert all(abs(a - b) < 1e-5 for a, b in zip(plain[:3], seen)), (plain, seen)
    return True


def powersgd_hears_of(rank, size):
    """The hook's futures end with the error of a rank that has left."""
    wire = slurm_ddp_torch.powersgd_wire(dist.new_group(backend="ddp"), rank=4)
    ddp = DistributedDataParallel(torch.nn.Linear(512, 600), process_group=dist.new_group(backend="gloo"))
    ddp.register_comm_hook(*wire)
    for step in range(5):
        if step == 3 and rank == 1:
            os._exit(0)
        try:
            ddp(torch.ones(2, 512)).sum().backward()
        except RuntimeError as error:
            assert step == 3 and "rank 1 on " in str(error), error
            return True
    return False


def shared_descriptors():
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
    return sum(name.startswith("/memfd:ddp") for name in names)


def buckets(rank, size):
    before = shared_descriptors()
    model = DistributedDataParallel(torch.nn.Linear(1000, 1000), gradient_as_bucket_view=True)
    for _ in range(3):
        model(torch.ones(2, 1000)).sum().backward()
    within = shared_descriptors()
    assert within > before, (before, within)
    gradient = model.module.weight.grad
    dist.destroy_process_group()
    # The gradient is a view of a bucket, which outlives the group.
    assert gradient.sum().item() == 2 * 3 * 1000 * 1000
    gradient.add_(1)
    return True


class Training(unittest.TestCase):
    def test_losses_equal_gloos(self):
        for size in (2, 3):
            self.assertTrue(all(on_ranks(size, beside_gloo)))

    def test_bf16_wire_beside_gloo(self):
        self.assertTrue(all(on_ranks(2, with_hooks)))

    @unittest.skipUnless(NEW, "gloo of this torch cannot average")
    def test_powersgd_wire_beside_gloo(self):
        for size in (2, 3):
            self.assertTrue(all(on_ranks(size, with_powersgd)))

    @unittest.skipUnless(NEW, "hooks of this torch get no parameters")
    def test_powersgd_wire_hears_of_a_dead_rank(self):
        with Ranks(2, powersgd_hears_of) as ranks:
            ranks.wait()
            self.assertTrue(ranks.result(0))

    @unittest.skipUnless(hasattr(C10D_BACKEND, "supports_tensor_alloc"), "this torch asks no backend for memory")
    def test_buckets_lie_in_shared_memory(self):
        self.assertTrue(all(on_ranks(2, buckets, destroy=False)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
