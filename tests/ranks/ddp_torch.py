#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Trains with libddp and with PyTorch's DistributedDataParallel, and compares the parameters
after each step: unused parameters, a static graph, buffers, ranks that finish early.

Prints TAP. DDP_LIBRARY names the library; libruntime/.libs/libddp.so by default.
"""
import ctypes
import functools
import json
import os
import random
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from libddp import Options, Param, Spawned, check, load, skip

RANKS, STEPS = 3, 8
BROADCAST, FROZEN = 2, 1                 # ddp_tensor_kind
MEAN, MEAN_OF_ACTIVE = 1, 2              # ddp_loss
ZERO, SKIP, STATIC = 0, 1, 2             # ddp_unused
ADAMW, SGD = 0, 1


class Stats(ctypes.Structure):
    _fields_ = [("step", ctypes.c_int64), ("numbers", ctypes.c_double * 11),
                ("stop", ctypes.c_bool), ("skipped", ctypes.c_bool), ("active_ranks", ctypes.c_int),
                ("reserved", ctypes.c_uint64 * 8)]


class Model:
    """A module whose parameters are libddp's memory, without a copy; or, if own, PyTorch's, in which
    libddp works: two flat tensors, of whose views parameters and gradients are."""

    def __init__(self, library, context, module, own=False, **options):
        import torch
        self.library, self.module = library, module
        self.tensors = list(module.named_parameters())
        self.trained = len(self.tensors)
        self.tensors += [(n, b) for n, b in module.named_buffers() if b.dtype == torch.float32]
        params = (Param * len(self.tensors))()
        for i, (name, tensor) in enumerate(self.tensors):
            kind = BROADCAST if i >= self.trained else 0 if tensor.requires_grad else FROZEN
            params[i] = Param(name=name.encode(), ndim=tensor.dim(), kind=kind,
                              shape=(ctypes.c_int64 * 8)(*tensor.shape))
        self.flat = None
        if own:
            sizes = ctypes.c_size_t(), ctypes.c_size_t()
            self.check(library.ddp_model_bytes(params, len(self.tensors), *map(ctypes.byref, sizes)))
            self.flat = [torch.full((size.value // 4,), float("nan")) for size in sizes]
            options.update(params_memory=self.flat[0].data_ptr(), grads_memory=self.flat[1].data_ptr())
        given = Options(bucket_mb=256 / 2**20, **options)
        self.handle = ctypes.c_void_p()
        self.check(library.ddp_model_create(context, params, len(self.tensors), ctypes.byref(given),
                                            ctypes.byref(self.handle)))
        self.grads = []
        for i, (_, tensor) in enumerate(self.tensors):
            view = self.view(library.ddp_model_param_data(self.handle, i), tensor, 0)
            view.copy_(tensor.data)
            tensor.data = view
            self.grads.append(self.view(library.ddp_model_param_grad(self.handle, i), tensor, 1))
            if own:
                tensor.grad = self.grads[-1]
        self.check(library.ddp_model_broadcast_params(self.handle))

    def view(self, address, tensor, arena):
        import torch
        if not address:
            return None
        if self.flat:
            first = (address - self.flat[arena].data_ptr()) // 4
            return self.flat[arena][first:first + tensor.numel()].view(tensor.shape)
        array = (ctypes.c_float * tensor.numel()).from_address(address)
        return torch.frombuffer(array, dtype=torch.float32).view(tensor.shape)

    def check(self, status):
        check(self.library, status)

    def step(self, loss, says_unused):
        for i in reversed(range(self.trained)):
            grad = self.tensors[i][1].grad
            if grad is not None:
                if grad is not self.grads[i]:
                    self.grads[i].add_(grad)
                self.check(self.library.ddp_model_grad_ready(self.handle, i))
            elif says_unused and self.grads[i] is not None:
                self.check(self.library.ddp_model_grad_unused(self.handle, i))
        self.check(self.library.ddp_model_step(self.handle, ctypes.c_double(1), ctypes.c_double(loss), None))
        if not self.flat:  # else the step has cleared them
            self.module.zero_grad()

    def join(self):
        stats = Stats()
        while True:
            self.check(self.library.ddp_model_join(self.handle, ctypes.byref(stats)))
            if stats.active_ranks == 0:
                return

    def free(self):
        self.library.ddp_model_free(self.handle)


def make_modules():
    import copy
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            # A bias here would have gradients that are nothing but rounding, which AdamW makes large.
            self.first = nn.Linear(6, 8, bias=False)
            self.norm, self.last = nn.BatchNorm1d(8), nn.Linear(8, 1)
            self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.frozen = nn.Linear(8, 8)
            for p in self.frozen.parameters():
                p.requires_grad = False

        def forward(self, x, used):
            h = self.norm(self.first(x)).tanh()
            for branch in used:
                h = h + self.branches[branch](self.frozen(h))
            return self.last(h)

    torch.manual_seed(1)
    net = Net()
    return net, copy.deepcopy(net)


# What each case is: how a rank's steps use the branches, how many steps it has, what both are told.
CASES = [
    ("no parameter is unused, AdamW", dict(used="all", optimizer=ADAMW)),
    ("no parameter is unused, AdamW, in PyTorch's memory", dict(used="all", optimizer=ADAMW, own=True)),
    ("unused parameters, AdamW", dict(used="random", optimizer=ADAMW, unused=SKIP)),
    ("unused parameters, SGD with momentum", dict(used="random", optimizer=SGD, unused=SKIP)),
    ("a static graph with unused parameters, AdamW", dict(used="static", optimizer=ADAMW, unused=STATIC)),
    ("Join, divided by the world, SGD", dict(used="all", optimizer=SGD, joins=True)),
    ("Join, divided by active ranks, SGD", dict(used="all", optimizer=SGD, joins=True,
                                                 loss=MEAN_OF_ACTIVE)),
]


def branches(case, rank, step):
    if case["used"] == "all":
        return [0, 1, 2]
    if case["used"] == "static":
        return [rank % 2]
    dice = random.Random(step * 100 + rank)
    return [b for b in range(2 if step % 2 else 3) if dice.random() < 0.4]


def worse(a, b):
    """The greater of two differences; a NaN stays one."""
    return a if a != a or b <= a else b


def difference(ours, theirs):
    """The largest of tensors' relative differences; a NaN if there is one in them."""
    import torch
    worst = 0.0
    with torch.no_grad():
        for x, y in zip(ours, theirs, strict=True):
            worst = worse(worst, float(((x - y).abs() / (1 + y.abs())).max()))
    return worst


