# SPDX-License-Identifier: Apache-2.0
"""Compares the backends ddp and gloo in one run: all_reduce from Python, and steps of DDP.

    python bench.py --ranks 2                 # on this machine
    python bench.py --nodes 2 --ranks 1       # on the nodes of a throw-away SLURM (root is needed)

Each line has the median and the range of rounds that all contenders take in turn, after a call that is not counted. "floor" is a backend that does
nothing, watched by torch's flight recorder as the other two are: torch and Python themselves take so long. Run it on an
idle machine. On a busy one, --realtime gives the ranks precedence (root is needed). It tells little about steps: a
thread that communicates then waits until the one that computes gives up the core.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from ranks import on_ranks

import slurm_ddp_torch  # noqa: F401  pylint: disable=unused-import

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "..", "..", "..", "slurm", "cluster")
SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "25 MiB": 25 << 20}


def summary(times):
    return statistics.median(times), min(times), max(times)


def shared(group, count):
    """A tensor of the allocator that DDP's buckets come from."""
    backend = group._get_backend(torch.device("cpu"))
    if hasattr(backend, "supports_tensor_alloc") and backend.supports_tensor_alloc(torch.device("cpu")):
        return backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))
    return torch.zeros(count)


def floor(size):
    """A group whose backend does nothing, and what has to live as long as it; None: this torch has none."""
    try:
        import torch.testing._internal.distributed.fake_pg  # noqa: F401  pylint: disable=unused-import

        group = dist.new_group(backend="fake")
    except (ImportError, AttributeError, RuntimeError, ValueError):
        return None, None
    recorder = getattr(dist.distributed_c10d, "FlightRecorderHook", None)
    return group, recorder and recorder.attach(group, list(range(size)))


