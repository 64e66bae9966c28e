#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch Lightning, told by the plugin's variables alone:
#     from lightning.fabric.plugins.environments import TorchElasticEnvironment
#     Trainer(num_nodes=int(os.environ["NNODES"]),
#             devices=int(os.environ["LOCAL_WORLD_SIZE"]),
#             strategy="ddp", plugins=[TorchElasticEnvironment()])
# Without plugins= Lightning uses its own SLURMEnvironment. That takes MASTER_ADDR
# and MASTER_PORT from the plugin, too, and brings Lightning's requeue on SIGUSR1,
# but it holds the sizes against the job's --ntasks-per-node, which must be given
# and be the step's. Ask for --gpus-per-node: under --gpus-per-task a task sees one
# GPU, and Lightning counts devices=, all that are on the node.
# For Lightning's requeue leave plugins= out, and one '#' of the three lines that begin
# with two: 120 s before the time limit Lightning then writes a checkpoint and has the
# job come again. With plugins= nobody handles SIGUSR1, and it would end the ranks.
#SBATCH --job-name=lightning-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
##SBATCH --signal=USR1@120
##SBATCH --requeue
##SBATCH --open-mode=append
#SBATCH --ddp

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun python train_lightning.py "$@"
