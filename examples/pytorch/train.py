#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch DDP script; nothing in it knows of Slurm or slurm-ddp.

    srun --ddp -N2 --ntasks-per-node=2 python3 train.py

srun --ddp gives each task RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT, which init_process_group("env://") reads. The model learns to
predict the next byte of this very file.
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class NextByte(Dataset):
    """Windows of a file: the bytes, and the same shifted by one."""

    def __init__(self, path, length):
        if not os.path.isfile(path):  # open() would wait for a pipe
            raise SystemExit(f"{path}: {'no regular file' if os.path.lexists(path) else 'there is no such file'}")
        with open(path, "rb") as file:
            text = bytearray(file.read())
        self.text = torch.frombuffer(text, dtype=torch.uint8).long()
        self.length = length
        if len(self) < 1:
            raise SystemExit(f"{path}: shorter than {length + 1} bytes")

    def __len__(self):
        return len(self.text) - self.length

    def __getitem__(self, i):
        window = self.text[i : i + self.length + 1]
        return window[:-1], window[1:]


class Model(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.memory = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, 256)

    def forward(self, x):
        return self.head(self.memory(self.embedding(x))[0])


def parse_arguments():
    parser = argparse.ArgumentParser(description="Next-byte prediction with PyTorch DDP.")
    parser.add_argument("--data", default=__file__, help="file to learn (default: this script)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="per rank")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    return parser.parse_args()


def train(arguments, rank, device):
    torch.manual_seed(1)
    data = NextByte(arguments.data, arguments.length)
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=arguments.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss_of = torch.nn.CrossEntropyLoss()
    step = epoch = 0
    while step < arguments.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for inputs, targets in loader:
            logits = model(inputs.to(device))
            loss = loss_of(logits.flatten(0, 1), targets.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            if rank == 0 and (step == 1 or step % 10 == 0):
                print(f"step {step} loss {mean.item():.4f}", flush=True)
            if step == arguments.steps:
                break
    return model


def check_ranks_agree(model):
    """All ranks must hold the same parameters, to the bit."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    root = mine.clone()
    dist.broadcast(root, 0)
    if not torch.equal(mine, root):
        raise SystemExit(f"rank {dist.get_rank()}: parameters differ from rank 0's")


def main():
    arguments = parse_arguments()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(arguments.backend, init_method="env://")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if arguments.backend == "nccl":
        # With --gpus-per-task, each task sees one device only, device 0.
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    print(f"rank {rank} of {dist.get_world_size()}, local rank {local_rank}, on {os.uname().nodename}",
          flush=True)
    check_ranks_agree(train(arguments, rank, device))
    dist.barrier()
    if rank == 0:
        print("all ranks hold the same parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
