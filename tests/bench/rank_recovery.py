# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch DDP script with checkpoints, which `recovery` hurts: rank_recovery.py FOLDER STEPS EVERY.

Nothing in it knows of Slurm, of slurm-ddp or of torchrun. Rank 0 appends a line "STEP NANOSECONDS" to FOLDER/steps.0
for each step."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


def main():
    folder, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    checkpoint = os.path.join(folder, "checkpoint.pt")
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    parallel = DistributedDataParallel(model)
    with open(os.path.join(folder, f"steps.{rank}"), "a", encoding="ascii", buffering=1) as lines:
        while step < steps:
            step += 1
            generator = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
            samples = torch.randn(8, WIDTH, generator=generator)
            optimizer.zero_grad()
            parallel(samples).square().mean().backward()
            optimizer.step()
            time.sleep(0.02)
            print(step, time.clock_gettime_ns(time.CLOCK_MONOTONIC), file=lines)
            if step % every == 0 and rank == 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(saved, checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
