# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a forked process, and gives what each rank returned or how it ended."""

import datetime
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
import unittest

import torch
import torch.distributed as dist

import slurm_ddp_torch  # noqa: F401  pylint: disable=unused-import

with open("/proc/self/maps") as maps:
    HAS_NETWORK = "/libucp" in maps.read()
BackendError = getattr(dist, "DistBackendError", RuntimeError)
# What this torch can.
NEW = int(torch.__version__.split(".")[0]) >= 2
_BACKEND = getattr(torch._C._distributed_c10d, "Backend", None)
ALLOCATES, ABORTS = hasattr(_BACKEND, "allocate_tensor"), hasattr(_BACKEND, "abort")
# The backend can only shrink groups where torch has reconfigure(), too. torch 2.10 has not, and splits groups of GPUs only.
RECONFIGURES = hasattr(dist.distributed_c10d, "_reconfigure")


def _run(ranks, rank, body, arguments, backend, timeout, settings):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tempfile.tempdir = ranks.folder  # what a rank leaves there goes with the run
    if ranks.apart:
        os.environ.update(DDP_LOCALITY=str(rank), SLURMD_NODENAME=f"n{rank}")
    dist.init_process_group(
        backend,
        init_method=f"file://{ranks.folder}/store",
        rank=rank,
        world_size=ranks.size,
        timeout=datetime.timedelta(seconds=timeout),
        **settings,
    )
    result = body(rank, ranks.size, *arguments)
    with open(f"{ranks.folder}/{rank}", "wb") as file:
        pickle.dump(result, file)
    if dist.is_initialized() and ranks.destroy:
        dist.destroy_process_group()


class Ranks:
    """The ranks of one run: `with Ranks(4, body) as ranks: ranks.results()`.

    If they are `apart`, each rank is on a pretended node of its own, and the network is between them.
    """

    def __init__(self, size, body, *arguments, backend="ddp", timeout=60, limit=240, destroy=True, apart=False, **settings):
        self.size, self.limit, self.destroy, self.apart = size, limit, destroy, apart
        self.folder = tempfile.mkdtemp(prefix="ddp-torch-")
        start = multiprocessing.get_context("fork").Process
        given = (body, arguments, backend, timeout, settings)
        self.processes = [start(target=_run, args=(self, r, *given)) for r in range(size)]
        for process in self.processes:
            process.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self):
        """The exit code of each rank; a negative one is a signal."""
        end = time.monotonic() + self.limit
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        if None in codes:
            raise AssertionError(f"ranks hang; exit codes are {codes}")
        return codes

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


class RanksCase(unittest.TestCase):
    def folder(self):
        """A folder that goes with the test."""
        made = tempfile.mkdtemp(prefix="ddp-torch-test-")
        self.addCleanup(shutil.rmtree, made, ignore_errors=True)
        return made

    def all_end(self, size, body, *arguments, **options):
        """Each rank returns that all is well."""
        self.assertTrue(all(on_ranks(size, body, *arguments, limit=120, **options)))
