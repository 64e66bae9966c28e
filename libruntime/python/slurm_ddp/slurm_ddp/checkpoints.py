# SPDX-License-Identifier: Apache-2.0
"""Checkpoint writes folders that are there whole or not at all."""
import hashlib
import os
import re
import shutil
import socket
import sys
import threading
import time

from . import jobs, progress, stopping
from .agreement import UNREADABLE

_NAME = re.compile(r"^step-(\d{8,})(?:\.(\d+))?$")
_UNFINISHED = re.compile(r"^\.step-\d+(?:\.\d+)?\.(new|old)-(.*)$")
_STALE_SECONDS = 86400.0
_ASK_SECONDS = 600.0  # rank 0 may still import its libraries
_SEE_SECONDS = 60.0   # so old may a node's view of a folder be
# A step and its repetition are one number of 64 bits: see _newest_number().
_STEP_MOST, _REPETITION_MOST = (1 << 48) - 1, (1 << 16) - 3


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder):
    """Waits until all files and folders of it are on the disk."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            if not os.path.islink(os.path.join(path, name)):
                _sync(os.path.join(path, name))
        _sync(path)


def _copy(value):
    """A copy that the training does not change meanwhile: tensors go to the host's memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        made = {name: _copy(inner) for name, inner in value.items()}
        return made if type(value) is dict else _like(value, made)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_copy, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_copy, value))
    import copy
    return copy.deepcopy(value)


def _like(value, made):
    """An OrderedDict stays one: torch's state_dict() is one, with attributes."""
    import copy
    try:
        other = copy.copy(value)
        other.clear()
        other.update(made)
        return other
    except Exception:
        return made


def _write_torch(state, folder):
    import torch
    torch.save(state, os.path.join(folder, "state.pt"))


def _read_torch(folder, **options):
    import torch
    return torch.load(os.path.join(folder, "state.pt"), **options)


def _write_safetensors(state, folder):
    from safetensors.torch import save_file
    save_file(state, os.path.join(folder, "state.safetensors"))


def _read_safetensors(folder, **options):
    from safetensors.torch import load_file
    return load_file(os.path.join(folder, "state.safetensors"), **options)


_FORMATS = {"torch": (_write_torch, _read_torch), "safetensors": (_write_safetensors, _read_safetensors)}


