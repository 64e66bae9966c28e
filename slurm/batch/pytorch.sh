#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch, one task per GPU. The plugin sets RANK, WORLD_SIZE, LOCAL_RANK,
# MASTER_ADDR and MASTER_PORT, so the script only needs
#     torch.distributed.init_process_group("nccl")      # reads env://
#     torch.cuda.set_device(int(os.environ.get("DDP_LOCAL_DEVICE", os.environ["LOCAL_RANK"])))
# DDP_LOCAL_DEVICE is 0 where Slurm shows each task its own GPU only
# (--gpus-per-task, --gpu-bind=single:1), and LOCAL_RANK otherwise. torchrun does
# not set it: with LOCAL_RANK in its place the script runs under torchrun, too.
# accelerate, the Trainer of transformers and DeepSpeed start in the same way; on nodes
# without GPUs the first two want ACCELERATE_USE_CPU=true, DeepSpeed DS_ACCELERATOR=cpu.
#SBATCH --job-name=pytorch-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --ddp

# Slurm 22.05 and later: srun does not inherit --cpus-per-task from sbatch.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# What PyTorch and DeepSpeed compile at run time: in a home directory that all nodes
# share, the ranks of all jobs would wait for one lock. It is code, so a folder that another
# user has made first is not taken.
if [ -z "$TORCH_EXTENSIONS_DIR" ]; then
	TORCH_EXTENSIONS_DIR=$(mktemp -u "${TMPDIR:-/tmp}/torch_extensions-XXXXXXXXXX")
	export TORCH_EXTENSIONS_DIR
	# shellcheck disable=SC2016 # for the task's shell
	srun --ddp=off --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --gpus-per-node=0 sh -c \
		'mkdir -m 700 "$0" 2>/dev/null || { [ -O "$0" ] && [ ! -L "$0" ]; }' "$TORCH_EXTENSIONS_DIR" ||
		{ echo "pytorch.sh: cannot make $TORCH_EXTENSIONS_DIR on each node" >&2; exit 1; }
fi

srun python train.py "$@"
