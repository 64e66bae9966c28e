#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A program that links libddp. ddp_init() needs nothing from here: it reads the
# plugin's variables, and the ranks meet at MASTER_ADDR, each with the step's key.
#SBATCH --job-name=libddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --ddp

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun ./train "$@"
