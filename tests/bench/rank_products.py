#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What matrix products of f32 by another library reach here.

usage: rank_products.py torch|numpy THREADS ROUNDS LAYERS HEADS WIDTH VOCAB LENGTH BATCH

Prints 1e9 operations per second, medians of ROUNDS, of the same square matrices as rank_sgemm.c; and by torch, on a line
of its own, of all products that a step of such a GPT has, with the shapes and the transposed operands that they have
there. Nothing is printed where the library is not installed. NumPy calls the BLAS that it was built with (OpenBLAS, as
a rule), torch its own (MKL or OpenBLAS). OMP_NUM_THREADS is to be THREADS, too."""

import importlib.util
import statistics
import sys
import time

SIZE = 2048


def rate(rounds, flops, call):
    """The first call warms up."""
    seconds = []
    for number in range(rounds + 1):
        start = time.perf_counter()
        call()
        if number > 0:
            seconds.append(time.perf_counter() - start)
    return flops * 1e-9 / statistics.median(seconds)


def by_numpy(rounds):
    import numpy

    a, b, c = (numpy.full((SIZE, SIZE), value, numpy.float32) for value in (0.1, 0.2, 0))
    yield rate(rounds, 2 * SIZE**3, lambda: numpy.matmul(a, b, out=c))


def of_linear(torch, rows, inputs, outputs):
    """Forward with its bias, and the gradients of input and weight, as torch.nn.Linear has them."""
    x, weight, bias = torch.rand(rows, inputs), torch.rand(outputs, inputs), torch.rand(outputs)
    grad, out = torch.rand(rows, outputs), torch.empty(rows, outputs)
    dx, dw = torch.empty(rows, inputs), torch.empty(outputs, inputs)

    def run():
        torch.addmm(bias, x, weight.t(), out=out)
        torch.mm(grad, weight, out=dx)
        torch.mm(grad.t(), x, out=dw)

    return 6 * rows * inputs * outputs, run


def of_attention(torch, count, length, width):
    """Scores and their product with the values, and backward of both, of `count` heads, causal or not."""
    q, k, v, grad = (torch.rand(count, length, width) for _ in range(4))
    p = torch.rand(count, length, length)
    wide, narrow = torch.empty(count, length, length), torch.empty(count, length, width)

    def run():
        torch.bmm(q, k.transpose(1, 2), out=wide)
        torch.bmm(p, v, out=narrow)
        torch.bmm(grad, v.transpose(1, 2), out=wide)
        torch.bmm(p.transpose(1, 2), grad, out=narrow)
        torch.bmm(p, k, out=narrow)
        torch.bmm(p.transpose(1, 2), q, out=narrow)

    return 12 * count * length * length * width, run


def by_torch(rounds, threads, layers, heads, width, vocab, length, batch):
    import torch

    torch.set_num_threads(threads)
    with torch.no_grad():
        a, b, c = (torch.full((SIZE, SIZE), value) for value in (0.1, 0.2, 0.0))
        yield rate(rounds, 2 * SIZE**3, lambda: torch.mm(a, b, out=c))
        rows = batch * length
        of_layer = [of_linear(torch, rows, inputs, outputs) for inputs, outputs in (
            (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))]
        of_layer.append(of_attention(torch, batch * heads, length, width // heads))
        calls = of_layer * layers + [of_linear(torch, rows, width, vocab)]

        def step():
            for _, run in calls:
                run()

        yield rate(rounds, sum(flops for flops, _ in calls), step)


def main():
    library, threads, rounds, *sizes = sys.argv[1], *map(int, sys.argv[2:])
    if importlib.util.find_spec(library) is None:
        return
    for found in by_numpy(rounds) if library == "numpy" else by_torch(rounds, threads, *sizes):
        print(f"{found:.2f}", flush=True)


if __name__ == "__main__":
    main()
