# SPDX-License-Identifier: Apache-2.0
"""One rank of startup and wireup: imports torch, joins gloo, says when its first
all-reduce was done. Under torchrun, or under srun with MASTER_ADDR and
MASTER_PORT."""

import os
import time

import torch
import torch.distributed as dist


def memory_kib():
    """The process' share of memory; pages that several processes use count in parts."""
    with open("/proc/self/smaps_rollup") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("Pss:")), 0)


if "RANK" not in os.environ:
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
before = memory_kib()
begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
os.write(1, f"@ {dist.get_rank()} done {now} {ones.item():g} {begin} {memory_kib() - before}\n".encode())
dist.destroy_process_group()
