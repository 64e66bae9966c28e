# SPDX-License-Identifier: Apache-2.0
"""What PyTorch builds on process groups: FSDP2, meshes of devices, tensor parallel layers, distributed checkpoints,
and groups that are split and merged. Each trains beside gloo and must have the same losses."""

import datetime
import os
import shutil
import tempfile
import unittest

import torch
import torch.distributed as dist
from ranks import RECONFIGURES, on_ranks

try:  # once for all ranks, which are forked
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
except ImportError:
    pass  # tests are skipped

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
BACKENDS = ("gloo", "ddp")


def needs(major, minor, what):
    return unittest.skipUnless(RELEASE >= (major, minor), f"torch {torch.__version__} has no {what}")


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.up = torch.nn.Linear(32, 96)
        self.down = torch.nn.Linear(96, 32)
        self.head = torch.nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.down(torch.relu(self.up(x))))


def model():
    torch.manual_seed(5)
    return Layers()


def train(net, steps, seed, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=0.01)
    seen = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step + seed)
        tokens = torch.randint(64, (8, 9), generator=generator)
        loss = torch.nn.functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def fsdp(rank, size, mixed):
    net = model()
    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if mixed else {}
    mesh = dist.init_device_mesh("cpu", (size,))
    for layer in (net.up, net.down, net):
        fully_shard(layer, mesh=mesh, **policy)
    return train(net, 8, rank)


def hybrid(rank, size):
    """Shards within a pair of ranks, replicas over the pairs."""
    mesh = dist.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    net = model()
    fully_shard(net, mesh=mesh)
    return train(net, 6, rank)


def tensor_parallel(rank, size):
    """Two ranks share each layer, and pairs of ranks have different samples."""
    mesh = dist.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    net = parallelize_module(model(), mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["data"])
    return train(net, 6, mesh["data"].get_local_rank())


def meshes(rank, size):
    mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    for name in ("rows", "columns"):
        part = mesh[name]
        t = torch.tensor([float(rank)])
        dist.all_reduce(t, group=part.get_group())
        assert t.item() == sum(part.mesh.tolist()), (name, t)
    whole = mesh["rows", "columns"]._flatten("all")
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=whole.get_group())
    assert t.item() == sum(range(size)), t
    return True


def redistribute(rank, size):
    mesh = dist.init_device_mesh("cpu", (size,))
    full = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
    tensor = distribute_tensor(full, mesh, [Shard(0)])
    other = tensor.redistribute(mesh, [Shard(1)])
    assert torch.equal(other.full_tensor(), full)
    assert torch.equal((other + other).redistribute(mesh, [Replicate()]).to_local(), 2 * full)
    total = tensor.sum(dim=0)
    assert any(isinstance(p, Partial) for p in total.placements)
    assert torch.equal(total.full_tensor(), full.sum(0))
    return True


def checkpoint(rank, size, folder, later):
    def make():
        net = model()
        fully_shard(net)
        return net, torch.optim.AdamW(net.parameters(), lr=0.01)

    def state(net, optimizer):
        parameters, moments = get_state_dict(net, optimizer)
        return {"model": parameters, "optimizer": moments}

    net, optimizer = make()
    train(net, 3, rank, optimizer)
    if later:
        # The thread of the checkpoint uses a group of its own while training goes on.
        group = dist.new_group(backend="ddp" if dist.get_backend() == "ddp" else "gloo")
        saved = dcp.async_save(state(net, optimizer), checkpoint_id=folder, process_group=group)
        after = train(net, 3, 100 + rank, optimizer)
        saved.result()
    else:
        dcp.save(state(net, optimizer), checkpoint_id=folder)
        after = train(net, 3, 100 + rank, optimizer)
    dist.barrier()
    net, optimizer = make()
    loaded = state(net, optimizer)
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(net, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    again = train(net, 3, 100 + rank, optimizer)
    assert after == again, (after, again)
    return after


def split_and_merge(rank, size):
    from torch.distributed.distributed_c10d import _get_default_group

    # The two halves at the same time, then a half of a half.
    half = dist.split_group(_get_default_group(), [list(range(size // 2)), list(range(size // 2, size))])
    mine = range(size // 2) if rank < size // 2 else range(size // 2, size)
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=half)
    assert t.item() == sum(mine), t
    pair = dist.split_group(half, [[0, 1]])
    if dist.get_rank(half) < 2:
        dist.all_reduce(t, group=pair)
        assert t.item() == 2 * sum(mine)
        dist.destroy_process_group(pair)
    if not hasattr(half, "merge_remote_group"):
        return True
    # The halves become one group again; the store gives the ranks.
    store = dist.PrefixStore("merged", dist.distributed_c10d._get_default_store())
    whole = half.merge_remote_group(store, size, datetime.timedelta(seconds=60), "merged")
    t = torch.tensor([float(rank)])
    whole.allreduce([t]).wait()
    assert whole.size() == size and t.item() == sum(range(size)), t
    whole.shutdown()
    return True


def same(test, size, body, *arguments, exact=False):
    """Runs `body` over both backends and compares the losses."""
    theirs, ours = (on_ranks(size, body, *arguments, backend=name) for name in BACKENDS)
    for a, b in zip(theirs, ours):
        if exact:
            test.assertEqual(a, b)
        else:
            for x, y in zip(a, b):
                test.assertAlmostEqual(x, y, delta=2e-4)
    test.assertGreater(len(ours[0]), 0)
    return ours


class Parallel(unittest.TestCase):
    @needs(2, 8, "fully_shard() on hosts")
    def test_fsdp2(self):
        for size in (2, 3):
            same(self, size, fsdp, False)

    @needs(2, 8, "fully_shard() on hosts")
    def test_fsdp2_in_bf16(self):
        theirs, ours = (on_ranks(2, fsdp, True, backend=name) for name in BACKENDS)
        for a, b in zip(sum(theirs, []), sum(ours, [])):
            self.assertAlmostEqual(a, b, delta=0.02)

    @needs(2, 8, "fully_shard() on hosts")
    def test_hybrid_shards(self):
        same(self, 4, hybrid)

    @needs(2, 8, "fully_shard() on hosts")
    def test_tensor_parallel(self):
        losses = same(self, 4, tensor_parallel)
        self.assertEqual(losses[0], losses[1])  # ranks that share layers have the same samples

    @needs(2, 6, "init_device_mesh with parts")
    def test_meshes(self):
        self.assertTrue(all(on_ranks(4, meshes)))

    @needs(2, 6, "torch.distributed.tensor")
    def test_tensors_are_redistributed(self):
        for size in (2, 3):
            self.assertTrue(all(on_ranks(size, redistribute)))

    @needs(2, 8, "fully_shard() on hosts")
    def test_distributed_checkpoint(self):
        for later in (False, True):
            losses = []
            for name in BACKENDS:
                folder = tempfile.mkdtemp(prefix="ddp-torch-dcp-")
                losses.append(on_ranks(2, checkpoint, folder, later, backend=name))
                self.assertIn(".metadata", os.listdir(folder))
                shutil.rmtree(folder)
            for a, b in zip(sum(losses[0], []), sum(losses[1], [])):
                self.assertAlmostEqual(a, b, delta=2e-4)

    @unittest.skipUnless(RECONFIGURES, f"torch {torch.__version__} has no split_group() on hosts")
    def test_groups_are_split_and_merged(self):
        self.assertTrue(all(on_ranks(4, split_and_merge)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
