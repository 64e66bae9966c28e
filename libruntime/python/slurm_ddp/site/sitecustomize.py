# SPDX-License-Identifier: Apache-2.0
"""srun --ddp=python puts this folder before PYTHONPATH. It starts slurm_ddp, and then what Python would have found here."""
import os
import sys


def _leave():
    """Takes the folder out again, so that programs that this one starts see the user's own PYTHONPATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    # torchrun's workers are to come here, too.
    if "DDP_PROGRESS_FD" not in os.environ and os.environ.get("DDP_PYTHON"):
        return os.path.dirname(here)
    before = os.environ.get("PYTHONPATH", "")
    rest = [folder for folder in before.split(os.pathsep) if os.path.abspath(folder or ".") != here]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    return os.path.dirname(here)


def _start(folder):
    if not os.environ.get("DDP_PYTHON"):
        return
    try:
        try:
            import slurm_ddp.auto  # the one that the user has installed
        except ModuleNotFoundError as error:
            if error.name != "slurm_ddp":
                raise
            sys.path.append(folder)  # behind all of the user's own
            import slurm_ddp.auto
    except Exception as error:
        if os.environ.get("RANK", "0") == "0":
            print("slurm_ddp: cannot start (srun --ddp=python): %s: %s" % (type(error).__name__, error), file=sys.stderr)


def _go_on():
    """The sitecustomize of the user's or of the distribution."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


_start(_leave())
_go_on()
