# SPDX-License-Identifier: Apache-2.0
"""Contender "gloo": torch.distributed.all_reduce on a preallocated tensor.

Speaks the protocol of rank.h. Usage: rank_gloo.py RENDEZVOUS_FILE [RANK SIZE];
without RANK and SIZE they come from Slurm's SLURM_PROCID and SLURM_NTASKS.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

PATTERN = 251
TIMES_PER_LINE = 50  # a line must be shorter than PIPE_BUF


class Rank:
    def __init__(self, rank, size):
        self.rank, self.size, self.data = rank, size, None
        path = os.environ.get("BENCH_ANSWERS")
        self.answers = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if path else 1

    def say(self, text):
        os.write(self.answers, f"@ {self.rank} {text}\n".encode())

    def open(self, count):
        self.data = torch.zeros(count, dtype=torch.float32)
        self.say("open")

    def close(self):
        self.data = None
        self.say("close")

    def check(self):
        count = self.data.numel()
        ramp = torch.arange(1, PATTERN + 1, dtype=torch.float32).repeat(count // PATTERN + 1)
        ramp = ramp[:count]
        self.data.copy_(ramp * (self.rank + 1))
        dist.barrier()
        dist.all_reduce(self.data)
        wrong = (self.data != ramp * (self.size * (self.size + 1) // 2)).nonzero()
        self.data.zero_()
        self.say(f"check {wrong[0].item() if len(wrong) else -1}")

    def run(self, batch, samples, rewrite):
        data, all_reduce, now = self.data, dist.all_reduce, time.perf_counter_ns
        rest = int(os.environ.get("BENCH_REST_US") or 0) * 1e-6
        times = []
        for _ in range(samples + 1):
            if rest:
                time.sleep(rest)
            dist.barrier()
            start = now()
            for _ in range(batch):
                if rewrite:
                    data.zero_()
                all_reduce(data)
            times.append(now() - start)
        del times[0]  # the batch that warms up
        for first in range(0, samples, TIMES_PER_LINE):
            self.say("times " + " ".join(map(str, times[first : first + TIMES_PER_LINE])))
        self.say("run")

    def obey(self, words):
        {"open": self.open, "check": self.check, "run": self.run, "close": self.close}[words[0]](
            *map(int, words[1:])
        )


def commands_of(rank):
    prefix = os.environ.get("BENCH_COMMANDS")
    return open(f"{prefix}.{rank}") if prefix else sys.stdin


def main():
    if len(sys.argv) == 4:
        rank, size = int(sys.argv[2]), int(sys.argv[3])
    else:
        rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    if os.environ.get("BENCH_PIN"):
        os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{sys.argv[1]}", rank=rank, world_size=size)
    served = Rank(rank, size)
    commands = commands_of(rank)
    served.say(f"ready {size}")
    try:
        for line in commands:
            served.obey(line.split())
    except RuntimeError as error:
        served.say(f"error {' '.join(str(error).split())[:500]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
