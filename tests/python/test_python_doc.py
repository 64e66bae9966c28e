#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Each Python snippet of doc/python.md, and of doc/jax.md, runs; those of torch where there is one.

DDP_TORCH_PACKAGE: the folder with the compiled slurm_ddp_torch. test_python_torch.sh sets it, and runs the snippets of
that package: `test_python_doc.py Backend`.
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import PACKAGE, SOURCE, Forked, environment, has_torch, main


def run_in(folder, text, **variables):
    return subprocess.run([sys.executable, "-c", text], cwd=folder, timeout=170, capture_output=True, text=True,
                          env=environment(HOME=folder, **variables), check=False)


class Snippets(unittest.TestCase):
    def runs(self, text, name, **variables):
        with tempfile.TemporaryDirectory() as folder:
            if re.search(r"^(import|from) torch", text, re.MULTILINE):
                path = Path(folder, "train.py")
                path.write_text(f"import os\nos.chdir({folder!r})\n{text}")
                process = Forked(path, [], environment(HOME=folder, **variables))
                errors = process.communicate(170)[1]
                status = process.exitcode
            else:
                ended = run_in(folder, text, **variables)
                status, errors = ended.returncode, ended.stderr
        self.assertEqual(status, 0, f"{name}:\n{text}\n{errors}")

    def test_program_of_restart_goes_on_from_its_checkpoint(self):
        chapter = (SOURCE / "doc/python.md").read_text().split("\n## Restart\n")[1].split("\n## ")[0]
        text = re.search(r"^```python\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL).group(1)
        with tempfile.TemporaryDirectory() as folder:
            first = run_in(folder, text, CHECKPOINTS=folder)
            self.assertEqual(first.stdout, "sum 465\n", first.stderr)
            *_, before, last = sorted(path for path in Path(folder).iterdir() if path.name.startswith("step-"))
            shutil.rmtree(last)
            (before / "state").write_text('{"step": 20, "sum": 1000}')
            self.assertEqual(run_in(folder, text, CHECKPOINTS=folder).stdout, f"sum {1000 + sum(range(21, 31))}\n")


class Backend(unittest.TestCase):
    def runs(self, text, name):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        Snippets.runs(self, text, name, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, USE_LIBUV=0,
                      PYTHONPATH=f"{PACKAGE}:{os.environ['DDP_TORCH_PACKAGE']}")


def add(name, number, text):
    def run(self):
        self.runs(text, name)

    if re.search(r"^import slurm_ddp_torch", text, re.MULTILINE):
        if not os.environ.get("DDP_TORCH_PACKAGE"):
            run = unittest.skip("test_python_torch.sh runs it, which compiles the backend")(run)
        setattr(Backend, f"test_{name}_snippet_{number}", run)
        return

    if re.search(r"^(import|from) torch", text, re.MULTILINE) and not has_torch():
        run = unittest.skip("there is no torch (python3-torch)")(run)
    if re.search(r"^(import|from) (jax|lightning|transformers|accelerate)", text, re.MULTILINE):
        module = re.search(r"^(?:import|from) (jax|lightning|transformers|accelerate)", text, re.MULTILINE).group(1)
        import importlib.util
        if importlib.util.find_spec(module) is None:
            run = unittest.skip(f"there is no {module}")(run)
    setattr(Snippets, f"test_{name}_snippet_{number}", run)


for page in ("python", "jax"):
    path = SOURCE / f"doc/{page}.md"
    if path.exists():
        for count, snippet in enumerate(re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL), 1):
            add(page, count, snippet)

if __name__ == "__main__":
    main()
