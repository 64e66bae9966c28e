#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""slurm_ddp sees collectives by the hooks of torch 2.15's process groups: those of DistributedDataParallel, too.

TEST_PYTHON: interpreters to try before this one, with colons between them.
"""
import os
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from unittest import mock

from support import PageTest, environment, main

from slurm_ddp import group_hooks  # noqa: E402  # pylint: disable=wrong-import-position,wrong-import-order

PROGRAM = """
import os, sys, time
import slurm_ddp
slurm_ddp.install()
import torch, torch.distributed as dist
rank, folder = int(os.environ["NUMBER"]), sys.argv[1]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(3), group=pair)
def late(name):
    while rank == 1 and not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)
for number in range(3):
    if number == 2:
        late("backward")
    model(torch.ones(1, 4)).sum().backward()
late("group")
dist.all_reduce(torch.ones(5), group=pair)
late("two")
for work in [dist.all_reduce(torch.ones(size), async_op=True) for size in (6, 7)]:
    work.wait()
dist.destroy_process_group()
"""


def with_hooks():
    # To import torch takes 1.5 s of CPU, and older releases have no hooks for certain.
    code = ("import importlib.metadata as m, sys; int(m.version('torch').split('.')[0]) > 1 or sys.exit(1); "
            "import torch.distributed as d; sys.exit(not hasattr(d.ProcessGroup, 'register_pre_hook'))")
    for python in [name for name in os.environ.get("TEST_PYTHON", "").split(":") if name] + [sys.executable]:
        try:
            if subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL, timeout=150, check=False).returncode == 0:
                return python
        except OSError:
            continue
    return None


class Tensor:
    """All that a hook may ask of a tensor on a device: nothing that waits for the device."""

    def __init__(self, device):
        self.device, self.dtype, self.shape = types.SimpleNamespace(type=device), "torch.float32", (4, 2)

    def numel(self):
        return 8


class Work:
    def is_completed(self):
        raise AssertionError("asked")


class Devices(unittest.TestCase):
    """Without torch and without a GPU: what the hooks do for collectives of other backends."""

    def setUp(self):
        self.before = group_hooks._pid, group_hooks._number, dict(group_hooks._issued)
        group_hooks._pid, group_hooks._number = os.getpid(), 0
        self.group = group_hooks._Group(types.SimpleNamespace(size=lambda: 2), True)
        self.addCleanup(self.restore)

    def restore(self):
        group_hooks._pid, group_hooks._number, issued = self.before
        group_hooks._issued.clear()
        group_hooks._issued.update(issued)

    def seen(self, config, *tensors, outputs=()):
        arguments = types.SimpleNamespace(name="ALLREDUCE", op_id=1, input_tensors=list(tensors), output_tensors=list(outputs), work=Work())
        group_hooks._issued.clear()
        group_hooks._before(self.group, group_hooks._is_for_hosts(config), arguments)
        found = group_hooks._issued.get((self.group.key, 1))
        if found is None:
            group_hooks._after(self.group, arguments)
        return found and found[:2]

    def test_collectives_on_devices_are_left_alone(self):
        for config, device in (("cuda:nccl", "cuda"), ("cpu:gloo,cuda:nccl", "cuda"), ("xpu:xccl", "xpu"), ("cuda:nccl", "meta")):
            self.assertIsNone(self.seen(config, Tensor(device)))
            self.assertIsNone(self.seen(config, outputs=[Tensor(device)] * 2))
        self.assertEqual(group_hooks._number, 0)

    def test_barrier_of_a_device_is_left_alone(self):
        for config in ("cuda:nccl", "nccl", "xpu:xccl", "xccl", "cpu:gloo,xpu:xccl"):
            self.assertIsNone(self.seen(config), config)
        for number, config in enumerate(("cpu:gloo", "gloo", "cpu:gloo,cuda:gloo,mps:gloo", "cpu:ddp", "mpi"), 1):
            self.assertEqual(self.seen(config), [number, "all_reduce"], config)

    def test_group_has_no_hooks_if_no_thread_can_be_started(self):
        class Group:
            hooks = []

            def register_pre_hook(self, *hook):
                self.hooks.append(hook)

            register_post_hook = register_pre_hook

        module = types.SimpleNamespace(ProcessGroup=Group, get_backend_config=lambda group: "cpu:gloo")
        refused = RuntimeError("can't start new thread")
        with mock.patch.object(group_hooks.page, "slot", return_value=object()), mock.patch.object(group_hooks, "_thread", None), \
                mock.patch.object(group_hooks.threading.Thread, "start", side_effect=refused):
            with self.assertRaises(RuntimeError):
                group_hooks._watch(module, Group(), True)
            self.assertIsNone(group_hooks._thread)
        self.assertEqual(Group.hooks, [])

    def test_tensors_on_hosts_are_seen_in_every_group(self):
        self.assertEqual(self.seen("cpu:gloo,cuda:nccl", Tensor("cpu")), [1, "all_reduce float32[4,2]"])
        self.assertEqual(self.seen("cpu:ddp", Tensor("cpu"), Tensor("cpu")), [2, "all_reduce float32[4,2] and 1 more"])


class Hooks(PageTest):
    def await_wait(self, text):
        deadline = time.monotonic() + 150
        slot = self.page.slot()
        while not (slot.get("waiting") and slot.get("collective_text") == text):
            self.assertLess(time.monotonic(), deadline, (slot.get("collective_text"), [rank.poll() for rank in self.ranks]))
            time.sleep(0.02)
        return slot

    def test_collectives_of_torch_itself_are_seen(self):
        python = with_hooks()
        if python is None:
            self.skipTest("no torch has hooks of process groups (2.15)")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(PROGRAM)
            self.ranks = []
            for number in (0, 1):
                variables = {**self.page.variables(), "NUMBER": number}
                if number == 1:
                    del variables["DDP_PROGRESS_FD"]
                self.ranks.append(subprocess.Popen([python, f"{folder}/train.py", folder], env=environment(**variables),
                                                   pass_fds=[self.page.descriptor], stderr=subprocess.PIPE, text=True))
            try:
                slot = self.await_wait("all_reduce float32[20]")
                self.assertEqual(slot.get("waiting"), 1)
                self.assertEqual(slot.get("described"), slot.get("collective"))
                before = slot.get("collective")
                Path(folder, "backward").touch()
                slot = self.await_wait("all_reduce float32[5]")
                self.assertEqual((slot.get("waiting"), slot.get("collective")), (2, before))
                Path(folder, "group").touch()
                # The first of two that are under way is the one that it waits for.
                slot = self.await_wait("all_reduce float32[6]")
                self.assertEqual((slot.get("waiting"), slot.get("collective"), slot.get("described")), (1, before + 1, before + 1))
                Path(folder, "two").touch()
                self.assertEqual([rank.wait(120) for rank in self.ranks], [0, 0])
            finally:
                for rank in self.ranks:
                    if rank.poll() is None:
                        rank.kill()
                    print("".join(f"# {line}\n" for line in rank.communicate()[1].splitlines()[-8:]), end="")

    def test_program_that_destroys_no_group_ends_as_it_would(self):
        python = with_hooks()
        if python is None:
            self.skipTest("no torch has hooks of process groups (2.15)")
        for end, code in (("raise ValueError('bad')", 1), ("", 0)):
            with tempfile.TemporaryDirectory() as folder:
                ended = self.page.run(PROGRAM.split("pair =")[0].replace("world_size=2", "world_size=1") +
                                      "model(torch.ones(1, 4)).sum().backward()\n" + end, folder, python=python, NUMBER=0)
            self.assertEqual(ended.returncode, code, ended.stderr)


if __name__ == "__main__":
    main()
