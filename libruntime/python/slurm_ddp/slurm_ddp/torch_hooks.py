# SPDX-License-Identifier: Apache-2.0
"""Sees the steps of a PyTorch program that says nothing itself: batches, optimizer steps, and collectives that wait.

Nothing imports torch. A module of torch's is hooked when the program imports it.
"""
import functools
import os
import sys
import threading
import time

from . import page, progress

_pid = 0
_batches = 0       # that the program has asked for
_optimizer = None  # id of the one whose steps count
_collectives = 0   # of all ranks
_told = False      # a collective is under way, which may call others
_depth = 0         # of waits that call others
_began = 0.0       # when the outermost of them began


def _is_main():
    return os.getpid() == _pid and threading.current_thread() is threading.main_thread()


def _watches():
    """Whether hooks tell: not in workers, and not where the program itself says what it does."""
    return not progress.is_told_by_program() and _is_main()


# ---- batches and optimizer steps -------------------------------------------------------


def _hook_loader(module):
    iterator = getattr(module, "_BaseDataLoaderIter", None)
    inner = getattr(iterator, "__next__", None)
    if inner is None:
        return

    @functools.wraps(inner)
    def next_batch(self):
        global _batches
        if not _watches():
            return inner(self)
        _batches += 1
        # The first batch and the first step, which may compile, belong to the start.
        if _batches == 1:
            return inner(self)
        before = progress.enter("data")
        after = "compute" if before == "starting" else before
        try:
            batch = inner(self)
        except StopIteration:
            progress.enter(after)
            raise
        # After an exception the phase stays, because the exception may end the program.
        progress.enter(after)
        return batch

    iterator.__next__ = next_batch
    if getattr(iterator, "next", None) is inner:
        iterator.next = next_batch


def _count_step(optimizer):
    global _optimizer
    if not _watches():
        return
    # If there are several optimizers, as for a generator and a discriminator, the first one's steps count.
    if _optimizer is None:
        _optimizer = id(optimizer)
    if _optimizer == id(optimizer):
        progress.end_step()


def _hook_optimizer(module):
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(lambda optimizer, arguments, keywords: _count_step(optimizer))
        return
    inner = getattr(module.Optimizer, "_hook_for_profile", None)  # torch 1.x has no such hook
    if inner is None:
        return

    @functools.wraps(inner)
    def hook_step(self):
        inner(self)
        of_class = type(self).step
        if getattr(of_class, "counted", False):
            return

        @functools.wraps(of_class)
        def counted(optimizer, *arguments, **keywords):
            result = of_class(optimizer, *arguments, **keywords)
            _count_step(optimizer)
            return result

        counted.counted = counted.hooked = True
        type(self).step = counted

    module.Optimizer._hook_for_profile = hook_step


# ---- collectives ------------------------------------------------------------------------

_COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "_all_gather_base", "gather",
                "scatter", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all",
                "all_to_all_single", "barrier", "monitored_barrier", "all_gather_object", "broadcast_object_list",
                "gather_object", "scatter_object_list")
_MESSAGES = ("recv",)


def _shape(value):
    shape = getattr(value, "shape", None)
    if shape is None:
        return ""
    return " %s[%s]" % (str(getattr(value, "dtype", "")).replace("torch.", ""), ",".join(map(str, shape)))


class _Wait:
    """A block in which this rank waits for others. Of blocks within each other only the outermost one counts."""

    def __enter__(self):
        global _depth, _began
        if not _is_main():
            return
        if _depth == 0:
            _began = time.monotonic()
        _depth += 1

    def __exit__(self, *error):
        global _depth
        if not _is_main():
            return
        _depth -= 1
        if _depth == 0:
            progress.waited(time.monotonic() - _began)


_wait = _Wait()


def _waits(name, inner, counts):
    """The function, which tells while it runs that this rank waits for others. Of torch's own backends only those on
    hosts wait in the call."""

    @functools.wraps(inner)
    def waiting(*arguments, **keywords):
        global _collectives, _told
        if _told or not _is_main() or page.slot() is None:
            return inner(*arguments, **keywords)
        of_all = counts and keywords.get("group") is None
        _collectives += of_all
        page.begin_wait(_collectives if of_all else 0, name + (_shape(arguments[0]) if arguments else ""))
        _told = True
        try:
            with _wait:
                return inner(*arguments, **keywords)
        finally:
            _told = False
            page.end_wait()
            if name == "init_process_group":
                _collectives = 0  # after survive(), ranks count anew

    return waiting


def _hook_backward(module):
    """Gradients of DistributedDataParallel are reduced in backward, and a slow rank's time there cannot be told from the
    others' wait for it. So backward counts as a wait: a rank that computes slowly does so in forward, too."""
    inner = module.backward

    @functools.wraps(inner)
    def backward(*arguments, **keywords):
        with _wait:
            return inner(*arguments, **keywords)

    module.backward = backward


def _hook_work(module):
    inner = module.Work.wait

    # pybind11 tells by this name and by `self` that the call is not to come back here.
    @functools.wraps(inner)
    def wait(self, *arguments, **keywords):
        with _wait:
            return inner(self, *arguments, **keywords)

    module.Work.wait = wait


def _hook_distributed(module):
    names = _COLLECTIVES + _MESSAGES + ("init_process_group",)
    if hasattr(getattr(module, "ProcessGroup", None), "register_pre_hook"):
        from . import group_hooks  # torch 2.15 shows the collectives of DistributedDataParallel, too
        group_hooks.install(module)
        names = _MESSAGES + ("init_process_group",)
    for name in names:
        inner = getattr(module, name, None)
        if callable(inner):
            setattr(module, name, _waits(name, inner, name in _COLLECTIVES))
    _hook_work(module)


# ---- when torch is imported ----------------------------------------------------------------

_HOOKS = {"torch.utils.data.dataloader": _hook_loader, "torch.optim.optimizer": _hook_optimizer,
          "torch.autograd": _hook_backward,
          "torch.distributed.distributed_c10d": _hook_distributed}


def _hook(name, module):
    try:
        _HOOKS[name](module)
    except Exception:  # a torch of another shape is not watched
        pass


class _Loader:
    """The module's own loader, and the hook behind it."""

    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        _hook(module.__name__, module)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class _Finder:
    """First of sys.meta_path. It asks the others, and wraps what they find."""

    def find_spec(self, name, path=None, target=None):
        if name not in _HOOKS:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None

    def invalidate_caches(self):
        pass


def install():
    global _pid
    if _pid != 0 or page.slot() is None:
        return
    _pid = os.getpid()
    for name in _HOOKS:
        if name in sys.modules:
            _hook(name, sys.modules[name])
    if any(name not in sys.modules for name in _HOOKS):
        sys.meta_path.insert(0, _Finder())
