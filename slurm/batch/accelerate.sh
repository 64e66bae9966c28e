#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Hugging Face's accelerate, one task per GPU, without `accelerate launch`: Accelerator() finds its rank in
# the variables that srun --ddp sets. srun names the exception that ends a rank (python) and the rank that keeps
# the others waiting (stall=), and Slurm starts the job again after a failure or a stop (requeue=). The program:
#     import slurm_ddp
#     from accelerate import Accelerator
#     accelerator = Accelerator()                       # Accelerator(cpu=True) on nodes without GPUs
#     checkpoint = slurm_ddp.Checkpoint("checkpoints")
#     model, optimizer, loader = accelerator.prepare(...)
#     for batch in slurm_ddp.steps(loader, start=checkpoint.latest_step() + 1):
#         ...
#         accelerator.backward(loss)
#         slurm_ddp.step(loss=loss, samples=...)
#         if slurm_ddp.should_stop():                   # on all ranks in the same step
#             checkpoint.save(step, accelerator.get_state_dict(model))   # rank 0 writes
#             slurm_ddp.exit_for_requeue()
#SBATCH --job-name=accelerate-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ddp=python,stall=600,requeue=100

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun python train_accelerate.py "$@"
