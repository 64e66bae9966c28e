# SPDX-License-Identifier: Apache-2.0
"""The flight recorder's ring of this process's slot: its last 256 operations, for --ddp=record and ddp-status --dump.

The layout is that of libruntime/watch/record.h, and a test compares both. Without a ring every function does nothing.
"""
import mmap
import os
import struct
import threading
import time

from . import page

MAGIC, VERSION = 0x72706464, 1
ENTRIES, ENTRY_BYTES, HEADS_BYTES = 256, 128, 4096
RING_BYTES = ENTRIES * ENTRY_BYTES
AREA_BYTES = HEADS_BYTES + page.SLOTS * RING_BYTES
PLACE_BYTES = 2048
NAMED, UNKNOWN_END, OF_ALL = 255, 255, 1
KEPT_MAX = 8            # an operation that lasts keeps its place, unless so many do so in a row

# sequence, number, group, count, begin_ns, end_ns, peer, ranks, kind, type, op, lane, flags, state, tag, name, where
_ENTRY = struct.Struct("=QQQQQQiIBBBBBBH24s40s")
_HEAD = struct.Struct("=IIQ")
_NUMBER = struct.Struct("=Q")
_STATE = struct.Struct("=Q32xQ")  # sequence and end_ns
OFFSETS = {"sequence": 0, "number": 8, "group": 16, "count": 24, "begin_ns": 32, "end_ns": 40, "peer": 48, "ranks": 52,
           "kind": 56, "type": 57, "op": 58, "lane": 59, "flags": 60, "state": 61, "tag": 62, "name": 64, "where": 88}
# In the order of ddp_operation_kind and ddp_type.
KINDS = ("all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "gather", "scatter", "all_to_all", "send",
         "recv", "barrier")
TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8", "bool")
_KINDS = {name: number for number, name in enumerate(KINDS)}
_TYPES = {"torch." + name: number for number, name in enumerate(TYPES)}

_ring = None


class Ring:
    def __init__(self, memory, head, entries):
        self.memory, self.head, self.entries, self.next = memory, head, entries, 0
        self.lock = threading.Lock()

        self.types = {}  # by dtype: its number, and its name if it has none

    def _type(self, dtype):
        if dtype is None:
            return 0, ""
        found = self.types.get(dtype)
        if found is None:
            name = str(dtype)
            found = self.types[dtype] = (_TYPES.get(name, NAMED), name.replace("torch.", ""))
        return found

    def begin(self, number, group, ranks, kind, dtype, count, flags, where, begin_ns):
        """`dtype` is torch's, or None; `where` is bytes."""
        known, (type_known, type_name) = _KINDS.get(kind, NAMED), self._type(dtype)
        name = b"" if known != NAMED and type_known != NAMED else ("%s %s" % (kind, type_name)).encode("utf-8", "replace")[:23]
        memory = self.memory
        with self.lock:
            for _ in range(KEPT_MAX):
                self.next += 1
                at = self.entries + self.next % ENTRIES * ENTRY_BYTES
                sequence, end = _STATE.unpack_from(memory, at)
                if sequence == 0 or end != 0:
                    break
            sequence = self.next
            _NUMBER.pack_into(memory, self.head + 8, sequence)
            _NUMBER.pack_into(memory, at, 0)
            _ENTRY.pack_into(memory, at, 0, number, group, count, begin_ns, 0, -1, ranks, known, type_known, NAMED, 0, flags,
                             0, 0, name, where)
            _NUMBER.pack_into(memory, at, sequence)
        return sequence, at

    def end(self, begun, state):
        sequence, at = begun
        with self.lock:
            if _NUMBER.unpack_from(self.memory, at)[0] == sequence:
                self.memory[at + OFFSETS["state"]] = state
                _NUMBER.pack_into(self.memory, at + OFFSETS["end_ns"], time.monotonic_ns())


def _tasks(descriptor):
    """For how many tasks the file has rings; 0: none, as that of an older plugin."""
    size = os.fstat(descriptor).st_size
    if size < PLACE_BYTES:
        return 0
    magic, version, tasks = struct.unpack("=III", os.pread(descriptor, 12, size - PLACE_BYTES))
    whole = tasks * (page.PAGE_BYTES + AREA_BYTES) + page.PAGE_BYTES
    return tasks if (magic, version, whole) == (MAGIC, VERSION, size) else 0


def _map(slot):
    descriptor, task = int(os.environ["DDP_PROGRESS_FD"]), int(os.environ["LOCAL_RANK"])
    tasks = _tasks(descriptor)
    if not 0 <= task < tasks:
        return None
    number = slot.start % page.PAGE_BYTES // page.SLOT_BYTES
    offset = tasks * page.PAGE_BYTES + task * AREA_BYTES
    before = offset % mmap.ALLOCATIONGRANULARITY
    memory = mmap.mmap(descriptor, before + AREA_BYTES, offset=offset - before)
    head, entries = before + number * 64, before + HEADS_BYTES + number * RING_BYTES
    # A program before this one may have had the slot.
    memory[entries:entries + RING_BYTES] = bytes(RING_BYTES)
    _HEAD.pack_into(memory, head, MAGIC, VERSION, 0)
    return Ring(memory, head, entries)


def open_ring():
    """Takes the ring of the process's slot, if it has one."""
    global _ring
    if _ring is None and page.slot() is not None:
        try:
            _ring = _map(page.slot())
        except (ValueError, OSError, KeyError, struct.error):
            _ring = None
    return _ring


def begin(*what):
    """Begins an operation, and returns what end() takes; None: nothing is recorded."""
    return _ring.begin(*what) if _ring is not None else None


def end(begun, state=0):
    if begun is not None and _ring is not None:
        _ring.end(begun, state)


def _forget():
    """Runs in a forked child: the ring belongs to the parent."""
    global _ring
    _ring = None


os.register_at_fork(after_in_child=_forget)
