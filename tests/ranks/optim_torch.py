#!/usr/bin/env python3
"""Compares the optimizers with those of PyTorch, on the same gradients of one rank.

usage: optim_torch.py            print TAP
       optim_torch.py --figures  tell how far they are from each other, too
DDP_LIBRARY names the library; libruntime/.libs/libddp.so by default.

PyTorch's Muon makes matrices orthogonal in bf16. It is compared as it is, and with f32 in
place of bf16. PyTorch has no LAMB.
"""
import ctypes
import os
import sys

STEPS, RATE, DECAY = 20, 0.02, 0.1
SHAPES = [(48, 32), (32,), (24, 64), (8, 3, 5, 4), (40, 40)]
ADAMW, SGD, ADAM, LAMB, ADAFACTOR, MUON = range(6)


class Param(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("ndim", ctypes.c_int), ("shape", ctypes.c_int64 * 8),
                ("no_decay", ctypes.c_bool), ("sparse_rows", ctypes.c_int64), ("rows_only", ctypes.c_bool),
                ("kind", ctypes.c_int), ("group", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("bucket_mb", ctypes.c_double), ("first_bucket_mb", ctypes.c_double),
                ("optimizer", ctypes.c_int), ("learning_rate", ctypes.c_double), ("beta1", ctypes.c_double),
                ("beta2", ctypes.c_double), ("epsilon", ctypes.c_double), ("weight_decay", ctypes.c_double),
                ("momentum", ctypes.c_double), ("clip_norm", ctypes.c_double), ("shard", ctypes.c_int),
                ("no_overlap", ctypes.c_bool), ("no_communication", ctypes.c_bool), ("compress", ctypes.c_int),
                ("hook", ctypes.c_void_p * 3), ("powersgd_rank", ctypes.c_int), ("powersgd_seed", ctypes.c_uint32),
                ("powersgd_start", ctypes.c_int64), ("powersgd_rate", ctypes.c_double),
                ("powersgd_no_feedback", ctypes.c_bool), ("powersgd_no_warm_start", ctypes.c_bool),
                ("local_steps", ctypes.c_int64), ("local_start", ctypes.c_int64), ("memory", ctypes.c_int),
                ("stream", ctypes.c_void_p), ("loss", ctypes.c_int), ("unused", ctypes.c_int),
                ("nesterov", ctypes.c_bool), ("muon_match_rms", ctypes.c_bool), ("muon_iterations", ctypes.c_int),
                ("adafactor_decay", ctypes.c_double), ("adafactor_least_scale", ctypes.c_double),
                ("adafactor_clip", ctypes.c_double)]


def muon(torch, tensor, **options):
    if tensor.dim() != 2:
        return torch.optim.AdamW([tensor], RATE, (0.9, 0.95), 1e-8, DECAY)
    return torch.optim.Muon([tensor], RATE, DECAY, **options)


# What is compared, its options here and there, and how far it may be apart.
CASES = [
    ("AdamW", dict(optimizer=ADAMW, beta2=0.95),
     lambda torch, p: torch.optim.AdamW([p], RATE, (0.9, 0.95), 1e-8, DECAY), 1e-5),
    ("Adam", dict(optimizer=ADAM, beta2=0.95),
     lambda torch, p: torch.optim.Adam([p], RATE, (0.9, 0.95), 1e-8, DECAY), 1e-5),
    ("SGD", dict(optimizer=SGD, momentum=0.9, nesterov=True),
     lambda torch, p: torch.optim.SGD([p], RATE, 0.9, 0, DECAY, True), 1e-5),
    ("Adafactor", dict(optimizer=ADAFACTOR),
     lambda torch, p: torch.optim.Adafactor([p], RATE, weight_decay=DECAY), 2e-5),
    ("Muon", dict(optimizer=MUON, beta2=0.95), muon, 0.1),  # bf16 has eight bits
    ("Muon in f32", dict(optimizer=MUON, beta2=0.95), muon, 1e-4),
    ("Muon in f32, matching AdamW's", dict(optimizer=MUON, beta2=0.95, muon_match_rms=True),
     lambda torch, p: muon(torch, p, **({"adjust_lr_fn": "match_rms_adamw"} if p.dim() == 2 else {})), 1e-4),
]


def check(library, status):
    if status != 0:
        raise RuntimeError(library.ddp_last_error().decode())


class Ours:
    def __init__(self, torch, library, context, options, starts):
        params = (Param * len(SHAPES))()
        for i, shape in enumerate(SHAPES):
            params[i] = Param(name=b"p%d" % i, ndim=len(shape), shape=(ctypes.c_int64 * 8)(*shape))
        given = Options(size=ctypes.sizeof(Options), bucket_mb=0.001, learning_rate=RATE, weight_decay=DECAY, **options)
        self.library, self.model = library, ctypes.c_void_p()
        check(library, library.ddp_model_create(context, params, len(SHAPES), ctypes.byref(given),
                                                ctypes.byref(self.model)))
        self.data, self.grads = ([self.view(torch, which(self.model, i), shape) for i, shape in enumerate(SHAPES)]
                                 for which in (library.ddp_param_data, library.ddp_param_grad))
        for view, start in zip(self.data, starts):
            view.copy_(start)

    @staticmethod
    def view(torch, address, shape):
        count = 1
        for size in shape:
            count *= size
        return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32).view(shape)

    def step(self, grads):
        for view, grad in zip(self.grads, grads):
            view.copy_(grad)
        check(self.library, self.library.ddp_step(self.model, ctypes.c_double(1), ctypes.c_double(0), None))


