# SPDX-License-Identifier: Apache-2.0
"""What the tests of slurm_ddp share: TAP of unittest, and programs that have a progress page without the plugin."""
import contextlib
import mmap
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
SOURCE = Path(__file__).resolve().parent.parent.parent
PACKAGE = SOURCE / "libruntime/python/slurm_ddp"
sys.path.insert(0, str(PACKAGE))

from slurm_ddp import page  # noqa: E402  # pylint: disable=wrong-import-position

IDENTITY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT",
            "DDP_KEY", "DDP_PYTHON", "DDP_PROGRESS_FD", "DDP_PLUGIN_VERSION", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
            "SLURM_NTASKS", "PYTHONPATH", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS", "DDP_JOINS", "DDP_RESTART_COUNT", "DDP_LOCAL_DEVICE")


def environment(**more):
    """This one without any step's, with slurm_ddp of the tree."""
    clean = {name: value for name, value in os.environ.items() if name not in IDENTITY}
    clean.update(PYTHONPATH=str(PACKAGE), PYTHONDONTWRITEBYTECODE="1")
    clean.update((name, str(value)) for name, value in more.items())
    return clean


class Forked(multiprocessing.get_context("fork").Process):
    """Runs the file of a program that imports torch, and can what tests ask of subprocess.Popen. To import torch takes 1.5 s of
    CPU, so this process does it once, and the program is a fork of it. slurm_ddp is imported anew."""

    def __init__(self, path, arguments, variables):
        import torch  # noqa: F401  # pylint: disable=unused-import
        super().__init__()
        self.path, self.arguments, self.variables = path, arguments, variables
        self.stdout, self.stderr = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.start()

    def run(self):
        os.dup2(self.stdout.fileno(), 1)
        os.dup2(self.stderr.fileno(), 2)
        os.environ.clear()
        os.environ.update(self.variables)
        sys.path[:0] = self.variables["PYTHONPATH"].split(os.pathsep)
        sys.argv = [str(self.path), *map(str, self.arguments)]
        main_module = types.ModuleType("__main__")
        for name in [name for name in sys.modules if name.split(".")[0] in ("slurm_ddp", "__main__")]:
            del sys.modules[name]
        sys.modules["__main__"] = main_module
        try:
            exec(compile(Path(self.path).read_text(), self.path, "exec"), vars(main_module))
        except Exception:
            sys.excepthook(*sys.exc_info())
            sys.exit(1)

    def poll(self):
        return self.exitcode

    def wait(self, timeout=None):
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self.path, timeout)
        for file in (self.stdout, self.stderr):
            file.seek(0)
        return self.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self, timeout=None):
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()


class Page:
    """The memory file that the plugin makes for a node with two tasks."""

    def __init__(self):
        self.descriptor = os.memfd_create("ddp_progress")
        os.ftruncate(self.descriptor, 2 * page.PAGE_BYTES)
        self.memory = mmap.mmap(self.descriptor, 2 * page.PAGE_BYTES)

    def slot(self, number=page.SLOTS - 1, local_rank=1):
        return page.Slot(self.memory, local_rank * page.PAGE_BYTES + number * page.SLOT_BYTES)

    def variables(self):
        return {"DDP_PROGRESS_FD": self.descriptor, "LOCAL_RANK": 1, "RANK": 1, "WORLD_SIZE": 2}

    def run(self, program, *arguments, python=sys.executable, forked=False, **more):
        """Runs the text of a program as train.py, in a new Python or `forked`, and returns how it ended."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.py")
            path.write_text(program)
            variables = {**self.variables(), **more}
            if forked:
                process = Forked(str(path), arguments, environment(**variables))
                said = process.communicate(300)
                return subprocess.CompletedProcess(path, process.exitcode, *said)
            return subprocess.run([python, str(path), *map(str, arguments)], env=environment(**variables), timeout=300,
                                  pass_fds=[self.descriptor], capture_output=True, text=True, check=False)

    def close(self):
        self.memory.close()
        os.close(self.descriptor)


class PageTest(unittest.TestCase):
    def setUp(self):
        self.page = Page()
        self.addCleanup(self.page.close)


COMPILER = shutil.which(os.environ.get("CC", "cc").split()[-1])
ASKS = """
#include <stddef.h>
#include <stdio.h>
#include "ddp.h"
#include "%s"
#define FIELD(name) printf("%%zu %%zu\\n", offsetof(struct %s, name), sizeof(((struct %s *)0)->name));
#define NUMBER(value) printf("%%ld\\n", (long)(value));
int main(void)
{
%s
}
"""


class LayoutTest(unittest.TestCase):
    @unittest.skipUnless(COMPILER, "there is no C compiler")
    def compare(self, header, structure, fields, numbers):
        """What Python has is what a C program has by the header: {field: (offset, size)}, and {expression: number}."""
        asked = [f"FIELD({name})" for name in fields] + [f"NUMBER({expression})" for expression in numbers]
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, "asks.c"), Path(folder, "asks")
            source.write_text(ASKS % (header, structure, structure, "\n".join(asked)))
            subprocess.run([COMPILER, f"-I{SOURCE}/libruntime", f"-I{SOURCE}/libruntime/include", "-o", program, source],
                           check=True)
            lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
        said = [tuple(map(int, line.split())) for line in lines]
        known = list(fields.values()) + [(number,) for number in numbers.values()]
        self.assertEqual(dict(zip(asked, said)), dict(zip(asked, known)))
        self.assertEqual(len(said), len(known))


def pipes():
    """How many descriptors of pipes this process has."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # a thread has closed it
            count += os.readlink("/proc/self/fd/" + name).startswith("pipe:")
    return count


def has_torch():
    import importlib.util
    return importlib.util.find_spec("torch") is not None


needs_torch = unittest.skipUnless(has_torch(), "there is no torch (python3-torch)")


class _Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.count = 0

    def _line(self, good, test, more="", text=""):
        self.count += 1
        name = test.id().split(".")[-1].replace("test_", "", 1).replace("_", " ")
        print(f"{'ok' if good else 'not ok'} {self.count} - {name}{more}", flush=True)
        for line in text[:3000].splitlines():
            print("#", line)

    def addSuccess(self, test):
        self._line(True, test)

    def addSkip(self, test, reason):
        self._line(True, test, f" # SKIP {reason}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._line(False, test, text=self._exc_info_to_string(err, test))

    def addError(self, test, err):
        super().addError(test, err)
        self._line(False, test, text=self._exc_info_to_string(err, test))


def main():
    result = _Tap()
    wanted = sys.argv[1:]
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(wanted, sys.modules["__main__"]) if wanted else \
        loader.loadTestsFromModule(sys.modules["__main__"])
    suite.run(result)
    print(f"1..{result.count}")
    sys.exit(not result.wasSuccessful())
