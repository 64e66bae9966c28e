# SPDX-License-Identifier: Apache-2.0
"""The progress page: shared memory of the plugin's in which a rank says what it does.

The layout is that of libruntime/watch/progress.h, and a test compares both. Without the plugin there is no page,
and every function does nothing.
"""
import mmap
import os
import struct
import threading
import time
from typing import NamedTuple

MAGIC, TAKEN = 0x31706464, 1
PAGE_BYTES, SLOTS, SLOT_BYTES = 4096, 8, 512
WRITER_PYTHON = 2
SURVIVES, SURVIVED = 4, 8  # enum ddp_aside
WAITING_NOT, WAITING_COLLECTIVE, WAITING_OTHER = 0, 1, 2
# Statuses of enum ddp_status of ddp/base.h.
ERR_PEER, ERR_INTERNAL = 9, 14

PHASES = {"idle": 0, "data": 1, "forward": 2, "backward": 3, "wait": 4, "optimizer": 5, "checkpoint": 6, "eval": 7,
          "starting": 64, "compute": 65, "ending": 66}

# Name: (offset, format or bytes of text)
LAYOUT = {
    "magic": (0, "=I"), "phase": (4, "=I"), "step": (8, "=q"), "updated_ns": (16, "=Q"), "bucket": (24, "=i"),
    "buckets": (28, "=i"), "collective": (32, "=Q"), "collective_text": (40, 64), "error": (104, 240),
    "compute_ns": (344, "=Q"), "compute_steps": (352, "=Q"),
    "status": (360, "=I"), "culprit": (364, "=I"), "waiting": (368, "=I"), "closed": (372, "=I"),
    "collective_ns": (376, "=Q"), "described": (384, "=Q"), "step_seconds": (392, "=d"), "step_weight": (400, "=d"),
    "writer": (408, "=I"), "aside": (412, "=I"), "steps": (416, "=q"), "error_state": (424, "=I"),
    "timeout_ms": (428, "=I"), "wanted_ns": (432, "=Q"), "python.loss": (440, "=d"), "python.told": (448, "=I"),
    "pid": (504, "=I"),
}

# struct ddp_progress_deal, in the node's own page: (offset, format)
DEAL = (1040, "=III256s68s")


class Deal(NamedTuple):
    """The identity of a generation that srun has dealt to ranks that stay; generation 0: none."""
    generation: int
    restart_count: int
    port: int
    address: str
    key: str


class Slot:
    """This process's slot of its rank's page."""

    def __init__(self, memory, start):
        self.memory, self.start, self.pid = memory, start, os.getpid()

    def set(self, name, value):
        offset, form = LAYOUT[name]
        if isinstance(form, int):
            text = value.encode("utf-8", "replace")[:form - 1]
            self.memory[self.start + offset:self.start + offset + form] = text + bytes(form - len(text))
        else:
            struct.pack_into(form, self.memory, self.start + offset, value)

    def get(self, name):
        offset, form = LAYOUT[name]
        if isinstance(form, int):
            text = bytes(self.memory[self.start + offset:self.start + offset + form])
            return text.split(b"\0")[0].decode("utf-8", "replace")
        return struct.unpack_from(form, self.memory, self.start + offset)[0]


_slot = None
_lock = threading.Lock()
_tried = False


def _is_gone(pid):
    if pid in (0, os.getpid()) or pid > 0x7fffffff:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _map():
    """The rank's page, or None. A worker of torchrun's inherits a descriptor, but has no page of its own in it."""
    descriptor, index = os.environ.get("DDP_PROGRESS_FD"), os.environ.get("LOCAL_RANK")
    if not descriptor or not index or "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    try:
        descriptor, offset = int(descriptor), int(index) * PAGE_BYTES
        if descriptor < 0 or offset < 0 or os.fstat(descriptor).st_size < offset + PAGE_BYTES:
            return None
        before = offset % mmap.ALLOCATIONGRANULARITY
        memory = mmap.mmap(descriptor, before + PAGE_BYTES, offset=offset - before)
    except (ValueError, OSError):
        return None
    return memory, before, descriptor


def _slots_from_last(memory, before):
    """libddp takes the first free slot, and Python the last: neither can take what the other is about to take."""
    for number in range(SLOTS - 1, -1, -1):
        yield Slot(memory, before + number * SLOT_BYTES)


def _take(memory, before, alone):
    slots = list(_slots_from_last(memory, before))
    for slot in slots:
        if slot.get("magic") == MAGIC and _is_gone(slot.get("pid")):
            slot.set("magic", 0)
    if alone and any(slot.get("magic") == MAGIC and slot.get("writer") == WRITER_PYTHON and slot.get("closed") == 0
                     for slot in slots):
        return None
    for slot in slots:
        if slot.get("magic") not in (MAGIC, TAKEN) or (slot.get("magic") == MAGIC and slot.get("closed") == 1):
            slot.set("magic", TAKEN)
            memory[slot.start + 4:slot.start + SLOT_BYTES] = bytes(SLOT_BYTES - 4)
            slot.set("bucket", -1)
            slot.set("writer", WRITER_PYTHON)
            slot.set("pid", os.getpid())
            slot.set("updated_ns", time.monotonic_ns())
            slot.set("magic", MAGIC)
            return slot
    return None


