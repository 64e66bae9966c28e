#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""compare(): the rank with damaged parameters is named, and no other one, and what it costs between comparisons is nothing."""
import os
import tempfile
import traceback
import unittest
from contextlib import nullcontext
from pathlib import Path

from support import main, needs_torch

FLIPPED = 10  # bit


def flip(tensor, index):
    """In place, one bit of an element."""
    import torch
    words = tensor.detach().view(-1).view(torch.int32)
    words[index] = int(words[index]) ^ 1 << FLIPPED


class Training:
    """A rank of a small training: buffers differ among ranks."""

    def __init__(self, **more):
        import torch
        torch.manual_seed(3)
        inner = torch.nn.Sequential(torch.nn.Linear(64, 600), torch.nn.BatchNorm1d(600), torch.nn.Linear(600, 1))
        inner[0].bias.requires_grad_(False)
        self.model = torch.nn.parallel.DistributedDataParallel(inner, **more)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.steps = 0

    def step(self, micro_batches=1, precision=None):
        import torch
        import torch.distributed as dist
        generator = torch.Generator().manual_seed(1000 * self.steps + dist.get_rank())
        self.steps += 1
        self.optimizer.zero_grad()
        for number in range(micro_batches):
            last = number == micro_batches - 1
            with nullcontext() if last else self.model.no_sync():
                with torch.autocast("cpu", dtype=precision) if precision is not None else nullcontext():
                    loss = self.model(torch.randn(8, 64, generator=generator)).square().mean()
                loss.backward()
        self.optimizer.step()


def run_calm(rank, world):
    """Nothing differs that should not."""
    import torch
    import slurm_ddp
    for form in ({}, {"micro_batches": 3}, {"precision": torch.bfloat16}):
        training = Training(broadcast_buffers=False)
        for _ in range(4):
            training.step(**form)
            slurm_ddp.compare(training.model, training.optimizer)


def expect(error, text, ranks, node, of_others):
    assert str(error) == text, str(error)
    assert (error.ranks, error.node, error.of_others) == (ranks, node, of_others), vars(error)


def run_named(rank, world):
    """Every third call compares, and the first one. A parameter's bit, a frozen one's, and one of the optimizer's state."""
    import slurm_ddp
    for damaged in (lambda t: t.model.module[2].weight, lambda t: t.model.module[0].bias,
                    lambda t: t.optimizer.state[t.model.module[0].weight]["exp_avg_sq"]):
        training = Training()
        for _ in range(4):
            training.step()
            slurm_ddp.compare(training.model, training.optimizer, every=3, step=training.steps)
        if rank == 2:
            flip(damaged(training), 77)
        training.step()
        slurm_ddp.compare(training.model, training.optimizer, every=3)
        training.step()
        try:
            slurm_ddp.compare(training.model, training.optimizer, every=3, step=training.steps)
        except slurm_ddp.DamageError as error:
            expect(error, "rank 2 on n1 has other parameters than 3 of 4 ranks after step 6: its memory or processor is damaged; "
                   "go on without node n1 from the last checkpoint", [2], "n1", rank != 2)
        else:
            raise AssertionError("it is not seen")


def run_zero(rank, world):
    """ZeroRedundancyOptimizer: ranks have the same parameters, and each one a shard of the state, which a load shows."""
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    import slurm_ddp
    training = Training()
    training.optimizer = ZeroRedundancyOptimizer(training.model.parameters(), torch.optim.Adam, lr=1e-3)
    training.step()
    slurm_ddp.compare(training.model, training.optimizer)
    states = [None] * world
    for root in range(world):
        training.optimizer.consolidate_state_dict(root)
        if rank == root:
            states[root] = training.optimizer.state_dict()
    dist.broadcast_object_list(states)
    training.optimizer.load_state_dict(states[0])
    slurm_ddp.compare(training.model, training.optimizer)
    training.step()
    slurm_ddp.compare(training.model, training.optimizer)
    if rank == 1:
        flip(training.model.module[2].weight, 5)
    try:
        slurm_ddp.compare(training.model, training.optimizer)
    except slurm_ddp.DamageError as error:
        assert error.ranks == [1], error
        return
    raise AssertionError("it is not seen")


def run_several(rank, world):
    import slurm_ddp
    training = Training()
    slurm_ddp.compare(training.model)
    if rank > 3:
        flip(training.model.module[2].weight, 0)
    try:
        slurm_ddp.compare(training.model)
    except slurm_ddp.DamageError as error:
        expect(error, "rank 4 on n2 and 1 more rank there have other parameters than 4 of 6 ranks: their memory or processor is "
               "damaged; go on without node n2 from the last checkpoint", [4, 5], "n2", rank < 4)
        return
    raise AssertionError("it is not seen")


