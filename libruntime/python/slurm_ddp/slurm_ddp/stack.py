# SPDX-License-Identifier: Apache-2.0
"""Lets `ddp-status --stack` see the stacks of this process's Python threads, and shows the stack of a crash.

faulthandler writes them on a signal, also while a thread hangs in C. They go to a memory file, which only processes of
the same user can open. Its name tells the signal, so that no other process gets one.
"""
import os
import signal

NAME = "ddp_stack-%d"
_file = None


def _free_signal():
    """Returns a real-time signal that nobody handles; None: there is none."""
    for number in range(signal.SIGRTMAX - 5, signal.SIGRTMIN, -1):
        try:
            if signal.getsignal(number) is signal.SIG_DFL:
                return number
        except ValueError:
            continue
    return None


def show_crashes():
    """Python writes its stacks to the standard error before a signal such as SIGSEGV or SIGABRT ends it. A thread of gloo's
    or NCCL's that aborts has no stack of Python, so that all threads' are shown."""
    import faulthandler
    if faulthandler.is_enabled():
        return
    try:
        faulthandler.enable()
    except (AttributeError, OSError, RuntimeError, ValueError):  # there is no such file
        pass


def install():
    global _file
    show_crashes()
    if _file is not None or not hasattr(os, "memfd_create"):
        return
    import faulthandler
    import fcntl
    number = _free_signal()
    if number is None:
        return
    descriptor = os.memfd_create(NAME % number, os.MFD_CLOEXEC)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND | fcntl.fcntl(descriptor, fcntl.F_GETFL))
    _file = os.fdopen(descriptor, "wb", buffering=0)
    faulthandler.register(number, file=_file, all_threads=True, chain=False)
