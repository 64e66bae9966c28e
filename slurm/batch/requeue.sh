#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Survives preemption, its time limit and node failures: Slurm starts the job
# again, and the program goes on from its newest checkpoint. Told to stop, the
# program ends its step and writes one. Each start has its own port and key;
# DDP_RESTART_COUNT says which start it is.
#SBATCH --job-name=requeue-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ddp

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
steps=${STEPS:-100000}
checkpoints=checkpoints-$SLURM_JOB_ID

echo "start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID"
srun ./train --steps "$steps" --checkpoint "$checkpoints" --checkpoint-every 500 \
	--resume "$@"
code=$?
# It was told to stop before its last step, and is to come again. Of an array only this
# element: SLURM_JOB_ID of its last one is the number of the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
[ $code != 75 ] || exec scontrol requeue "${job:-$SLURM_JOB_ID}"
exit $code