def statistics(net):
    return [net.norm.running_mean, net.norm.running_var]


def record(norm, given):
    """Makes each forward add to `given` what its batch gives to the running statistics."""
    import torch
    before = []

    def enter(*_):
        before[:] = [norm.running_mean.clone(), norm.running_var.clone()]

    def leave(*_):
        after = [norm.running_mean, norm.running_var]
        given.append(torch.stack([a - (1 - norm.momentum) * b for a, b in zip(after, before)]))

    norm.register_forward_pre_hook(enter)
    norm.register_forward_hook(leave)


def wanted_statistics(rank, start, momentum, given):
    """What all ranks have after each step: those that rank 0's batches come to, which trains to
    the end. (PyTorch's other ranks get them as the next forward begins; and in Join, all get
    those of the highest active rank, so only what each batch gives can be compared.)"""
    import torch
    wanted = torch.zeros(STEPS, *start.shape)
    for step in range(STEPS if rank == 0 else 0):
        wanted[step] = (1 - momentum) * (wanted[step - 1] if step else start) + given[step]
    torch.distributed.broadcast(wanted, 0)
    return wanted


def run_case(library, context, rank, case):
    import torch
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    ours, theirs = make_modules()
    unused = case.get("unused", ZERO)
    wrapped = DistributedDataParallel(theirs, find_unused_parameters=unused == SKIP,
                                      static_graph=unused == STATIC)
    trained = [p for p in theirs.parameters() if p.requires_grad]
    optimizer = (torch.optim.AdamW(trained, lr=0.01, weight_decay=0.1) if case["optimizer"] == ADAMW else
                 torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=0.1))
    model = Model(library, context, ours, optimizer=case["optimizer"], weight_decay=0.1, momentum=0.9,
                  learning_rate=0.01 if case["optimizer"] == ADAMW else 0.05,
                  loss=case.get("loss", MEAN), unused=unused, own=case.get("own", False))
    steps = STEPS - 2 * rank if case.get("joins") else STEPS
    inputs = torch.Generator().manual_seed(100 + rank)
    batches = [torch.randn(5, 6, generator=inputs) for _ in range(steps)]
    start, given, worst = torch.stack(statistics(theirs)), [], 0.0
    record(theirs.norm, given)

    def train_theirs(step):
        optimizer.zero_grad()
        loss = wrapped(batches[step], branches(case, rank, step)).square().mean()
        loss.backward()
        optimizer.step()

    def train_ours(step):
        loss = ours(batches[step], branches(case, rank, step)).square().mean()
        loss.backward()
        model.step(float(loss.detach()), unused == SKIP)

    def snapshot():
        return [p.detach().clone() for p in theirs.parameters()]

    def compare(params, step):
        return worse(difference(ours.parameters(), params), difference(statistics(ours), wanted[step]))

    history = []
    with Join([wrapped], divide_by_initial_world_size=case.get("loss") != MEAN_OF_ACTIVE,
              enable=bool(case.get("joins"))):
        for step in range(steps):
            train_theirs(step)
            history.append(snapshot())
    wanted = wanted_statistics(rank, start, theirs.norm.momentum, given)
    for step in range(steps):
        train_ours(step)
        worst = worse(worst, compare(history[step], step))
    model.join()
    worst = worse(worst, compare(snapshot(), STEPS - 1))
    model.free()
    return worst


