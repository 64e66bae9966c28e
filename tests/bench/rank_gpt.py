#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same GPT as PyTorch does it best, step by step.

usage: rank_gpt.py LAYERS HEADS WIDTH VOCAB LENGTH BATCH THREADS STEPS RANKS [f32|tf32|bf16 [DEVICE eager|compile]]

Prints each step's seconds, the first ones (warm-up) left out: forward,
backward, clipping and AdamW, fused where this torch has that. bf16: with autocast to it.
Several ranks are processes of this host, by DistributedDataParallel and gloo; the first
one prints. BENCH_SAVE="WAY PATH EVERY": after each so many steps, model and optimizer are saved there, within the step's
time. WAY save leaves the file to the kernel, and async writes it in a thread."""

import math
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fc_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.future = torch.ones(length, length).triu(1).bool()  # no buffer: gloo sends no booleans

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.attn(x).split(width, dim=2)
        )
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            score = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.shape[-1]))
            y = F.softmax(score.masked_fill(self.future[:length, :length], -math.inf), dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, heads, width, vocab, length):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, length) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


WARM_UP = {"cpu": 1, "cuda": 5}


def make_optimizer(model):
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **options)
    except (TypeError, RuntimeError):  # before 2.4 it is fused on GPUs only
        return torch.optim.AdamW(model.parameters(), **options)


def save(state, path):
    torch.save(state, path)


class SaveAsync:
    """A thread writes a copy, and syncs it. A save waits for the one before."""

    def __init__(self):
        from torch.distributed import checkpoint

        self.begin, self.running = checkpoint.async_save, None

    def __call__(self, state, path):
        self.end()
        self.running = self.begin(state, checkpoint_id=path)

    def end(self):
        if self.running:
            self.running.result()


SAVES = {"save": lambda: save, "async": SaveAsync}


def saver_of(model, optimizer):
    """A function that saves, and after how many steps; what it needs is made before the first step."""
    way, _, rest = os.environ.get("BENCH_SAVE", "save  0").partition(" ")
    path, _, every = rest.rpartition(" ")
    by = SAVES[way]()
    return lambda: by({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path), int(every), by


def train(rank, ranks, rendezvous, sizes, dtype, device, compiled):
    layers, heads, width, vocab, length, batch, threads, steps = sizes
    on_host = device == "cpu"
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    torch.manual_seed(1)
    model = GPT(layers, heads, width, vocab, length).to(device)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if compiled:
        model = torch.compile(model)
    optimizer = make_optimizer(model)
    torch.manual_seed(2 + rank)
    tokens = torch.randint(vocab, (batch, length + 1)).to(device)
    save_now, every, saver = saver_of(model, optimizer)
    for step in range(steps + WARM_UP[device]):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=not on_host)
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16"):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if every > 0 and rank == 0 and (step + 1) % every == 0:
            save_now()
        if not on_host:
            torch.cuda.synchronize()
        if step >= WARM_UP[device] and rank == 0:
            print(time.perf_counter() - start, flush=True)
    if isinstance(saver, SaveAsync):
        saver.end()
    if ranks > 1:
        dist.destroy_process_group()


def main():
    *sizes, ranks = map(int, sys.argv[1:10])
    dtype = sys.argv[10] if len(sys.argv) > 10 else "f32"
    device, way = sys.argv[11:13] if len(sys.argv) > 12 else ("cpu", "eager")
    if ranks == 1:
        train(0, 1, "", sizes, dtype, device, way == "compile")
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, os.path.join(folder, "rendezvous"), sizes, dtype, device, way == "compile")
        torch.multiprocessing.spawn(train, args=arguments, nprocs=ranks)


if __name__ == "__main__":
    main()
