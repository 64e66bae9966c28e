"""The GPT that is measured, and its steps by examples/gpt."""

import array
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass

from .group import ContenderFailed


BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Freed memory is kept: page faults would cost PyTorch a fifth of its step.
TUNED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(1 << 26)}


@dataclass
class Sizes:
    layers: int = 6
    heads: int = 8
    width: int = 512
    vocab: int = 50304
    length: int = 256
    batch: int = 4

    @property
    def tokens(self):
        """Of a step."""
        return self.batch * self.length

    @property
    def flops(self):
        """Of a step: the products of forward, and twice that for backward;
        attention counted in full, causal or not."""
        layer = 12 * self.width**2 + 2 * self.length * self.width
        return 6 * self.tokens * (self.layers * layer + self.vocab * self.width)

    def __str__(self):
        return (f"{self.layers} layers, {self.heads} heads, width {self.width}, vocabulary "
                f"{self.vocab}, length {self.length}, batch {self.batch}")


def add_size_options(add):
    plain = Sizes()
    for name in ("layers", "heads", "width", "vocab", "length", "batch"):
        add(f"--{name}", type=int, default=getattr(plain, name), help="(default: %(default)s)")


def sizes_of(options):
    return Sizes(options.layers, options.heads, options.width, options.vocab, options.length, options.batch)


def write_tokens(sizes, path):
    """Random tokens: what they say does not matter to the time."""
    numbers = random.Random(1)
    count = 64 * sizes.batch * sizes.length + 1
    tokens = array.array("H", (numbers.randrange(min(sizes.vocab, 65536)) for _ in range(count)))
    if sys.byteorder == "big":
        tokens.byteswap()
    with open(path, "wb") as file:
        tokens.tofile(file)


def steps(program, sizes, folder, count, threads, ranks=1, extra=(), warm_up=1):
    """Runs examples/gpt; the last `count` steps as its metrics tell them."""
    tokens, metrics = os.path.join(folder, "tokens"), os.path.join(folder, "metrics")
    if not os.path.exists(tokens):
        write_tokens(sizes, tokens)
    if os.path.exists(metrics):
        os.unlink(metrics)
    done = subprocess.run(
        [program, "--data", tokens, "--format", "u16", "--layers", str(sizes.layers),
         "--heads", str(sizes.heads), "--width", str(sizes.width), "--vocab", str(sizes.vocab),
         "--length", str(sizes.length), "--batch", str(sizes.batch), "--steps", str(count + warm_up),
         "--threads", str(threads), "--spawn", str(ranks), "--metrics", metrics, *extra],
        capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise ContenderFailed(f"{program}: {done.stderr.strip()[-800:]}")
    with open(metrics) as file:
        lines = [json.loads(line) for line in file]
    told = [line for line in lines if "step" in line][warm_up:]
    if len(told) != count:
        raise ContenderFailed(f"{program} told of {len(told)} steps instead of {count}")
    return told


def numbers(argv, environment):
    """What a program prints, one number a line."""
    done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False, timeout=900)
    if done.returncode:
        raise ContenderFailed(f"{argv[0]}: {done.stderr.strip()[-800:]}")
    try:
        return [float(line) for line in done.stdout.split()]
    except ValueError:
        raise ContenderFailed(f"{argv[0]} should print numbers only: {done.stdout.strip()[-200:]}") from None


def has_torch(python):
    return shutil.which(python) is not None and subprocess.run(
        [python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def pytorch(python, sizes, threads, count, ranks=1, dtype="f32", way=()):
    """Seconds of `count` steps of the same GPT by PyTorch; several ranks: by its
    DistributedDataParallel over gloo; bf16: with autocast. `way`: the device, and "eager" or
    "compile"; left out, the host, and for bf16 torch.compile."""
    shape = (sizes.layers, sizes.heads, sizes.width, sizes.vocab, sizes.length, sizes.batch)
    words = [str(number) for number in (*shape, threads, count, ranks)]
    argv = [python, os.path.join(BENCH, "rank_gpt.py"), *words, dtype, *way]
    return numbers(argv, {**TUNED, "OMP_NUM_THREADS": str(threads)})
