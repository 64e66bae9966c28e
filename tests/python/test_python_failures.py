#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""slurm_ddp: what the failure line says of a Python program's end."""
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

from support import PageTest, main, needs_torch, page

from slurm_ddp import failures

BEGIN = "import slurm_ddp\nslurm_ddp.install()\n"
# As torch says it; the classes are of these names.
FAKE = """
class OutOfMemoryError(RuntimeError): pass
class DistBackendError(RuntimeError): pass
"""


class Failures(PageTest):
    def fails(self, program, text, code=1, forked=False):
        ended = self.page.run(BEGIN + program, forked=forked)
        slot = self.page.slot()
        self.assertEqual(ended.returncode, code, ended.stderr)
        self.assertEqual(slot.get("error"), text)
        if text:
            self.assertEqual(slot.get("status"), page.ERR_INTERNAL)
        return ended

    def test_exception_has_its_line(self):
        ended = self.fails("raise ValueError('bad batch:\\n  shape 42')", "ValueError: bad batch: shape 42 (train.py:3)")
        self.assertIn("Traceback", ended.stderr)

    def test_programs_line_is_told_beside_a_librarys(self):
        self.page.run(BEGIN + "import json\njson.loads('{')")
        self.assertRegex(self.page.slot().get("error"), r"^JSONDecodeError: Expecting property name enclosed in double "
                         r"quotes: line 1 column 2 \(char 1\) \(decoder.py:\d+, called at train.py:4\)$")

    def test_long_text_keeps_its_line(self):
        self.page.run(BEGIN + "raise ValueError('ä' * 1000)")
        text = self.page.slot().get("error")
        self.assertTrue(text.startswith("ValueError: ää") and text.endswith("ä ... (train.py:3)"), text)
        self.assertLessEqual(len(text.encode()), 239)

    def test_missing_module_is_named_with_its_python(self):
        import sys
        self.fails("import no_such_module",
                   f"ModuleNotFoundError: No module named 'no_such_module' in {sys.executable} (train.py:3)")

    def test_variable_that_is_not_set_is_named(self):
        self.page.run(BEGIN + "import os\nos.environ['DATA_DIR']")
        self.assertRegex(self.page.slot().get("error"), r"^KeyError: the environment variable DATA_DIR is not set "
                         r"\((os.py:\d+, called at )?train.py:4\)$")
        self.fails("import os\nos.environ.copy()['DATA_DIR']", "KeyError: 'DATA_DIR' (train.py:4)")

    def test_stack_of_a_crash_is_shown(self):
        ended = self.fails("import ctypes\nctypes.string_at(0)", "", code=-11)
        self.assertRegex(ended.stderr, r'Segmentation fault(.|\n)*File ".*train.py", line 4 in <module>')
        # In a thread that is not Python's, as gloo's are.
        ended = self.fails("import ctypes\nlibc, thread = ctypes.CDLL(None), ctypes.c_ulong()\n"
                           "libc.pthread_create(ctypes.byref(thread), None, libc.abort, None)\n"
                           "libc.pthread_join(thread, None)", "", code=-6)
        self.assertRegex(ended.stderr, r'Aborted(.|\n)*File ".*train.py", line [56] in <module>')

    def test_out_of_memory_on_a_gpu_is_named(self):
        self.fails(FAKE + "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
                   "capacity of 79.15 GiB of which 3.25 MiB is free.')",
                   "CUDA out of memory: Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which "
                   "3.25 MiB is free. (train.py:6)")

    def test_out_of_memory_of_jax_is_named(self):
        self.fails("class XlaRuntimeError(RuntimeError): pass\nraise XlaRuntimeError('RESOURCE_EXHAUSTED: Out of memory "
                   "while trying to allocate 8589934592 bytes.')", "a device is out of memory: RESOURCE_EXHAUSTED: Out of "
                   "memory while trying to allocate 8589934592 bytes. (train.py:4)")

    def test_killed_loader_worker_is_named(self):
        self.fails("raise RuntimeError('DataLoader worker (pid 77) is killed by signal: Killed. ')",
                   "a DataLoader worker (pid 77) was killed by signal Killed, as when memory runs out: RuntimeError (train.py:3)")
        self.fails("raise RuntimeError('DataLoader worker (pid(s) 77, 78) exited unexpectedly')",
                   "a DataLoader worker (pid 77, 78) ended unexpectedly: RuntimeError (train.py:3)")

    def test_lost_connection_with_a_loader_worker_is_named(self):
        program = ("inner, outer = {}, {}\n"
                   "exec(compile('def receive(): raise ConnectionResetError(104, \"reset\")', "
                   "'/lib/python3/multiprocessing/connection.py', 'exec'), inner)\n"
                   "exec(compile('def take(receive): receive()', '/lib/%s', 'exec'), outer)\n"
                   "outer['take'](inner['receive'])")
        self.fails(program % "site-packages/torch/utils/data/dataloader.py", "a DataLoader worker ended unexpectedly: "
                   "ConnectionResetError: [Errno 104] reset (connection.py:1)")
        self.fails(program % "elsewhere.py", "ConnectionResetError: [Errno 104] reset (connection.py:1)")

    def check_peer(self, kind, text, of_peer):
        """Rank 1 has an error of this class."""
        with mock.patch.dict(os.environ, RANK="1"):
            self.assertEqual(failures.is_of_peer(type(kind, (RuntimeError,), {})(text)), of_peer, (kind, text))

    def test_lost_peer_is_no_cause(self):
        lost = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3456"
        self.page.run(BEGIN + FAKE + f"raise DistBackendError({lost!r})")
        self.assertEqual(self.page.slot().get("status"), page.ERR_PEER)
        for text in (lost, "NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error",
                     "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"):
            self.check_peer("DistBackendError", text, True)
        for text, of_peer in (("The client socket has timed out after 300000ms while trying to connect to (n0, 21007).", True),
                              ("The server socket has failed to listen on any local network address. port: 21007, code: -98, name: "
                               "EADDRINUSE, message: address already in use", False),
                              ("The IPv4 network addresses of (n7, 21007) cannot be retrieved (gai error: -2 - Name or service not "
                               "known).", False)):
            self.check_peer("DistNetworkError", text, of_peer)
        # Those of libddp, of which RuntimeError are torch 1.13's.
        other, own = "rank 0 on n0 left: KeyError: 'weights'", "rank 1 on n1 aborted: no reason given"
        for kind in ("DistBackendError", "RuntimeError"):
            for text, of_peer in (("DDP_ERR_ABORTED: " + other, True), ("DDP_ERR_ABORTED: " + own, False),
                                  ("DDP_ERR_PEER: rank 0 on n0 died (pid 7), in barrier", True),
                                  ("DDP_ERR_PEER: the connection to rank 10 on n1 is lost", True),
                                  ("DDP_ERR_TIMEOUT: Timed out waiting 2000ms: rank 0 on n0 did not come", True),
                                  ("DDP_ERR_TIMEOUT: rank 1 on n1: no rank sent a message", False),
                                  ("DDP_ERR_MISMATCH: rank 0 on n0 issued broadcast", False)):
                self.check_peer(kind, text, of_peer)
        self.check_peer("RuntimeError", "the network is wide: Broken pipe dream", False)

    def test_exit_by_a_sentence_is_told(self):
        self.fails("import sys\ndef main():\n  sys.exit('no such data set')\nmain()", "SystemExit: no such data set (train.py:5)")
        self.fails("import sys\nsys.exit(3)", "sys.exit(3) (train.py:4)", code=3)

    def test_arguments_that_argparse_refuses_are_told(self):
        ended = self.page.run(BEGIN + "import argparse\nargparse.ArgumentParser().parse_args(['--x'])")
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(self.page.slot().get("error"), r"^sys.exit\(2\) \(argparse.py:\d+, called at train.py:4\)$")

    def test_caught_exit_and_good_ends_are_not_told(self):
        self.fails("import sys\nsys.exit()", "", code=0)
        self.fails("import sys\nsys.exit(0)", "", code=0)
        self.fails("slurm_ddp.exit_for_requeue()", "", code=75)

    def test_exception_of_a_thread_is_kept(self):
        self.fails("import threading\nthread = threading.Thread(target=lambda: 1 / 0, name='feeder')\nthread.start()\n"
                   "thread.join()", "ZeroDivisionError: division by zero (train.py:4), in thread feeder", code=0)

    def test_hook_of_the_program_is_called_too(self):
        ended = self.page.run("import sys\nsys.excepthook = lambda *x: print('own hook')\n" + BEGIN + "raise KeyError('a')")
        self.assertEqual(ended.stdout, "own hook\n")
        self.assertEqual(self.page.slot().get("error"), "KeyError: 'a' (train.py:5)")

    def test_exception_whose_text_fails_is_told(self):
        self.fails("class Odd(Exception):\n  def __str__(self): raise ValueError()\nraise Odd()",
                   "Odd: its text cannot be made (train.py:5)")

    def test_torchruns_error_file_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "error.json")
            self.page.run(BEGIN + "raise ValueError('bad')", TORCHELASTIC_RUN_ID="x", TORCHELASTIC_ERROR_FILE=path)
            message = json.loads(path.read_text())["message"]
            self.assertEqual(message["message"], "ValueError: bad")
            self.assertIn("train.py", message["extraInfo"]["py_callstack"])
            self.assertTrue(message["extraInfo"]["timestamp"].isdigit())

    @needs_torch
    def test_torchs_own_error_is_named(self):
        self.fails("import torch\nkind = getattr(torch, 'OutOfMemoryError', None) or torch.cuda.OutOfMemoryError\n"
                   "raise kind('CUDA out of memory. Tried to allocate 2.00 GiB.')",
                   "CUDA out of memory: Tried to allocate 2.00 GiB. (train.py:5)", forked=True)

    @needs_torch
    def test_torchs_record_agrees(self):
        program = BEGIN + """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("bad")
main()
"""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "error.json")
            self.page.run(program, forked=True, TORCHELASTIC_RUN_ID="x", TORCHELASTIC_ERROR_FILE=path)
            self.assertEqual(json.loads(path.read_text())["message"]["message"], "ValueError: bad")
        self.page.run(program, forked=True)
        self.assertRegex(self.page.slot().get("error"), r"^ValueError: bad \(train.py:7\)$")

    @needs_torch
    def test_exception_of_a_loader_worker_has_its_own_line(self):
        program = BEGIN + """
import os, sys, torch.utils.data as data
class Set(data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        if sys.argv[1] == "kill": os.kill(os.getpid(), 9)
        raise ValueError("bad sample")
list(data.DataLoader(Set(), num_workers=1))
"""
        self.page.run(program, "raise", forked=True)
        self.assertEqual(self.page.slot().get("error"), "ValueError: bad sample (train.py:9, in DataLoader worker 0)")
        self.page.run(program, "kill", forked=True)
        self.assertRegex(self.page.slot().get("error"), r"^a DataLoader worker \(pid \d+\) (was killed by signal "
                         r"Killed, as when memory runs out|ended unexpectedly): RuntimeError \(.*called at train.py:10\)$")


if __name__ == "__main__":
    main()
