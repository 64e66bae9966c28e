# SPDX-License-Identifier: Apache-2.0
"""For Hugging Face's Trainer: TrainerCallback tells phases, steps and losses, and stops all ranks together.

slurm_ddp imports this module, and it transformers, when a program uses it.
"""
import transformers

from . import page, progress


class TrainerCallback(transformers.TrainerCallback):
    """Trainer(callbacks=[slurm_ddp.TrainerCallback()]).

    When should_stop() says so, the Trainer saves and ends behind the same step on all ranks. `requeue`: the ranks then
    leave by exit_for_requeue().
    """

    def __init__(self, margin=120.0, requeue=False):
        self.margin, self.requeue, self.stopped = margin, requeue, False

    def on_train_begin(self, args, state, control, **kwargs):
        progress._told()
        progress.begin_step(state.global_step + 1)
        if page.slot() is not None and state.max_steps > 0:
            page.slot().set("steps", state.max_steps)

    def on_epoch_begin(self, args, state, control, **kwargs):
        progress.enter("data")

    def on_step_begin(self, args, state, control, **kwargs):
        progress.begin_step(state.global_step + 1)
        progress.enter("compute")

    def on_step_end(self, args, state, control, **kwargs):
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        progress.end_step(max(state.global_step, 1), None, samples)
        progress.enter("data")
        from .stopping import should_stop
        if not self.stopped and should_stop(self.margin):
            self.stopped = True
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args, state, control, logs=None, **kwargs):
        loss = (logs or {}).get("loss")
        if isinstance(loss, (int, float)) and page.slot() is not None:
            page.slot().set("python.loss", float(loss))
            page.slot().set("python.told", 1)

    def on_prediction_step(self, args, state, control, **kwargs):
        progress.enter("eval")

    def on_evaluate(self, args, state, control, **kwargs):
        progress.enter("data")

    def on_save(self, args, state, control, **kwargs):
        progress.enter("data")

    def on_train_end(self, args, state, control, **kwargs):
        progress.enter("idle")
        if self.stopped and self.requeue:
            from . import exit_for_requeue
            exit_for_requeue()
