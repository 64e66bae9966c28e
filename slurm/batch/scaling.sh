#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How a training scales: examples/scaling on 1, 2, 4, ... of the job's nodes, one after the
# other, with as many tasks on each; with --nodes=1 by 1, 2, 4, ... tasks of the node. The last
# run prints the rows of all. ./scaling is examples/scaling of a build tree:
# ./configure && make examples/scaling
#SBATCH --job-name=scaling
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --ddp

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# A job that is requeued begins anew.
rm -f "scaling-$SLURM_JOB_ID.txt"

# Tasks: those of a node, on 1, 2, 4, ... nodes; on one node 1, 2, 4, ...
most=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE)) each=$SLURM_NTASKS_PER_NODE
[ "$SLURM_NNODES" -gt 1 ] || each=1
for ((tasks = each; ; tasks *= 2)); do
	[ "$tasks" -lt "$most" ] || tasks=$most
	nodes=$(((tasks + SLURM_NTASKS_PER_NODE - 1) / SLURM_NTASKS_PER_NODE))
	srun --nodes="$nodes" --ntasks="$tasks" ./scaling --table "scaling-$SLURM_JOB_ID.txt" "$@" || exit
	[ "$tasks" -lt "$most" ] || break
done
