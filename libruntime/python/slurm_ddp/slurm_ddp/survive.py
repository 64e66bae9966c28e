# SPDX-License-Identifier: Apache-2.0
"""survive(): a loop of DistributedDataParallel goes on in its processes when ranks die. doc/python.md is the guide.

When a rank dies, each other one has ended step k or k + 1. A rank that has ended k + 1 had all gradients, so the ranks that
are at k need only its parameters and state. If all are at k, they do the step again: until optimizer.step(), a step changes
only buffers, random states and gradients. Random states follow from the step's number.

In a step with restart=, srun starts others in place of lost ranks. A newcomer is alone until its loop begins. Then all ranks
meet in a new process group (renewal.py), and a rank that has the last whole step gives it to the newcomer.
"""
import atexit
import contextlib
import datetime
import functools
import hashlib
import inspect
import io
import os
import pickle
import random
import socket
import sys
import time
import types

from . import failures, jobs, page, renewal, stopping
from .survivors import Report, Survivors, settle

_TRY_SECONDS, _STORE_SECONDS = 3, 300  # the second is torch's own
_JOIN_SECONDS, _ATTEMPTS = 600, 3
_PARCEL_BYTES = 64 << 20
_NEWCOMER = Report(-1, False, False)


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
        self._store = self._survivors = self._seeds = None
        self.step = self._current = self._starts = self._total = 0
        self._updating = self._entered = False
        self._renews, self._generation = renewal.is_possible(), renewal.generation()
        self._comes, self._join_seconds = self._generation > 0, timeout or _JOIN_SECONDS
        if "nccl" in (backend or "nccl"):
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # its watchdog would end the process
        self._sockets_before, self._sockets = set(_sockets()), None
        job = jobs.job()
        if "RANK" not in os.environ or self._comes:
            self._options.update(store=dist.HashStore(), rank=0, world_size=1)
        dist.init_process_group(backend, **self._options)
        self._started()
        self._me, self.rank, self.world_size = job.rank, job.rank, job.world_size
        for each in state:
            if hasattr(each, "step") and hasattr(each, "zero_grad"):
                self._hook(each)
        self.model = self._wrap(module)
        if self.world_size > 1:
            page.open_slot()
            if not self._comes:
                self._attend()
            page.set_survives(not self._renews)
            self._watch_groups()
            failures.install()
            atexit.register(self._end)

    # ---- the program's loop ----

    def steps(self, total):
        """Yields the number of each step up to `total`; after a failure, that with which the ranks go on. All ranks go
        through it once, and do each step in a `with`."""
        self._total = total
        self._begin()
        while True:
            while self.step < total:
                self._current, self._entered = self.step + 1, False
                self._kept = [each.detach().clone() for each in self._module.buffers()]
                self._draw()
                stopping.count()
                yield self._current
                if not self._entered:
                    raise RuntimeError("the step is not in a `with` of what survive() has returned")
            if self._all_finish():
                self._leave()
                stopping.count()
                return

    def batches(self, loader, total):
        """Yields step and batch. After a failure the loader begins anew: its sampler is one of sampler()."""
        batches, start = None, None
        for step in self.steps(total):
            if start != self._starts:
                batches, start = iter(loader), self._starts
                self._draw()  # a loader that begins draws a number
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
            with self._giving_up():
                self._go_on()
        except RuntimeError as said:
            if self._renews:  # srun tells of this, and starts all ranks again
                raise
            print("slurm_ddp: %s" % said, file=sys.stderr, flush=True)
            return False
        return True

    def _begin(self):
        """Once, when the loop begins. A newcomer joins the others."""
        if self._seeds is not None:
            return
        own = _seeds()
        if self._comes:
            with self._giving_up():
                self._renew()
        elif self._renews and self._survivors is not None:
            self._seeds = self._gather(own)
            page.set_survives(True)
        else:
            self._seeds = {self._me: own}

    def _draw(self):
        """Begins the step's random numbers. A rank that does the step again, and a newcomer, draw the same ones."""
        import torch
        seeds = [hashlib.sha256(each + b"%d" % self._current).digest() for each in self._seeds[self._me]]
        torch.manual_seed(int.from_bytes(seeds[0][:7], "big"))
        random.seed(seeds[1])
        if len(seeds) > 2:
            sys.modules["numpy"].random.seed(int.from_bytes(seeds[2][:4], "big"))

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

    @contextlib.contextmanager
    def _giving_up(self):
        """If the body fails, the others are to count this rank as lost. RuntimeError: it failed."""
        try:
            yield
        except Exception as why:
            page.set_survives(False)
            if self._survivors is not None:
                self._survivors.close(False)
            self._survivors = None
            what, then = "go on without the ranks that are lost", "; go back to the last checkpoint"
            if self._renews:
                what, then = "join the ranks that are left" if self._comes else "go on with ranks in place of lost ones", ""
            raise RuntimeError("rank %d cannot %s: %s%s" % (self._me, what, why, then)) from why

    def _all_finish(self):
        """Returns True if all ranks that are left have come to the end. Otherwise some had lost a rank before that."""
        if self._survivors is None:
            return True
        with self._giving_up():
            plan = self._survivors.agree(Report(self.step, True, True))
            if plan is None or plan.members:
                self._go_on(plan)
        return plan is not None and not plan.members

    def _go_on(self, plan=None):
        if self._renews:
            self._renew()
            return
        begin, before, lost, attempts = time.monotonic(), self.world_size, [], 0
        while True:
            self._drop()
            if plan is None:
                plan = self._survivors.agree(Report(self.step, not self._updating, False))
            lost += self._survivors.lost
            attempts = 1 if self._survivors.lost else attempts + 1
            try:
                self._join(plan)
                break
            except (RuntimeError, OSError) as error:
                # Whether a rank is lost is known when they have agreed.
                if attempts >= _ATTEMPTS and not self._is_of_peer(error):
                    raise
                self._survivors.ask_again()
                plan = None
        page.set_survives(True, True)
        self._go(self.rank == 0, "; ".join(lost), "%d of %d ranks" % (self.world_size, before), begin)

    def _renew(self):
        """Has the ranks that are left meet with those that srun has started in place of lost ones."""
        begin, own = time.monotonic(), _NEWCOMER if self._comes else Report(self.step, not self._updating, False)
        if self._survivors is not None:
            if not self._survivors.close(False, self._join_seconds):
                raise RuntimeError("a thread has waited for lost ranks for more than %g s" % self._join_seconds)
            self._survivors = None
        self._drop()
        if not self._comes:
            self._generation = renewal.take(self._generation, self._join_seconds)
            stopping.renew(b"")  # a newcomer has the new key, and may have asked for the newest checkpoint
        self._open(renewal.meet(self._dist, self._join_seconds))
        self._attend()
        said = self._gather((own, self._comes, jobs.job().node_name))
        plan = settle({rank: each[0] for rank, each in enumerate(said)})
        self._follow(plan)
        came = [rank for rank, each in enumerate(said) if each[1]]
        why = "%s on %s joined" % (renewal.name(came), ", ".join(sorted({said[rank][2] for rank in came})))
        self._comes = False
        page.set_survives(True)
        self._go(plan.root == self.rank, why, "all %d ranks" % self.world_size, begin)

    def _go(self, tells, why, who, begin):
        page.forget_errors()
        self._starts += 1
        if tells:
            what = "go on with step %d" % (self.step + 1) if self.step < self._total else "have ended all steps"
            text = "slurm_ddp: %s; %s %s, after %.2f s" % (why, who, what, time.monotonic() - begin)
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
        _forget_count(self._dist.distributed_c10d)
        self._sockets_before, self._sockets = set(_sockets()), None

    def _join(self, plan):
        """Makes the process group of the plan, and brings all ranks to its step."""
        self.rank, self.world_size = plan.members.index(self._me), len(plan.members)
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.world_size), MASTER_ADDR=plan.address)
        self._open(self._store if self.rank == 0 else self._reach_store(plan))
        stopping.renew(b"%d" % plan.port)
        self._follow(plan)

    def _open(self, store):
        options = {**self._options, "store": store, "rank": self.rank, "world_size": self.world_size}
        self._dist.init_process_group(self._backend, **options)
        self._started()

    def _follow(self, plan):
        if plan.root is None:
            raise ValueError("each rank that is left has an error between optimizer.step() and the end of the step; let "
                             "collectives come before optimizer.step(), or in a `with` of their own behind the step")
        if plan.step < self._current:  # this rank does the step again
            for buffer, kept in zip(self._module.buffers(), self._kept):
                buffer.detach().copy_(kept)
        if plan.behind:
            self._level(plan.members.index(plan.root), self._me in plan.behind)
        self.step, self._updating = plan.step, False
        self.model = self._wrap(self._module, **self._rewrap)

    def _level(self, root, behind):
        """Gives the parameters and the state of one rank to those that are behind, and all that is kept to newcomers."""
        parameters = [parameter.detach() for parameter in self._module.parameters()]
        buffers = [buffer.detach() for buffer in self._module.buffers()] if self._renews else []
        own = (parameters, [each.state_dict() for each in self._state], buffers, self._seeds) if root == self.rank else None
        self._updating = self._updating or behind
        given, states, kept, seeds = _broadcast(self._dist, own, root, parameters[0].device)
        if behind:
            for parameter, value in zip(parameters, given):
                parameter.copy_(value)
            for each, value in zip(self._state, states):
                each.load_state_dict(value)
        if self._comes:
            self._seeds = seeds
            for buffer, value in zip(buffers, kept):
                buffer.copy_(value)

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

    def _attend(self):
        self._survivors = Survivors(self.rank, self.world_size, self._gather, self._host, self._abort, not self._renews)

    def _host(self):
        self._store = renewal.open_store(self._dist, "localhost", 0, True)
        return self._store.port

    def _reach_store(self, plan):
        """A store's client tries again for minutes, although the leader may be lost meanwhile."""
        end = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                store = renewal.open_store(self._dist, plan.address, plan.port, False, timeout=datetime.timedelta(seconds=_TRY_SECONDS))
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


