#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# This job trains by PyTorch on CPUs. Its ranks exchange gradients by the backend "ddp" of slurm-ddp-torch:
#     import slurm_ddp_torch                        # for torch before 2.15
#     torch.distributed.init_process_group("ddp")
# One rank for each socket or NUMA domain is a good beginning. The plugin sets OMP_NUM_THREADS to the number of the
# rank's cores. If a rank fails, all ranks start again inside the step, from the checkpoint that the program loads when
# it starts. One of the three nodes waits, and takes the place of a node that is lost. If no restart is left, Slurm
# starts the job again.
#SBATCH --job-name=cpu-ddp
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ddp=python,stall=600,restart=3,spare=1,requeue=100

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun python train.py "$@"
