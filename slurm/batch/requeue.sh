#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# This job survives failures, preemption and its time limit: with requeue= srun has Slurm
# start the job again, and the program goes on from its newest checkpoint. If the program is
# told to stop, it ends its step, writes a checkpoint and exits with 75. Each start has its
# own port and key; DDP_RESTART_COUNT says which start it is. Of an array only the element is
# requeued. scancel ends the job for good.
#SBATCH --job-name=requeue-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ddp=requeue=100

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
steps=${STEPS:-100000}
checkpoints=checkpoints-$SLURM_JOB_ID

echo "start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID"
srun ./train --steps "$steps" --checkpoint "$checkpoints" --checkpoint-every 500 \
	--resume "$@"
