# SPDX-License-Identifier: Apache-2.0
"""One rank of startup: imports torch, joins gloo, says when its first
all-reduce was done. Under torchrun, or under srun with MASTER_ADDR and
MASTER_PORT."""

import os
import time

import torch
import torch.distributed as dist

if "RANK" not in os.environ:
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
os.write(1, f"@ {dist.get_rank()} done {now} {ones.item():g}\n".encode())
dist.destroy_process_group()
