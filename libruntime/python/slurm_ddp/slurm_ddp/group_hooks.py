# SPDX-License-Identifier: Apache-2.0
"""Sees each collective of a process group by the hooks of torch 2.15, also those that torch itself issues.

A hook is called when a collective is issued. A thread looks ten times a second whether the oldest one is complete, and
tells on the page that the rank waits if it is not. Collectives on GPUs are left out: to ask for their events would end
the capture of a CUDA graph, and NCCL's are seen by --ddp=watch.
"""
import collections
import functools
import os
import threading
import time
import weakref

from . import page

_HOOK = 0x64647031      # an id of this module's among a group's hooks
_LOOK_SECONDS = 0.1
_HOST_BACKENDS = ("gloo", "mpi", "ddp")  # a group names one for each kind of device
_TELL_NS = 200000000    # a wait that is shorter is not told

_lock = threading.Lock()
_issued = {}                        # by group and operation: what the first hook has seen
_pending = collections.deque()      # [number, text, start_ns, work]
_some = threading.Event()
_thread = None
_number = 0                         # collectives of all ranks so far,
_text = ""                          # and the last of them
_pid = 0


def _name(arguments):
    """"all_reduce float32[1000]"."""
    name = getattr(arguments.name, "name", str(arguments.name)).lower()
    name = {"allreduce": "all_reduce", "allgather": "all_gather"}.get(name, name)
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


def _before(group, of_all, for_hosts, arguments):
    global _number, _text
    try:
        if os.getpid() != _pid or not _is_on_host(arguments, for_hosts):
            return
        text = _name(arguments)
        with _lock:
            number = 0
            if of_all:
                _number += 1
                number, _text = _number, text
                page.begin_collective(number, text)
            _issued[group, arguments.op_id] = [number, text, time.monotonic_ns(), None]
    except Exception:  # a collective must not fail by this
        pass


def _after(group, arguments):
    try:
        found = _issued.pop((group, arguments.op_id), None)
        if found is None or arguments.work is None or arguments.work.is_completed():
            return
        found[3] = arguments.work
        _pending.append(found)
        _some.set()
    except Exception:
        pass


def _oldest():
    """Of the pending ones; those that are complete are let go of."""
    while _pending:
        found = _pending[0]
        try:
            done = found[3].is_completed()
        except Exception:
            done = True
        if not done:
            return found
        _pending.popleft()
    return None


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
    global _thread, _pid
    if page.slot() is None or not isinstance(group, module.ProcessGroup):
        return
    try:
        config = module.get_backend_config(group)
    except Exception:
        config = module.get_backend(group)
    for_hosts = _is_for_hosts(config)
    key = id(group)
    group.register_pre_hook(_HOOK, lambda arguments: _before(key, of_all, for_hosts, arguments))
    group.register_post_hook(_HOOK, lambda arguments: _after(key, arguments))
    if _thread is None:
        _pid = os.getpid()
        _thread = threading.Thread(target=_look, name="slurm_ddp collectives", daemon=True)
        _thread.start()
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