def compare(torch, library, context, name, options, make):
    """The largest difference after any step, over the largest change of that element's tensor."""
    generator = torch.Generator().manual_seed(5)
    starts = [torch.randn(shape, generator=generator) / 4 for shape in SHAPES]
    ours = Ours(torch, library, context, options, starts)
    theirs = [start.clone().requires_grad_() for start in starts]
    optimizers = [make(torch, tensor) for tensor in theirs]
    to, worst = torch.Tensor.to, 0

    def in_f32(tensor, *args, **named):
        return tensor.clone() if named.get("dtype") == torch.bfloat16 else to(tensor, *args, **named)

    for _ in range(STEPS):
        grads = [torch.randn(shape, generator=generator) for shape in SHAPES]
        ours.step(grads)
        for tensor, grad in zip(theirs, grads):
            tensor.grad = grad
        if "f32" in name:
            torch.Tensor.to = in_f32
        for optimizer in optimizers:
            optimizer.step()
        torch.Tensor.to = to
        for own, tensor, start in zip(ours.data, theirs, starts):
            change = (tensor.detach() - start).abs().max()
            worst = max(worst, ((own - tensor.detach()).abs().max() / change).item())
    library.ddp_model_free(ours.model)
    return worst


def skip(reason):
    print("1..0 # SKIP " + reason)
    sys.exit(0)


def main():
    path = os.path.abspath(os.environ.get("DDP_LIBRARY", "libruntime/.libs/libddp.so"))
    with open(path, "rb") as file:
        content = file.read()
    if b"__asan_init" in content or b"__tsan_init" in content:
        skip("Python cannot load a library built with a sanitizer")
    try:
        import torch
    except ImportError:
        skip("this Python has no torch (python3-torch)")
    if not hasattr(torch.optim, "Muon"):
        skip("torch %s has no Muon: 2.9 has" % torch.__version__)
    torch.set_num_threads(1)
    library = ctypes.CDLL(path)
    library.ddp_last_error.restype = ctypes.c_char_p
    library.ddp_param_data.restype = library.ddp_param_grad.restype = ctypes.c_void_p
    library.ddp_model_free.restype = None
    context = ctypes.c_void_p()
    check(library, library.ddp_init(None, ctypes.byref(context)))
    print("1..%d" % len(CASES))
    status = 0
    for number, (name, options, make, most) in enumerate(CASES, 1):
        worst = compare(torch, library, context, name, options, make)
        status |= not worst < most
        print("%s %d - %s is PyTorch %s's" % ("ok" if worst < most else "not ok", number, name, torch.__version__))
        if not worst < most or "--figures" in sys.argv:
            print("# largest difference %.2g of the largest change" % worst)
    check(library, library.ddp_finalize(context))
    return status


sys.exit(main())
