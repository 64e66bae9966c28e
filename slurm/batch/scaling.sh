#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How a training scales: examples/scaling on 1, 2, 4, ... of the job's nodes, one after the
# other, with as many tasks on each. The last run prints the rows of all. ./scaling is
# examples/scaling of a build tree: ./configure && make examples/scaling
#SBATCH --job-name=scaling
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --ddp

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# A job that is requeued begins anew.
rm -f "scaling-$SLURM_JOB_ID.txt"

for ((nodes = 1; ; nodes *= 2)); do
	[ "$nodes" -lt "$SLURM_NNODES" ] || nodes=$SLURM_NNODES
	srun --nodes="$nodes" --ntasks="$((nodes * SLURM_NTASKS_PER_NODE))" \
		./scaling --table "scaling-$SLURM_JOB_ID.txt" "$@" || exit
	[ "$nodes" -lt "$SLURM_NNODES" ] || break
done
