# SPDX-License-Identifier: Apache-2.0
"""rank_storage.c's work by PyTorch, with the same arguments; the last one is the number of DataLoader's workers.

    rank_storage.py save|synced|dcp FOLDER TENSORS ELEMENTS     torch.save() and torch.load(), or DCP
    rank_storage.py mapped FOLDER TENSORS ELEMENTS              the same, copied from a file that mmap=True maps
    rank_storage.py tokens FILE LENGTH BATCH BATCHES WORKERS
    rank_storage.py images FILE BATCH BATCHES WORKERS
"""

import itertools
import os
import random
import sys
import time

import numpy
import torch
from rank_gpt import make_optimizer, save
from torch.utils.data import DataLoader, Dataset

WARM_UP_BATCHES = 10


def make_model(tensors, elements):
    model = torch.nn.Module()
    for i in range(tensors):
        model.register_parameter(f"weight{i}", torch.nn.Parameter(torch.zeros(elements)))
    optimizer = make_optimizer(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros(elements)
    optimizer.step()
    return model, optimizer


def save_synced(state, path):
    """The file is on the disk under its name, as a program wants it that a loss of power shall not cost the last two."""
    with open(path + ".new", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load(model, optimizer, path):
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def load_mapped(model, optimizer, path):
    """Into the optimizer's own tensors: load_state_dict() would keep those of the file, which nobody has read yet."""
    state = torch.load(path, weights_only=True, mmap=True)
    model.load_state_dict(state["model"])
    mine = optimizer.state_dict()["state"]
    for number, tensors in state["optimizer"]["state"].items():
        for name, tensor in tensors.items():
            mine[number][name].copy_(tensor)


def dcp_save(state, path):
    import torch.distributed.checkpoint as dcp

    dcp.save(state, checkpoint_id=path)


def dcp_load(model, optimizer, path):
    import torch.distributed.checkpoint as dcp

    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


WAYS = {"save": (save, load), "synced": (save_synced, load), "dcp": (dcp_save, dcp_load),
        "mapped": (save, load_mapped)}


def checkpoints(way, folder, tensors, elements):
    saves, loads = WAYS[way]
    model, optimizer = make_model(int(tensors), int(elements))
    path = os.path.join(folder, way)
    saves(state_of(model, optimizer), path)
    start = time.perf_counter()
    saves(state_of(model, optimizer), path)
    print("save", time.perf_counter() - start)
    start = time.perf_counter()
    loads(model, optimizer, path)
    print("load", time.perf_counter() - start)


class Tokens(Dataset):
    def __init__(self, path, length):
        self.tokens, self.length = numpy.memmap(path, dtype=numpy.uint16, mode="r"), length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, i):
        return torch.from_numpy(self.tokens[i * self.length : (i + 1) * self.length + 1].astype(numpy.int32))


class Images(Dataset):
    """Cut out of a border of 4, mirrored at random, and normalised, as recipes for CIFAR-10 do."""

    def __init__(self, path):
        records = torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8)).view(-1, 3073)
        self.labels, self.images = records[:, 0].long(), records[:, 1:].view(-1, 3, 32, 32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        down, right = random.randrange(9), random.randrange(9)
        image = torch.nn.functional.pad(self.images[i], (4, 4, 4, 4))[:, down : down + 32, right : right + 32]
        image = image.flip(2) if random.random() < 0.5 else image
        return image.to(torch.float32).div_(255), self.labels[i]


def batches(dataset, batch, count, workers):
    loader = DataLoader(dataset, int(batch), shuffle=True, num_workers=int(workers), drop_last=True,
                        persistent_workers=workers != "0")
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    for _ in range(WARM_UP_BATCHES):
        next(endless)
    start = time.perf_counter()
    for _ in range(int(count)):
        next(endless)
    print("batch", (time.perf_counter() - start) / int(count))


def main():
    torch.set_num_threads(1)
    what, *words = sys.argv[1:]
    if what == "tokens":
        batches(Tokens(words[0], int(words[1])), *words[2:])
    elif what == "images":
        batches(Images(words[0]), *words[1:])
    else:
        checkpoints(what, *words)


if __name__ == "__main__":
    main()
