# SPDX-License-Identifier: Apache-2.0
"""Writes the exception that ends the program to the progress page, so that the plugin's failure line ends with it."""
import os
import re
import sys
import threading
import time

from . import page

TEXT_MAX = 239  # of the page
_HERE = os.path.dirname(__file__)

# Errors of a rank that has lost another one, or has waited for it in vain. The other one's failure is the cause.
_OF_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|remote process exited|ncclRemoteError|"
    r"ncclSystemError|socket (is )?closed|closed by peer|failed to recv|"
    r"timed out waiting \d+ ?ms|wait timeout|watchdog caught collective|NCCL communicator was aborted|"
    r"heartbeat|application timeout caused pair closure|recvValue|leaked? peer", re.IGNORECASE)
_COMMUNICATES = re.compile(r"gloo|nccl|c10d|tcp_?store|torch[/\\.]distributed|process ?group|jax|coordination service|"
                           r"DistBackendError|DistNetworkError|DistStoreError|ucc|mpi", re.IGNORECASE)
# Errors of the network that are the rank's own: it finds no port, or no address of a name.
_OWN_NETWORK = re.compile(r"EADDRINUSE|EADDRNOTAVAIL|address already in use|failed to listen|failed to bind|getaddrinfo|"
                          r"name or service not known|name resolution", re.IGNORECASE)
# Errors of the backend ddp, in libddp's words. The first rank that they name is the one that they are about.
_OF_LIBDDP = re.compile(r"DDP_ERR_(PEER|ABORTED|TIMEOUT): (?:[^\n]*?\brank (\d+))?")
_WORKER = re.compile(r"Caught (\w+) in (DataLoader worker process (\d+)|pin memory thread[^.]*|replica \d+[^.]*)\.")
_DEAD_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([0-9, ]+)\) (is killed by signal: ([^.]+)|exited unexpectedly)")
_WORKER_FILE = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)


def _type_name(kind):
    return getattr(kind, "__name__", str(kind))


def _one_line(text):
    return " ".join(str(text).split())


def _message(value):
    try:
        return str(value)
    except Exception:  # a __str__ of the user's that fails
        return "its text cannot be made"


def is_library(name):
    """Whether the code is of an installed package or of Python itself."""
    return ("site-packages" in name or "dist-packages" in name or name.startswith("<") or
            name.startswith(os.path.dirname(os.__file__) + os.sep) or _is_ours(name))


def _is_ours(name):
    return os.path.dirname(name) == _HERE


def place(traceback):
    """"train.py:88", or "functional.py:12, called at train.py:88": where it was raised, and the program's own line."""
    last = own = None
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        # Python's own frozen modules say nothing to a reader.
        if not _is_ours(name) and not (last is not None and name.startswith("<frozen ")):
            last = (name, traceback.tb_lineno)
        if not is_library(name):
            own = last
        traceback = traceback.tb_next
    return _places(last, own)


def _places(last, own):
    def said(where):
        return "%s:%d" % (os.path.basename(where[0]), where[1])

    if last is None:
        return ""
    return said(last) if own is None or own == last else "%s, called at %s" % (said(last), said(own))


def is_of_peer(value, text=None):
    """Whether the exception tells that another rank is gone, so that it is not the cause."""
    kind = _type_name(type(value))
    text = _message(value) if text is None else text
    if kind == "DamageError":
        return value.of_others
    if _OWN_NETWORK.search(text):
        return False
    if kind in ("DistNetworkError",):
        return True
    libddp = _OF_LIBDDP.match(text)
    if libddp is not None:
        status, rank = libddp.groups()
        own = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
        return rank != own if rank is not None else status != "TIMEOUT"
    if isinstance(value, (ConnectionError, EOFError)) or kind in ("DistBackendError", "DistStoreError", "RuntimeError",
                                                                  "XlaRuntimeError", "JaxRuntimeError"):
        return bool(_OF_PEER.search(text)) and bool(_COMMUNICATES.search(kind + " " + text))
    return False


