#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The networks of examples/vision by PyTorch, step by step.

usage: rank_vision.py MODEL DATA BATCH THREADS STEPS FORMAT [CHECKPOINT]

MODEL is mnist_cnn, cifar_net, resnet18 or resnet50; DATA a folder of examples/vision/synthetic; FORMAT
contiguous, channels_last, or double: contiguous numbers of 64 bits. Prints each step's seconds, loss and processor time. With a CHECKPOINT of the
example, made with --plain --schedule constant, goes on from there with the samples that the example
would take, without dropout. Otherwise the first step, a warm-up, is left out."""

import json
import os
import struct
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

STATISTICS = {
    1: ([0.1307], [0.3081]),
    3: ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}


class MnistCnn(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)
        self.dropout = dropout

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = torch.flatten(F.dropout(x, 0.25 * self.dropout), 1)
        return self.fc2(F.dropout(F.relu(self.fc1(x)), 0.5 * self.dropout))


class CifarNet(nn.Module):
    def __init__(self, _):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = torch.flatten(F.max_pool2d(F.relu(self.conv2(x)), 2), 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Block(nn.Module):
    """Of a ResNet, with torchvision's names."""

    def __init__(self, inputs, width, outputs, stride):
        super().__init__()
        bottleneck = outputs != width
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if not bottleneck:
            sizes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        for i, (of, to, size, by) in enumerate(sizes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(of, to, size, by, size // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(to))
        self.count, self.downsample = len(sizes), nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        shortcut = self.downsample(x)
        for i in range(1, self.count + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            x = F.relu(x) if i < self.count else x
        return F.relu(x + shortcut)


class ResNet(nn.Module):
    """For small images: its first window is of 3."""

    def __init__(self, blocks, expansion):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(blocks):
            width, layers = 64 << stage, []
            for block in range(count):
                layers.append(Block(inputs, width, width * expansion, 2 if stage > 0 and block == 0 else 1))
                inputs = width * expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def resnet18(_):
    return ResNet((2, 2, 2, 2), 1)


def resnet50(_):
    return ResNet((3, 4, 6, 3), 4)


MODELS = {"mnist_cnn": MnistCnn, "cifar_net": CifarNet, "resnet18": resnet18, "resnet50": resnet50}


def read_images(model, folder):
    def content(name):
        with open(os.path.join(folder, "synthetic-" + name), "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)

    if model.startswith("mnist"):
        images = content("train-images-idx3-ubyte")[16:].view(-1, 1, 28, 28)
        labels = content("train-labels-idx1-ubyte")[8:]
    else:
        samples = content("data_batch_1.bin").view(-1, 3073)
        images, labels = samples[:, 1:].reshape(-1, 3, 32, 32), samples[:, 0]
    mean, deviation = (torch.tensor(x).view(1, -1, 1, 1) for x in STATISTICS[images.shape[1]])
    return (images.float() / 255 - mean) / deviation, labels.long()


def read_checkpoint(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), bytearray(file.read())
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, about in header.items():
        if about["dtype"] != "F32":  # what dropout draws from
            continue
        first, last = about["data_offsets"]
        tensors[name] = torch.frombuffer(data[first:last], dtype=torch.float32).reshape(about["shape"])
    return tensors, metadata


def as_pytorch(value, parameter, flattened):
    """A tensor of the example in PyTorch's order: its images lie channels last."""
    if parameter.dim() == 4:
        return value.permute(0, 3, 1, 2)
    if parameter.dim() == 2:
        if flattened:
            channels, height, width = flattened
            value = value.view(height, width, channels, -1).permute(2, 0, 1, 3).reshape(value.shape)
        return value.T
    return value


def load(model, optimizer, path):
    tensors, metadata = read_checkpoint(path)
    flattened = {"MnistCnn": (64, 12, 12), "CifarNet": (16, 5, 5)}.get(type(model).__name__)
    for name, parameter in model.named_parameters():
        shape = flattened if name == "fc1.weight" else None
        with torch.no_grad():
            parameter.copy_(as_pytorch(tensors[name], parameter, shape))
        momentum = as_pytorch(tensors["optimizer.momentum." + name], parameter, shape).to(parameter.dtype)
        optimizer.state[parameter]["momentum_buffer"] = momentum.clone(memory_format=torch.contiguous_format)
    return int(metadata["ddp.step"])


def main():
    name, folder, batch, threads, steps, form, *checkpoint = sys.argv[1:]
    batch, steps = int(batch), int(steps)
    torch.set_num_threads(int(threads))
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    images, labels = read_images(name, folder)
    model = MODELS[name](0 if checkpoint else 1)
    layout = torch.channels_last if form in ("channels_last", "compiled") else torch.contiguous_format
    model = model.to(memory_format=layout)
    if form == "compiled":
        model = torch.compile(model)
    if form == "double":
        model, images = model.double(), images.double()
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    except (TypeError, RuntimeError):  # before 2.4
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    done = load(model, optimizer, checkpoint[0]) if checkpoint else 0
    order = list(DistributedSampler(range(len(images)), num_replicas=1, rank=0, shuffle=True, seed=1))
    for step in range(done, done + steps + (0 if checkpoint else 1)):
        first = step * batch % (len(order) // batch * batch)
        chosen = order[first:first + batch]
        x, y = images[chosen].contiguous(memory_format=layout), labels[chosen]
        start, began = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seconds, processor = time.perf_counter() - start, time.process_time() - began
        if checkpoint or step > 0:
            print(seconds, loss.item(), processor, flush=True)


if __name__ == "__main__":
    main()
