#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""slurm-ddp-torch's sources as pip gets them: the archive has all of them, and where something is missing, pip says what."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

from support import PACKAGE, SOURCE, environment, main

TORCH = SOURCE / "libruntime/python/torch"
# Enough of torch for setup.py; there is none that would compile.
STANDIN = """
from setuptools import Extension as CppExtension
from setuptools.command.build_ext import build_ext
class BuildExtension(build_ext):
    @classmethod
    def with_options(cls, **options):
        return cls
"""


def has(*names):
    return all(importlib.util.find_spec(name) for name in names)


def has_setuptools():
    try:
        import setuptools
        return int(setuptools.__version__.split(".")[0]) >= 61
    except ImportError:
        return False


@unittest.skipUnless(has_setuptools(), "there is no setuptools 61 (python3-setuptools)")
class Sources(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # setuptools writes into the source tree, which may be read-only.
        self.tree = self.folder / "tree"
        shutil.copytree(TORCH, self.tree, ignore=shutil.ignore_patterns("__pycache__", "build", "built", "*.egg-info"))
        subprocess.run(["chmod", "-R", "u+w", str(self.tree)], check=True)

    def torch_is(self, text, extension=STANDIN):
        """Puts a stand-in for torch before any other one."""
        utils = self.folder / "standin/torch/utils"
        utils.mkdir(parents=True)
        (utils.parent / "__init__.py").write_text(text)
        (utils / "__init__.py").write_text("")
        (utils / "cpp_extension.py").write_text(extension)

    def call(self, *command):
        clean = environment(PYTHONPATH=self.folder / "standin", PKG_CONFIG_LIBDIR="/nowhere", PKG_CONFIG_PATH="",
                            PIP_DISABLE_PIP_VERSION_CHECK=1)
        clean.pop("DDP_PREFIX", None)
        return subprocess.run([sys.executable, *map(str, command)], cwd=self.tree, env=clean, timeout=170, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def builds(self):
        """By setup.py itself, and, where there is pip, by pip as users call it."""
        commands = [("setup.py", "--quiet", "build_ext", "--build-lib", self.folder / "lib")]
        if has("wheel", "pip"):
            commands.append(("-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--target",
                             self.folder / "target", self.tree))
        for command in commands:
            ended = self.call(*command)
            self.assertNotEqual(ended.returncode, 0, ended.stdout)
            yield re.sub(r"\s+", " ", ended.stdout)

    def test_without_libddp_it_says_what_to_install(self):
        self.torch_is("__version__ = '2.15.0'")
        for said in self.builds():
            self.assertIn("slurm-ddp-torch needs libddp of slurm-ddp", said)
            self.assertIn("install the package libddp-dev or slurm-ddp-devel, or set DDP_PREFIX", said)

    def test_without_torch_it_says_so(self):
        self.torch_is("raise ImportError(\"No module named 'torch'\")")
        # By setup.py alone: that pip shows what it says, the case above has seen.
        self.assertIn("which cannot be imported (No module named 'torch'): install torch first, and call pip with "
                      "--no-build-isolation", next(self.builds()))

    def test_archive_has_all_sources_and_needs_no_torch(self):
        self.torch_is("raise ImportError('none')")
        ended = self.call("setup.py", "--quiet", "sdist", "--dist-dir", self.folder / "dist")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        with tarfile.open(next((self.folder / "dist").glob("*.tar.gz"))) as archive:
            packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
        made = ("__pycache__", "build", "built", "slurm_ddp_torch.egg-info")
        files = [path.relative_to(TORCH) for path in TORCH.rglob("*") if path.is_file() and path.name != "files.mk"]
        wanted = {str(path) for path in files if not any(part in made for part in path.parts)}
        self.assertEqual(wanted - packed, set())

    def test_one_source_has_all_others(self):
        included = re.findall('^#include "(.*)"$', (TORCH / "csrc/whole.cpp").read_text(), re.MULTILINE)
        self.assertEqual(included, sorted(path.name for path in TORCH.glob("csrc/*.cpp") if path.name != "whole.cpp"))

    def test_versions_agree(self):
        version = re.search(r'^version = "(.*)"', (TORCH / "pyproject.toml").read_text(), re.MULTILINE).group(1)
        self.assertIn(f'__version__ = "{version}"', (PACKAGE / "slurm_ddp/__init__.py").read_text())
        self.assertTrue(os.access(TORCH / "tests/check.sh", os.X_OK))


if __name__ == "__main__":
    main()
