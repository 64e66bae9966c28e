#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --gpus 4
# seconds: 900
# Loops with accelerate, with torch.distributed.checkpoint and with JAX, where there is such software: by their batch
# scripts they are watched, stop in time and go on where they stopped.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/python/lib.sh"
limit=200
install -m 755 "$build/spank/status/ddp-status" "$prefix/bin/ddp-status"

# start NAME KEYS SBATCH-OPTION... [-- ARGUMENT...]: the script of slurm/batch, whose job's number is in $job
start()
{
	local name=$1 keys=$2 options=()
	shift 2
	while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
	install -m 755 "$source/slurm/batch/$name.sh" "$work/$name.sh"
	rm -f "$work/$name.out"
	job=$(as_user sbatch --parsable --chdir="$work" --output="$work/$name.out" --cpus-per-task=1 --ntasks-per-node=2 \
		--gpus-per-node=2 --time=30 --ddp="python=$folder,$keys" "${options[@]}" "$work/$name.sh" "${@:2}")
}
ended() { [ -z "$(on_cluster squeue -h -j "$job" -o %i)" ]; }
# stops_and_goes_on NAME: after SIGTERM all ranks save in the same step, and the next start goes on behind it
stops_and_goes_on()
{
	local saved
	check "$1.sh: it trains" wait_until 150 grep -q '^trains from step 1$' "$work/$1.out"
	capture as_user "$prefix/bin/ddp-status" "$job"
	prints_times 4 ' (compute|data|wait) .* [0-9.]+/s +[0-9.]+ ' "$1.sh: ddp-status shows phase, rate and loss of each rank"
	check "$1.sh: it is told to stop" on_cluster scancel --signal=TERM "$job"
	check "$1.sh: it saves" wait_until 60 grep -q '^saved step' "$work/$1.out"
	saved=$(sed -n 's/^saved step //p' "$work/$1.out")
	check "$1.sh: the job comes again" runs_again "$job" "$work/$1.out" "trains from step $((saved + 1))\$"
	check "$1.sh: and comes to its end" wait_until 150 grep -q '^the end$' "$work/$1.out"
	output=$(cat "$work/$1.out")
	prints_not 'the step stalls|sees nothing' "$1.sh: no stall is said"
}

# What the loops share: each step's number, and the ranks' way out.
cat >"$work/loop.py" <<'END'
import itertools, os
import slurm_ddp
job = slurm_ddp.job()
def say(text):
    if job.rank == 0:
        os.write(1, text.encode() + b"\n")
def train(checkpoint, batches, one_step, state, begun):
    for step, batch in enumerate(slurm_ddp.steps(batches, start=begun + 1), begun + 1):
        loss, samples = one_step(batch)
        slurm_ddp.step(loss=loss, samples=samples)
        if step == begun + 20:
            say("trains from step %d" % (begun + 1))
        if begun > 0 and step == begun + 30:
            say("the end")
            return
        if slurm_ddp.should_stop(margin=1):
            checkpoint.save(step, state())
            say("saved step %d" % step)
            slurm_ddp.exit_for_requeue()
END

# ---- accelerate ---------------------------------------------------------------------------

cat >"$work/train_accelerate.py" <<'END'
import itertools
import torch
from accelerate import Accelerator
import loop, slurm_ddp
accelerator = Accelerator(cpu=True)
checkpoint = slurm_ddp.Checkpoint("accelerate-checkpoints")
model = torch.nn.Linear(1, 1)
begun = checkpoint.latest_step()
if begun > 0:
    model.load_state_dict(checkpoint.load())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(256, 1)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
def one_step(batch):
    loss = ((model(batch[0]) - 3 * batch[0] - 1) ** 2).mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    return loss, len(batch[0]) * accelerator.num_processes
loop.train(checkpoint, itertools.chain.from_iterable(itertools.repeat(loader)), one_step,
           lambda: accelerator.get_state_dict(model), begun)
END
if find_python accelerate; then
	start accelerate stall=600,requeue=100 --nodes=2
	stops_and_goes_on accelerate
else
	skip "accelerate.sh" "there is no Python with accelerate"
fi

# ---- a loop with process groups, FSDP2 and torch.distributed.checkpoint, as torchtitan's ----------

cat >"$work/train.py" <<'END'
import os, sys
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import loop, slurm_ddp
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (slurm_ddp.job().nodes, slurm_ddp.job().local_world_size), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
def write(state, folder):
    dcp.save(state, checkpoint_id=folder)
