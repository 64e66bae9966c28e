#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 120
# With restart=, ranks of a training with --survive keep their processes, and meet again with those that srun starts for
# dead ones. No step is lost, none counts twice, and each has the loss of an undisturbed training, to the last bit.
. "$source/tests/cluster/lib.sh"
limit=100
shards=()

cat "$source/libruntime/include/ddp.h" "$source/libruntime/include/ddp/"*.h >"$work/text"
# Some ranks get a signal, once, when so many steps are in the metrics.
# shellcheck disable=SC2016 # the rank's shell is to expand it
rank=(sh -c 'cd "$1" || exit 1
shift
echo "$SLURM_PROCID" >>started
signal=$(cat "at.$SLURM_PROCID" 2>/dev/null)
rm -f "at.$SLURM_PROCID"
if [ -n "$signal" ]; then
	(until [ "$(wc -l <metrics)" -ge "${signal#* }" ]; do sleep 0.05; done
	kill -"${signal% *}" $$; echo >"was.$SLURM_PROCID") </dev/null >/dev/null 2>&1 &
fi
[ "$DDP_JOINS" = 0 ] || [ ! -e nobody-joins ] || exit 3
exec "$@"' sh "$work")
model=("$prefix/bin/gpt" --data "$work/text" --layers 2 --width 64 --heads 4 --length 32 --vocab 1000 --threads 1
	--batch 2 --dropout 0.1 --survive --metrics "$work/metrics"
	--checkpoint "$work/saved" --checkpoint-every 50 --steps 300)
head() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
# signal RANK SIGNAL STEPS: what the rank's first program in the next training gets
signal() { as_user sh -c 'echo "$1 $2" >"$3"' signal "$2" "$3" "$work/at.$1"; }
# train OPTION...: in the background, by srun with these options; with "${shards[@]}" of gpt
train()
{
	rm -rf "$work/metrics" "$work/saved" "$work/started"
	(as_user srun "$@" --ntasks-per-node=2 "${rank[@]}" "${model[@]}" "${shards[@]}" >"$work/log" 2>&1
		echo $? >"$work/status.new"
		mv "$work/status.new" "$work/status") &
	training=$!
}
# started RANK...: the ranks whose programs were started, in order
started() { [ "$(sort "$work/started" | tr '\n' ' ')" = "$* " ]; }
ended()
{
	wait $training
	output=$(cat "$work/log") status=$(cat "$work/status")
}
losses() { sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/p' "$work/metrics"; }
# as_before MISSING [TWICE]: so many steps may be missing, and so many be there twice
as_before()
{
	cmp "$work/saved.before/step-"*300.* "$work/saved/step-"*300.* &&
		[ "$(comm -13 <(sort "$work/losses") <(losses | sort) | wc -l)" = 0 ] &&
		[ "$(losses | sort -u | wc -l)" -ge $((300 - $1)) ] && [ "$(losses | sort | uniq -d | wc -l)" -le "${2:-0}" ]
}

train --ddp=restart=1 -N2
ended
losses >"$work/losses"
mv "$work/saved" "$work/saved.before"
status_is 0 "an undisturbed training ends well"
check "it has all steps" [ "$(wc -l <"$work/losses")" = 300 ]

# A rank, and then rank 0. A step that rank 0 has not written before it died is not in its file.
signal 3 KILL 20
signal 0 KILL 150
train --ddp=restart=3 -N2
ended
status_is 0 "ranks go on with others that were started again"
prints 'ddp: rank 3 of 4 on n1 was killed by signal 9.*; restart 1 of 3: the other ranks keep their processes' "srun says so"
prints 'ddp: rank 0 of 4 on n0 was killed by signal 9.*; restart 2 of 3: the other ranks keep their processes' "also of rank 0"
prints_times 2 'all 4 ranks go on with step [0-9]+, after ' "and the ranks do"
check "the others have kept their processes" started 0 0 1 2 3 3
check "each step counts once, with the same loss, parameters and state" as_before 1

# A node without power, and a spare, whose ranks get their shards from the other node's. A step whose copies were under
# way is done again.
shards=(--shard state --buddy)
signal 2 STOP 20
train --ddp=restart=1,spare=1,silence=2 --no-kill -N3
wait_until 60 test -e "$work/was.2"
head ip link set n1 down
on_node n1 sh -c 'pkill -9 slurmstepd; pkill -9 -u nobody; true'
ended
status_is 0 "ranks go on with those of a spare node"
prints 'ddp: node n1 .*silent.*; restart 1 of 1: n2 takes the place of n1, and the other ranks keep their processes' "srun says so"
check "the others have kept their processes" started 0 1 2 2 3 3
check "each step counts once, with the same loss, parameters and state" as_before 0 1
shards=()
head ip link set n1 up
head scancel -u nobody
head scontrol update NodeName=n1 State=DOWN Reason=test
head scontrol update NodeName=n1 State=RESUME
wait_until 60 sh -c "[ -z \"\$('$source/slurm/cluster' run --dir '$cluster' -- squeue -h -o %i)\" ]"

# Who was started again does not come.
touch "$work/nobody-joins"
signal 3 KILL 20
train --ddp=restart=3 -N2
ended
status_is 0 "all ranks start again, if who was started again fails"
prints '; restart 1 of 3: the other ranks keep their processes' "the others have waited"
prints 'ddp: rank 3 of 4 on n[12] exited with code 3.*; restart 2 of 3: all ranks start again' "and srun says that they wait no longer"
done_testing
