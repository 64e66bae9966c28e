# SPDX-License-Identifier: Apache-2.0
"""Calls NCCL's profiler plugin as NCCL does in a program of its own: two collectives, then
a third that the rank of the first argument does not call."""
import ctypes
import os
import sys
import time

Word, Text = ctypes.c_uint64, ctypes.c_char_p


class Table(ctypes.Structure):
    _fields_ = [("name", Text)] + [(name, ctypes.c_void_p) for name in
                                   ("init", "start", "stop", "record", "finalize")]


class Collective(ctypes.Structure):
    _fields_ = [("type", Word), ("parent", ctypes.c_void_p), ("rank", ctypes.c_int),
                ("sequence", Word), ("function", Text), ("send", ctypes.c_void_p),
                ("recv", ctypes.c_void_p), ("count", ctypes.c_size_t), ("root", ctypes.c_int),
                ("datatype", Text), ("channels", ctypes.c_uint8), ("warps", ctypes.c_uint8),
                ("algorithm", Text), ("protocol", Text), ("group", ctypes.c_void_p)]


plugin = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])
table = Table.in_dll(plugin, "ncclProfiler_v5")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def call(name, *arguments):
    function = ctypes.cast(getattr(table, name), ctypes.CFUNCTYPE(ctypes.c_int, *[type(a) for a in arguments]))
    assert function(*arguments) == 0, name


def start(**fields):
    handle = ctypes.c_void_p()
    event = Collective(rank=rank, **fields)
    call("start", context, ctypes.pointer(handle), ctypes.pointer(event))
    return handle


context, mask = ctypes.c_void_p(), ctypes.c_int()
call("init", ctypes.pointer(context), Word(1), ctypes.pointer(mask), Text(b"world"), ctypes.c_int(2),
     ctypes.c_int(size), ctypes.c_int(rank), ctypes.c_void_p())
assert context and mask.value
for i in range(3):
    if i == 2 and rank == int(sys.argv[1]):
        break
    operation = start(type=2, function=b"AllReduce", count=1000, datatype=b"ncclFloat32", channels=1)
    call("stop", operation)
    if i < 2:
        call("stop", start(type=64, parent=operation))
time.sleep(600)
