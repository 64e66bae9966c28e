#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs:; all: unit
"""slurm_ddp's other tests with the oldest and the newest Python that the machine has, from 3.8 on.

TEST_PYTHONS: interpreters to run instead, all of them, with colons between them.
"""
import os
import subprocess
import sys
import unittest
from pathlib import Path

from support import environment, main

OLDEST = (3, 8)
NEWEST = (3, 30)
TESTS = ("page", "failures", "progress", "hooks")


def version_of(python):
    """(3, 12), or None: it is none, or an older one."""
    try:
        said = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60, check=True)
        version = tuple(map(int, said.stdout.split()))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return version if version >= OLDEST else None


def candidates():
    for minor in range(OLDEST[1], NEWEST[1]):
        yield "python3.%d" % minor
    versions = Path(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "versions")
    # Another user's, after sudo or su, may not be looked into.
    if os.access(versions, os.R_OK | os.X_OK):
        for folder in sorted(versions.iterdir()):
            yield str(folder / "bin/python3")


def chosen():
    given = [name for name in os.environ.get("TEST_PYTHONS", "").split(":") if name]
    if given:
        return given
    found = {}
    for python in candidates():
        version = version_of(python)
        if version is not None and version != sys.version_info[:2]:
            found.setdefault(version, python)
    return [found[version] for version in sorted({min(found), max(found)})] if found else []


class Versions(unittest.TestCase):
    pass


def add(python, name):
    def run(self):
        path = Path(__file__).with_name("test_python_%s.py" % name)
        ended = subprocess.run([python, str(path)], env={**environment(), "PYTHONPATH": ""}, timeout=170, check=False,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        bad = "\n".join(line for line in ended.stdout.splitlines() if not line.startswith("ok "))
        self.assertEqual(ended.returncode, 0, "%s:\n%s" % (python, bad))

    version = version_of(python)
    if version is None:
        run = unittest.skip("%s is no Python 3.8 or later" % python)(run)
    label = "_".join(map(str, version)) if version else os.path.basename(python)
    setattr(Versions, "test_python_%s_%s" % (label, name), run)


PYTHONS = chosen()
for interpreter in PYTHONS:
    for suite in TESTS:
        add(interpreter, suite)
if not PYTHONS:
    @unittest.skip("there is no other Python than %d.%d" % sys.version_info[:2])
    def other(self):
        pass
    Versions.test_other_versions = other

if __name__ == "__main__":
    main()
