#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A program inside a container, the same on all nodes:
#     IMAGE=train.sif sbatch container.sh python train.py
#     IMAGE=/images/train RUNTIME=charliecloud sbatch container.sh python train.py
# With Pyxis: srun --container-image="$IMAGE" "$@". What must be as on the host:
#  - the environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_*, DDP_*. Apptainer passes
#    it unless --cleanenv; with Pyxis, name nothing in --container-env that the
#    image would set itself (some images set RANK).
#  - the network, and the names in it: /etc/hosts, /etc/resolv.conf. MASTER_ADDR is
#    a name; --ddp=addr=ip makes it an address.
#  - open files (DDP_PROGRESS_FD): without them the failure report cannot say what
#    the rank was doing.
#  - for libddp's shared memory: /dev/shm, the IPC and the PID namespace. If one of
#    them is a task's own, ranks of a node use the network: right, but slower.
# PMIx is not needed: --mpi=none keeps a container from looking for its server.
#SBATCH --job-name=container-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --ddp

: "${IMAGE:?set IMAGE to the container image}"
: "${1:?give the command to run in the container}"
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

case ${RUNTIME:-apptainer} in
apptainer) enter=(apptainer exec --nv "$IMAGE") ;;
charliecloud) enter=(ch-run --bind="$PWD:/mnt" --cd=/mnt "$IMAGE" --) ;;
*) echo "container.sh: RUNTIME is apptainer or charliecloud, not '$RUNTIME'" >&2; exit 2 ;;
esac

srun --mpi=none "${enter[@]}" "$@"
