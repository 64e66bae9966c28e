#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One torchrun per node, for programs that insist on it. `launcher` gives each
# task PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, which
# torchrun reads, and no RANK. Without it torchrun finds its world, too, but its
# workers share an OMP_NUM_THREADS that counts all CPUs of the node.
#SBATCH --job-name=torchrun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun --ddp=launcher torchrun --nproc_per_node=4 train.py "$@"
