#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A training loop of PyTorch's own, as torchtitan has one: process groups or a DeviceMesh, FSDP2, and
# torch.distributed.checkpoint, to which each rank writes its shards. If a rank or a node fails, all ranks start again
# inside the step (restart=), and a spare node takes a lost one's place. The program:
#     import slurm_ddp, torch.distributed.checkpoint as dcp
#     torch.distributed.init_process_group()
#     def write(state, folder):                         # called on every rank with the same folder
#         dcp.save(state, checkpoint_id=folder)
#     checkpoint = slurm_ddp.Checkpoint("checkpoints", format=write, all_ranks=True)
#     if checkpoint.latest() is not None:               # a whole one, whatever ended the last start
#         dcp.load(state, checkpoint_id=checkpoint.latest())
#     for batch in slurm_ddp.steps(loader, start=checkpoint.latest_step() + 1):
#         ...
#         slurm_ddp.step(loss=loss, samples=...)
#         if step % 500 == 0:
#             checkpoint.save(step, state)
#SBATCH --job-name=checkpoint-ddp
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --ddp=python,stall=600,restart=10,spare=1

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun python train.py "$@"
