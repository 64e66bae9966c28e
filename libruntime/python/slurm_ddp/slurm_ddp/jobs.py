# SPDX-License-Identifier: Apache-2.0
"""Who this process is in its job, and how long the job may still run."""
import os
import sys
import time
from typing import NamedTuple, Optional


class Job(NamedTuple):
    """What srun --ddp, or another launcher, has told this process."""
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int
    node_name: str
    master_addr: Optional[str]
    master_port: Optional[int]
    job_id: Optional[int]
    step_id: Optional[int]
    restart_count: int
    by_plugin: bool  # srun --ddp has started it


def _number(name, default):
    text = os.environ.get(name)
    if text is None or text == "":
        return default
    try:
        value = int(text)
    except ValueError:
        # srun puts a sentence there for nodes without the plugin.
        raise RuntimeError("%s is no number: %s" % (name, text)) from None
    if value < 0:
        raise RuntimeError("%s is %d, below 0" % (name, value))
    return value


def job():
    """The rank's identity, from the variables that srun --ddp sets. Without them: a world of one."""
    rank, world = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if ("RANK" in os.environ) != ("WORLD_SIZE" in os.environ):
        raise RuntimeError("of RANK and WORLD_SIZE one is set and the other is not: start the program by srun --ddp")
    if rank >= world:
        raise RuntimeError("RANK is %d, but WORLD_SIZE is %d" % (rank, world))
    local_world = _number("LOCAL_WORLD_SIZE", 1)
    return Job(rank, world, _number("LOCAL_RANK", 0), local_world,
               _number("NODE_RANK", _number("GROUP_RANK", rank // max(local_world, 1))),
               _number("NNODES", max(1, world // max(local_world, 1))),
               os.environ.get("DDP_NODE_NAME") or os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
               os.environ.get("MASTER_ADDR"), _number("MASTER_PORT", None),
               _number("DDP_JOB_ID", _number("SLURM_JOB_ID", None)), _number("DDP_STEP_ID", _number("SLURM_STEP_ID", None)),
               restart_count(), "DDP_PLUGIN_VERSION" in os.environ)


def restart_count():
    """How often the job, or the step, was started again before this time; 0 the first time."""
    for name in ("DDP_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def check_launched():
    """Returns job(). RuntimeError: srun was forgotten, that is, one process runs in a job of several tasks."""
    found = job()
    tasks = os.environ.get("SLURM_NTASKS") or os.environ.get("SLURM_NPROCS") or "1"
    if found.world_size == 1 and tasks.isdigit() and int(tasks) > 1 and "SLURM_JOB_ID" in os.environ:
        raise RuntimeError("this program runs as one process in a job of %s tasks: start it by "
                           "'srun --ddp python %s'" % (tasks, os.path.basename(sys.argv[0]) if sys.argv else "..."))
    return found


def device():
    """Returns the device of this rank, as torch and others name it: "cuda:2", "xpu:0", "cpu"."""
    torch = sys.modules.get("torch")
    if torch is None:
        try:
            import torch
        except ImportError:
            torch = None
    if torch is None:
        return "cuda:" + os.environ["DDP_LOCAL_DEVICE"] if os.environ.get("DDP_LOCAL_DEVICE") else "cpu"
    kind, count = _accelerator(torch)
    if count == 0:
        return "cpu"
    number = os.environ.get("DDP_LOCAL_DEVICE") or os.environ.get("LOCAL_RANK") or "0"
    return "%s:%d" % (kind, int(number) % count)


def _accelerator(torch):
    if torch.cuda.is_available():
        return "cuda", torch.cuda.device_count()
    accelerator = getattr(torch, "accelerator", None)  # from torch 2.6 on
    if accelerator is not None and accelerator.is_available():
        return accelerator.current_accelerator().type, accelerator.device_count()
    return "cpu", 0


_end = None  # of the job, in seconds of time.time(), and when that was asked
_ASK_EVERY = 60.0


def _ask_slurm(job_id):
    """Returns what squeue says, which follows scontrol update; None: squeue says nothing."""
    import subprocess
    try:
        said = subprocess.run(["squeue", "--noheader", "--jobs", job_id, "--Format=TimeLeft:32"], timeout=10, check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return _seconds(said.decode("ascii", "replace").split("\n")[0].strip())


def _seconds(text):
    """Of "1-02:03:04", "02:03" or "UNLIMITED"; None: not known."""
    if text.upper() == "UNLIMITED":
        return float("inf")
    days, dash, rest = text.partition("-")
    parts = (rest if dash else days).split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return float(seconds + (int(days) * 86400 if dash else 0))


def time_left():
    """Returns the seconds until the job's time limit; infinity if there is no limit or no job."""
    global _end
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        return float("inf")
    now = time.time()
    if _end is None or now - _end[1] > _ASK_EVERY:
        fixed = os.environ.get("SLURM_JOB_END_TIME", "")
        if fixed.isdigit():
            _end = (float(fixed), now)
        else:
            left = _ask_slurm(job_id)
            _end = (now + left if left is not None else (_end[0] if _end else float("inf")), now)
    return max(0.0, _end[0] - now)