def _in_worker(kind, text):
    """torch hands on what a DataLoader worker raised as text: its own words, and where that was."""
    match = _WORKER.match(text)
    if match is None:
        return None
    lines = [line for line in text.splitlines() if line.strip()]
    files = [(name, int(line)) for name, line in _WORKER_FILE.findall(text)]
    own = [where for where in files if not is_library(where[0])]
    where = _places(files[-1] if files else None, own[-1] if own else None)
    who = "DataLoader worker %s" % match.group(3) if match.group(3) else match.group(2)
    said = lines[-1] if len(lines) > 1 and _type_name(kind) in lines[-1] else "%s in a worker" % _type_name(kind)
    return said, "%s, in %s" % (where, who) if where else "in " + who


def _lost_worker(value, traceback):
    """Whether a DataLoader has lost the connection with a worker of its own. torch names the worker only if it has
    already seen its end."""
    names = []
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_filename.replace(os.sep, "/"))
        traceback = traceback.tb_next
    return (isinstance(value, (ConnectionError, EOFError, FileNotFoundError)) and
            any(name.endswith("/torch/utils/data/dataloader.py") for name in names) and
            "/multiprocessing/" in names[-1])


def _is_variable(value, traceback):
    """Whether os.environ has no such variable."""
    last = None
    while traceback is not None:
        last, traceback = traceback.tb_frame.f_code, traceback.tb_next
    return (isinstance(value, KeyError) and len(value.args) == 1 and isinstance(value.args[0], str) and last is not None and
            last.co_name == "__getitem__" and last.co_filename in ("<frozen os>", os.__file__))


def _words(value, traceback=None):
    """Says what failed, without the place, and with the words that a reader looks for."""
    kind, text = _type_name(type(value)), _message(value)
    if _lost_worker(value, traceback):
        return "a DataLoader worker ended unexpectedly: %s" % (kind + ": " + _one_line(text) if text else kind)
    if _is_variable(value, traceback):
        return "%s: the environment variable %s is not set" % (kind, _one_line(value.args[0]))
    if isinstance(value, ModuleNotFoundError):
        return "%s: %s in %s" % (kind, _one_line(text), sys.executable or "this Python")
    if kind == "OutOfMemoryError" or (isinstance(value, RuntimeError) and "out of memory" in text and
                                      re.search("CUDA|HIP|XPU", text)):
        rest = re.sub(r"^(CUDA|HIP|XPU) out of memory\.? *", "", _one_line(text))
        return "%s out of memory: %s" % ("HIP" if text.startswith("HIP") else "XPU" if text.startswith("XPU") else "CUDA",
                                         rest)
    if kind in ("XlaRuntimeError", "JaxRuntimeError") and "RESOURCE_EXHAUSTED" in text:
        return "a device is out of memory: %s" % _one_line(text)
    # The second exception's cause may be the first one.
    for said in (_message(value.__cause__), text):
        match = _DEAD_WORKER.search(said)
        if match is None:
            continue
        how = "was killed by signal %s" % match.group(3).strip() if match.group(3) else "ended unexpectedly"
        why = ", as when memory runs out" if (match.group(3) or "").startswith("Killed") else (
            ", as when /dev/shm is full" if (match.group(3) or "").startswith("Bus error") else "")
        return "a DataLoader worker (pid %s) %s%s: %s" % (match.group(1), how, why, kind)
    return "%s: %s" % (kind, _one_line(text)) if text else kind


def describe(value, traceback=None):
    """One line of at most 239 bytes: "ValueError: bad batch (train.py:10)"."""
    traceback = value.__traceback__ if traceback is None else traceback
    worker = _in_worker(type(value), _message(value))
    words, where = worker if worker is not None else (_words(value, traceback), place(traceback))
    return _fit(words, " (%s)" % where if where else "")


