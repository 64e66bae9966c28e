#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""The callbacks for Lightning and Hugging Face: steps are told, and a signal ends the training with a checkpoint.

TEST_PYTHON: interpreters to try before this one, with colons between them.
"""
import os
import random
import subprocess
import sys
import tempfile

from support import PageTest, main

LIGHTNING = """
import os, sys, torch, slurm_ddp
slurm_ddp.install()
from lightning.pytorch import LightningModule, Trainer
class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        if index == 5 and sys.argv[2] == "signal":
            os.kill(os.getpid(), 10)
        return ((self.layer(batch[0]) - 3 * batch[0] - 1) ** 2).mean()
    def validation_step(self, batch, index):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.2)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(256, 1)), batch_size=8)
callback = slurm_ddp.LightningCallback(save_to=sys.argv[1] + "/stopped.ckpt", requeue=True)
trainer = Trainer(accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
                  plugins=[slurm_ddp.LightningEnvironment()])
slurm_ddp.should_stop()
trainer.fit(Line(), data, data)
print("steps", trainer.global_step)
"""
TRANSFORMERS = """
import os, sys, torch, slurm_ddp
slurm_ddp.install()
from transformers import Trainer, TrainingArguments
class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.calls = 0
    def forward(self, x, labels):
        self.calls += 1
        if self.calls == 5 and sys.argv[2] == "signal":
            os.kill(os.getpid(), 10)
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}
class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        x = torch.tensor([index / 64])
        return {"x": x, "labels": 3 * x + 1}
slurm_ddp.should_stop()
trainer = Trainer(model=Line(), train_dataset=Points(), callbacks=[slurm_ddp.TrainerCallback(requeue=True)],
                  args=TrainingArguments(output_dir=sys.argv[1], use_cpu=True, num_train_epochs=2,
                                         per_device_train_batch_size=8, report_to=[], save_strategy="no",
                                         disable_tqdm=True, logging_steps=2))
trainer.train()
print("steps", trainer.state.global_step)
"""


def python_with(module):
    for python in [name for name in os.environ.get("TEST_PYTHON", "").split(":") if name] + [sys.executable]:
        try:
            # Beside a torch that is too old, it is there and cannot be imported.
            if subprocess.run([python, "-c", f"import {module}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=150, check=False).returncode == 0:
                return python
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


class Frameworks(PageTest):
    def run_both(self, program, module, steps):
        python = python_with(module)
        if python is None:
            self.skipTest(f"there is no Python with {module} that can be imported")
        for how, code in (("", 0), ("signal", 75)):
            with tempfile.TemporaryDirectory() as folder:
                ended = self.page.run(program, folder, how, python=python, RANK=0, WORLD_SIZE=1, HOME=folder, DDP_PROGRESS_FD=
                                      self.page.descriptor, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1",
                                      MASTER_PORT=random.randrange(21000, 29000))
                left = os.listdir(folder)
            slot = self.page.slot(local_rank=0)
            self.assertEqual(ended.returncode, code, ended.stderr)
            if how:
                self.assertTrue(any("stopped" in name or "checkpoint" in name for name in left), left)
                self.assertIn(slot.get("step"), (6, 7))
            else:
                self.assertIn(f"steps {steps}", ended.stdout)
                self.assertEqual((slot.get("step"), slot.get("python.told"), slot.get("step_weight")), (steps + 1, 1, 8.0))

    def test_lightnings_trainer_is_watched_and_stopped(self):
        self.run_both(LIGHTNING, "lightning.pytorch", 64)

    def test_trainer_of_transformers_is_watched_and_stopped(self):
        self.run_both(TRANSFORMERS, "transformers.trainer", 16)


if __name__ == "__main__":
    main()