def _open(alone):
    import fcntl  # only where there is a plugin
    found = _map()
    if found is None:
        return None
    memory, before, descriptor = found
    start = int(os.environ["LOCAL_RANK"]) * PAGE_BYTES
    try:
        # Two programs of a task may come at once.
        fcntl.lockf(descriptor, fcntl.LOCK_EX, PAGE_BYTES, start)
        try:
            return _take(memory, before, alone)
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, PAGE_BYTES, start)
    except OSError:
        return None


def _forget():
    """Runs in a forked child, whose page belongs to the parent."""
    global _slot, _tried, _lock
    _slot, _tried, _lock = None, True, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def open_slot(alone=False):
    """Takes a slot, if there is a page. `alone`: none if another living program of Python's has one."""
    global _slot, _tried
    with _lock:
        if _slot is None and not _tried:
            _slot = _open(alone)
            # Another program may leave its slot to this one, which asks again when it has something to say.
            _tried = _slot is not None or not alone
    return _slot


def slot():
    """The slot, or None."""
    return _slot


def deal():
    """Returns what srun has dealt; None: there is no page."""
    descriptor, (offset, form) = os.environ.get("DDP_PROGRESS_FD", ""), DEAL
    try:
        at = os.fstat(int(descriptor)).st_size - PAGE_BYTES + offset
        *numbers, address, key = struct.unpack(form, os.pread(int(descriptor), struct.calcsize(form), at))
    except (ValueError, OSError, struct.error):
        return None
    return Deal(*numbers, *(text.split(b"\0")[0].decode("ascii", "replace") for text in (address, key)))


def set_phase(name):
    if _slot is not None:
        _slot.set("phase", PHASES[name])
        _slot.set("updated_ns", time.monotonic_ns())


def set_step(number):
    if _slot is not None:
        _slot.set("step", number)


def set_step_done(seconds, samples, loss):
    if _slot is None:
        return
    _slot.set("step_seconds", seconds)
    _slot.set("step_weight", samples or 0.0)
    if loss is not None:
        _slot.set("python.loss", loss)
        _slot.set("python.told", 1)


def add_compute(seconds):
    """Adds what the rank itself has done in a step, without waits for other ranks."""
    if _slot is None:
        return
    _slot.set("compute_ns", _slot.get("compute_ns") + int(seconds * 1e9))
    _slot.set("compute_steps", _slot.get("compute_steps") + 1)


def set_survives(survives, survived=False):
    """Says whether the other ranks go on if this one dies, and whether it has gone on without others. With restart= of a
    plugin that has nobody join, all are to start again."""
    if _slot is None:
        return
    survives = survives and ("TORCHELASTIC_MAX_RESTARTS" not in os.environ or "DDP_JOINS" in os.environ)
    _slot.set("aside", _slot.get("aside") & ~SURVIVES | SURVIVES * survives | SURVIVED * survived)


def forget_errors():
    """Errors of libddp that this process has had are past."""
    before = _slot.start // PAGE_BYTES * PAGE_BYTES if _slot is not None else 0
    for slot in _slots_from_last(_slot.memory, before) if _slot is not None else ():
        if slot.get("magic") == MAGIC and slot.get("pid") == _slot.pid and slot.get("writer") != WRITER_PYTHON:
            for name, none in (("error_state", 0), ("status", 0), ("culprit", 0), ("error", "")):
                slot.set(name, none)


def set_error(text, of_peer=False):
    if _slot is not None:
        _slot.set("status", ERR_PEER if of_peer else ERR_INTERNAL)
        _slot.set("error", text)


def begin_wait(number, text):
    """`number` counts the collectives of all ranks from 1; 0: the wait is for something else."""
    if _slot is None:
        return
    if number:
        _slot.set("collective", number)
        _slot.set("described", number)
    _slot.set("collective_text", text)
    _slot.set("collective_ns", time.monotonic_ns())
    _slot.set("waiting", WAITING_COLLECTIVE if number else WAITING_OTHER)


def begin_collective(number, text):
    if _slot is not None:
        _slot.set("collective_text", text)
        _slot.set("collective", number)
        _slot.set("described", number)
        _slot.set("collective_ns", time.monotonic_ns())


def wait_since(number, text, start_ns):
    """Does the same for a wait that began earlier, also in a collective that is not the last one that was issued."""
    if _slot is None:
        return
    _slot.set("collective_text", text)
    if number:
        _slot.set("collective", number)
        _slot.set("described", number)
    _slot.set("collective_ns", start_ns)
    _slot.set("waiting", WAITING_COLLECTIVE if number else WAITING_OTHER)


def end_wait():
    if _slot is not None:
        _slot.set("waiting", WAITING_NOT)
        _slot.set("collective_ns", time.monotonic_ns())
