#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Compares the optimizers with those of PyTorch, on the same gradients of one rank.

usage: optim_torch.py            print TAP
       optim_torch.py --figures  tell how far they are from each other, too
DDP_LIBRARY names the library; libruntime/.libs/libddp.so by default.

PyTorch's Muon makes matrices orthogonal in bf16. It is compared as it is, and with f32 in
place of bf16. PyTorch has no LAMB and no Lion.
"""
import ctypes
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from libddp import Muon, Options, Param, check, load, skip

STEPS, RATE, DECAY = 20, 0.02, 0.1
SHAPES = [(48, 32), (32,), (24, 64), (8, 3, 5, 4), (40, 40)]
ADAMW, SGD, ADAM, LAMB, ADAFACTOR, MUON = range(6)


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
    ("Muon in f32, matching AdamW's", dict(optimizer=MUON, beta2=0.95, muon=Muon(True, 5)),
     lambda torch, p: muon(torch, p, **({"adjust_lr_fn": "match_rms_adamw"} if p.dim() == 2 else {})), 1e-4),
]


class Ours:
    def __init__(self, torch, library, context, options, starts):
        params = (Param * len(SHAPES))()
        for i, shape in enumerate(SHAPES):
            params[i] = Param(name=b"p%d" % i, ndim=len(shape), shape=(ctypes.c_int64 * 8)(*shape))
        given = Options(bucket_mb=0.001, learning_rate=RATE, weight_decay=DECAY, **options)
        self.library, self.model = library, ctypes.c_void_p()
        check(library, library.ddp_model_create(context, params, len(SHAPES), ctypes.byref(given),
                                                ctypes.byref(self.model)))
        self.data, self.grads = ([self.view(torch, which(self.model, i), shape) for i, shape in enumerate(SHAPES)]
                                 for which in (library.ddp_model_param_data, library.ddp_model_param_grad))
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
        check(self.library, self.library.ddp_model_step(self.model, ctypes.c_double(1), ctypes.c_double(0), None))


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


def without_case(torch, library):
    """The optimizers that both have, and that are not in CASES."""
    library.ddp_optimizer_name.restype = ctypes.c_char_p
    missing, number = [], 0
    while (name := library.ddp_optimizer_name(number)) is not None:
        if hasattr(torch.optim, name.decode()) and not any(case[0] == name.decode() for case in CASES):
            missing.append(name.decode())
        number += 1
    return missing


def main():
    library = load()
    try:
        import torch
    except ImportError:
        skip("this Python has no torch (python3-torch)")
    torch.set_num_threads(1)
    context = ctypes.c_void_p()
    check(library, library.ddp_init(None, ctypes.byref(context)))
    print("1..%d" % (len(CASES) + 1))
    status = 0
    for number, (name, options, make, most) in enumerate(CASES, 1):
        if not hasattr(torch.optim, name.split()[0]):
            print("ok %d - %s # SKIP PyTorch %s has none" % (number, name, torch.__version__))
            continue
        worst = compare(torch, library, context, name, options, make)
        status |= not worst < most
        print("%s %d - %s is PyTorch %s's" % ("ok" if worst < most else "not ok", number, name, torch.__version__))
        if not worst < most or "--figures" in sys.argv:
            print("# largest difference %.2g of the largest change" % worst)
    missing = without_case(torch, library)
    status |= len(missing) > 0
    print("%s %d - each optimizer that PyTorch has, too, is compared" % ("not ok" if missing else "ok", len(CASES) + 1))
    if missing:
        print("# CASES lacks %s" % ", ".join(missing))
    check(library, library.ddp_finalize(context))
    return status


sys.exit(main())
