# SPDX-License-Identifier: Apache-2.0
"""What `srun --ddp=python` starts in an unmodified program: slurm_ddp.pth or the plugin's sitecustomize imports this.

It must neither fail nor cost: it imports nothing large, and helper processes of a program are left alone.
"""
import os
import sys


def _is_helper():
    """A worker of multiprocessing or of another module, which torch and others start beside the program."""
    arguments = getattr(sys, "argv", None) or []
    command = " ".join(getattr(sys, "orig_argv", arguments)[:4])
    return "--multiprocessing-fork" in arguments or any(word in command for word in (
        "multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker",
        "multiprocessing.semaphore_tracker", "compile_worker", "joblib.externals.loky"))


def start():
    if not os.environ.get("DDP_PYTHON") or _is_helper():
        return
    try:
        from . import _begin
        _begin()
    except Exception as error:  # the program comes first
        if os.environ.get("RANK", "0") == "0":
            print("slurm_ddp: cannot start (srun --ddp=python): %s: %s" % (type(error).__name__, error), file=sys.stderr)


start()
