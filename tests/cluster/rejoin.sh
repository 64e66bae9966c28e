#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 120
# With restart=, ranks of a training with --survive keep their processes, and meet again with those that srun starts for
# dead ones. No step is lost, none counts twice, and each has the loss of an undisturbed training, to the last bit.
. "$source/tests/cluster/lib.sh"
limit=100

cat "$source/libruntime/include/ddp.h" "$source/libruntime/include/ddp/"*.h >"$work/text"
model=("$prefix/bin/gpt" --data "$work/text" --layers 2 --width 64 --heads 4 --length 32 --vocab 1000 --threads 1
	--batch 2 --dropout 0.1 --survive --metrics "$work/metrics"
	--checkpoint "$work/saved" --checkpoint-every 50 --steps 300)
head() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
# kill_rank NODE RANK
# shellcheck disable=SC2016 # the node's shell is to expand it
kill_rank()
{
	on_node "$1" sh -c 'for pid in $(pidof gpt); do
		! tr "\0" "\n" <"/proc/$pid/environ" | grep -qx "SLURM_PROCID=$1" || kill -KILL "$pid"
	done' kill_rank "$2"
}
has_come_to() { [ "$(wc -l <"$work/metrics")" -ge "$1" ]; }
goes_on() { wait_until 60 has_come_to $(($(wc -l <"$work/metrics") + $1)); }
# train OPTION...: in the background, by srun with these options
train()
{
	rm -rf "$work/metrics" "$work/saved"
	(as_user srun "$@" --ntasks-per-node=2 "${model[@]}" >"$work/log" 2>&1; echo $? >"$work/status.new"; mv "$work/status.new" "$work/status") &
	training=$!
	wait_until 60 test -s "$work/metrics"
	goes_on 5
}
ended()
{
	wait $training
	output=$(cat "$work/log") status=$(cat "$work/status")
}
losses() { sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/p' "$work/metrics"; }
# as_before MISSING: so many steps may be missing
as_before()
{
	cmp "$work/saved.before/step-"*300.* "$work/saved/step-"*300.* &&
		[ "$(comm -13 <(sort "$work/losses") <(losses | sort) | wc -l)" = 0 ] && [ "$(losses | sort -u | wc -l)" -ge $((300 - $1)) ] && [ -z "$(losses | sort | uniq -d)" ]
}

train --ddp=restart=1 -N2
ended
losses >"$work/losses"
mv "$work/saved" "$work/saved.before"
status_is 0 "an undisturbed training ends well"
check "it has all steps" [ "$(wc -l <"$work/losses")" = 300 ]

# A rank, and then rank 0. A step that rank 0 has not written before it died is not in its file.
train --ddp=restart=3 -N2
before=$(on_node n0 pidof gpt)
kill_rank n1 3
goes_on 20
after=$(on_node n0 pidof gpt)
kill_rank n0 0
ended
status_is 0 "ranks go on with others that were started again"
prints 'ddp: rank 3 of 4 on n1 was killed by signal 9.*; restart 1 of 3: the other ranks keep their processes' "srun says so"
prints 'ddp: rank 0 of 4 on n0 was killed by signal 9.*; restart 2 of 3: the other ranks keep their processes' "also of rank 0"
prints_times 2 'all 4 ranks go on with step [0-9]+, after ' "and the ranks do"
check "the others have kept their processes" [ -n "$before" -a "$before" = "$after" ]
check "each step counts once, with the same loss, parameters and state" as_before 1

# A node without power, and a spare.
train --ddp=restart=1,spare=1,silence=2 --no-kill -N3
before=$(on_node n0 pidof gpt)
head ip link set n1 down
on_node n1 sh -c 'pkill -9 slurmstepd; pkill -9 -u nobody; true'
goes_on 20
after=$(on_node n0 pidof gpt)
ended
status_is 0 "ranks go on with those of a spare node"
prints 'ddp: node n1 .*silent.*; restart 1 of 1: n2 takes the place of n1, and the other ranks keep their processes' "srun says so"
check "the others have kept their processes" [ -n "$before" -a "$before" = "$after" ]
check "each step counts once, with the same loss, parameters and state" as_before 0
head ip link set n1 up
head scancel -u nobody
head scontrol update NodeName=n1 State=DOWN Reason=test
head scontrol update NodeName=n1 State=RESUME
wait_until 60 sh -c "[ -z \"\$('$source/slurm/cluster' run --dir '$cluster' -- squeue -h -o %i)\" ]"

# Who was started again does not come.
# shellcheck disable=SC2016 # the rank's shell is to expand it
model=(sh -c '[ "$DDP_JOINS" = 0 ] || exit 3; exec "$@"' sh "${model[@]}")
train --ddp=restart=3 -N2
kill_rank n1 3
ended
status_is 0 "all ranks start again, if who was started again fails"
prints '; restart 1 of 3: the other ranks keep their processes' "the others have waited"
prints 'ddp: rank 3 of 4 on n1 exited with code 3.*; restart 2 of 3: all ranks start again' "and srun says that they wait no longer"
done_testing
