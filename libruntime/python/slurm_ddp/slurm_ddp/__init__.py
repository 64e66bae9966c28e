# SPDX-License-Identifier: Apache-2.0
"""Python's side of srun --ddp: who this rank is, what it does, how it stops and how it is resumed.

Without the plugin, without Slurm and without torch all of it works, and says nothing. doc/python.md is the guide.
"""
import os

from . import failures as _failures
from . import page as _page
from .jobs import Job, check_launched, device, job, time_left
from .progress import phase, step, steps

__version__ = "0.3.0"
__all__ = ["Checkpoint", "DamageError", "Job", "check_launched", "compare", "device", "exit_for_requeue", "install", "job", "phase",
           "restart_count", "should_stop", "step", "steps", "survive", "time_left"]

EXIT_REQUEUE = 75  # EX_TEMPFAIL: with requeue= the plugin has Slurm requeue the job

_LATER = {"Checkpoint": "checkpoints", "DamageError": "damage", "compare": "damage", "should_stop": "stopping",
          "survive": "survive",
          "LightningCallback": "lightning", "LightningEnvironment": "lightning", "TrainerCallback": "huggingface"}


def __getattr__(name):
    """Imports what not every program needs when a program uses it."""
    if name == "restart_count":
        return job().restart_count
    module = _LATER.get(name)
    if module is None:
        raise AttributeError("module 'slurm_ddp' has no attribute %r" % name)
    import importlib
    value = getattr(importlib.import_module("." + module, __name__), name)
    globals()[name] = value
    return value


def _begin():
    """Does what srun --ddp=python does in a program that has no line for it."""
    slot = _page.open_slot(alone=True)
    if slot is None and "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return
    _start()


def _start():
    from . import stack, torch_hooks
    if _page.slot() is not None and _page.slot().get("phase") == 0:
        _page.set_phase("starting")
    _failures.install()
    stack.install()
    torch_hooks.install()


def install(metrics=None):
    """Installs all hooks: the failure line ends with the exception, and ddp-status shows phases, steps and stacks.

    The call belongs to the program's first lines, before large imports. srun --ddp=python does the same without it.
    `metrics`: rank 0 writes a line for each step() to this file, for ddp-report.
    """
    if metrics is not None:
        from .progress import write_metrics
        write_metrics(metrics)
    _page.open_slot()
    _start()


def exit_for_requeue(wait=600.0):
    """Ends all ranks with code 75, which srun --ddp=requeue=N takes for "resume me".

    Every rank calls it, and waits for the others up to `wait` seconds, as the first one that leaves ends the step: another
    may still save.
    """
    if job().world_size > 1:
        from .stopping import meet
        meet(wait)
    raise SystemExit(EXIT_REQUEUE)
