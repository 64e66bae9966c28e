#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 120
# A training with --survive loses a rank, and then a node's power. The other ranks go on in their processes: no step is
# lost, none counts twice, and srun ends with code 0.
. "$source/tests/cluster/lib.sh"
limit=100

cat "$source/libruntime/include/ddp.h" "$source/libruntime/include/ddp/"*.h >"$work/text"
model=("$prefix/bin/gpt" --data "$work/text" --layers 2 --width 64 --heads 4 --length 32 --vocab 1000 --threads 1
	--batch 2 --survive --metrics "$work/metrics")
head() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
# kill_rank NODE LOCAL-RANK
# shellcheck disable=SC2016 # the node's shell is to expand it
kill_rank() { on_node "$1" sh -c 'for pid in $(pidof gpt); do grep -qxz "LOCAL_RANK=$1" "/proc/$pid/environ" && kill -KILL "$pid"; done' kill "$2"; }
# has_come_to STEPS: more than there were
has_come_to() { [ "$(wc -l <"$work/metrics")" -ge "$1" ]; }
goes_on() { wait_until 60 has_come_to $(($(wc -l <"$work/metrics") + $1)); }
# train STEPS OPTION...: in the background, by srun with these options
train()
{
	rm -f "$work/metrics"
	(as_user srun "${@:2}" --ntasks-per-node=2 "${model[@]}" --steps "$1" >"$work/log" 2>&1; echo $? >"$work/status.new"; mv "$work/status.new" "$work/status") &
	training=$!
	wait_until 60 test -s "$work/metrics"
	goes_on 5
}
ended()
{
	wait $training
	output=$(cat "$work/log") status=$(cat "$work/status")
}
# each_once STEPS: each step is there, once
each_once() { sed -n 's/.*"step": *\([0-9]*\).*/\1/p' "$work/metrics" | diff - <(seq "$1"); }

# Slurm would end a step that has lost a node, without --no-kill.
train 400 --ddp=silence=2 --no-kill -N3
kill_rank n1 1
goes_on 20
head ip link set n2 down
on_node n2 sh -c 'pkill -9 slurmstepd; pkill -9 -u nobody; true'
ended
status_is 0 "a training that survives ends well, although a rank and a node have died"
prints 'ddp: rank 3 of 6 on n1 was killed by signal 9.*; the other ranks go on$' "srun names the rank"
prints 'ddp: node n2 .*silent.*; the step goes on \(--no-kill\)$' "and the node"
prints '5 of 6 ranks go on with step [0-9]+, after ' "the ranks that are left say with which step they go on"
prints '3 of 5 ranks go on with step [0-9]+, after ' "twice"
prints 'trained 400 steps' "the training is complete"
check "each step is counted once" each_once 400
head ip link set n2 up
head scancel -u nobody
head scontrol update NodeName=n2 State=DOWN Reason=test
head scontrol update NodeName=n2 State=RESUME
wait_until 60 sh -c "[ -z \"\$('$source/slurm/cluster' run --dir '$cluster' -- squeue -h -o %i)\" ]"

# A failure of all ranks is one.
train 1000000 --ddp -N2
kill_rank n0 0
check "without rank 0, another rank goes on with the metrics" goes_on 10
on_cluster scancel -u nobody
ended
status_is_not 0 "a training that survives, and is cancelled then, does not end with code 0"
done_testing
