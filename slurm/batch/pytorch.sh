#!/bin/bash
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
# share, the ranks of all jobs would wait for one lock.
export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-${TMPDIR:-/tmp}/torch_extensions-$SLURM_JOB_ID}

srun python train.py "$@"
