# SPDX-License-Identifier: Apache-2.0
"""should_stop(): whether all ranks leave the training now, at the same step."""
import atexit
import os
import signal
import sys
import threading

from . import jobs

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_stop = None
_link = None  # (process, Agreement)
_start = b""  # of the last renew()
_counts = os.environ.get("DDP_JOINS", "0") == "0"  # calls; a newcomer's only when its loop has begun


def link(before=None):
    """This process's connection with the other ranks. None: it is alone, or nothing has given the ranks a key.
    `before` is the connection that has ended."""
    global _link
    if _link is not None and _link[0] == os.getpid():
        return _link[1]
    job, key = jobs.job(), os.environ.get("DDP_KEY", "")
    if job.world_size == 1 or not key or not job.master_addr:
        return None
    from .agreement import Agreement
    _link = (os.getpid(), Agreement(job.rank, job.world_size, job.master_addr, key.encode() + _start, before))
    atexit.unregister(_end)
    atexit.register(_end)
    return _link[1]


def _end():
    if _link is not None and _link[0] == os.getpid():
        _link[1].end()


def renew(start):
    """The ranks have met anew, perhaps by new numbers. They count their calls when each has called count(). `start` is the
    same on all of them. It differs from that of each other meeting by this DDP_KEY: b"" if srun has dealt a new key."""
    global _link, _start, _counts
    _start, _counts = start, False
    if _link is None or _link[0] != os.getpid():
        return
    old, _link = _link[1], None
    old.end()
    if link(old) is not None:
        link().take_offers(old)
    if _stop is not None:
        _stop.join(old)


def count():
    """Has calls count. What a program does after a failure, up to the next step, differs from rank to rank."""
    global _counts
    _counts = True


class _Stop:
    def __init__(self, margin):
        self.margin, self.pid = margin, os.getpid()
        self.signal = None       # the last one that was heard
        self.told_to_end = False # by SIGTERM, which the handler below may not have seen yet
        self.told = False        # that nobody will agree
        self.join(None)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._handle(number)

    def join(self, before):
        """`before` is the agreement that has ended, or None."""
        self.job, self.agreement = jobs.job(), link()
        self.lost = False  # a rank has gone without a word
        if self.agreement is None:
            return
        self.agreement.attend(self._is_late, self._on_lost, self._on_signals)
        if before is not None and before.heard:
            self.agreement.hear()
        # Python calls handlers only when its code goes on. A rank that waits in C for a lost rank hears of SIGTERM here.
        if threading.current_thread() is threading.main_thread():
            wakes = signal.set_wakeup_fd(self.agreement.wake_write, warn_on_full_buffer=False)
            if wakes not in (-1, self.agreement.wake_write):
                signal.set_wakeup_fd(wakes)

    def _is_late(self):
        return jobs.time_left() < self.margin

    def _on_signals(self, said):
        # The signal may be for a forked child that has not begun yet, so it alone makes nobody stop.
        self.told_to_end = self.told_to_end or signal.SIGTERM in said
        self._leave_a_failing_step()

    def _handle(self, number):
        before = signal.getsignal(number)

        def handler(number, frame):
            self._hear(number)
            if callable(before):
                before(number, frame)

        signal.signal(number, handler)

    def _hear(self, number):
        if os.getpid() != self.pid:
            # A forked child, such as a loader's worker, ends as it would have without this.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.signal = number
        self.told_to_end = self.told_to_end or number == signal.SIGTERM
        if self.agreement is not None:
            self.agreement.hear()
        self._leave_a_failing_step()

    def _on_lost(self):
        self.lost = True
        self._leave_a_failing_step()

    def _leave_a_failing_step(self):
        """If the step ends because a rank has failed, nothing has to be agreed on: SIGTERM then ends this rank, too."""
        if self.lost and self.told_to_end and self.agreement.stop_at is None:
            os._exit(128 + signal.SIGTERM)

    def call(self):
        if self.agreement is not None:
            agreed = self.agreement.ended or self.agreement.stop_at is not None
            if self.agreement.lost and not agreed and self.signal is not None and not self.told:
                self.told = True
                print("slurm_ddp: rank %d: the ranks cannot agree to stop: %s" %
                      (self.job.rank, self.agreement.missing or "rank 0 is gone"), file=sys.stderr)
            return self.agreement.call()
        heard = self.signal is not None or self._is_late()
        return heard if self.job.world_size == 1 else self._by_torch(heard)

    def _by_torch(self, heard):
        """Without the plugin's key, each call sums a flag over all ranks."""
        torch = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            if heard and not self.told:
                self.told = True
                print("slurm_ddp: rank %d stops alone: neither srun --ddp nor torch.distributed has started it" %
                      self.job.rank, file=sys.stderr)
            return heard
        device = "cuda" if "nccl" in str(distributed.get_backend()) else "cpu"
        flag = torch.tensor([1.0 if heard else 0.0], device=device)
        distributed.all_reduce(flag)
        return flag.item() > 0


def _forget():
    """Runs in a forked child, whose signals are its own."""
    if _stop is not None and _stop.agreement is not None:
        try:
            signal.set_wakeup_fd(-1)
        except ValueError:
            pass


os.register_at_fork(after_in_child=_forget)


def meet(seconds):
    """Waits until all ranks have come, because the first rank that leaves ends the others."""
    stop = _the_stop(120.0)
    if stop.agreement is not None:
        return stop.agreement.meet(seconds)
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if stop.job.world_size > 1 and distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
    return True


def _the_stop(margin):
    global _stop
    if _stop is None or _stop.pid != os.getpid():
        _stop = _Stop(margin)
    return _stop


def should_stop(margin=120.0):
    """Whether all ranks stop now. Every rank calls it once in each step, and all get True in the same one.

    They stop after one of them got SIGTERM or SIGUSR1, as by scancel, preemption or --signal, or when less than `margin`
    seconds of the job's time are left. The program then saves, and may end by exit_for_requeue(). A call costs
    about a microsecond: ranks talk only when they stop.
    """
    return _the_stop(margin).call() if _counts else False
