#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py SOURCE: prints, for each folder of libruntime, spank and kernels, the share of lines that were run.

Runs in a build folder of gcc --coverage in which tests have run. A source that several libraries compile counts once.
"""
import collections
import json
import os
import subprocess
import sys

FOLDERS = ("libruntime", "spank", "kernels")


def objects():
    for folder in FOLDERS:
        for path, _, names in os.walk(folder):
            yield from (os.path.join(path, name) for name in names if name.endswith(".gcno"))


def lines_of(notes, source, counts):
    """Adds to counts[file][line] how often this object's lines were run."""
    found = subprocess.run(["gcov", "--json-format", "--stdout", notes], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, check=False)
    if found.returncode != 0 or not found.stdout:
        sys.exit(f"coverage: gcov cannot read {notes}")
    for text in found.stdout.splitlines():
        said = json.loads(text)
        for file in said["files"]:
            path = os.path.relpath(os.path.join(said["current_working_directory"], file["file"]), source)
            if path.split(os.sep)[0] in FOLDERS:
                for line in file["lines"]:
                    counts[path][line["line_number"]] += line["count"]


def main():
    source = os.path.realpath(sys.argv[1])
    counts = collections.defaultdict(collections.Counter)
    for notes in sorted(objects()):
        lines_of(notes, source, counts)
    if not counts:
        sys.exit("coverage: no object here was built with --coverage")
    folders = collections.defaultdict(lambda: [0, 0])
    for path, lines in counts.items():
        run = sum(1 for count in lines.values() if count > 0)
        for name in (os.path.dirname(path), path.split(os.sep)[0] + " in all"):
            folders[name][0] += run
            folders[name][1] += len(lines)
    for name in sorted(folders):
        run, lines = folders[name]
        print(f"{name:<36} {100 * run / lines:5.1f}%  {run:6} of {lines:6} lines")


main()
