#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job array: one training per element. Elements that run at the same time
# have their own job ids, and so their own ports and keys.
#SBATCH --job-name=sweep
#SBATCH --array=0-3
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --output=sweep-%A_%a.out
#SBATCH --ddp

rates=(1e-4 3e-4 1e-3 3e-3)
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun ./train --lr "${rates[$SLURM_ARRAY_TASK_ID]}" \
	--checkpoint "run-$SLURM_ARRAY_TASK_ID" "$@"
