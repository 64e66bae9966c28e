# SPDX-License-Identifier: Apache-2.0
"""Lightning, Hugging Face's Trainer and Accelerate train over the backend, with the losses that gloo gives."""

import importlib.util
import os
import socket
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from ranks import on_ranks


def needs(*modules):
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return unittest.skipIf(missing, f"{sys.executable} has no {' and no '.join(missing)}")


def start_as_job(rank, size, port):
    """Frameworks start process groups themselves, from the variables that launchers set."""
    dist.destroy_process_group()
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size), NODE_RANK="0",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
        ACCELERATE_USE_CPU="true", CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        x = torch.tensor([i / 96, (i * 37 % 96) / 96])
        return {"x": x, "labels": 3 * x[:1] - x[1:] + 1}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def forward(self, x, labels=None):
        y = self.layers(x)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


def lightning(rank, size, backend, port):
    start_as_job(rank, size, port)
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.line, self.seen = Line(), []

        def training_step(self, batch, index):
            loss = self.line(**batch)["loss"]
            self.seen.append(loss.item())
            self.log("loss", loss, sync_dist=True)
            return loss

        def validation_step(self, batch, index):
            self.log("val", self.line(**batch)["loss"], sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = torch.utils.data.DataLoader(Points(), batch_size=8)
    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", devices=size, strategy=DDPStrategy(process_group_backend=backend), max_epochs=2, logger=False,
        default_root_dir=tempfile.mkdtemp(prefix="ddp-torch-pl-"), enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, loader, loader)
    assert dist.get_backend() == backend and dist.get_world_size() == size
    assert trainer.global_step == 2 * 96 // 8 // size
    return module.seen + [trainer.callback_metrics["val"].item(), trainer.callback_metrics["loss"].item()]


def hugging_face(rank, size, backend, port):
    start_as_job(rank, size, port)
    from transformers import Trainer, TrainingArguments

    # For hosts, ddp_backend of TrainingArguments and Accelerate take gloo only, except if there is a group already.
    dist.init_process_group(backend)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="ddp-torch-hf-"), use_cpu=True, num_train_epochs=2, logging_steps=1,
        per_device_train_batch_size=8, report_to=[], save_strategy="epoch", disable_tqdm=True, log_level="error", learning_rate=0.05, seed=3,
        dataloader_drop_last=True,
    )  # fmt: skip
    trainer = Trainer(model=Line(), train_dataset=Points(), eval_dataset=Points(), args=arguments)
    trainer.train()
    assert dist.get_backend() == backend and arguments.world_size == size
    seen = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(seen) == 2 * 96 // 8 // size, seen
    return seen + [trainer.evaluate()["eval_loss"]]


def accelerate(rank, size, backend, port):
    start_as_job(rank, size, port)
    from accelerate import Accelerator

    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True)
    net = Line()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(Points(), batch_size=8)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    assert accelerator.num_processes == size and dist.get_backend() == backend
    seen = []
    for _ in range(4):
        of_epoch = []
        for batch in loader:
            loss = net(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            of_epoch += accelerator.gather(loss.detach().reshape(1)).tolist()
        seen.append(sum(of_epoch))
    return seen


class Frameworks(unittest.TestCase):
    def same(self, body):
        theirs, ours = (
            on_ranks(2, body, name, free_port(), backend=name, destroy=False, limit=400) for name in ("gloo", "ddp")
        )
        for a, b in zip(theirs, ours):
            self.assertEqual(len(a), len(b))
            for x, y in zip(a, b):
                self.assertAlmostEqual(x, y, delta=2e-4)
            self.assertLess(b[-1], b[0])

    @needs("lightning")
    def test_lightning(self):
        self.same(lightning)

    @needs("transformers", "accelerate")
    def test_hugging_face_trainer(self):
        self.same(hugging_face)

    @needs("accelerate")
    def test_accelerate(self):
        self.same(accelerate)


if __name__ == "__main__":
    unittest.main(verbosity=2)
