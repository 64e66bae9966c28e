# SPDX-License-Identifier: Apache-2.0
"""DDP and its hooks beside gloo, and buckets in memory that ranks share."""

import os
import unittest

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

import slurm_ddp_torch

NEW = int(torch.__version__.split(".")[0]) >= 2


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

    @unittest.skipUnless(NEW, "this torch asks no backend for memory")
    def test_buckets_lie_in_shared_memory(self):
        self.assertTrue(all(on_ranks(2, buckets, destroy=False)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
