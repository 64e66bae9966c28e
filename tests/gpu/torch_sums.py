# SPDX-License-Identifier: Apache-2.0
"""torch_sums.py RANK RANKS FOLDER [DEVICE]: one rank of a program of PyTorch that knows nothing of
libddp. It sums over all ranks on the GPU that it sees first (DEVICE cuda, by NCCL), or on the
host (cpu, by gloo), and checks the sums. The ranks meet in FOLDER.
"""
import sys

import torch
import torch.distributed as dist

rank, ranks = int(sys.argv[1]), int(sys.argv[2])
device = sys.argv[4] if len(sys.argv) > 4 else "cuda"
dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method="file://" + sys.argv[3] + "/store",
                        rank=rank, world_size=ranks)
types = [torch.float32, torch.float64, torch.int32] + ([torch.float16, torch.bfloat16] if device == "cuda" else [])
for dtype in types:
    for count in (1, 1000, 1 << 20):
        # Small whole numbers are exact in all types.
        values = torch.arange(count, device=device) % 4 + rank + 1
        wanted = ranks * (values - rank - 1) + ranks * (ranks + 1) // 2
        values = values.to(dtype)
        dist.all_reduce(values)
        if not torch.equal(values, wanted.to(dtype)):
            sys.exit("rank %d: a sum of %d numbers of %s is wrong" % (rank, count, dtype))
print("rank %d of PyTorch %s: the sums are right" % (rank, torch.__version__))
dist.destroy_process_group()
