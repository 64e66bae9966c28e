# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks do alike: they read options, write a file, and end. Where a build's programs are, the environment
says, which `make` sets: BENCH_PROGRAMS, BENCH_GPT, BENCH_VISION and DDP_PLUGIN."""

import argparse
import json
import os
import subprocess
import sys

from .group import ContenderFailed, end_by_signals
from .report import machine

PROGRAMS = os.path.abspath(os.environ.get("BENCH_PROGRAMS") or os.getcwd())
GPT = os.environ.get("BENCH_GPT", "examples/gpt/gpt")
PLUGIN = os.path.abspath(os.environ["DDP_PLUGIN"]) if os.environ.get("DDP_PLUGIN") else None


def options_of(name, doc, python=True):
    """A parser of the options that benchmarks have in common."""
    parser = argparse.ArgumentParser(prog=name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if python:
        parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", default=f"{name}.json", help="(default: %(default)s)")
    return parser


def tell(text):
    print(text, file=sys.stderr, flush=True)


def save(path, benchmark, **figures):
    """Writes a benchmark's file. Whoever ends us meanwhile finds the old file or the new one."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"benchmark": benchmark, "machine": machine(), **figures}, file, indent=1)
        file.write("\n")
    os.replace(f"{path}.new", path)


def run(main):
    """The program. A contender that it cannot do without, and that fails, is told in a sentence."""
    end_by_signals()
    try:
        sys.exit(main())
    except (ContenderFailed, subprocess.TimeoutExpired) as failure:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {failure}")
