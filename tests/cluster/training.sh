#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 240
# Training over two nodes is the training of one process; it repeats, and goes
# on after a rank was killed, bit for bit.
. "$source/tests/cluster/lib.sh"
limit=100

cat "$source/libruntime/include/ddp.h" "$source/libruntime/include/ddp/"*.h "$source/libruntime/comm/"*.h "$source/libruntime/comm/"*/*.h >"$work/text"

# One epoch has enough samples, so that no sample is repeated to make ranks even.
# The vocabulary is so large that the embedding's rows travel by themselves.
model=(--data "$work/text" --layers 2 --width 64 --heads 4 --length 32 --vocab 1000 --threads 1
	--bucket-mb 0.05)
gpt() { as_user srun --ddp "$@"; }

losses() { sed -n 's/.*"loss":\([-+.0-9e]*\).*/\1/p' "$work/$1"; }

# like_one_process NAME FILE: each step's loss is within 1e-5 of one process's
like_one_process()
{
	if output=$(paste <(losses one) <(losses "$2") | awk '
		NF != 2 { bad = "steps are missing" }
		{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d }
		END { printf "%d steps, largest difference %g %s\n", NR, worst, bad
		      exit bad != "" || NR != 20 || worst > 1e-5 }')
	then ok "$1"; else not_ok "$1"; fi
}

capture gpt -N1 -n1 "$prefix/bin/gpt" "${model[@]}" --steps 20 --batch 12 --metrics "$work/one"
status_is 0 "one process trains"
capture gpt -N2 -n4 --ntasks-per-node=2 "$prefix/bin/gpt" "${model[@]}" --steps 20 --batch 3 \
	--metrics "$work/four" --trace "$work/trace"
status_is 0 "four ranks on two nodes train"
like_one_process "four ranks on two nodes train as one process does" four
for rank in 0 1 2 3; do
	same '[ ]' "$(head -n1 "$work/trace/rank-$rank.json") $(tail -n1 "$work/trace/rank-$rank.json")" \
		"rank $rank leaves a whole trace"
done
capture gpt -N2 -n3 "$prefix/bin/gpt" "${model[@]}" --steps 20 --batch 2 --accumulate 2 \
	--metrics "$work/three"
status_is 0 "three ranks on two nodes train, two micro-batches a step"
like_one_process "uneven nodes and accumulation train as one process does" three

long=("${model[@]}" --steps 100 --batch 3 --checkpoint-every 10 --keep 30)
capture gpt -N2 -n4 "$prefix/bin/gpt" "${long[@]}" --checkpoint "$work/whole"
status_is 0 "a run that is not interrupted writes its checkpoint"
last=step-00000100.safetensors

make_hold
touch "$work/hold/hold-30"
gpt -N2 -n4 "${held[@]}" "$prefix/bin/gpt" "${long[@]}" --checkpoint "$work/broken" >"$work/broken.log" 2>&1 &
run=$!
wait_until 60 test -e "$work/broken/step-00000020.safetensors"
# shellcheck disable=SC2016 # the node's shell is to expand it
on_node n1 sh -c 'set -- $(pidof gpt); kill -KILL "$1"'
rm "$work/hold/hold-30"
wait $run
status=$? output=$(cat "$work/broken.log")
fails_without_hanging "a killed rank ends the run"
if [ -e "$work/broken/$last" ]; then not_ok "the run was interrupted"; else ok "the run was interrupted"; fi
capture gpt -N2 -n4 "$prefix/bin/gpt" "${long[@]}" --checkpoint "$work/broken" --resume
status_is 0 "the run goes on from its newest checkpoint"
prints_not '^step 1/' "it does not begin anew"
check "parameters and optimizer end with the same bits" cmp "$work/whole/$last" "$work/broken/$last"

done_testing
