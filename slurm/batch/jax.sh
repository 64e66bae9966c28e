#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# JAX, one task per GPU. All that the program needs, before any other call of
# JAX, is
#     jax.distributed.initialize()
# It reads JAX_COORDINATOR_ADDRESS and, where each task sees GPUs of its own
# (--gpus-per-task), JAX_LOCAL_DEVICE_IDS. The number of processes and this
# process's own it takes from SLURM_NTASKS and SLURM_PROCID; JAX_NUM_PROCESSES
# and JAX_PROCESS_ID hold the same, for programs that pass them. Before JAX 0.4.32
# add local_device_ids=int(os.environ["DDP_LOCAL_DEVICE"]).
# A process that ends waits for all others, for 300 s, and fails if one is missing then:
# give initialize() (of a recent JAX) a longer shutdown_timeout_seconds= where one
# process evaluates or saves alone at the end.
#SBATCH --job-name=jax-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --ddp

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun python train_jax.py "$@"
