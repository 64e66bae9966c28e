#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 240
# slow=: a rank that computes longer than the others is named while the training runs, and no rank of an even training.
. "$source/tests/cluster/lib.sh"

install -m 755 "$build/tests/cluster/training_probe" "$work/training_probe"
probe="$work/training_probe"
four=(-N2 --ntasks-per-node=2) loops=()

# begin NAME RANK: a step in the background, in which RANK is slow
begin()
{
	as_user srun -J "$1" --ddp=slow=1.5 "${four[@]}" "$probe" slow "$2" none 600 >"$work/$1" 2>&1 &
	step=$!
}
# finish NAME: ends the step; what it printed is the output
finish()
{
	on_cluster scancel --name "$1"
	wait "$step"
	capture cat "$work/$1"
}

begin late 3
check "a slow rank is named" wait_until 60 grep -q 'ddp: rank 3 on n1 computes' "$work/late"
job=$(on_cluster squeue -h --name late -o %A)
capture as_user "$prefix/bin/ddp-status" "$job"
prints '^        computes [0-9.]+ times as long as the median rank: [0-9.]+ ms a step, and the median is [0-9.]+ ms$' "ddp-status tells it, too"
sleep 3
finish late
prints 'ddp: rank 3 on n1 computes [0-9.]+ times as long as the median of 4 ranks: [0-9.]+ ms a step, and the median is [0-9.]+ ms, over [0-9]+ steps$' \
	"with how slow it is"
prints_times 1 'as long as the median' "once, and no other rank is"

# An even training beside other work.
begin even 9
check "an even training runs" wait_until 30 on_node n1 pgrep -x training_probe
for _ in 1 2; do
	timeout 30 sh -c 'while :; do :; done' &
	loops+=("$!")
done
sleep 5
check "and goes on" kill -0 "$step"
kill "${loops[@]}"
finish even
prints_not 'as long as the median' "no rank of it is named"

done_testing
