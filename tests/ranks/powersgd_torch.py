#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Compares PowerSGD with PyTorch's powerSGD_hook, over gloo, on the same gradients.

usage: powersgd_torch.py            print TAP
       powersgd_torch.py --figures  tell how far they are from each other, too
DDP_LIBRARY names the library; libruntime/.libs/libddp.so by default.
"""
import ctypes
import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from libddp import Options, Param, PowerSGD, Spawned, check, load, skip

RANKS, STEPS = 2, 12
SHAPES = [(96, 64), (64,), (48, 3, 3, 3), (200, 40), (4, 3)]
CASES = [  # rank, feedback, warm start, first step
    (1, True, True, 2), (2, True, True, 2), (4, True, True, 3), (4, False, True, 2),
]


SGD, SHARD_NONE, POWERSGD = 1, 1, 3


def mix(x):
    x = (x + 0x9e3779b97f4a7c15) % 2**64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ x >> 27) * 0x94d049bb133111eb % 2**64
    return x ^ x >> 31


def first_right(number, row, count):
    """Row `row` of a matrix's first right factor, as libruntime/reduce/strategy_powersgd.c fills it."""
    begin = mix((mix(number) + row) % 2**64)
    words = (mix((begin + i) % 2**64) for i in range(count))
    return [(sum(x >> shift & 0xffff for shift in (0, 16, 32, 48)) - 2 * 0xffff) / 0x10000 for x in words]


class Bucket:
    """A torch.distributed.GradBucket of all gradients."""
    def __init__(self, flat, views):
        self.flat, self.views = flat, views

    def buffer(self):
        return self.flat

    def gradients(self):
        return self.views

    def index(self):
        return 0

    def is_last(self):
        return True


def is_compressed(shape, rank):
    rows = shape[0]
    columns = 1
    for size in shape[1:]:
        columns *= size
    rank = min(rank, rows, columns)
    return (rows + columns) * rank * 2 < rows * columns, rows, columns, rank


