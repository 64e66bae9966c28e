# SPDX-License-Identifier: Apache-2.0
"""The GPT that is measured, and its steps by examples/gpt."""

import array
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass

from . import driver
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


LIMIT = 900  # seconds that a contender may take


def run(argv, limit=LIMIT, environment=None):
    """subprocess.run, with its output as text, that at its limit ends the children of its child, too: they hold
    its output, and torch.compile has many."""
    with subprocess.Popen(argv, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            out, errors = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired as failure:
            os.killpg(child.pid, signal.SIGKILL)
            failure.output, failure.stderr = child.communicate()
            raise
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(argv, child.returncode, out, errors)


PEAK = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(code)
"""


def peak_bytes(argv, environment=None, limit=LIMIT):
    """The largest resident memory that one of a program's processes has."""
    return numbers([sys.executable, "-c", PEAK, *argv], environment or {}, limit)[0]


def command(sizes, folder, count, threads, ranks=1):
    """examples/gpt for so many steps, on tokens that are written if they are not there."""
    tokens = os.path.join(folder, "tokens")
    if not os.path.exists(tokens):
        write_tokens(sizes, tokens)
    return [driver.GPT, "--data", tokens, "--format", "u16", "--layers", str(sizes.layers),
            "--heads", str(sizes.heads), "--width", str(sizes.width), "--vocab", str(sizes.vocab),
            "--length", str(sizes.length), "--batch", str(sizes.batch), "--steps", str(count),
            "--threads", str(threads), "--spawn", str(ranks)]


def steps(sizes, folder, count, threads, extra=(), warm_up=1, limit=LIMIT):
    """Runs examples/gpt; the last `count` steps as its metrics tell them."""
    metrics = os.path.join(folder, "metrics")
    if os.path.exists(metrics):
        os.unlink(metrics)
    done = run([*command(sizes, folder, count + warm_up, threads), "--metrics", metrics, *extra], limit)
    if done.returncode:
        raise ContenderFailed(f"{driver.GPT}: {done.stderr.strip()[-800:]}")
    with open(metrics) as file:
        lines = [json.loads(line) for line in file]
    told = [line for line in lines if "step" in line][warm_up:]
    if len(told) != count:
        raise ContenderFailed(f"{driver.GPT} told of {len(told)} steps instead of {count}")
    return told


def numbers(argv, environment, limit=LIMIT):
    """What a program prints, one number a line."""
    done = run(argv, limit, environment)
    if done.returncode:
        raise ContenderFailed(f"{argv[0]}: {done.stderr.strip()[-800:]}")
    try:
        return [float(line) for line in done.stdout.split()]
    except ValueError:
        raise ContenderFailed(f"{argv[0]} should print numbers only: {done.stdout.strip()[-200:]}") from None


def has_torch(python):
    return shutil.which(python) is not None and subprocess.run(
        [python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def find_python(paths, device):
    """Of these, or of the python3 of PATH, the first that has torch, for "cuda" with CUDA."""
    wanted = "torch.cuda.is_available()" if device == "cuda" else "torch"
    for path in dict.fromkeys(paths or [os.path.join(folder, "python3") for folder in os.get_exec_path()]):
        if shutil.which(path) is not None and subprocess.run(
                [path, "-c", f"import sys, torch; sys.exit(not {wanted})"],
                capture_output=True, check=False).returncode == 0:
            return path
    return None


def pytorch_command(python, sizes, threads, count, ranks=1, dtype="f32", way=()):
    shape = (sizes.layers, sizes.heads, sizes.width, sizes.vocab, sizes.length, sizes.batch)
    words = [str(number) for number in (*shape, threads, count, ranks)]
    return [python, os.path.join(BENCH, "rank_gpt.py"), *words, dtype, *way]


# On the host, by the names of contenders: eager, and compiled. AdamW is fused in both.
WAYS = {"pytorch": ("cpu", "eager"), "torch.compile": ("cpu", "compile")}


def pytorch_environment(threads):
    return {**TUNED, "OMP_NUM_THREADS": str(threads)}


def pytorch(python, sizes, threads, count, ranks=1, dtype="f32", way=(), limit=LIMIT, environment=None):
    """Seconds of `count` steps of the same GPT by PyTorch; several ranks: by its
    DistributedDataParallel over gloo; bf16: with autocast. `way`: the device, and "eager" or
    "compile"; left out, the host and eager."""
    argv = pytorch_command(python, sizes, threads, count, ranks, dtype, way)
    return numbers(argv, {**pytorch_environment(threads), **(environment or {})}, limit)


def products(python, library, sizes, threads, rounds=5, limit=LIMIT):
    """Rates in 1e9/s at which "torch" or "numpy" multiplies matrices of f32: large square ones, and with "torch" also
    those of a step of this GPT."""
    shape = (sizes.layers, sizes.heads, sizes.width, sizes.vocab, sizes.length, sizes.batch)
    words = [str(number) for number in (threads, rounds, *shape)]
    return numbers([python, os.path.join(BENCH, "rank_products.py"), library, *words], pytorch_environment(threads), limit)
