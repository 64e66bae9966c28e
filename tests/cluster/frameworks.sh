#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --gpus 4
# seconds: 900
# JAX, Lightning, Hugging Face, DeepSpeed, mpi4py and containers, where there is such
# software: by their batch scripts, or as a user would start them.
# With all of it there are twelve jobs, each of which loads a framework four times at once.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/python/lib.sh"
limit=180

# ---- JAX ------------------------------------------------------------------------

cat >"$work/train_jax.py" <<'END'
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
from jax._src.distributed import global_state
import jax.numpy as jnp

total = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1.0])).sum()
agree = (global_state.coordinator_address == os.environ["JAX_COORDINATOR_ADDRESS"]
         and jax.process_count() == int(os.environ["JAX_NUM_PROCESSES"])
         and jax.process_index() == int(os.environ["JAX_PROCESS_ID"]))
line = "process %d of %d, %s, device %s, sum %g\n" % (jax.process_index(), jax.process_count(),
      "agreed" if agree else "at odds", jax.config.values["jax_cuda_visible_devices"], total)
os.write(1, line.encode())
END
if find_python jax; then
	submit jax --ntasks-per-node=2 --gpus-per-node=2
	status_is 0 "jax.sh: the job succeeds"
	for rank in 0 1 2 3; do
		prints "^process $rank of 4, agreed, device $((rank % 2)), sum 10$" "jax.sh: process $rank adds up, as the plugin's variables say"
	done
	rm -f "$work"/jax-*.out
	submit jax --array=7 --ntasks-per-node=2 --gpus-per-node=2 --gpus-per-task=1
	status_is 0 "jax.sh: the same with --gpus-per-task"
	prints_times 4 '^process [0-3] of 4, agreed, device 0, sum 10$' "jax.sh: each process then has its device 0"
else
	skip "jax.sh" "there is no Python with jax"
fi

# ---- Lightning --------------------------------------------------------------------