failures = int(sys.argv[1])
checkpoint = slurm_ddp.Checkpoint("dcp-checkpoints-%d" % failures, format=write, all_ranks=True)
def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}
begun = checkpoint.latest_step()
if begun > 0:
    found = state()
    dcp.load(found, checkpoint_id=checkpoint.latest())
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
loop.say("start %d from step %d on %s" % (slurm_ddp.restart_count, begun, os.uname().nodename))
torch.manual_seed(loop.job.rank)
for number, batch in enumerate(slurm_ddp.steps((torch.rand(8, 4) for _ in range(40 - begun)), start=begun + 1), begun + 1):
    loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    slurm_ddp.step(loss=loss, samples=8 * loop.job.world_size)
    if number % 10 == 0:
        checkpoint.save(number, state())
    if slurm_ddp.restart_count < failures and loop.job.rank == loop.job.world_size // 2 and number == 25:
        raise FloatingPointError("loss is not finite in step %d" % number)
loop.say("the end: %d, %s" % (checkpoint.latest_step(), "finite" if torch.isfinite(loss) else "nan"))
dist.destroy_process_group()
END
if find_python 'torch>=2.6'; then
	start checkpoint stall=600,restart=3 --nodes=2 -- 1
	check "checkpoint.sh: it comes to its end" wait_until 300 grep -q '^the end' "$work/checkpoint.out"
	check "checkpoint.sh: and the job ends" wait_until 60 ended
	capture cat "$work/checkpoint.out"
	prints '^start 0 from step 0 on n0$' "checkpoint.sh: it begins at step 1"
	prints 'ddp: rank 2 of 4 on n1 exited with code 1 .*: FloatingPointError: loss is not finite in step 25 \(train.py:[0-9]+\).*; restart 1 of 3' \
		"checkpoint.sh: the line of the restart has the exception"
	prints '^start 1 from step 20 on n0$' "checkpoint.sh: all ranks go on from the latest whole checkpoint"
	prints '^the end: 40, finite$' "checkpoint.sh: and come to the last step"
	prints_not 'the step stalls|sees nothing' "checkpoint.sh: no stall is said"
	# n1 waits. A node on which ranks failed twice in a row is given up for a spare.
	start checkpoint stall=600,restart=3,spare=1 --nodes=2 -- 2
	check "checkpoint.sh, with a spare: it comes to its end" wait_until 300 grep -q '^the end' "$work/checkpoint.out"
	check "checkpoint.sh, with a spare: and the job ends" wait_until 60 ended
	capture cat "$work/checkpoint.out"
	prints '^start 1 from step 20 on n0$' "checkpoint.sh, with a spare: after a failure, the ranks start again where they were"
	prints 'ddp: rank 1 of 2 on n0 exited with code 1 .*: FloatingPointError: loss is not finite in step 25 .*; restart 2 of 3' \
		"checkpoint.sh, with a spare: they fail there again"
	prints '^start 2 from step 20 on n1$' "checkpoint.sh, with a spare: and go on, on the spare, from the latest whole checkpoint"
	prints '^the end: 40, finite$' "checkpoint.sh, with a spare: to the last step"
else
	skip "checkpoint.sh" "there is no Python with a torch that has FSDP2 (2.6)"
fi

# ---- JAX -----------------------------------------------------------------------------------

cat >"$work/train_jax.py" <<'END'
import itertools, os, pickle
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp, numpy
import loop, slurm_ddp
slurm_ddp.check_launched()
with slurm_ddp.phase("starting"):
    jax.distributed.initialize()
assert (jax.process_index(), jax.process_count()) == (loop.job.rank, loop.job.world_size)
from jax.experimental import multihost_utils
def write(state, folder):
    with open(folder + "/state", "wb") as file:
        pickle.dump(state, file)
checkpoint = slurm_ddp.Checkpoint("jax-checkpoints", format=write)
params, begun = jnp.zeros(2), checkpoint.latest_step()
if begun > 0:
    with open(checkpoint.latest() + "/state", "rb") as file:
        params = jnp.asarray(pickle.load(file))
@jax.jit
def gradient(params, x):
    return jax.value_and_grad(lambda p: jnp.mean((p[0] * x + p[1] - 3 * x - 1) ** 2))(params)
def one_step(x):
    global params
    loss, change = gradient(params, x)
    change = multihost_utils.process_allgather(change).mean(0)
    params = params - 0.1 * change
    return loss, 8 * loop.job.world_size
random = numpy.random.default_rng(loop.job.rank)
loop.train(checkpoint, (random.random(8) for _ in itertools.count()), one_step, lambda: numpy.asarray(params), begun)
END
chmod 644 "$work"/*.py
if find_python jax; then
	start jax stall=600,requeue=100 --nodes=2 --requeue --open-mode=append
	stops_and_goes_on jax
else
	skip "jax.sh" "there is no Python with jax"
fi

done_testing
