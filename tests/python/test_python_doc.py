#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Each Python snippet of doc/python.md, and of doc/jax.md, runs; those of torch where there is one."""
import re
import subprocess
import sys
import tempfile
import unittest

from support import SOURCE, environment, has_torch, main


class Snippets(unittest.TestCase):
    def runs(self, text, name):
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run([sys.executable, "-c", text], cwd=folder, timeout=170, capture_output=True, text=True,
                                   env=environment(HOME=folder), check=False)
        self.assertEqual(ended.returncode, 0, f"{name}:\n{text}\n{ended.stderr}")


def add(name, number, text):
    def run(self):
        self.runs(text, name)

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
