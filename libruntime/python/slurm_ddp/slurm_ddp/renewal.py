# SPDX-License-Identifier: Apache-2.0
"""Ranks that survive() has kept meet again with those that srun has started in place of lost ones, in a step with restart=.

A rank that has stayed finds the identity of the new generation on the node's page, a newcomer in its environment. Rank 0
opens the store of the new process group, and all come to it.
"""
import datetime
import os
import socket
import sys
import time

from . import jobs, page

_LOOK_SECONDS, _LONG_SECONDS = 0.005, 10.0
_SLACK_SECONDS = 30.0  # rank 0 gives up first, as it knows who is missing


def is_possible():
    """Whether srun starts others in place of lost ranks."""
    return os.environ.get("DDP_JOINS", "").isdigit() and page.deal() is not None


def generation():
    """Which generation this process was started to join; 0: none."""
    return int(os.environ["DDP_JOINS"]) if is_possible() else 0


def take(known, seconds):
    """Waits until srun has dealt a generation behind `known`, sets this process's variables, and returns the number."""
    start, told = time.monotonic(), False
    while True:
        dealt = page.deal()
        if dealt is not None and dealt.generation > known:
            os.environ.update(MASTER_ADDR=dealt.address, MASTER_PORT=str(dealt.port), DDP_KEY="step:" + dealt.key,
                              DDP_RESTART_COUNT=str(dealt.restart_count))
            return dealt.generation
        waited = time.monotonic() - start
        if waited > seconds:
            raise RuntimeError("srun has started no others in place of the ranks that are lost within %g s" % seconds)
        if waited > _LONG_SECONDS and not told:
            told = True
            print("slurm_ddp: rank %d has waited %d s for srun to start others in place of the ranks that are lost, and waits "
                  "%g s at most" % (jobs.job().rank, _LONG_SECONDS, seconds), file=sys.stderr, flush=True)
        time.sleep(_LOOK_SECONDS)


def open_store(dist, address, port, is_leader, **more):
    knows = "use_libuv" in (dist.TCPStore.__init__.__doc__ or "")
    if knows and os.environ.get("USE_LIBUV") == "0":
        more["use_libuv"] = False
    return dist.TCPStore(address, port, None, is_leader, wait_for_workers=False, **more)


def meet(dist, seconds):
    """Waits until all ranks of the generation have come, and returns their store. RuntimeError: some have not."""
    job, end = jobs.job(), time.monotonic() + seconds
    if job.rank == 0:
        store = open_store(dist, "localhost", job.master_port, True)
        missing = _await_others(store, job.world_size, end)
        store.set("met", missing)
    else:
        _await_leader(job, end)
        store = open_store(dist, job.master_addr, job.master_port, False)
        store.add("came", 1)
        store.add("came/%d" % job.rank, 1)
        store.set_timeout(datetime.timedelta(seconds=max(end - time.monotonic(), 0) + _SLACK_SECONDS))
        missing = store.get("met").decode()
    if missing:
        raise RuntimeError("%s did not come within %g s to join the ranks that are left" % (missing, seconds))
    return store


def _await_leader(job, end):
    """A store's client would try again after a second, and log each time."""
    while True:
        try:
            socket.create_connection((job.master_addr, job.master_port), timeout=1.0).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise RuntimeError("rank 0 did not come to port %d of %s: %s" % (job.master_port, job.master_addr, error)) from None
            time.sleep(4 * _LOOK_SECONDS)


def _await_others(store, size, end):
    """Returns who is missing at the end, as text."""
    while store.add("came", 0) < size - 1:
        if time.monotonic() > end:
            return name([rank for rank in range(1, size) if store.add("came/%d" % rank, 0) == 0])
        time.sleep(_LOOK_SECONDS)
    return ""


def name(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
