# SPDX-License-Identifier: Apache-2.0
"""One rank of the overlap benchmark: rank_train.c's training by PyTorch's DistributedDataParallel.

    rank_train.py MIB SHARE ROUNDS RENDEZVOUS_FILE

As many tensors, arithmetic of the same kind, SGD, and lines of the same form. DDP has its own
defaults, buckets of 25 MiB among them. BENCH_WAIT is as there. RANK and SIZE come from SLURM.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LAYERS, BLOCK, WARM_UP_ROUNDS, GUESS_BLOCKS = 16, 1 << 16, 3, 1000
WAIT = 28e-6  # seconds, for a block
MODES = ("compute_only", "serial", "overlapped")


class Work:
    """Arithmetic that stays in a core's own cache; backward's of a layer, forward takes half."""

    numbers, blocks = torch.ones(BLOCK), GUESS_BLOCKS

    @classmethod
    def compute(cls, blocks):
        if "BENCH_WAIT" in os.environ:
            time.sleep(blocks * WAIT)
            return
        for _ in range(blocks):
            cls.numbers.mul_(0.999).add_(0.001)


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, weight):
        ctx.count = weight.numel()
        Work.compute(Work.blocks // 2)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        Work.compute(Work.blocks)
        return gradient, torch.ones(ctx.count)


class Model(torch.nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(elements)) for _ in range(LAYERS)])

    def forward(self, value):
        for weight in self.weights:
            value = Layer.apply(value, weight)
        return value.sum()


def train_step(model, optimizer, mode):
    """Of the slowest rank: seconds of a step, of its backward, and from backward's end on."""
    dist.barrier()
    start = time.perf_counter()
    model.require_backward_grad_sync = mode == "overlapped"
    loss = model(torch.ones(1, requires_grad=True))
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    if mode == "serial":
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    end = time.perf_counter()
    figures = torch.tensor([end - start, backward - forward, end - backward], dtype=torch.float64)
    dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    return dict(zip(("step_seconds", "backward_seconds", "tail_seconds"), figures.tolist()))


def adjust(share, figures, weight):
    """Lets backward take as long as `share` wants, on all ranks alike."""
    alone, serial = figures["compute_only"], figures["serial"]
    wanted = Work.blocks * (serial["tail_seconds"] - alone["tail_seconds"]) / share / alone["backward_seconds"]
    Work.blocks = 1 + int(Work.blocks + weight * (max(wanted, 0) - Work.blocks))


def main():
    mib, share, rounds, rendezvous = int(sys.argv[1]), int(sys.argv[2]) / 100, int(sys.argv[3]), sys.argv[4]
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    if os.environ.get("BENCH_PIN"):
        os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    model = DistributedDataParallel(Model((mib << 18) // LAYERS))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(-WARM_UP_ROUNDS, rounds):
        figures = {mode: train_step(model, optimizer, mode) for mode in MODES}
        if number >= 0 and rank == 0:
            for mode in MODES:
                print(json.dumps({"round": number, "mode": mode, **figures[mode]}), flush=True)
        adjust(share, figures, 1 if number < 0 else 0.25)
    # PyTorch 1.13's group, whose end waits under the interpreter's lock for its threads, may wait for
    # ever: one of them may want that lock, to free a tensor.
    sys.stdout.flush()
    os._exit(0)


main()