def take_precedence(realtime):
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def calls(rank, size, rounds, seconds, realtime):
    take_precedence(realtime)
    groups = {"gloo": dist.new_group(backend="gloo"), "ddp": dist.new_group(backend="ddp")}
    groups["floor"], recorder = floor(size)
    lines = []
    for name, bytes_ in SIZES.items():
        forms = {
            "gloo": ("gloo", torch.zeros(bytes_ // 4), False),
            "ddp": ("ddp", torch.zeros(bytes_ // 4), False),
            "ddp, shared memory": ("ddp", shared(groups["ddp"], bytes_ // 4), False),
            "gloo, async_op": ("gloo", torch.zeros(bytes_ // 4), True),
            "ddp, async_op": ("ddp", torch.zeros(bytes_ // 4), True),
        }
        if groups["floor"] is not None:
            forms["floor"] = ("floor", torch.zeros(bytes_ // 4), False)
        times = {form: [] for form in forms}
        count = max(3, min(300, int(seconds * (1 << 28) / (bytes_ + (1 << 18)))))
        for turn in range(rounds + 1):
            for form, (backend, tensor, later) in forms.items():
                # The contender before it has taken its memory out of the caches.
                dist.all_reduce(tensor, group=groups[backend])
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(count):
                    work = dist.all_reduce(tensor, group=groups[backend], async_op=later)
                    if later:
                        work.wait()
                if turn > 0:
                    times[form].append((time.perf_counter() - begin) / count * 1e6)
        lines.append((name, {form: summary(t) for form, t in times.items()}))
    del recorder
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


class Residual(torch.nn.Module):
    """Two convolutions beside the identity, or beside one that fits it to their shape."""

    def __init__(self, before, after, stride):
        super().__init__()
        convolution, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.body = torch.nn.Sequential(
            convolution(before, after, 3, stride, 1, bias=False),
            norm(after),
            torch.nn.ReLU(),
            convolution(after, after, 3, 1, 1, bias=False),
            norm(after),
        )
        self.beside = torch.nn.Identity()
        if stride != 1 or before != after:
            self.beside = torch.nn.Sequential(convolution(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x):
        return torch.relu(self.body(x) + self.beside(x))


def resnet18(classes=1000):
    torch.manual_seed(7)
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1),
        *[Residual(*shape) for a, b, stride in stages for shape in ((a, b, stride), (b, b, 1))],
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(512, classes),
    )


def batch_of(model, generator, options):
    if model == "resnet18":
        images = torch.randn(options["batch"], 3, options["pixels"], options["pixels"], generator=generator)
        return images, torch.randint(1000, (options["batch"],), generator=generator)
    tokens = torch.randint(8192, (options["batch"], options["tokens"] + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:].flatten()


def steps(rank, size, model, rounds, options):
    """Milliseconds of a step without DDP, with gloo and with ddp, the losses of the latter two, and the parameters."""
    take_precedence(options["realtime"])

    def new():
        return resnet18() if model == "resnet18" else gpt(options["layers"], options["width"])

    models = {"one rank": new()}
    for name, group in {"gloo": dist.new_group(backend="gloo"), "ddp": dist.group.WORLD}.items():
        models[name] = torch.nn.parallel.DistributedDataParallel(
            new(), process_group=group, gradient_as_bucket_view=True
        )
    optimizers = {name: torch.optim.AdamW(m.parameters(), lr=1e-3) for name, m in models.items()}
    times, losses = {name: [] for name in models}, {name: [] for name in models}
    for turn in range(rounds + 3):
        inputs, wanted = batch_of(model, torch.Generator().manual_seed(turn * 100 + rank), options)
        for name, contender in models.items():
            dist.barrier()
            begin = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(contender(inputs).flatten(0, -2), wanted)
            loss.backward()
            optimizers[name].step()
            optimizers[name].zero_grad(set_to_none=False)
            losses[name].append(loss.item())
            if turn > 2:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return {n: summary(t) for n, t in times.items()}, losses, sum(p.numel() for p in models["one rank"].parameters())


def print_calls(lines):
    for name, forms in lines:
        for form, (median, least, most) in forms.items():
            gloo = forms["gloo, async_op" if form.endswith("async_op") else "gloo"][0]
            times = "" if form == "floor" or form.startswith("gloo") else f", {gloo / median:.1f}x gloo"
            print(f"all_reduce {name}, {form}: {median:.1f} us ({least:.1f} to {most:.1f}){times}", flush=True)


def print_steps(model, times, losses, parameters):
    for name, (median, least, most) in times.items():
        more = (median / times["one rank"][0] - 1) * 100
        print(f"step of {model}, {name}: {median:.1f} ms ({least:.1f} to {most:.1f}), {more:+.1f}%")
    worst = max(abs(a - b) for a, b in zip(losses["gloo"], losses["ddp"]))
    first, last = losses["ddp"][0], losses["ddp"][-1]
    print(f"{model}: {parameters / 1e6:.1f} million parameters; losses of {len(losses['ddp'])} steps: {first:.6f} to "
          f"{last:.6f}; from gloo's at most {worst:.1e}", flush=True)


def on_cluster(arguments, given):
    """Runs this program on the nodes of a throw-away cluster, whose ranks meet in a file."""
    name = f"torch-bench-{os.getpid()}"
    tasks = arguments.nodes * arguments.ranks
    with tempfile.TemporaryDirectory() as folder:
        cluster = [CLUSTER, "start", "--name", name, "--nodes", str(arguments.nodes), "--no-plugin", "--cpus", "64"]
        subprocess.run([*cluster, "--for", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
        try:
            subprocess.run(
                [CLUSTER, "run", "--name", name, "--", "srun", "--quiet", "--mpi=none", "-N", str(arguments.nodes),
                 "-n", str(tasks), "--ntasks-per-node", str(arguments.ranks), "--export=ALL",
                 sys.executable, os.path.abspath(__file__), *given, "--meet", os.path.join(folder, "store")],
                check=True,
            )
        finally:
            subprocess.run([CLUSTER, "stop", "--name", name], check=False, stdout=subprocess.DEVNULL)


def on_this_rank(store, body, *arguments):
    """What rank 0 of a step of SLURM returned; None on the others."""
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    torch.set_num_threads(1)
    dist.init_process_group("ddp", init_method=f"file://{store}", rank=rank, world_size=size)
    result = body(rank, size, *arguments)
    dist.destroy_process_group()
    return result if rank == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2, help="of a node")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", default="gpt,resnet18", help="of the steps; an empty word leaves steps out")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--realtime", action="store_true", help="give the ranks precedence over other processes")
    parser.add_argument("--json", help="a file for all figures, in us of a call and ms of a step")
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    models = [model for model in arguments.models.split(",") if model]

    if arguments.nodes > 1 and not arguments.meet:
        return on_cluster(arguments, sys.argv[1:])

    def measure(number, body, *given):
        if arguments.meet:
            return on_this_rank(f"{arguments.meet}-{number}", body, *given)
        return on_ranks(arguments.ranks, body, *given, limit=3600)[0]

    place = f"{arguments.ranks} ranks of one node"
    if arguments.nodes > 1:
        place = f"{arguments.nodes} nodes of {arguments.ranks} ranks"
    lines = measure("calls", calls, arguments.rounds, 0.3, arguments.realtime)
    found = {"place": place, "nodes": arguments.nodes, "torch": torch.__version__, "calls": lines, "steps": {}}
    if lines is not None:
        library = slurm_ddp_torch._C.libddp_version()
        print(f"torch {torch.__version__}, libddp {library}, {place}, {os.cpu_count()} cores")
        print_calls(lines)
    for model in models:
        result = measure(model, steps, model, arguments.rounds, vars(arguments))
        if result is not None:
            print_steps(model, *result)
            found["steps"][model] = result[0]
    if arguments.json and lines is not None:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return None


if __name__ == "__main__":
    main()
