#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Compares ddp_sampler with PyTorch's own DistributedSampler.

usage: sampler_torch.py            compare at random sizes, print TAP
       sampler_torch.py --header   print sampler_vectors.h for test_sampler.c
DDP_LIBRARY names the library; libruntime/.libs/libddp.so by default.
"""
import ctypes
import os
import random
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from libddp import check, load, skip


class Sized:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


def torch_indices(size, world, rank, seed, epoch, shuffle, drop):
    from torch.utils.data import DistributedSampler
    sampler = DistributedSampler(Sized(size), world, rank, shuffle=shuffle, seed=seed, drop_last=drop)
    sampler.set_epoch(epoch)
    return list(sampler)


def wide_permutation(seed, n):
    """What PyTorch >= 2.6 does for n >= 214748364, from any PyTorch's 64-bit draws."""
    import torch
    generator = torch.Generator()
    generator.manual_seed(seed)
    draws = torch.empty(n, dtype=torch.int64).random_(-2**63, None, generator=generator)
    order = [0] * n
    for i, draw in enumerate(draws.tolist()):
        at = draw % 2**64 % (i + 1)
        order[i] = order[at]
        order[at] = i
    return order


CASES = [  # size, world, rank, seed, epoch, shuffle, drop
    (1, 1, 0, 0, 0, True, False), (1, 3, 2, 7, 1, True, False), (3, 8, 5, 1, 0, True, False),
    (3, 8, 7, 1, 0, True, True), (10, 4, 3, 1, 0, True, True), (10, 4, 3, 1, 0, True, False),
    (10, 4, 1, 0, 0, False, False), (10, 4, 1, 0, 0, False, True), (97, 3, 2, 42, 5, True, False),
    (97, 3, 0, 42, 5, True, True), (64, 4, 2, 2**32 + 9, 3, True, False), (33, 2, 1, 2**40 - 1, 1, True, False),
    (700, 20, 19, 1234, 11, True, False),
]


def print_header():
    import torch
    print("/* Recorded by sampler_torch.py --header with PyTorch %s. */" % torch.__version__)
    print("static const struct vector {\n\tint64_t size;\n\tint world_size, rank;\n\tuint64_t seed;\n"
          "\tint64_t epoch;\n\tbool shuffle, drop;\n\tint count;\n\tint64_t indices[40];\n} vectors[] = {")
    for case in CASES:
        indices = torch_indices(*case)
        head = ", ".join(str(int(v)) if not isinstance(v, bool) else str(v).lower() for v in case)
        print("\t{ %s, %d,\n\t  { %s } }," % (head, len(indices), ", ".join(map(str, indices or [0]))))
    print("};\n")
    generator = torch.Generator()
    generator.manual_seed(17)
    order = torch.randperm(1000000, generator=generator).tolist()
    print("/* torch.randperm(1000000), seed 17, every 100000th. */")
    print("static const uint32_t million[] = { %s };\n" % ", ".join(map(str, order[::100000])))
    print("/* wide_permutation(17, 24). */")
    print("static const uint32_t wide[] = { %s };" % ", ".join(map(str, wide_permutation(17, 24))))


def our_indices(library, size, world, rank, seed, epoch, shuffle, drop):
    sampler = ctypes.c_void_p()
    count = ctypes.c_int64()
    check(library, library.ddp_sampler_create(
        ctypes.c_int64(size), world, rank, ctypes.c_uint64(seed), ctypes.c_bool(shuffle),
        1 if drop else 0, ctypes.byref(sampler)))
    library.ddp_sampler_set_epoch(sampler, ctypes.c_int64(epoch))
    indices = library.ddp_sampler_indices(sampler, ctypes.byref(count))
    result = indices[:count.value]
    library.ddp_sampler_free(sampler)
    return result


def main():
    if sys.argv[1:] == ["--header"]:
        return print_header()
    library = load()
    try:
        import torch
    except ImportError:
        skip("this Python has no torch (python3-torch)")
    library.ddp_sampler_indices.restype = ctypes.POINTER(ctypes.c_int64)
    dice = random.Random(1)
    wrong = []
    for _ in range(300):
        world = dice.randint(1, 17)
        case = (dice.choice([1, 2, 5, 100, 1023, 40000]) + dice.randint(0, 3), world,
                dice.randrange(world), dice.choice([0, 1, 2**31, 2**35 + 5]), dice.randint(0, 9),
                dice.random() < 0.8, dice.random() < 0.5)
        if our_indices(library, *case) != torch_indices(*case):
            wrong.append(case)
    print("1..1")
    for case in wrong[:5]:
        print("# differs: size %d world %d rank %d seed %d epoch %d shuffle %s drop %s" % case)
    print("%s 1 - 300 random cases give the indices of PyTorch %s" %
          ("not ok" if wrong else "ok", torch.__version__))
    return 1 if wrong else 0


sys.exit(main())
