#!/bin/bash
# PyTorch, one task per GPU. The plugin sets RANK, WORLD_SIZE, LOCAL_RANK,
# MASTER_ADDR and MASTER_PORT, so the script only needs
#     torch.distributed.init_process_group("nccl")      # reads env://
#     torch.cuda.set_device(int(os.environ.get("DDP_LOCAL_DEVICE", os.environ["LOCAL_RANK"])))
# DDP_LOCAL_DEVICE is 0 where Slurm shows each task its own GPU only
# (--gpus-per-task, --gpu-bind=single:1), and LOCAL_RANK otherwise. torchrun does
# not set it: with LOCAL_RANK in its place the script runs under torchrun, too.
#SBATCH --job-name=pytorch-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --ddp

# Slurm 22.05 and later: srun does not inherit --cpus-per-task from sbatch.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun python train.py "$@"
