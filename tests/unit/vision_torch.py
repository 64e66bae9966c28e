#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Compares the losses of the networks for images with PyTorch's, from the same weights and samples:
some steps of what `make bench-vision-step` compares for longer. Prints TAP."""

import argparse
import functools
import importlib.machinery
import importlib.util
import os
import sys
import tempfile

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BENCH = os.path.join(TESTS, "bench")
# Later losses of a ResNet go apart, as PyTorch's own do in other orders of sums.
STEPS = {"mnist_cnn": 4, "cifar_net": 4, "resnet18": 1}
BATCH, TOLERANCE = 8, 1e-5


def load_vision_step():
    sys.dont_write_bytecode = True
    sys.path[:0] = [BENCH, os.path.join(TESTS, "python")]
    loader = importlib.machinery.SourceFileLoader("vision_step", os.path.join(BENCH, "vision_step"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("vision_step", loader))
    loader.exec_module(module)
    module.run = functools.partial(run, module.run)
    return module


def run(otherwise, argv, environment=None):
    """As the benchmark's, but PyTorch is imported once: each of its programs is a fork."""
    if argv[0] != sys.executable:
        return otherwise(argv, environment)
    import support
    process = support.Forked(argv[1], argv[2:], support.environment(**environment or {}))
    said, errors = process.communicate(300)
    if process.exitcode != 0:
        raise RuntimeError(errors)
    return said


def main():
    if importlib.util.find_spec("torch") is None:
        print("1..0 # SKIP this Python has no torch (python3-torch)")
        return 0
    bench = load_vision_step()
    options = argparse.Namespace(batch=BATCH, python=sys.executable,
                                 vision=os.environ.get("BENCH_VISION", "examples/vision"))
    status = 0
    print("1..%d" % len(STEPS))
    for number, (model, options.parity) in enumerate(STEPS.items(), 1):
        with tempfile.TemporaryDirectory() as folder:
            bench.run([os.path.join(options.vision, "synthetic"), bench.DATA[model], folder, str(BATCH * 16), "8"])
            mine, start = bench.our_losses(options, model, folder)
            steps = bench.pytorch(options, model, folder, 1, options.parity, bench.FORMATS[0], start)
        apart = bench.largest_difference(mine, [loss for _, loss, _ in steps])
        status |= not apart < TOLERANCE
        print("%s %d - losses of %s are PyTorch's" % ("ok" if apart < TOLERANCE else "not ok", number, model))
        print("# largest relative difference of %d: %.2g" % (len(steps), apart))
    return status


sys.exit(main())