def run_pair(rank, world):
    import slurm_ddp
    training = Training()
    slurm_ddp.compare(training.model)
    slurm_ddp.compare(training.model)
    if rank == 1:
        flip(training.model.module[2].weight, 599)
    try:
        slurm_ddp.compare(training.model, step=8)
    except slurm_ddp.DamageError as error:
        expect(error, "one of rank 0 on a and rank 1 on b has wrong parameters after step 8, and too few of 2 ranks agree to tell "
               "which: its memory or processor is damaged; go back to the last checkpoint", [], None, False)
        return
    raise AssertionError("it is not seen")


def run_start(rank, world):
    """Ranks that have begun with other parameters are no sign of damage."""
    import torch
    import slurm_ddp
    torch.manual_seed(rank)
    try:
        slurm_ddp.compare(torch.nn.Linear(3, 2), every=100)
    except slurm_ddp.DamageError:
        raise
    except RuntimeError as error:
        assert "rank 1 on b has other parameters than rank 0 on a at the first comparison" in str(error), error
        return
    raise AssertionError("it is not seen")


def run_rank(rank, nodes, body, folder):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(len(nodes)), DDP_NODE_NAME=nodes[rank])
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), len(nodes)), rank=rank,
                            world_size=len(nodes))
    body(rank, len(nodes))
    dist.barrier()


@needs_torch
class Compare(unittest.TestCase):
    def check(self, body, nodes):
        """torch is imported once: each rank is a fork."""
        import torch  # noqa: F401  # pylint: disable=unused-import
        with tempfile.TemporaryDirectory() as folder:
            ranks = []
            for rank in range(len(nodes)):
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        run_rank(rank, nodes, body, folder)
                        status = 0
                    except BaseException:  # pylint: disable=broad-except
                        Path(folder, "why%d" % rank).write_text(traceback.format_exc())
                    os._exit(status)
                ranks.append(child)
            ends = [os.waitpid(child, 0)[1] for child in ranks]
            why = "\n".join(path.read_text() for path in sorted(Path(folder).glob("why*")))
            self.assertEqual(ends, [0] * len(nodes), why)

    def test_equal_ranks_are_not_named(self):
        self.check(run_calm, ["n0", "n0", "n1", "n1"])

    def test_the_damaged_rank_is_named(self):
        self.check(run_named, ["n0", "n0", "n1", "n1"])

    def test_optimizers_with_shards_are_compared_without_their_state(self):
        self.check(run_zero, ["n0", "n0", "n1"])

    def test_several_ranks_of_a_node_are_named_with_it(self):
        self.check(run_several, ["n0", "n0", "n1", "n1", "n2", "n2"])

    def test_of_two_ranks_it_is_one_of_both(self):
        self.check(run_pair, ["a", "b"])

    def test_ranks_that_begin_apart_are_not_damaged(self):
        self.check(run_start, ["a", "b"])

    def test_a_checksum_sees_flipped_bits(self):
        import torch
        from slurm_ddp import damage
        tensors = [torch.randn(5, 3), torch.randn(300000)[1:], torch.arange(7), torch.zeros(3, dtype=torch.bfloat16),
                   torch.ones((), dtype=torch.float64), torch.randn(4, 4).t()]
        before = damage._checksum(tensors)
        self.assertEqual(damage._checksum(tensors), before)
        self.assertLess(abs(before), 1 << 63)
        bits = [tensor.contiguous().view(-1).view(torch.uint8) if tensor.dim() else tensor.view(1).view(torch.uint8)
                for tensor in tensors[:-1]]
        seen = {before}
        for of, index in ((0, 0), (0, 59), (1, 0), (1, 1199995), (2, 8), (3, 5), (4, 7)):
            for bit in range(8):
                bits[of][index] ^= 1 << bit
                seen.add(damage._checksum(tensors))
                bits[of][index] ^= 1 << bit
        self.assertEqual(len(seen), 1 + 7 * 8)
        # Two highest bits of 64, and two of 32.
        for pair in ((7, 1024 + 7), (15, 31), (3, 11)):
            for index in pair:
                bits[1][index] ^= 0x80
            self.assertNotEqual(damage._checksum(tensors), before)
            for index in pair:
                bits[1][index] ^= 0x80

    def test_without_other_ranks_it_does_nothing(self):
        import torch
        import slurm_ddp
        slurm_ddp.compare(torch.nn.Linear(2, 2), every=2)
        with self.assertRaisesRegex(ValueError, "every is 0"):
            slurm_ddp.compare(torch.nn.Linear(2, 2), every=0)


if __name__ == "__main__":
    main()
