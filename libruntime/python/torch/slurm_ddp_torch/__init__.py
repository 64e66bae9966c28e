# SPDX-License-Identifier: Apache-2.0
"""PyTorch's process groups on hosts by libddp: `torch.distributed.init_process_group("ddp")`.

PyTorch 2.15 finds the backend by itself. Older releases need `import slurm_ddp_torch` before.
"""

import atexit
import datetime
import multiprocessing.util
import os
import re
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist

from . import _C
from .wire import bf16_wire, powersgd_wire

__all__ = ["bf16_wire", "create", "powersgd_wire", "register"]

_prepared_in = None
_AFTER_THE_CAUSE = 1.0  # seconds


def create(options, backend_options=None, name="ddp"):
    """Makes the process group that torch.distributed has described in `options`."""
    _prepare()
    timeout = options.timeout
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    return _C.create(
        options.store,
        options.group_rank,
        options.group_size,
        timeout,
        name,
        options.group_id,
        list(options.global_ranks_in_group),
        bool(getattr(options, "enable_reconfigure", False)),
    )


def register():
    """Makes the name "ddp" known to torch.distributed. To call it again does nothing."""
    if hasattr(dist.Backend, "DDP"):
        return
    # DDP's buckets then lie in memory that the node's ranks share.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    try:
        dist.Backend.register_backend("ddp", create, extended_api=True, devices=["cpu"])
        _keep_type()
    except TypeError:  # torch 1.13 has no devices
        dist.Backend.register_backend("ddp", create, extended_api=True)


def _keep_type():
    """Has shrink_group() keep the type of a group of this backend.

    torch 2.15 calls each group on hosts that has been shrunk one of gloo's, and DistributedDataParallel then takes the
    backend for a ProcessGroupGloo and crashes.
    """
    module = dist.distributed_c10d
    create_shrunk = getattr(module, "_create_shrunk_process_group", None)
    if create_shrunk is None:
        return

    def create_and_keep(new_backend, *arguments, **named):
        group = create_shrunk(new_backend, *arguments, **named)
        if new_backend.name() == "ddp":
            custom = dist.ProcessGroup.BackendType.CUSTOM
            group._register_backend(torch.device("cpu"), custom, new_backend)
            group._set_default_backend(custom)
        return group

    module._create_shrunk_process_group = create_and_keep


def _prepare():
    """Has this process close its groups before Python ends: threads of libddp may need the interpreter."""
    global _prepared_in
    if _prepared_in == os.getpid():
        return
    _prepared_in = os.getpid()
    atexit.register(_close)
    # Before that, Python waits for its threads, which may wait for ranks that wait for this one.
    if hasattr(threading, "_register_atexit"):
        threading._register_atexit(_tell)
    # A child of multiprocessing runs no atexit handlers.
    multiprocessing.util.Finalize(None, _close, exitpriority=0)


def _tell():
    reason = _reason() if _prepared_in == os.getpid() else ""
    if not reason:
        return
    _C.leave_all(reason)
    # srun is to hear first of the rank that is the cause, whose program may take longer to end than this one.
    # slurm_ddp has waited already, where it is.
    if "DDP_PROGRESS_FD" in os.environ and "slurm_ddp.failures" not in sys.modules and _is_of_peer(reason):
        time.sleep(_AFTER_THE_CAUSE)


def _is_of_peer(reason):
    """Whether the exception says that another rank is gone; as slurm_ddp decides it."""
    said = re.search(r"DDP_ERR_(PEER|ABORTED|TIMEOUT): [^\n]*?\brank (\d+)", reason)
    return said is not None and said.group(2) != os.environ.get("RANK", os.environ.get("SLURM_PROCID"))


def _close():
    if _prepared_in == os.getpid():
        _C.close_all(_reason())


def _reason():
    """Why the process ends: the exception that nobody has caught, or "" ."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        if error.__context__ is None:
            return "" if error.code in (None, 0) else f"exit({error.code!r})"
        error = error.__context__  # torch.multiprocessing exits while it handles an exception
    if error is None:
        return ""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        text += f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})"
    return text[:1000]


register()