def _meet():
    """Waits for all ranks that torch.distributed knows."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.barrier()


def _name(step, repetition):
    return "step-%08d" % step + (".%d" % repetition if repetition else "")


def _found(directory):
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        match = _NAME.match(name)
        step, repetition = (int(match.group(1)), int(match.group(2) or 0)) if match else (-1, 0)
        if 0 <= step <= _STEP_MOST and repetition <= _REPETITION_MOST and os.path.isdir(os.path.join(directory, name)):
            found.append((step, repetition, os.path.join(directory, name)))
    return sorted(found)


def _newest_number(directory):
    """The newest checkpoint as a number, for ranks that ask; 0: there is none."""
    try:
        found = _found(directory)
    except OSError:
        return UNREADABLE
    return found[-1][0] << 16 | found[-1][1] + 2 if found else 0


class Checkpoint:
    """Checkpoints of a training in a folder, each a folder step-00000100 in it.

    `format` is "torch" (torch.save), "safetensors", or a function f(state, folder) that writes files of its own. Rank 0
    writes; with all_ranks=True every rank's function is called with the same folder, as for
    torch.distributed.checkpoint.save(), and torch.distributed tells when all have written. The newest `keep` stay; 0: all. With
    background=True, save() copies the state and returns, and a thread writes. If no thread can be started, save() writes. An
    error of the thread is raised by the next save(), wait() or close().

    One rank's view of a shared folder may be older than another's. So where srun --ddp started the ranks, latest(),
    latest_step() and load() say on each rank what rank 0 sees: each rank makes its Checkpoint of the same `directory`.
    """

    def __init__(self, directory, keep=3, background=False, format="torch", all_ranks=False):
        if keep < 0:
            raise ValueError("keep is %d, below 0" % keep)
        if background and all_ranks:
            raise ValueError("all_ranks and background do not go together: ranks write at the same time in the "
                             "foreground; torch.distributed.checkpoint has async_save()")
        if not callable(format) and format not in _FORMATS:
            raise ValueError("there is no format %r; there are %s, and functions" % (format, ", ".join(_FORMATS)))
        self.directory, self.keep, self.background, self.all_ranks = os.fspath(directory), keep, background, all_ranks
        self._write, self._read = (format, None) if callable(format) else _FORMATS[format]
        self._thread, self._error = None, None
        self._link, place = stopping.link(), os.path.abspath(self.directory)
        self._name = int.from_bytes(hashlib.sha256(os.fsencode(self.directory)).digest()[:8], "big")
        if self._link is not None:  # this rank may become rank 0, or have others ask when they join
            self._link.offer(self._name, lambda: _newest_number(place))

    @property
    def _rank(self):
        """After failures that survive() has survived, another rank may be rank 0."""
        return jobs.job().rank

    # ---- what is there ----

    def _found(self):
        """Returns (step, repetition, path) of all whole checkpoints that this rank sees, the oldest first."""
        return _found(self.directory)

    def _newest(self):
        """Returns (step, repetition) of the checkpoint that rank 0 takes for the newest; None: there is none."""
        if self._link is not None and self._link.pid == os.getpid():
            self._link = stopping.link()  # that since survive() has had the ranks meet anew
        if self._link is not None and self._rank != 0:
            try:
                number = self._link.ask(self._name, _ASK_SECONDS)
            except OSError as error:
                raise OSError("rank %d cannot ask rank 0 for the newest checkpoint in %s: %s; each rank makes a Checkpoint of "
                              "this folder, by the same name" % (self._rank, self.directory, error)) from None
            if number == UNREADABLE:
                raise OSError("rank 0 cannot read the folder %s; its own error says why" % self.directory)
            if number is not None:
                return (number >> 16, (number & 0xffff) - 2) if number else None
        found = self._found()  # rank 0 may be gone already, at the end of a training
        return found[-1][:2] if found else None

    def steps(self):
        """Returns the steps that have checkpoints, in order."""
        return sorted({step for step, _, _ in self._found()})

    def latest(self):
        """Returns the folder of the newest checkpoint; None: there is none."""
        deadline = time.monotonic() + _SEE_SECONDS
        while True:
            newest = self._newest()
            if newest is None:
                return None
            folder = os.path.join(self.directory, _name(*newest))
            if os.path.isdir(folder):
                return folder
            self._look_again(folder, deadline)

    def latest_step(self):
        """Returns the step of the newest checkpoint; 0: there is none."""
        newest = self._newest()
        return newest[0] if newest else 0

    def load(self, path=None, **options):
        """The state of the latest checkpoint, or of the one in `path`; None: there is none. Options are torch.load()'s or
        load_file()'s, such as map_location."""
        path = self.latest() if path is None else path
        if path is None:
            return None
        if self._read is None:
            raise ValueError("only the function that wrote %s knows how to read it" % path)
        return self._read(path, **options)

    # ---- writing ----

    def save(self, step, state):
        """Writes a checkpoint of this step. The phase is "checkpoint" meanwhile."""
        step = int(step)
        if step < 0:
            raise ValueError("step is %d, below 0" % step)
        if step > _STEP_MOST:
            raise ValueError("step is %d, above %d" % (step, _STEP_MOST))
        self.wait()
        if self._rank != 0 and not self.all_ranks:
            return
        before = progress.enter("checkpoint")
        try:
            if not self.background:
                self._save(step, state)
                return
            state = _copy(state)
            thread = threading.Thread(target=self._save_beside, args=(step, state), name="slurm_ddp checkpoint")
            try:
                thread.start()
            except RuntimeError:  # no thread can be started, so training waits until it is written
                self._save(step, state)
                return
            self._thread = thread
        finally:
            progress.enter(before)

    def _save_beside(self, step, state):
        try:
            self._save(step, state)
        except BaseException as error:  # pylint: disable=broad-except
            self._error = error

    def wait(self):
        """Returns when the thread has written what it was given."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    close = wait

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()

    def _mark(self):
        """The mark in the names of unfinished folders tells whose they are. All ranks of a step have the same one."""
        job = jobs.job()
        if job.job_id is None:
            return "local" if self.all_ranks else "%s-%d" % (socket.gethostname(), os.getpid())
        return "%d.%s.%d" % (job.job_id, job.step_id, job.restart_count)

    def _save(self, step, state):
        unfinished = os.path.join(self.directory, ".step-%08d.new-%s" % (step, self._mark()))
        if self._rank == 0:
            os.makedirs(self.directory, exist_ok=True)
            self._remove_unfinished()
            shutil.rmtree(unfinished, ignore_errors=True)
            os.mkdir(unfinished)
        if self.all_ranks:
            _meet()
            self._await_folder(unfinished)
        try:
            self._write(state, unfinished)
            if self.all_ranks:
                _meet()
            if self._rank == 0:
                _sync_tree(unfinished)
                self._publish(step, unfinished)
        except BaseException:
            if self._rank == 0:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise
        if self._rank == 0:
            self._remove_old()
        if self.all_ranks:
            _meet()

    def _await_folder(self, folder):
        deadline = time.monotonic() + _SEE_SECONDS
        while not os.path.isdir(folder):
            self._look_again(folder, deadline)

    def _look_again(self, folder, deadline):
        if time.monotonic() > deadline:
            raise OSError("rank %d on %s does not see %s, which rank 0 does: checkpoints need a folder that all nodes share" %
                          (self._rank, jobs.job().node_name, folder))
        self._found()  # to list a folder makes the node's view newer
        time.sleep(0.1)

    def _publish(self, step, unfinished):
        """Gives the new folder its name. If the step has a checkpoint already, both are whole for a moment."""
        repeated = [number for of, number, _ in self._found() if of == step]
        name = _name(step, max(repeated) + 1 if repeated else 0)
        os.rename(unfinished, os.path.join(self.directory, name))
        _sync(self.directory)

    def _remove(self, path):
        # It loses its name first, so that a part of it is never taken for a checkpoint.
        hidden = os.path.join(self.directory, ".%s.old-%s" % (os.path.basename(path), self._mark()))
        try:
            os.rename(path, hidden)
        except OSError:
            return
        shutil.rmtree(hidden, ignore_errors=True)

    def _remove_old(self):
        newest = {}
        for step, number, path in self._found():
            if step in newest:
                self._remove(newest[step])
            newest[step] = path
        kept = sorted(newest)[-self.keep:] if self.keep else list(newest)
        for step in newest:
            if step not in kept:
                self._remove(newest[step])

    def _remove_unfinished(self):
        """Removes what earlier starts of this job, or any program a day ago, have left."""
        job_id = jobs.job().job_id
        for name in os.listdir(self.directory):
            match = _UNFINISHED.match(name)
            path = os.path.join(self.directory, name)
            if match is None:
                continue
            try:
                stale = time.time() - os.stat(path).st_mtime > _STALE_SECONDS
            except OSError:
                continue
            ours = job_id is not None and match.group(2).startswith("%d." % job_id)
            if stale or (ours and match.group(2) != self._mark()):
                shutil.rmtree(path, ignore_errors=True)
