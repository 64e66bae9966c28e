# SPDX-License-Identifier: Apache-2.0
"""Sees each collective of a process group by the hooks of torch 2.15, also those that torch itself issues.

A hook is called when a collective is issued. A thread looks ten times a second whether the oldest one is complete, and
tells on the page that the rank waits if it is not. Collectives on GPUs are left out: to ask for their events would end
the capture of a CUDA graph, and NCCL's are seen by --ddp=watch.
"""
import collections
import functools
import hashlib
import os
import sys
import threading
import time
import weakref

from . import page, record
from .failures import is_library

_HOOK = 0x64647031      # an id of this module's among a group's hooks
_LOOK_SECONDS = 0.1
_HOST_BACKENDS = ("gloo", "mpi", "ddp")  # a group names one for each kind of device
_TELL_NS = 200000000    # a wait that is shorter is not told

_lock = threading.Lock()
_issued = {}                        # by group and operation: what the first hook has seen
_pending = collections.deque()      # [number, text, start_ns, work, what record.end() takes]
_some = threading.Event()
_thread = None
_number = 0                         # collectives of all ranks so far,
_text = ""                          # and the last of them
_pid = 0


_KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
          "_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter", "alltoall_base": "all_to_all",
          "allreduce_coalesced": "all_reduce", "allgather_coalesced": "all_gather"}


def _kind(arguments):
    name = getattr(arguments.name, "name", str(arguments.name)).lower()
    return _KINDS.get(name, name)


class _Group:
    """A process group, and how many collectives it has issued."""

    def __init__(self, group, of_all):
        name = str(getattr(group, "group_name", "") or getattr(group, "_group_name", ""))
        self.key, self.of_all, self.ranks, self.number = id(group), of_all, group.size(), 0
        # The same on all its ranks, and on no other group.
        self.id = int.from_bytes(hashlib.blake2b(("world" if of_all else name).encode(), digest_size=8).digest(), "little")


_libraries = {}  # by file: whether it is of a library
_lines = {}      # by file and line: how it is told


def _caller():
    """b"train.py:88": the program's own line, as far as the thread that issues has one."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        library = _libraries.get(name)
        if library is None:
            library = _libraries[name] = is_library(name)
        if not library:
            line = name, frame.f_lineno
            told = _lines.get(line)
            if told is None:
                if len(_lines) > 4096:
                    _lines.clear()
                told = _lines[line] = ("%s:%d" % (os.path.basename(name)[-28:], line[1])).encode("utf-8", "replace")[-39:]
            return told
        frame = frame.f_back
    return b""


def _record(group, arguments, now):
    kind, tensors = _kind(arguments), arguments.input_tensors or arguments.output_tensors
    number = 0
    if kind not in ("send", "recv"):
        group.number += 1
        number = group.number
    first = tensors[0] if tensors else None
    return record.begin(number, group.id, group.ranks, kind, first.dtype if tensors else None,
                        first.numel() if tensors else 0, record.OF_ALL if group.of_all else 0, _caller(), now)


def _name(arguments):
    """"all_reduce float32[1000]"."""
    name = _kind(arguments)
    tensors = arguments.input_tensors or arguments.output_tensors
    if not tensors:
        return name
    shape = ",".join(map(str, tensors[0].shape))
    return "%s %s[%s]%s" % (name, str(tensors[0].dtype).replace("torch.", ""), shape,
                            " and %d more" % (len(tensors) - 1) if len(tensors) > 1 else "")


def _is_for_hosts(config):
    """Whether a barrier of the group is one of hosts: "cpu:gloo,cuda:gloo", and not "cpu:gloo,cuda:nccl" or "xpu:xccl"."""
    return all(part.rpartition(":")[2] in _HOST_BACKENDS for part in str(config).split(","))


def _is_on_host(arguments, for_hosts):
    tensors = arguments.input_tensors or arguments.output_tensors
    return tensors[0].device.type == "cpu" if tensors else for_hosts


def _before(group, for_hosts, arguments):
    global _number, _text
    try:
        if os.getpid() != _pid or not _is_on_host(arguments, for_hosts):
            return
        text, now = _name(arguments), time.monotonic_ns()
        with _lock:
            number = 0
            if group.of_all:
                _number += 1
                number, _text = _number, text
                page.begin_collective(number, text)
            begun = _record(group, arguments, now)
            _issued[group.key, arguments.op_id] = [number, text, now, None, begun]
    except Exception:  # a collective must not fail by this
        pass


def _after(group, arguments):
    try:
        found = _issued.pop((group.key, arguments.op_id), None)
        if found is None:
            return
        if arguments.work is None or arguments.work.is_completed():
            record.end(found[4], record.UNKNOWN_END)
            return
        found[3] = arguments.work
        _pending.append(found)
        _some.set()
    except Exception:
        pass


def _is_done(found):
    try:
        return found[3].is_completed()
    except Exception:
        return True


def _oldest():
    """Of the pending ones; those that are complete are let go of. Others behind one that lasts may be complete, too."""
    oldest = None
    for _ in range(len(_pending)):
        found = _pending.popleft()
        if _is_done(found):
            record.end(found[4], record.UNKNOWN_END)
            continue
        _pending.append(found)
        if oldest is None:
            oldest = found
    return oldest


def _look():
    waits = False
    while True:
        if not waits:
            _some.wait()
        time.sleep(_LOOK_SECONDS)
        found = _oldest()
        if found is None:
            _some.clear()
            if _pending:
                _some.set()
        if found is not None and time.monotonic_ns() - found[2] > _TELL_NS:
            page.wait_since(*found[:3])
            waits = True
        elif waits:
            with _lock:
                if _number > 0:
                    page.begin_collective(_number, _text)
            page.end_wait()
            waits = False


def _leave(group):
    """Runs at the interpreter's end: a group that is destroyed later must hold no function of Python and no Work."""
    _pending.clear()
    _issued.clear()
    group = group()
    if group is not None:
        try:
            group.unregister_pre_hook(_HOOK)
            group.unregister_post_hook(_HOOK)
        except Exception:
            pass


def _watch(module, group, of_all):
    global _thread, _pid, _number
    if page.slot() is None or not isinstance(group, module.ProcessGroup):
        return
    try:
        config = module.get_backend_config(group)
    except Exception:
        config = module.get_backend(group)
    for_hosts = _is_for_hosts(config)
    if _thread is None:
        _pid = os.getpid()
        thread = threading.Thread(target=_look, name="slurm_ddp collectives", daemon=True)
        thread.start()  # an error leaves the group without hooks
        _thread = thread
    if of_all:
        with _lock:
            _number = 0  # after survive(), ranks count anew
    record.open_ring()
    known = _Group(group, of_all)
    group.register_pre_hook(_HOOK, lambda arguments: _before(known, for_hosts, arguments))
    group.register_post_hook(_HOOK, lambda arguments: _after(known, arguments))
    import atexit
    atexit.register(_leave, weakref.ref(group))


def install(module):
    """Hooks each group that the program makes."""

    def after(name, watch):
        inner = getattr(module, name, None)
        if inner is None:
            return

        @functools.wraps(inner)
        def made(*arguments, **keywords):
            result = inner(*arguments, **keywords)
            try:
                watch(result)
            except Exception:  # a torch of another shape is not watched
                pass
            return result

        setattr(module, name, made)

    after("init_process_group", lambda result: _watch(module, module.group.WORLD, True))
    after("new_group", lambda result: _watch(module, result, False))
    after("split_group", lambda result: _watch(module, result, False))
