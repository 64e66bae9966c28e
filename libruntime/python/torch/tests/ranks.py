# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a forked process, and gives what each rank returned or how it ended."""

import datetime
import os
import pickle
import signal
import tempfile
import time
import traceback

import torch
import torch.distributed as dist


class Ranks:
    """The ranks of one run: `with Ranks(4, body) as ranks: ranks.results()`."""

    def __init__(self, size, body, *arguments, backend="ddp", timeout=60, limit=240):
        self.size, self.limit = size, limit
        self.folder = tempfile.mkdtemp(prefix="ddp-torch-")
        self.pids = [self._start(rank, body, arguments, backend, timeout) for rank in range(size)]
        self.codes = [None] * size

    def _start(self, rank, body, arguments, backend, timeout):
        pid = os.fork()
        if pid > 0:
            return pid
        code = 1
        try:
            torch.set_num_threads(1)
            torch.manual_seed(1)
            dist.init_process_group(
                backend,
                init_method=f"file://{self.folder}/store",
                rank=rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=timeout),
            )
            result = body(rank, self.size, *arguments)
            with open(f"{self.folder}/{rank}", "wb") as file:
                pickle.dump(result, file)
            if dist.is_initialized():
                dist.destroy_process_group()
            code = 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            os._exit(code)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for rank, code in enumerate(self.codes):
            if code is None:
                os.kill(self.pids[rank], signal.SIGKILL)
                os.waitpid(self.pids[rank], 0)

    def wait(self):
        """The exit code of each rank; a negative one is a signal."""
        end = time.monotonic() + self.limit
        while None in self.codes:
            for rank, pid in enumerate(self.pids):
                if self.codes[rank] is None:
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        self.codes[rank] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                raise AssertionError(f"ranks hang: {self.codes}")
            time.sleep(0.01)
        return self.codes

    def result(self, rank):
        with open(f"{self.folder}/{rank}", "rb") as file:
            return pickle.load(file)

    def results(self):
        codes = self.wait()
        if any(codes):
            raise AssertionError(f"exit codes of the ranks: {codes}")
        return [self.result(rank) for rank in range(self.size)]


def on_ranks(size, body, *arguments, **options):
    with Ranks(size, body, *arguments, **options) as ranks:
        return ranks.results()