def _forget_count(c10d):
    """torch counts a group that could not be made. The next group's keys in the store would not be those of the other ranks."""
    if hasattr(c10d, "_world"):
        c10d._world.group_count = 0
    else:  # torch 1.13
        c10d._group_count = 0


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


def _seeds():
    """What the random states of this rank are when its loop begins: torch's, Python's, and NumPy's if it is there."""
    import torch
    numpy = sys.modules.get("numpy")
    states = [torch.get_rng_state().tolist(), random.getstate()]
    if numpy is not None:
        states.append([getattr(each, "tolist", lambda each=each: each)() for each in numpy.random.get_state()])
    return [hashlib.sha256(repr(state).encode()).digest() for state in states]


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


def _parcels(sizes):
    """Yields the numbers of tensors that travel together, without empty ones. On a busy machine each message waits until
    all ranks have had a core."""
    parcel, full = [], 0
    for number, size in enumerate(sizes):
        if size == 0:
            continue
        if parcel and full + size > _PARCEL_BYTES:
            yield parcel
            parcel, full = [], 0
        parcel.append(number)
        full += size
    if parcel:
        yield parcel


def _broadcast(dist, value, root, device):
    """Returns the root's value on each rank. Tensors go from and to the device that the backend serves."""
    import torch
    text, tensors = io.BytesIO(), []
    is_root = dist.get_rank() == root
    if is_root:
        _Pickler(text, tensors).dump(value)
    about = [(each.shape, each.dtype, each.device.type, each.numel() * each.element_size()) for each in tensors]
    head = [text.getvalue(), about] if is_root else [None, None]
    dist.broadcast_object_list(head, src=root)
    sizes = [size for _, _, _, size in head[1]]
    given = [torch.empty(shape, dtype=dtype, device=kind) for shape, dtype, kind, _ in head[1]] if not is_root else tensors
    for parcel in _parcels(sizes):
        if is_root:
            sent = torch.cat([given[number].to(device).reshape(-1).view(torch.uint8) for number in parcel])
        else:
            sent = torch.empty(sum(sizes[number] for number in parcel), dtype=torch.uint8, device=device)
        dist.broadcast(sent, src=root)
        for number, got in zip(parcel, sent.split([sizes[number] for number in parcel])) if not is_root else ():
            given[number].copy_(got.clone().view(given[number].dtype).reshape(given[number].shape))
    return value if is_root else _Unpickler(io.BytesIO(head[0]), given).load()