def run_rank(library, folder):
    import torch
    torch.set_num_threads(1)
    context = ctypes.c_void_p()
    check(library, library.ddp_init(None, ctypes.byref(context)))
    rank = library.ddp_comm_rank(library.ddp_world(context))
    torch.distributed.init_process_group("gloo", init_method="file://%s/store" % folder, rank=rank,
                                         world_size=RANKS)
    results = [run_case(library, context, rank, case) for _, case in CASES]
    with open("%s/rank%d" % (folder, rank), "w", encoding="ascii") as file:
        json.dump(results, file)
    # PyTorch's group lives until the process exits: its end waits for its threads, of which
    # PyTorch 1.13's may be the one that ends it, or want the interpreter's lock.
    library.ddp_finalize(context)


def main():
    library = load()
    import torch.distributed  # noqa: F401  # once for all ranks: to import it takes longer than a rank's work
    spawned = Spawned()
    with tempfile.TemporaryDirectory() as folder:
        check(library, library.ddp_spawn(RANKS, ctypes.byref(spawned)))
        if spawned.is_rank:
            try:
                run_rank(library, folder)
            except BaseException as error:  # to the parent's exit code; nothing of it runs here
                print("# %s: %s" % (type(error).__name__, error), file=sys.stderr)
                os._exit(1)
            os._exit(0)
        if spawned.exit_code != 0:
            print("1..1\nnot ok 1 - rank %d failed" % spawned.failed_rank)
            return 1
        results = []
        for rank in range(RANKS):
            with open("%s/rank%d" % (folder, rank), encoding="ascii") as file:
                results.append(json.load(file))
    print("1..%d" % len(CASES))
    failed = False
    for i, (name, _) in enumerate(CASES):
        worst = functools.reduce(worse, (result[i] for result in results))
        failed = failed or not worst < 2e-6
        print("%s %d - %s: largest difference after each of %d steps %.1e" %
              ("ok" if worst < 2e-6 else "not ok", i + 1, name, STEPS, worst))
    return 1 if failed else 0


if __name__ == "__main__":
    if not any(os.path.exists(os.path.join(folder, "torch", "__init__.py")) for folder in sys.path):
        skip("this Python has no torch (python3-torch)")
    sys.exit(main())
