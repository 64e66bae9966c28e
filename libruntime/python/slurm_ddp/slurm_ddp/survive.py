# SPDX-License-Identifier: Apache-2.0
"""survive(): a loop of DistributedDataParallel goes on in its processes when ranks die. doc/python.md is the guide.

When a rank dies, each other one has ended step k or k + 1. A rank that has ended k + 1 had all gradients, so the ranks that
are at k need only its parameters and state. If all are at k, they do the step again: until optimizer.step(), a step changes
only buffers, random states and gradients.
"""
import atexit
import datetime
import functools
import inspect
import io
import os
import pickle
import random
import socket
import sys
import time
import types

from . import failures, jobs, page, stopping
from .survivors import Report, Survivors

_TRY_SECONDS, _STORE_SECONDS = 3, 300  # the second is torch's own


def survive(model, *state, wrap=None, backend=None, timeout=None):
    """Makes the process group, and returns the Survival whose steps() the training's loop goes through.

    `model` is the module without DistributedDataParallel. `state` are the optimizers, and what else a step changes alike on
    all ranks and has state_dict() and load_state_dict(): schedulers, scalers. `wrap(model, **more)` returns the module that
    trains (default: DistributedDataParallel). `backend` and `timeout` (seconds) are those of init_process_group(). All ranks
    call it, from their main threads. RuntimeError: there is a process group already.
    """
    return Survival(model, state, wrap, backend, timeout)


