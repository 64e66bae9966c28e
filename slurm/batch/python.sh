#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# This job runs a program of PyTorch, JAX or any Python. It is watched, stops in time and goes
# on where it stopped.
# With python, srun's failure line ends with the exception; with stall=, srun names the rank that
# keeps the others waiting for ten minutes; with requeue=, Slurm starts the job again. The program:
#     import slurm_ddp
#     checkpoint = slurm_ddp.Checkpoint("checkpoints")
#     state = checkpoint.load()                     # None at first
#     for step in range(checkpoint.latest_step() + 1, steps + 1):
#         ...
#         slurm_ddp.step(step, loss=loss, samples=...)
#         if slurm_ddp.should_stop():               # on all ranks in the same step
#             checkpoint.save(step, ...)
#             slurm_ddp.exit_for_requeue()
# Lightning: Trainer(callbacks=[slurm_ddp.LightningCallback(save_to=..., requeue=True)],
#                    plugins=[slurm_ddp.LightningEnvironment()])
# Hugging Face: Trainer(callbacks=[slurm_ddp.TrainerCallback(requeue=True)])
# Without python in --ddp, slurm_ddp must be installed where the program runs (pip).
#SBATCH --job-name=python-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ddp=python,stall=600,requeue=100

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

echo "start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID"
srun python train.py "$@"
