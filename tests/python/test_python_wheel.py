#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""slurm_ddp's wheel: built from the tree without a network, installed, removed; versions agree."""
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

from support import PACKAGE, SOURCE, Page, environment, main, page


def can_build():
    import importlib.util
    return importlib.util.find_spec("pip")


class Versions(unittest.TestCase):
    def test_versions_agree(self):
        wanted = re.search(r"AC_INIT\(\[slurm-ddp\], \[([^]]*)\]", (SOURCE / "configure.ac").read_text())
        wanted = wanted.group(1) if wanted else "".join(re.findall(
            r"#define DDP_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", (SOURCE / "libruntime/include/ddp/version.h").read_text()))
        self.assertIn(f'__version__ = "{wanted}"' if "." in wanted else "__version__", (PACKAGE / "slurm_ddp/__init__.py").read_text())

    def test_sources_are_python_3_8(self):
        import ast
        for path in list((PACKAGE / "slurm_ddp").glob("*.py")) + [PACKAGE / "site/sitecustomize.py"]:
            ast.parse(path.read_text(), feature_version=(3, 8))


@unittest.skipUnless(can_build(), "there is no pip")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        # A checkout that the user cannot write, and whose folders show it, if root runs this.
        tree = Path(cls.folder.name, "tree")
        shutil.copytree(PACKAGE, tree, ignore=shutil.ignore_patterns("__pycache__"))
        cls.before = sorted(tree.rglob("*"))
        for folder in [*tree.rglob("*"), tree]:
            folder.chmod(folder.stat().st_mode & ~0o222)
        clean = {name: value for name, value in environment(PIP_DISABLE_PIP_VERSION_CHECK=1).items() if name != "PYTHONPATH"}
        cls.clean = clean
        subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
                        "-w", cls.folder.name, str(tree)], env=clean, check=True, timeout=170, stdout=subprocess.DEVNULL,
                       stderr=subprocess.PIPE)
        cls.tree = tree
        cls.wheel = next(Path(cls.folder.name).glob("*.whl"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_one_wheel_serves_all(self):
        self.assertRegex(self.wheel.name, r"^slurm_ddp-[0-9.]+-py3-none-any\.whl$")
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            meta = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        modules = {path.name for path in (PACKAGE / "slurm_ddp").glob("*.py")}
        self.assertEqual({Path(name).name for name in names if name.startswith("slurm_ddp/")}, modules)
        self.assertIn("slurm_ddp.pth", names)
        self.assertIn("Requires-Python: >=3.8", meta)
        self.assertNotIn("Requires-Dist", meta)

    def test_nothing_is_written_into_the_sources(self):
        self.assertEqual([path for path in sorted(self.tree.rglob("*")) if "__pycache__" not in path.parts], self.before)

    def test_a_source_archive_gives_the_same_wheel(self):
        sys.path.insert(0, str(self.tree))
        import backend
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(Path(folder, backend.build_sdist(folder))) as archive:
                archive.extractall(folder)
            unpacked = next(path for path in Path(folder).iterdir() if path.is_dir())
            subprocess.run([sys.executable, str(unpacked / "backend.py"), folder], check=True, stdout=subprocess.DEVNULL)
            self.assertEqual(next(Path(folder).glob("*.whl")).read_bytes(), self.wheel.read_bytes())

    def test_installed_wheel_starts_by_a_variable_alone(self):
        venv = Path(self.folder.name, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=100)
        python = venv / "bin/python"
        site = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], check=True, text=True,
                              capture_output=True).stdout.strip()
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site,
                        str(self.wheel)], env=self.clean, check=True, timeout=100, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        the_page = Page()
        self.addCleanup(the_page.close)
        for wanted, error in (("", ""), ("yes", "ValueError: bad (<string>:1)")):
            variables = {**the_page.variables(), "DDP_PYTHON": wanted}
            subprocess.run([python, "-c", "raise ValueError('bad')"], pass_fds=[the_page.descriptor], check=False, timeout=60,
                           env={**self.clean, **{name: str(value) for name, value in variables.items()}},
                           stderr=subprocess.DEVNULL)
            self.assertEqual(the_page.slot().get("error"), error)
        self.assertEqual(the_page.slot().get("magic"), page.MAGIC)
        shutil.rmtree(venv)
        self.assertTrue(os.path.exists(self.wheel))


if __name__ == "__main__":
    main()