class Survival:
    """`model` is what the body of the loop calls. It changes when ranks are lost, and so do `rank` and `world_size`.
    `step` is the last one that has ended; a program that begins with a checkpoint sets it before the loop."""

    def __init__(self, module, state, wrap, backend, timeout):
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        if dist.is_initialized():
            raise RuntimeError("survive() makes the process group itself: leave out init_process_group()")
        self._dist, self._module, self._state = dist, module, state
        self._wrap = DistributedDataParallel if wrap is None else wrap
        # Ranks that are left have the same parameters, so they need not send them.
        names = inspect.signature(DistributedDataParallel.__init__).parameters
        self._rewrap = {"init_sync": False} if "init_sync" in names else {}
        self._backend = backend
        self._options = {} if timeout is None else {"timeout": datetime.timedelta(seconds=timeout)}
        self._store = self._survivors = None
        self.step = self._current = self._starts = self._total = 0
        self._updating = self._entered = False
        if "nccl" in (backend or "nccl"):
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # its watchdog would end the process
        self._sockets_before, self._sockets = set(_sockets()), None
        job = jobs.job()
        if "RANK" not in os.environ:
            self._options.update(store=dist.HashStore(), rank=0, world_size=1)
        dist.init_process_group(backend, **self._options)
        self._started()
        self._me, self.rank, self.world_size = job.rank, dist.get_rank(), dist.get_world_size()
        for each in state:
            if hasattr(each, "step") and hasattr(each, "zero_grad"):
                self._hook(each)
        self.model = self._wrap(module)
        if self.world_size > 1:
            page.open_slot()
            self._survivors = Survivors(self.rank, self.world_size, self._gather, self._host, self._abort)
            page.set_survives(True)
            self._watch_groups()
            failures.install()
            atexit.register(self._end)

    # ---- the program's loop ----

    def steps(self, total):
        """Yields the number of each step up to `total`; after a failure, that with which the ranks go on. All ranks go
        through it once, and do each step in a `with`."""
        self._total = total
        while True:
            while self.step < total:
                self._current, self._entered = self.step + 1, False
                self._kept = _random_state(), [each.detach().clone() for each in self._module.buffers()]
                yield self._current
                if not self._entered:
                    raise RuntimeError("the step is not in a `with` of what survive() has returned")
            if self._all_finish():
                self._leave()
                return

    def batches(self, loader, total):
        """Yields step and batch. After a failure the loader begins anew: its sampler is one of sampler()."""
        batches, start = None, None
        for step in self.steps(total):
            if start != self._starts:
                batches, start = iter(loader), self._starts
            yield step, next(batches)

    def sampler(self, samples, batch, seed=None):
        """Returns a batch_sampler for a DataLoader: a step has `batch` samples of all ranks, in another order in each epoch
        by `seed`; None: in the order of the data. Ranks take turns, so shares differ by one at most. An epoch's last samples
        are left out if they fill no batch."""
        return _Sampler(self, samples, batch, seed)

    def __enter__(self):
        self._entered = True
        return self.model

    def __exit__(self, kind, error, traceback):
        if error is None:
            self.step, self._updating = self._current, False
            return False
        if self._survivors is None or not self._is_of_peer(error):
            return False
        try:
            self._go_on()
        except Exception as why:
            page.set_survives(False)
            self._survivors.close(False)  # the others are to count this rank as lost
            self._survivors = None
            print("slurm_ddp: rank %d cannot go on without the ranks that are lost: %s; go back to the last checkpoint" %
                  (self._me, why), file=sys.stderr, flush=True)
            return False
        return True

    def _is_of_peer(self, error):
        """Whether the error came because a rank is lost. Once that is known, the text does not matter."""
        if not isinstance(error, (RuntimeError, OSError)):
            return False
        return self._survivors.broken or (failures.is_of_peer(error) and self._survivors.wait_for_loss())

    def _hook(self, optimizer):
        """Notes that an update has begun, so that an error in it or behind it leaves half a step."""
        inner = optimizer.step

        @functools.wraps(inner)
        def step(_, *arguments, **keywords):
            self._check_gradients()
            self._updating = True
            return inner(*arguments, **keywords)

        optimizer.step = types.MethodType(step, optimizer)  # schedulers look for its parts

    def _check_gradients(self):
        """A host does not wait for collectives on GPUs, and one that was aborted gives any numbers."""
        torch = sys.modules["torch"]
        if self._survivors is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
            if self._survivors.broken:
                raise RuntimeError("a rank was lost while gradients were reduced")

    # ---- after a failure ----

    def _all_finish(self):
        """Returns True if all ranks that are left have come to the end. Otherwise some had lost a rank before that."""
        if self._survivors is None:
            return True
        plan = self._survivors.agree(Report(self.step, True, True))
        if plan.members:
            self._go_on(plan)
        return not plan.members

    def _go_on(self, plan=None):
        begin, before, lost = time.monotonic(), self.world_size, []
        redo, state = self.step < self._current, _random_state()
        while True:
            self._drop()
            if plan is None:
                plan = self._survivors.agree(Report(self.step, not self._updating, False))
            lost += self._survivors.lost
            try:
                self._join(plan)
                break
            except (RuntimeError, OSError):
                if not self._survivors.wait_for_loss():
                    raise
                plan = None
        # If another rank has ended the step, this one has computed its gradients: its random state is that after the step.
        if redo and self.step < self._current:
            state = self._kept[0]
            for buffer, kept in zip(self._module.buffers(), self._kept[1]):
                buffer.detach().copy_(kept)
        _set_random_state(state)
        self._starts += 1
        page.set_survives(True, True)
        if self.rank == 0:
            what = "go on with step %d" % (self.step + 1) if self.step < self._total else "have ended all steps"
            text = "slurm_ddp: %s; %d of %d ranks %s, after %.2f s" % (
                "; ".join(lost), self.world_size, before, what, time.monotonic() - begin)
            print(text, file=sys.stderr, flush=True)

    def _drop(self):
        """Lets go of the process group. Other ranks that wait for this one then get their error, too."""
        _unhook(self.model)
        self.model = None
        for parameter in self._module.parameters():
            parameter.grad = None
        self._abort()
        try:
            self._dist.destroy_process_group()
        except (RuntimeError, OSError, AssertionError, ValueError):  # there is none, or it is broken
            pass
        self._sockets_before, self._sockets = set(_sockets()), None

    def _join(self, plan):
        """Makes the process group of the plan, and brings all ranks to its step."""
        self.rank, self.world_size = plan.members.index(self._me), len(plan.members)
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.world_size), MASTER_ADDR=plan.address)
        options = {**self._options, "rank": self.rank, "world_size": self.world_size}
        options["store"] = self._store if self.rank == 0 else self._reach_store(plan)
        self._dist.init_process_group(self._backend, **options)
        self._started()
        stopping.renew(b"%d" % plan.port)
        if plan.root is None:
            raise ValueError("each rank that is left has an error between optimizer.step() and the end of the step; let "
                             "collectives come before optimizer.step(), or in a `with` of their own behind the step")
        if plan.behind:
            self._level(plan.members.index(plan.root), self._me in plan.behind)
        self.step, self._updating = plan.step, False
        self.model = self._wrap(self._module, **self._rewrap)

    def _level(self, root, behind):
        """Gives the parameters and the state of one rank to those that are behind."""
        parameters = [parameter.detach() for parameter in self._module.parameters()]
        own = (parameters, [each.state_dict() for each in self._state]) if root == self.rank else None
        self._updating = self._updating or behind
        given, states = _broadcast(self._dist, own, root, parameters[0].device)
        if behind:
            for parameter, value in zip(parameters, given):
                parameter.copy_(value)
            for each, value in zip(self._state, states):
                each.load_state_dict(value)

    def _leave(self):
        if self._survivors is not None:
            page.set_survives(False)
            self._survivors.close()
            self._survivors = None

    def _end(self):
        """The other ranks go on without one that ends by an exception, and not without one that has left the loop."""
        if self._survivors is None:
            return
        if getattr(sys, "last_value", None) is None and failures.ends_well():
            self._leave()
        else:
            self._survivors.close(False)

    # ---- the process group ----

    def _gather(self, value):
        values = [None] * self.world_size
        self._dist.all_gather_object(values, value)
        return values

    def _host(self):
        self._store = _open_store(self._dist, "localhost", 0, True)
        return self._store.port

    def _reach_store(self, plan):
        """A store's client tries again for minutes, although the leader may be lost meanwhile."""
        end = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                store = _open_store(self._dist, plan.address, plan.port, False, timeout=datetime.timedelta(seconds=_TRY_SECONDS))
                store.set_timeout(datetime.timedelta(seconds=_STORE_SECONDS))
                return store
            except (RuntimeError, OSError):
                if self._survivors.broken or time.monotonic() > end:
                    raise

    def _started(self):
        """Gloo waits in its sockets, and nothing else ends such a wait. libddp and NCCL can be aborted."""
        gloo = "gloo" in (self._backend or "gloo")
        self._sockets = set(_sockets()) - self._sockets_before if gloo else set()

    def _watch_groups(self):
        """Has groups that the program makes count, too."""
        inner = self._dist.new_group

        @functools.wraps(inner)
        def made(*arguments, **keywords):
            if "gloo" not in str(keywords.get("backend") or self._backend or "gloo"):
                return inner(*arguments, **keywords)
            self._sockets_before, self._sockets = set(_sockets()) - (self._sockets or set()), None
            try:
                return inner(*arguments, **keywords)
            finally:
                self._sockets = set(_sockets()) - self._sockets_before

        self._dist.new_group = self._dist.distributed_c10d.new_group = made

    def _abort(self):
        """Ends what waits for other ranks in the process group, also while it is made."""
        abort = getattr(self._dist.group.WORLD, "abort", None)
        try:
            if abort is not None:
                abort()
        except RuntimeError:  # gloo has none
            pass
        for number, descriptor in _sockets().items():
            if number not in self._sockets_before and (self._sockets is None or number in self._sockets):
                self._shut(number, descriptor)

    def _shut(self, number, descriptor):
        try:
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                # Another thread may have closed it, and given the descriptor to something else.
                if os.fstat(connection.fileno()).st_ino != number or connection.family == socket.AF_UNIX:
                    return
                if connection.getpeername() and (self._survivors is None or not self._survivors.is_own(connection)):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class _Sampler:
    def __init__(self, survival, samples, batch, seed):
        if not survival.world_size <= batch <= samples:
            raise ValueError("batch is %d; it must be from %d (the ranks) to %d (the samples)" %
                             (batch, survival.world_size, samples))
        self.survival, self.samples, self.batch, self.seed = survival, samples, batch, seed

    def _order(self, epoch):
        import torch
        if self.seed is None:
            return list(range(self.samples))
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.seed + epoch)).tolist()

    def __iter__(self):
        step, of_epoch, order = self.survival.step, None, []
        rank, ranks = self.survival.rank, self.survival.world_size
        while True:
            epoch, number = divmod(step, self.samples // self.batch)
            if epoch != of_epoch:
                of_epoch, order = epoch, self._order(epoch)
            yield order[number * self.batch:(number + 1) * self.batch][rank::ranks]
            step += 1


def _unhook(model):
    """Without this the old reducer would reduce gradients, too. Programs may still have the old model."""
    remove = getattr(model, "_remove_autograd_hooks", None)
    if remove is not None:
        remove()
    if getattr(model, "reducer", None) is not None:
        model.reducer = model.logger = None


def _open_store(dist, address, port, is_leader, **more):
    knows = "use_libuv" in (dist.TCPStore.__init__.__doc__ or "")
    if knows and os.environ.get("USE_LIBUV") == "0":
        more["use_libuv"] = False
    return dist.TCPStore(address, port, None, is_leader, wait_for_workers=False, **more)


def _sockets():
    """The process's sockets: numbers, and descriptors."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if target.startswith("socket:["):
            found[int(target[8:-1])] = int(name)
    return found


def _random_state():
    import torch
    numpy = sys.modules.get("numpy")
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return (random.getstate(), torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None,
            numpy.random.get_state() if numpy is not None else None)


def _set_random_state(state):
    import torch
    random.setstate(state[0])
    torch.set_rng_state(state[1])
    if state[2] is not None:
        torch.cuda.set_rng_state(state[2])
    if state[3] is not None:
        sys.modules["numpy"].random.set_state(state[3])


class _Pickler(pickle.Pickler):
    """Puts tensors aside."""

    def __init__(self, file, tensors):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors = tensors

    def persistent_id(self, value):
        import torch
        if not isinstance(value, torch.Tensor):
            return None
        self.tensors.append(value.detach())
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, tensors):
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, number):
        return self.tensors[number]


def _broadcast(dist, value, root, device):
    """Returns the root's value on each rank. Tensors go one by one, from and to the device that the backend serves."""
    import torch
    text, tensors = io.BytesIO(), []
    is_root = dist.get_rank() == root
    if is_root:
        _Pickler(text, tensors).dump(value)
    head = [text.getvalue(), [(each.shape, each.dtype, each.device.type) for each in tensors]] if is_root else [None, None]
    dist.broadcast_object_list(head, src=root)
    for number, (shape, dtype, kind) in enumerate(head[1]):
        sent = tensors[number].to(device) if is_root else torch.empty(shape, dtype=dtype, device=device)
        sent = sent.contiguous()
        if sent.numel() > 0:
            dist.broadcast(sent.reshape(-1).view(torch.uint8), src=root)
        if not is_root:
            tensors.append(sent.to(kind) if kind != device.type else sent)
    return value if is_root else _Unpickler(io.BytesIO(head[0]), tensors).load()
