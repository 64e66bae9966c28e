# SPDX-License-Identifier: Apache-2.0
"""For Lightning: LightningCallback tells phases and steps, and stops all ranks together. LightningEnvironment names ranks.

slurm_ddp imports this module, and it Lightning, when a program uses one of the two.
"""
import os

try:
    from lightning.fabric.plugins.environments import ClusterEnvironment
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the package of Lightning's older name
    from lightning_fabric.plugins.environments import ClusterEnvironment
    from pytorch_lightning.callbacks import Callback

from . import jobs, progress


class LightningEnvironment(ClusterEnvironment):
    """Trainer(plugins=[LightningEnvironment()]): ranks, address and port are those of srun --ddp."""

    def __init__(self):
        super().__init__()
        self._job = jobs.check_launched()

    @property
    def creates_processes_externally(self):
        return True

    @property
    def main_address(self):
        return self._job.master_addr or "127.0.0.1"

    @property
    def main_port(self):
        return self._job.master_port or 29500

    @staticmethod
    def detect():
        return "DDP_PLUGIN_VERSION" in os.environ and "RANK" in os.environ

    def world_size(self):
        return self._job.world_size

    def set_world_size(self, size):
        self._refuse("world size", size, self._job.world_size)

    def global_rank(self):
        return self._job.rank

    def set_global_rank(self, rank):
        self._refuse("rank", rank, self._job.rank)

    def local_rank(self):
        return self._job.local_rank

    def node_rank(self):
        return self._job.node_rank

    @staticmethod
    def _refuse(what, wanted, found):
        if wanted != found:
            raise RuntimeError("Lightning takes %d for the %s, but srun --ddp says %d: give the Trainer devices=%s and "
                               "num_nodes=%s" % (wanted, what, found, os.environ.get("LOCAL_WORLD_SIZE", "1"),
                                                 os.environ.get("NNODES", "1")))


class LightningCallback(Callback):
    """Trainer(callbacks=[LightningCallback()]).

    When should_stop() says so, all ranks end the training behind the same batch. `save_to`: a checkpoint is written
    there then. `requeue`: the ranks then leave by exit_for_requeue().
    """

    def __init__(self, margin=120.0, save_to=None, requeue=False):
        super().__init__()
        self.margin, self.save_to, self.requeue, self.stopped = margin, save_to, requeue, False
        self._in_training = False

    def on_train_start(self, trainer, pl_module):
        progress._told()
        self._in_training = True

    def on_train_epoch_start(self, trainer, pl_module):
        progress.begin_step(trainer.global_step + 1)
        progress.enter("data")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        progress.begin_step(trainer.global_step + 1)
        progress.enter("compute")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        size = _batch_size(batch)
        progress.end_step(max(trainer.global_step, 1), loss, size * trainer.world_size if size else None)
        progress.enter("data")
        from .stopping import should_stop
        if should_stop(self.margin):
            self.stopped = trainer.should_stop = True

    def on_validation_start(self, trainer, pl_module):
        progress.enter("eval")

    def on_validation_end(self, trainer, pl_module):
        progress.enter("data" if self._in_training else "starting")

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        # What comes next in the training begins another phase.
        progress.enter("checkpoint")

    def on_train_end(self, trainer, pl_module):
        self._in_training = False
        if self.stopped and self.save_to is not None:
            with progress._Phase("checkpoint"):
                trainer.save_checkpoint(self.save_to)
        progress.enter("idle")

    def teardown(self, trainer, pl_module, stage):
        if self.stopped and self.requeue and stage in ("fit", None):
            from . import exit_for_requeue
            exit_for_requeue()


def _batch_size(batch):
    """Of the first tensor in it; None: there is none."""
    while isinstance(batch, (list, tuple, dict)) and len(batch) > 0:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape else None
