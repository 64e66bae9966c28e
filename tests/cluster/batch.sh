#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --gpus 4
# seconds: 420
# The batch scripts for users, submitted as they are but for smaller sizes.
. "$source/tests/cluster/lib.sh"
[ -x "$prefix/bin/gpt" ] || skip_all "examples/gpt is not built"
ln -s "$prefix/bin/gpt" "$work/train"
mkdir -p "$work/bin"
install -m 644 "$source/README.md" "$work/text"
sizes=(--data "$work/text" --layers 1 --width 32 --heads 2 --length 32 --batch 2)
limit=180

# All scripts run as arrays, too.
submit libddp --array=0-1 -- "${sizes[@]}" --steps 20
status_is 0 "libddp.sh: the job succeeds"
prints_times 2 '; 4 ranks on 2 nodes' "libddp.sh: its ranks train together, those of each element"

submit array --array=0-1 --ntasks-per-node=2 -- "${sizes[@]}" --steps 10
status_is 0 "array.sh: all elements succeed"
same '2' "$(find "$work"/run-[01] -name step-00000010.safetensors | wc -l)" "array.sh: each has its own checkpoint"

# ---- a job that is taken back and comes again -------------------------------------

steps=2000
install -m 755 "$source/slurm/batch/requeue.sh" "$work/requeue.sh"
job=$(STEPS=$steps as_user sbatch --parsable --chdir="$work" --output="$work/requeue.out" \
	--cpus-per-task=1 --ntasks-per-node=1 "$work/requeue.sh" "${sizes[@]}")
checkpoints=$work/checkpoints-$job
wait_until 60 sh -c 'ls "$0"/step-*.safetensors' "$checkpoints"
# As at a time limit or a preemption: the tasks get it, not the script.
check "requeue.sh: it is told to stop once it has a checkpoint" on_cluster scancel --signal=TERM "$job"
wait_until 60 grep -q '^stopped by a signal' "$work/requeue.out"
runs_again "$job" "$work/requeue.out" 'start 1'
if wait_until 150 test -e "$checkpoints/step-0000$steps.safetensors"; then
	ok "requeue.sh: it goes on to its end"
else
	output=$(on_cluster scontrol show job "$job"; tail -n 20 "$work/requeue.out")
	not_ok "requeue.sh: it goes on to its end"
fi
output=$(cat "$work/requeue.out")
prints_times 1 "^start 1 of job $job" "requeue.sh: it was started a second time"
prints_times 1 '^step +1/' "requeue.sh: and did not begin at the first step again"
stopped=$(sed -n 's/^stopped by a signal after step \([0-9]*\) of .*/\1/p' <<<"$output")
prints_times 1 '^stopped by a signal after step' "requeue.sh: the program said that it stops"
resumed=$(sed -n '/^start 1/,$ s/^step *\([0-9]*\)\/.*/\1/p' <<<"$output" | head -n 1)
if [ "${resumed:-0}" -gt "${stopped:-$steps}" ]; then
	ok "requeue.sh: it went on behind the step it stopped after"
else
	not_ok "requeue.sh: it went on behind the step it stopped after"
fi

# ---- an array, of which one element comes again ----------------------------------------

mkdir -m 777 "$work/elements"
cat >"$work/elements/train" <<'END'
#!/bin/sh
[ "$SLURM_ARRAY_TASK_ID" = 1 ] && [ "$DDP_RESTART_COUNT" = 0 ] || exit 0
until [ -z "$(squeue -h -j "${SLURM_ARRAY_JOB_ID}_0" -o %i)" ]; do sleep 0.1; done
exit 75
END
chmod 755 "$work/elements/train"
job=$(as_user sbatch --parsable --array=0-1 --chdir="$work/elements" --output="$work/elements/%a" \
	--nodes=1 --cpus-per-task=1 --ntasks-per-node=1 "$work/requeue.sh")
element=$work/elements/1
# SLURM writes to the element's output that it requeues it only where it ends the script before that ends by itself.
is_to_come_again() { grep -q '^start 0' "$element" && is_pending "${job}_1"; }
check "requeue.sh in an array: one element is to come again" wait_until 60 is_to_come_again
same "${job}_1" "$(on_cluster squeue -h -j "$job" -o %F_%K)" "and no other one"
check "it does" runs_again "${job}_1" "$element" 'start 1'
same 1 "$(grep -c ^start "$work/elements/0")" "the one that was complete ran once"

# ---- PyTorch ------------------------------------------------------------------------

if ! /usr/bin/python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))'; then
	skip "pytorch.sh and torchrun.sh" "there is no python3-torch"
	done_testing
	exit 0
fi
ln -s /usr/bin/python3 "$work/bin/python"
# Redirects of a rank that is not there: PyTorch 1.13 cannot read its own default
# with Python 3.11, which Debian 12 has.
# One rank on each node is enough: each imports torch.
cat >"$work/bin/torchrun" <<'END'
#!/bin/bash
exec /usr/bin/python3 -m torch.distributed.run --redirects 9:1 --tee 9:1 "${@/#--nproc_per_node=4/--nproc_per_node=1}"
END
chmod 755 "$work/bin/torchrun"
cat >"$work/train.py" <<'END'
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
line = "rank %d of %d, device %s, sum %g\n" % (dist.get_rank(), dist.get_world_size(),
      os.environ.get("DDP_LOCAL_DEVICE", os.environ["LOCAL_RANK"]), total.item())
# torchrun's ranks share one pipe and run unbuffered, where print() writes the
# newline apart: one write() keeps lines whole.
os.write(1, line.encode())
END
export PATH=$work/bin:$PATH
# Debian 13's PyTorch lacks libuv, which its own default asks for.
export USE_LIBUV=0

submit pytorch --array=7 --ntasks=3 --ntasks-per-node=2 --gpus-per-node=2
status_is 0 "pytorch.sh: the job succeeds"
prints_times 1 '^rank 0 of 3, device 0, sum 6$' "pytorch.sh: three ranks add up"
prints_times 1 '^rank 1 of 3, device 1, sum 6$' "pytorch.sh: each with its device"
prints_times 1 '^rank 2 of 3, device 0, sum 6$' "pytorch.sh: which is that of its node"

submit torchrun --array=7 --gpus-per-node=2
# Debian 13's torchrun cannot be told to do without libuv.
if [ "$status" != 0 ] && grep -q 'built without libuv' <<<"$output"; then
	skip "torchrun.sh" "this PyTorch lacks libuv"
else
	status_is 0 "torchrun.sh: the job succeeds"
	prints_times 2 '^rank [01] of 2, device 0, sum 3$' "torchrun.sh: two launchers start two ranks that add up"
fi
done_testing