def their_state(torch, case):
    """PyTorch's state, with the library's first right factors for its own random ones."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
    rank, feedback, warm, start = case
    state = PowerSGDState(None, rank, start, use_error_feedback=feedback, warm_start=warm)
    lefts, rights = 0, []
    matrices = [is_compressed(shape, rank) for shape in SHAPES]
    numbers = {}  # matrices are counted from the last parameter on
    for i in reversed(range(len(SHAPES))):
        if matrices[i][0]:
            numbers[i] = len(numbers)
    for i, (compressed, rows, columns, own_rank) in enumerate(matrices):
        if not compressed:
            continue
        lefts += rows * own_rank
        right = torch.tensor([first_right(numbers[i], r, columns) for r in range(own_rank)])
        rights.append(right.t().reshape(-1))
    state.p_memory_dict[0] = torch.empty(lefts)
    state.q_memory_dict[0] = torch.cat(rights)
    return state


def gradients(torch, generator, structure):
    """Of some common structure and much noise, as those of training are."""
    made = []
    for shape, common in zip(SHAPES, structure):
        made.append(common * torch.randn((), generator=generator) + 0.5 * torch.randn(shape, generator=generator))
    return made


def make_model(library, context, case):
    rank, feedback, warm, start = case
    params = (Param * len(SHAPES))()
    for i, shape in enumerate(SHAPES):
        params[i].name = b"p%d" % i
        params[i].ndim = len(shape)
        for d, size in enumerate(shape):
            params[i].shape[d] = size
    options = Options(bucket_mb=0.02, optimizer=SGD, learning_rate=1,
                      shard=SHARD_NONE, compress=POWERSGD,
                      powersgd=PowerSGD(rank, 0, start, 2, feedback, warm))
    model = ctypes.c_void_p()
    check(library, library.ddp_model_create(context, params, len(SHAPES), ctypes.byref(options), ctypes.byref(model)))
    return model


def our_sums(torch, library, model, grads):
    """The model's gradients after a step's reduction."""
    views = []
    for i, grad in enumerate(grads):
        count = grad.numel()
        address = ctypes.cast(library.ddp_model_param_grad(model, i), ctypes.POINTER(ctypes.c_float * count))
        views.append(torch.frombuffer(address.contents, dtype=torch.float32))
        views[-1].copy_(grad.reshape(-1))
    for i in reversed(range(len(grads))):
        check(library, library.ddp_model_grad_ready(model, i))
    check(library, library.ddp_model_reduce_grads(model, ctypes.c_double(1), ctypes.c_double(0), None))
    sums = [view.clone() for view in views]
    check(library, library.ddp_model_update_params(model, None))
    return sums


def compare(torch, library, context, rank, case):
    """The largest distance of a step's mean gradients, over their largest, of any parameter;
    and the same of what compression changes, to show that there is something to compare."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
    common = torch.Generator().manual_seed(5)
    structure = [torch.randn(shape, generator=common) for shape in SHAPES]
    generator = torch.Generator().manual_seed(100 + rank)
    state = their_state(torch, case)
    model = make_model(library, context, case)
    worst, changed = 0.0, 0.0
    for _ in range(STEPS):
        grads = gradients(torch, generator, structure)
        ours = our_sums(torch, library, model, grads)
        flat = torch.cat([g.reshape(-1) for g in grads])
        exact = flat.clone()
        torch.distributed.all_reduce(exact)
        at, views = 0, []
        for g in grads:
            views.append(flat[at:at + g.numel()].view(g.shape))
            at += g.numel()
        vanilla = state.iter < state.start_powerSGD_iter
        powerSGD_hook(state, Bucket(flat, views)).wait()
        at = 0
        for view, own in zip(views, ours):
            theirs = view.reshape(-1)
            largest = theirs.abs().max()
            worst = max(worst, ((own / RANKS - theirs).abs().max() / largest).item())
            if not vanilla:
                whole = exact[at:at + view.numel()] / RANKS
                changed = max(changed, ((whole - theirs).abs().max() / largest).item())
            at += view.numel()
    library.ddp_model_free(model)
    return worst, changed


def run_rank(library, rendezvous):
    import torch
    torch.set_num_threads(1)
    context = ctypes.c_void_p()
    check(library, library.ddp_init(None, ctypes.byref(context)))
    rank = library.ddp_comm_rank(library.ddp_world(context))
    torch.distributed.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=RANKS)
    if rank == 0:
        print("1..%d" % len(CASES))
    status = 0
    for number, case in enumerate(CASES, 1):
        worst, changed = compare(torch, library, context, rank, case)
        good = worst < 1e-4 < 0.1 < changed
        status |= not good
        if rank == 0:
            print("%s %d - rank %d, %s error feedback, %d steps from step %d: PyTorch %s's" %
                  ("ok" if good else "not ok", number, case[0], "with" if case[1] else "without",
                   STEPS, case[3], torch.__version__))
            if not good or "--figures" in sys.argv:
                print("# largest difference %.2g of the largest element; compression changes it by %.2g" %
                      (worst, changed))
            sys.stdout.flush()
    # PyTorch's group lives until the process exits: a thread of the group may still free what
    # the hook ran in it, and with that the group, whose end joins that very thread and aborts.
    check(library, library.ddp_finalize(context))
    return status


def main():
    library = load()
    try:
        import torch.distributed  # noqa: F401  # once for all ranks: to import it takes longer than a rank's work
    except ImportError:
        skip("this Python has no torch (python3-torch)")
    # gloo looks for an interface by the host's name, which may not be known here.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawned = Spawned()
    with tempfile.TemporaryDirectory() as folder:
        check(library, library.ddp_spawn(RANKS, ctypes.byref(spawned)))
        if spawned.is_rank:
            try:
                status = run_rank(library, os.path.join(folder, "rendezvous"))
            except BaseException as error:  # this process must not remove the folder
                print("# %s" % error, file=sys.stderr)
                status = 1
            sys.stdout.flush()
            os._exit(status)
    return spawned.exit_code


sys.exit(main())