cat >"$work/train_lightning.py" <<'END'
import os
import sys
import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch import LightningModule, Trainer

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        return ((self.layer(batch[0]) - 3 * batch[0] - 1) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.2)

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.rand(256, 1))
trainer = Trainer(accelerator="cpu", num_nodes=int(os.environ["NNODES"]),
      devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",
      plugins=None if "slurm" in sys.argv else [TorchElasticEnvironment()], max_epochs=20,
      logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
model = Line()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
environment = trainer.strategy.cluster_environment
line = "rank %d of %d, port %s, %s, weight %.1f bias %.1f\n" % (trainer.global_rank, trainer.world_size,
      "agreed" if environment.main_port == int(os.environ["MASTER_PORT"]) else "at odds",
      type(environment).__name__, model.layer.weight.item(), model.layer.bias.item())
os.write(1, line.encode())
END
if find_python lightning; then
	submit lightning --ntasks-per-node=2 --gpus-per-node=2
	status_is 0 "lightning.sh: the job succeeds"
	prints_times 4 '^rank [0-3] of 4, port agreed, TorchElasticEnvironment, weight 3.0 bias 1.0$' "lightning.sh: four ranks fit the line"
	rm -f "$work"/lightning-*.out
	submit lightning --array=7 --ntasks-per-node=2 --gpus-per-node=2 -- slurm
	status_is 0 "lightning.sh: so does Lightning's own environment"
	prints_times 4 '^rank [0-3] of 4, port agreed, SLURMEnvironment, weight 3.0 bias 1.0$' "lightning.sh: which takes the plugin's port"
else
	skip "lightning.sh" "there is no Python with lightning"
fi

# ---- Hugging Face, DeepSpeed, MPI ------------------------------------------------------

# Each is told its rank by the plugin's variables alone, and prints what it makes of
# them, and what the ranks add up to.
cat >"$work/train_trainer.py" <<'END'
import os
import sys
import torch
from transformers import Trainer, TrainingArguments

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 512
    def __getitem__(self, index):
        x = torch.tensor([index / 512])
        return {"x": x, "labels": 3 * x + 1}

torch.manual_seed(0)
model = Line()
trainer = Trainer(model=model, train_dataset=Points(), args=TrainingArguments(output_dir=sys.argv[1],
      use_cpu=True, num_train_epochs=30, per_device_train_batch_size=8, learning_rate=0.1,
      report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no"))
trainer.train()
os.write(1, b"Trainer: rank %d of %d, weight %.1f bias %.1f\n" % (trainer.args.process_index,
      trainer.args.world_size, model.layer.weight.item(), model.layer.bias.item()))
torch.distributed.destroy_process_group()
END
cat >"$work/train_deepspeed.py" <<'END'
import os
import deepspeed
import torch

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.2),
      config={"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 0}})
torch.manual_seed(deepspeed.comm.get_rank())
for step in range(200):
    x = torch.rand(8, 1)
    loss = ((engine(x) - 3 * x - 1) ** 2).mean()
    engine.backward(loss)
    engine.step()
os.write(1, b"DeepSpeed: rank %d of %d, weight %.1f bias %.1f\n" % (deepspeed.comm.get_rank(),
      deepspeed.comm.get_world_size(), model.weight.item(), model.bias.item()))
END
cat >"$work/train_mpi.py" <<'END'
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
agree = (world.Get_rank() == int(os.environ["RANK"]) and world.Get_size() == int(os.environ["WORLD_SIZE"]))
os.write(1, b"MPI: rank %d of %d, %s, sum %d\n" % (world.Get_rank(), world.Get_size(),
      b"agreed" if agree else b"at odds", world.allreduce(world.Get_rank() + 1)))
END
chmod 644 "$work"/train_*.py
# Two ranks a node; programs of PyTorch on CPUs say so by their own variables.
ranks=(srun --ddp -N2 --ntasks-per-node=2 --cpus-per-task=1)

if find_python transformers accelerate; then
	mkdir -m 1777 "$work/trainer"
	capture as_user env HOME="$work" ACCELERATE_USE_CPU=true "${ranks[@]}" "$work/bin/python" \
		"$work/train_trainer.py" "$work/trainer"
	status_is 0 "Hugging Face's Trainer finds its ranks"
	prints_times 4 '^Trainer: rank [0-3] of 4, weight (2\.9|3\.0|3\.1) bias 1\.[01]$' "Trainer: four ranks fit the line"
else
	skip "Trainer" "there is no Python with transformers and accelerate"
fi
if find_python deepspeed; then
	mkdir -m 1777 "$work/extensions"
	capture as_user env HOME="$work" DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$work/extensions" \
		"${ranks[@]}" "$work/bin/python" "$work/train_deepspeed.py"
	status_is 0 "DeepSpeed finds its ranks"
	prints_times 4 '^DeepSpeed: rank [0-3] of 4, weight 3\.0 bias 1\.0$' "DeepSpeed: four ranks fit the line"
else
	skip "DeepSpeed" "there is no Python with deepspeed"
fi
# Between nodes as root: Slurm's PMIx plugin may refuse an ordinary user's nodes.
if find_python mpi4py && has_pmix; then
	capture on_cluster srun --ddp --mpi=pmix -N2 --ntasks-per-node=2 --cpus-per-task=1 \
		"$work/bin/python" "$work/train_mpi.py"
	status_is 0 "mpi4py finds its ranks by PMIx beside the plugin"
	prints_times 4 '^MPI: rank [0-3] of 4, agreed, sum 10$' "mpi4py: ranks agree with the plugin's"
else
	skip "mpi4py" "there is no Python with mpi4py, or Slurm has no PMIx plugin"
fi

# ---- containers ---------------------------------------------------------------------

# add_library FILE: into the image, where the loader looks, by the names it knows
add_library()
{
	local target=$image/$1
	case $1 in
	"$prefix"/lib/*) target=$image/usr/lib/${1##*/} ;;
	/lib/*) target=$image/usr$1 ;;
	esac
	install -D -m 755 "$1" "$target"
}

# An image that holds a program with libddp, and what that needs.
make_image()
{
	local file libraries
	libraries=$(dirname "$(ldd "$prefix/lib/libddp.so" | awk '$1 ~ /^libucp/ { print $3 }')")
	mkdir -p "$image"/{bin,dev,etc,home,mnt,proc,root,sys,tmp,usr/lib} && ln -s usr/lib "$image/lib" &&
		touch "$image"/etc/{passwd,group,hosts,resolv.conf} &&
		install -m 755 "$prefix/bin/allreduce" "$image/bin/allreduce" || return 1
	for file in "$libraries"/ucx/*.so*; do add_library "$file"; done
	{ ldd "$prefix/bin/allreduce"; ldd "$libraries"/ucx/*.so*; } | grep -oE '/[^ :]+' | sort -u |
		while read -r file; do add_library "$file"; done
}

image=$work/image
if ! command -v ch-run >/dev/null; then
	skip "container.sh" "there is no Charliecloud"
elif ! [ -x "$prefix/bin/allreduce" ]; then
	skip "container.sh" "examples/allreduce is not built"
else
	check "an image is made" make_image
	export IMAGE=$image RUNTIME=charliecloud
	submit container --array=7 --ntasks-per-node=2 --gpus-per-node=2 -- /bin/allreduce --count 100000
	status_is 0 "container.sh: the job succeeds"
	prints_times 1 '^all 100000 sums over 4 ranks are right$' "container.sh: the ranks in the containers reduce together"
	prints_times 4 '"plugin":true' "container.sh: each knows the plugin's variables"
	RUNTIME=podman
	submit container --ntasks-per-node=2 --gpus-per-node=2 -- /bin/allreduce
	status_is_not 0 "container.sh: an unknown run time is an error"
	prints 'apptainer or charliecloud' "which names those that are known"
fi
done_testing
