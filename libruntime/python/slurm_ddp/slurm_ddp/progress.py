# SPDX-License-Identifier: Apache-2.0
"""What the program says of its steps: phases, losses, rates, and the metrics file that ddp-report reads."""
import math
import os
import time

from . import page

# Names of phases as programs say them.
NAMES = ("idle", "data", "forward", "backward", "wait", "optimizer", "checkpoint", "eval", "compute", "starting")
_SECONDS = {"data": "data_seconds", "forward": "forward_seconds", "backward": "backward_seconds",
            "wait": "exposed_seconds", "optimizer": "optimizer_seconds", "checkpoint": "checkpoint_seconds",
            "eval": "evaluation_seconds"}
# In these a rank works; `waited()` tells of waits in them.
_COMPUTES = ("data", "forward", "backward", "optimizer", "compute")
# A loss on a GPU is read after all work that was queued before it, so it is not read in each step.
_LOSS_EVERY = 1.0


class _State:
    def __init__(self):
        self.phase, self.phase_start = "starting", time.monotonic()
        self.seconds = {}        # by phase, of the step under way
        self.waited = 0.0        # of the step under way, in phases in which a rank works
        self.step = 0            # the step under way; 0: none yet
        self.step_start = None
        self.loss_read = -math.inf
        self.told_by_program = False  # phase(), step() or steps(): hooks then leave phases alone
        self.metrics = None


_state = _State()


def enter(name):
    """Begins a phase and returns the one before."""
    now, before = time.monotonic(), _state.phase
    if name != before:
        _state.seconds[before] = _state.seconds.get(before, 0.0) + now - _state.phase_start
        _state.phase, _state.phase_start = name, now
        page.set_phase(name)
    return before


class _Phase:
    def __init__(self, name):
        self.before = enter(name)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        # An exception may end the program, and is told with the phase in which it came.
        if kind is None:
            enter(self.before)


def phase(name):
    """Says what this rank does now: phase("data"). As `with phase("eval"):` the phase before comes back at the end.

    Checkpoints, evaluations and a program's start may last as long as they like; in any other phase a rank that does
    not go on counts for stall=.
    """
    if name not in NAMES:
        raise ValueError("there is no phase %r; there are %s" % (name, ", ".join(NAMES)))
    _told()
    return _Phase(name)


def _told():
    _state.told_by_program = True
    if page.slot() is None:
        page.open_slot()


def is_told_by_program():
    return _state.told_by_program


def begin_step(number):
    if _state.step_start is None:
        _state.step_start = time.monotonic()
        _state.seconds, _state.waited = {}, 0.0
    _state.step = number
    page.set_step(number)


def waited(seconds):
    """Says that the rank has waited for others, in a phase in which it works otherwise."""
    if _state.phase in _COMPUTES:
        _state.waited += seconds


def _tell_compute():
    seconds = sum(_state.seconds.get(name, 0.0) for name in _COMPUTES) - _state.waited
    # Nothing is known of a step whose beginning was not seen.
    if _state.step_start is not None and seconds > 0:
        page.add_compute(seconds)


def _number_of(loss):
    """A float, or None: not now, or not at all."""
    if loss is None:
        return None
    now = time.monotonic()
    if getattr(getattr(loss, "device", None), "type", "cpu") != "cpu":
        if now - _state.loss_read < _LOSS_EVERY:
            return None
    _state.loss_read = now
    try:
        return float(loss.detach()) if hasattr(loss, "detach") else float(loss)
    except (TypeError, ValueError, RuntimeError):
        return None


def end_step(number=None, loss=None, samples=None, **more):
    number = max(_state.step, 1) if number is None else int(number)
    now = time.monotonic()
    enter_again = _state.phase
    enter("idle")
    # Without a first step's beginning only its end is known.
    seconds = now - _state.step_start if _state.step_start is not None else 0.0
    told = _number_of(loss)
    page.set_step_done(seconds, samples, told)
    _tell_compute()
    if _state.metrics is not None:
        _state.metrics.write(number, seconds, told, samples, _state.seconds, more)
    _state.step_start, _state.seconds, _state.waited = now, {}, 0.0
    _state.step = number + 1
    page.set_step(_state.step)
    enter("compute" if enter_again in ("starting", "idle") else enter_again)


def step(n=None, *, loss=None, samples=None, **more):
    """Says that a step is complete; without `n`, that it is the next one.

    `loss` is a number or a tensor, and `samples` how many all ranks together have processed in the step. ddp-status
    shows both. They go to the metrics file with `more`, such as learning_rate=... Steps count from 1.
    """
    _told()
    end_step(n, loss, samples, **more)


def steps(loader, start=1):
    """Yields the batches of `loader`: its waits are the phase "data", the loop's body is "compute" and one step.

    `start` is the first step's number. The body may call step(loss=...), which ends the step there.
    """
    _told()
    if _state.phase == "starting":
        enter("data")
    number = max(start, 1)
    batches = iter(loader)
    while True:
        begin_step(number)
        enter("data")
        try:
            batch = next(batches)
        except StopIteration:
            enter("idle")
            return
        enter("compute")
        yield batch
        if _state.step <= number:
            end_step(number)
        number = _state.step


class Metrics:
    """JSON lines, one for each step, as libddp writes them. If a line cannot be written, only the file ends."""

    def __init__(self, path):
        self.path, self.file = path, None

    def _open(self, number):
        folder = os.path.dirname(os.path.abspath(self.path))
        os.makedirs(folder, exist_ok=True)
        # A run that begins with step 1 begins a new file.
        if number == 1 and os.path.isfile(self.path) and os.path.getsize(self.path) > 0:
            count = 1
            while os.path.lexists("%s.%d" % (self.path, count)):
                count += 1
            os.rename(self.path, "%s.%d" % (self.path, count))
        self.file = open(self.path, "a", encoding="utf-8")

    def write(self, number, seconds, loss, samples, phases, more):
        if self.path is None:
            return
        import json
        line = {"time": time.time(), "step": number, "loss": _finite(loss), "weight": _finite(samples or 0.0),
                "units_per_second": _finite(samples / seconds if samples and seconds > 0 else 0.0), "seconds": seconds}
        line.update((name, phases.get(of, 0.0)) for of, name in _SECONDS.items())
        line["other_seconds"] = max(0.0, seconds - sum(phases.get(of, 0.0) for of in _SECONDS))
        line.update((name, _finite(value)) for name, value in more.items() if name not in line)
        try:
            if self.file is None:
                self._open(number)
            self.file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self.file.flush()
        except (OSError, ValueError, TypeError) as error:
            import sys
            print("slurm_ddp: metrics end at step %d: cannot write to %s: %s" % (number, self.path, error), file=sys.stderr)
            self.path = None


def _finite(value):
    """JSON knows neither infinity nor NaN."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_metrics(path):
    """Rank 0 writes a line for each step() to this file. None ends it."""
    rank = os.environ.get("RANK", "0")
    _state.metrics = Metrics(path) if path is not None and rank == "0" else None