def _fit(words, end):
    room = TEXT_MAX - len(end.encode("utf-8", "replace"))
    if len(words.encode("utf-8", "replace")) <= room:
        return words + end
    return words.encode("utf-8", "replace")[:max(room - 4, 0)].decode("utf-8", "ignore") + " ..." + end


def record(value, traceback=None):
    """Writes an exception to the page. It stays there, and is told if the rank fails."""
    try:
        page.set_error(describe(value, traceback), is_of_peer(value))
    except Exception:  # of what a program raises anything may fail; its own error counts
        pass


def _write_torch_error_file(kind, value, traceback):
    """Under torchrun: what torch.distributed.elastic's record() writes, in programs that do not use it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    import json
    import traceback as tracebacks
    text = "".join(tracebacks.format_exception(kind, value, traceback))
    report = {"message": {"message": "%s: %s" % (_type_name(kind), _message(value)),
                          "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file)


# ---- hooks ---------------------------------------------------------------------------

# A rank that has lost another one ends so many seconds later, so that srun first hears of the rank that is the cause,
# which may take some time to end.
_AFTER_THE_CAUSE = 1.0

_installed = False
_failed = False  # by an exception: the phase in which it came stays on the page
_exit = None  # what sys.exit() was told last


def _on_exception(kind, value, traceback, before):
    global _exit, _failed
    if os.getpid() != _pid:
        before(kind, value, traceback)
        return
    _exit, _failed = None, True
    record(value, traceback)
    try:
        _write_torch_error_file(kind, value, traceback)
    except Exception:  # as when the file cannot be written; the exception itself is told below
        pass
    before(kind, value, traceback)
    if page.slot() is not None and page.slot().get("status") == page.ERR_PEER:
        time.sleep(_AFTER_THE_CAUSE)


def _on_thread_exception(arguments, before):
    if os.getpid() == _pid and arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        try:
            name = arguments.thread.name if arguments.thread is not None else "a thread"
            words = describe(arguments.exc_value, arguments.exc_traceback)
            page.set_error(_fit(words, ", in thread " + name), is_of_peer(arguments.exc_value))
        except Exception:
            pass
    before(arguments)


def _on_exit_call(status, before):
    global _exit
    if status not in (None, 0) and os.getpid() == _pid:
        frame = sys._getframe(2)
        _exit = (status, frame.f_code.co_filename, frame.f_lineno)
        while frame.f_back is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        _exit += (frame.f_code.co_filename, frame.f_lineno)
    before(status)


def _tell_exit():
    """Notes SystemExit, which sys.excepthook does not see, in case the program fails by it."""
    if _exit is None or os.getpid() != _pid:
        return
    status, name, line, own_name, own_line = _exit
    own = None if is_library(own_name) else (own_name, own_line)
    words = "sys.exit(%s)" % status if isinstance(status, int) else "SystemExit: " + _one_line(_message(status))
    page.set_error(_fit(words, " (%s)" % _places((name, line), own)))


def ends_well():
    """Whether neither an exception nor sys.exit() has said that the program fails, as far as hooks are installed."""
    return not _failed and (_exit is None or _exit[0] == 75)


def _tell_end():
    if os.getpid() == _pid:
        _tell_exit()
        if not _failed and _exit is None:
            page.set_phase("ending")


_pid = 0


def install():
    """Installs the hooks, once. Hooks that were there before are called afterwards."""
    global _installed, _pid
    if _installed:
        return
    _installed, _pid = True, os.getpid()
    import atexit
    excepthook, thread_hook, leave = sys.excepthook, threading.excepthook, sys.exit

    def on_exception(kind, value, traceback):
        _on_exception(kind, value, traceback, excepthook)

    def on_thread_exception(arguments):
        _on_thread_exception(arguments, thread_hook)

    def on_exit(status=None, /):
        _on_exit_call(status, leave)

    sys.excepthook, threading.excepthook, sys.exit = on_exception, on_thread_exception, on_exit
    on_exit.__doc__, on_exit.__name__ = leave.__doc__, "exit"
    atexit.register(_tell_end)
