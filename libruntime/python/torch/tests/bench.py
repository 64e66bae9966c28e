# SPDX-License-Identifier: Apache-2.0
"""Compares the backends ddp and gloo in one run: all_reduce from Python, and steps of DDP.

    python bench.py --ranks 2

Each line has medians and ranges of rounds that the two backends take in turn. Run it on an idle machine.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from ranks import on_ranks

import slurm_ddp_torch  # noqa: F401  pylint: disable=unused-import

SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "25 MiB": 25 << 20}


def shared(group, count):
    """A tensor of the allocator that DDP's buckets come from."""
    backend = group._get_backend(torch.device("cpu"))
    if hasattr(backend, "supports_tensor_alloc") and backend.supports_tensor_alloc(torch.device("cpu")):
        return backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))
    return torch.zeros(count)


def calls(rank, size, rounds, seconds):
    groups = {"gloo": dist.new_group(backend="gloo"), "ddp": dist.new_group(backend="ddp")}
    lines = []
    for name, bytes_ in SIZES.items():
        forms = {
            "gloo": ("gloo", torch.zeros(bytes_ // 4), False),
            "ddp": ("ddp", torch.zeros(bytes_ // 4), False),
            "ddp, shared memory": ("ddp", shared(groups["ddp"], bytes_ // 4), False),
            "ddp, async_op": ("ddp", torch.zeros(bytes_ // 4), True),
        }
        times = {form: [] for form in forms}
        for turn in range(rounds + 1):
            for form, (backend, tensor, later) in forms.items():
                dist.barrier()
                count = max(3, min(300, int(seconds * (1 << 28) / (bytes_ + (1 << 18)))))
                begin = time.perf_counter()
                for _ in range(count):
                    work = dist.all_reduce(tensor, group=groups[backend], async_op=later)
                    if later:
                        work.wait()
                if turn > 0:
                    times[form].append((time.perf_counter() - begin) / count * 1e6)
        lines.append((name, {form: (statistics.median(t), min(t), max(t)) for form, t in times.items()}))
    return lines


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norms[0](x)).split(c, 2))
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def gpt(layers, width, vocabulary=8192):
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, width),
        *[Block(width, 4) for _ in range(layers)],
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, vocabulary),
    )


def steps(rank, size, rounds, layers, width):
    """Seconds of a step without DDP, with gloo and with ddp, and the losses of the latter two."""
    groups = {"gloo": dist.new_group(backend="gloo"), "ddp": dist.group.WORLD}
    models = {"alone": gpt(layers, width)}
    for name, group in groups.items():
        models[name] = torch.nn.parallel.DistributedDataParallel(
            gpt(layers, width), process_group=group, gradient_as_bucket_view=True
        )
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-3) for name, model in models.items()}
    times, losses = {name: [] for name in models}, {name: [] for name in models}
    for turn in range(rounds + 3):
        generator = torch.Generator().manual_seed(turn * 100 + rank)
        tokens = torch.randint(8192, (4, 129), generator=generator)
        for name, model in models.items():
            dist.barrier()
            begin = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizers[name].step()
            optimizers[name].zero_grad(set_to_none=False)
            losses[name].append(loss.item())
            if turn > 2:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return {n: (statistics.median(t), min(t), max(t)) for n, t in times.items()}, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    arguments = parser.parse_args()
    limit = {"limit": 1800}

    print(f"torch {torch.__version__}, libddp {slurm_ddp_torch._C.libddp_version()}, {arguments.ranks} ranks of one node")
    for name, forms in on_ranks(arguments.ranks, calls, arguments.rounds, 0.3, **limit)[0]:
        gloo = forms["gloo"][0]
        for form, (median, least, most) in forms.items():
            print(f"all_reduce {name}, {form}: {median:.1f} us ({least:.1f} to {most:.1f}), {gloo / median:.1f}x gloo")
    times, losses = on_ranks(arguments.ranks, steps, arguments.rounds + 4, arguments.layers, arguments.width, **limit)[0]
    for name, (median, least, most) in times.items():
        more = (median / times["alone"][0] - 1) * 100
        print(f"step of DDP, {name}: {median:.1f} ms ({least:.1f} to {most:.1f}), {more:+.1f}%")
    worst = max(abs(a - b) for a, b in zip(losses["gloo"], losses["ddp"]))
    print(f"losses of {len(losses['ddp'])} steps: {losses['ddp'][0]:.6f} to {losses['ddp'][-1]:.6f}; from gloo's at most {worst:.1e}")


if __name__ == "__main__":
    main()
