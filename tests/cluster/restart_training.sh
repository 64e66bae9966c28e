#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 300
# A training whose ranks are killed goes on inside its step from its last checkpoint, and ends with the bytes of a
# training that nothing has disturbed. ddp-status shows the ranks of the generation that runs. A training that loses a
# node goes on with fewer ranks.
. "$source/tests/cluster/lib.sh"
limit=150

cat "$source/libruntime/include/ddp.h" "$source/libruntime/include/ddp/"*.h "$source/libruntime/comm/"*.h "$source/libruntime/comm/"*/*.h >"$work/text"
install -m 755 "$build/spank/status/ddp-status" "$prefix/bin/ddp-status"
model=("$prefix/bin/gpt" --data "$work/text" --layers 2 --width 32 --heads 4 --length 32 --vocab 300 --threads 1
	--bucket-mb 0.05 --steps 200 --batch 3 --checkpoint-every 20 --keep 50
	--resume)
last=step-00000200.safetensors

capture as_user srun --ddp -N2 --ntasks-per-node=2 "${model[@]}" --checkpoint "$work/whole"
status_is 0 "a run that is not interrupted writes its checkpoint"

# kill_rank NODE: one of the node's ranks
# shellcheck disable=SC2016 # the node's shell is to expand it
kill_rank() { on_node "$1" sh -c 'set -- $(pidof gpt); kill -KILL "$1"'; }
newest()
{
	find "$work/broken" -name 'step-*.safetensors' 2>/dev/null | sed 's/.*step-0*\([0-9]*\)\.safetensors/\1/' |
		sort -n | tail -n 1
}
has_come_to() { [ "$(newest)" -ge "$1" ]; }
# goes_on RESTARTS: so many restarts were told, checkpoints were written since, and the training is held at the next one
goes_on()
{
	wait_until 60 sh -c "grep -c 'restart $1 of 9' '$work/broken.log' || [ $1 = 0 ]"
	check "the training goes on after $1 restarts" wait_until 60 has_come_to $((40 + 40 * $1))
}

make_hold
touch "$work/hold"/hold-{60,100,140}
as_user srun --ddp=restart=9,spare=1 -J broken -N3 --ntasks-per-node=2 "${held[@]}" "${model[@]}" --checkpoint "$work/broken" \
	>"$work/broken.log" 2>&1 &
run=$!
goes_on 0
kill_rank n1
rm "$work/hold/hold-60"
goes_on 1
job=$(on_cluster squeue -h -n broken -t R -o %i)
capture as_user "$prefix/bin/ddp-status" "$job"
status_is 0 "ddp-status shows a training that has started again"
prints "^step $job.0: 4 ranks" "with its ranks, of which each is there once"
prints_times 4 'gpt \(' "and their programs"
prints_not ddp-agent "and no agent"
kill_rank n0
rm "$work/hold/hold-100"
goes_on 2
on_node n1 pkill -KILL -o -x ddp-agent
rm "$work/hold/hold-140"
wait $run
status=$? output=$(cat "$work/broken.log")
status_is 0 "a training goes on although two ranks and a node's agent are killed"
prints_times 3 '^(srun: error: )?ddp: .*restart [0-9] of 9' "each of the three is told in one line"
prints 'restart 3 of 9: n2 takes the place of n1' "the spare takes over"
prints_times 1 '^step +1/' "each time the training goes on from its last checkpoint"
check "the last checkpoint has the bytes of the undisturbed run" cmp "$work/whole/$last" "$work/broken/$last"

# 3 ranks x 8 samples x 101 steps: no update of 2 ranks x 8 samples ends there.
touch "$work/hold/hold-200"
as_user srun --ddp=restart=2,min-nodes=2 -N3 --ntasks-per-node=1 "${held[@]}" "${model[@]}" --batch 8 --checkpoint-every 101 \
	--checkpoint "$work/fewer" >"$work/fewer.log" 2>&1 &
run=$!
wait_until 60 test -e "$work/fewer/step-00000101.safetensors"
on_node n1 pkill -KILL -o -x ddp-agent
rm "$work/hold/hold-200"
wait $run
status=$? output=$(cat "$work/fewer.log")
status_is 0 "a training goes on with fewer ranks when a node is lost"
prints 'restart 1 of 2: the step goes on with 2 of 3 nodes' "the line says so"
prints 'an update .* has 16 samples here, and had 24 .*; it goes on at sample [0-9]+ of epoch' "the training says with which update"
prints "trained 99 steps \(102 to 200\)" "it goes on from its last checkpoint"

# ---- a flipped bit ----------------------------------------------------------------------------

install -m 755 "$build/tests/cluster/storm_probe" "$work/storm_probe"
probe() { as_user env STORM_SHARD=1 DDP_COMPARE_EVERY=7 "$@"; }
as_user sh -c "mkdir '$work/calm' '$work/flipped' && : >'$work/state'"
capture probe srun --ddp -N2 --ntasks-per-node=2 "$work/storm_probe" "$work/calm" "$work/state"
status_is 0 "a training that compares parameters ends well"
capture probe srun --ddp=restart=2,spare=1 -N3 --ntasks-per-node=2 "$work/storm_probe" "$work/flipped" "$work/state" flip 3 24
status_is 0 "a bit flips in rank 3, and the training goes on"
line='rank 3 on n1 has other parameters than 3 of 4 ranks after step 28: its memory or processor is damaged; go on without node n1'
prints "^(srun: error: )?ddp: rank 3 of 4 on n1 exited with code 3 .*: $line from the last checkpoint; restart 1 of 2: n2 takes the place of n1 \(0 spares left\)$" \
	"one line names the rank, and its node loses its place"
prints_times 1 'restart [0-9] of 2' "there is one restart"
check "the last checkpoint has the bytes of the undisturbed run" cmp "$work/calm/step-00000060.safetensors" \
	"$work/flipped/step-00000060.safetensors"
capture probe srun --ddp=restart=2,min-nodes=2 -N3 --ntasks-per-node=1 "$work/storm_probe" "$work/calm/fewer" "$work/state" flip 0 24
status_is 0 "without a spare, a training goes on without the damaged node"
prints 'rank 0 on n0 has other parameters than 2 of 3 ranks after step 28: .*; restart 1 of 2: the step goes on with 2 of 3 nodes$' \
	"and says so"
done_testing
