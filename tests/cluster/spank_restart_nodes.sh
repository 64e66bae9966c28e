#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# cluster: --conf KillWait=5 --conf WaitTime=1 --conf PreemptType=preempt/partition_prio --conf PreemptMode=CANCEL --conf 'PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=20 MaxTime=INFINITE' --conf 'PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE'
# seconds: 900
# srun's side of restart=: which node takes which place, when a step goes on, and when it ends.
. "$source/tests/cluster/lib.sh"

cd "$work" || exit 1
# A rank leaves its start and its place, then does what the file of its generation and rank says, or waits for the end.
cat >rank.sh <<'END'
g=$DDP_RESTART_COUNT
echo "$SLURMD_NODENAME $WORLD_SIZE $NODE_RANK $SLURM_STEP_NODELIST" >place.$g.$RANK
date +%s%N >start.$g.$RANK
mv start.$g.$RANK up.$g.$RANK
(setsid sh -c 'while :; do date +%s%N >'"alive.$g.$RANK"'; sleep 0.1; done' &)
[ ! -e do.$g.$RANK ] || . ./do.$g.$RANK
until [ -e finish ]; do sleep 0.05; done
END
chmod 644 rank.sh

# on_rank GENERATION RANK COMMANDS: what it does once all ranks of its generation are up
on_rank() { echo "until [ \$(ls up.$1.* | wc -l) = \$WORLD_SIZE ]; do sleep 0.05; done; $3" >"do.$1.$2"; }
afresh() { rm -f place.* start.* up.* alive.* do.* finish out status; }
# begin SRUN-OPTION...: the step, in the background
begin()
{
	(as_user srun "$@" bash ./rank.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
	step=$!
}
# shellcheck disable=SC2012 # the names are ours
count_up() { [ "$(ls up."$1".* 2>/dev/null | wc -l)" = "$2" ]; }
# up GENERATION RANKS
up() { wait_until 30 count_up "$@" || not_ok "generation $1 has $2 ranks" "$(cat out)" "$(ls up.* 2>/dev/null)"; }
# ended: waits for the step; $output and $status are srun's
# shellcheck disable=SC2034 # lib.sh looks at both
ended()
{
	wait_until "${1:-60}" test -e status || kill $step
	wait $step
	output=$(cat out) status=$(cat status 2>/dev/null || echo 124)
}
finish() { : >finish; ended; }
# place GENERATION RANK: its node
place() { sed 's/ .*//' "place.$1.$2" 2>/dev/null; }
places() { for r in "${@:2}"; do place "$1" "$r"; done | xargs; }
# after MOMENT FILE: how many ms after it the file's time is
after() { echo $((($(cat "$2") - $1) / 1000000)); }

# power_off NODE: its link goes, then all of its processes; nothing says good-bye
power_off()
{
	on_cluster ip link set "n$1" down
	off=$(date +%s%N)
	on_node "n$1" sh -c 'pkill -9 slurmstepd; pkill -9 -x ddp-agent; pkill -9 -u nobody; true'
}
link() { on_cluster ip link set "n$1" "$2"; }
# restored NODE: a cluster as before
restored()
{
	link "$1" up
	on_cluster scancel -u nobody
	# slurmctld would try for a minute and a half to reach the node for the job's end.
	on_cluster scontrol update NodeName="n$1" State=DOWN Reason=test
	on_cluster scontrol update NodeName="n$1" State=RESUME
	wait_until 60 idle
}
idle() { [ -z "$(on_cluster squeue -h -o %i)" ] && [ "$(on_cluster sinfo -h -t idle -o %D)" = 4 ]; }
readonly line='ddp: .*restart [0-9]+ of [0-9]+'
left() { for i in 0 1 2 3; do on_node n$i pgrep -x 'ddp-agent|slurmstepd'; done | wc -l; }
none_left() { [ "$(left)" = 0 ]; }

# ---- nodes without power ----------------------------------------------------------------------

# loses NODE TAKER NAME: with a spare, ranks keep their numbers
loses()
{
	afresh
	begin --ddp=restart=3,spare=1,silence=3 -N4 --ntasks-per-node=2 --overlap
	up 0 6
	power_off "$1"
	up 1 6
	prints_in_time "$off" 4200 up.1.0 "$3: the next generation begins within silence= and a second"
	finish
	status_is 0 "$3: the step ends well"
	prints "ddp: node n$1 has been silent for 3\.[0-9] s, with ranks $((2 * $1))-$((2 * $1 + 1)).*; restart 1 of 3: n3 takes the place of n$1 \(0 spares left\)$" "$3: one line says who failed and who takes its place"
	prints_times 1 "$line" "$3: once"
	same "${2}" "$(places 1 0 1 2 3 4 5)" "$3: the spare has its ranks, and the others keep theirs"
	check "$3: srun has not waited for the dead node" test "$(($(date +%s%N) / 1000000 - $(stat -c %Y finish) * 1000))" -lt "$(stretched 15000)"
	restored "$1"
}
# prints_in_time MOMENT MS FILE NAME
prints_in_time()
{
	took=$(after "$1" "$3")
	echo "# $4: $took ms"
	if is_within "$took" "$2"; then ok "$4"; else not_ok "$4" "it took $took ms"; fi
}
loses 1 "n0 n0 n3 n3 n2 n2" "a node's power"
loses 0 "n3 n3 n1 n1 n2 n2" "node 0's power"

afresh
begin --ddp=restart=3,min-nodes=2,silence=3 -N3 --ntasks-per-node=2
up 0 6
power_off 1
up 1 4
finish
status_is 0 "min-nodes: the step ends well with fewer nodes"
prints 'node n1 has been silent.*; restart 1 of 3: the step goes on with 2 of 3 nodes$' "min-nodes: the line says so"
same "n0 n0 n2 n2" "$(places 1 0 1 2 3)" "min-nodes: ranks are counted anew"
same "n2 4 1 n0,n2" "$(cat place.1.2)" "min-nodes: and so are all variables"
restored 1

afresh
begin --ddp=restart=3,silence=3 -N3 --ntasks-per-node=2
up 0 6
power_off 2
ended 30
status_is 1 "without a spare: the step fails"
prints 'ddp: node n2 has been silent for .*, with ranks 4-5 .*; no spare is left to take its place' "without a spare: the line names the node"
prints_not 'restart [0-9]+ of' "without a spare: nothing is restarted"
restored 2

# In an allocation SLURM would keep the step, and the nodes for it: srun takes the node out of the job first.
afresh
cat >twice.sh <<'END'
srun bash ./rank.sh
echo "first $?"
srun -N3 -n3 sh -c 'echo "second $RANK of $WORLD_SIZE"'
END
chmod 644 twice.sh
(as_user salloc --ddp=restart=3,spare=1,silence=3 -N4 --ntasks-per-node=1 bash ./twice.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
step=$!
up 0 3
power_off 1
up 1 3
finish
prints '^first 0$' "salloc: the step ends well with a dead node"
prints_times 2 '^second [01] of 2$' "salloc: the next step has the nodes that are left, less the spare"
restored 1

# ---- a network without nodes ------------------------------------------------------------------

# Both sides are alive: the one without srun ends its ranks before srun gives them to others.
afresh
begin --ddp=restart=3,spare=1,silence=5 -N4 --ntasks-per-node=2 --overlap
up 0 6
link 1 down
up 1 6
overlap=$(($(cat up.1.2) - $(cat alive.0.2)))
check "partition: the ranks that were cut off had ended before ($((overlap / 1000000)) ms)" test "$overlap" -gt 0
link 1 up
check "partition: the node that comes back is told to end" wait_until 30 sh -c "! $source/slurm/cluster run --dir $cluster --node n1 -- pgrep -x ddp-agent"
finish
status_is 0 "partition: the step ends well"
prints_times 1 "$line" "partition: one restart"
restored 1

# srun's own link: all nodes are silent, and all end their ranks. They are waited for.
afresh
begin --ddp=restart=3,spare=1,silence=3 -N4 --ntasks-per-node=2 --overlap
up 0 6
for i in 0 1 2 3; do link $i down; done
sleep 12
for i in 0 1 2 3; do link $i up; done
up 1 6
finish
status_is 0 "srun cut off: the step ends well"
prints_times 1 "$line" "srun cut off: one restart"
same "n0 n0 n1 n1 n2 n2" "$(places 1 0 1 2 3 4 5)" "srun cut off: no node is replaced"
restored 0

# ---- failures one after the other -------------------------------------------------------------

afresh
on_rank 0 1 'exit 7'
on_rank 1 2 'exit 8'
on_rank 1 3 'exit 9'
begin --ddp=restart=5,silence=3 -N2 --ntasks-per-node=2
up 2 4
finish
status_is 0 "failures during a restart: the step ends well"
prints_times 2 "$line" "failures during a restart: each generation fails once"

afresh
for g in 0 1 2; do on_rank $g 3 'exit 7'; done
begin --ddp=restart=2 -N2 --ntasks-per-node=2
ended
status_is 7 "restarts used up: the failure's code"
prints 'rank 3 of 4 on n1 exited with code 7 .*; it is the same rank as last time; all restarts of restart=2 are used up' "restarts used up: it is said, and that the failure repeats"
prints_times 2 "$line" "restarts used up: two restarts"

afresh
on_rank 0 2 'exit 7'
on_rank 1 3 'exit 7'
begin --ddp=restart=5,spare=1 -N3 --ntasks-per-node=2
up 2 4
finish
status_is 0 "the same node twice: the step ends well"
prints 'restart 2 of 5: n2 takes the place of n1 \(0 spares left\)' "the same node twice: it is replaced"

afresh
on_rank 0 1 'exit 0'
on_rank 0 2 'sleep 1; exit 7'
begin --ddp=restart=5 -N2 --ntasks-per-node=2
ended
status_is 7 "an early good end: a later failure ends the step"
prints 'rank 2 of 4 .*; no restart, as rank 1 of 4 had ended with code 0' "an early good end: it is said why"

afresh
begin --ddp=restart=5 -N2 --ntasks-per-node=2
up 0 4
on_node n1 pkill -9 -n -x ddp-agent
ended 60
status_is_not 0 "a lost agent without a spare: the step fails"
prints 'no spare is left' "a lost agent without a spare: it is said"
restored 1

# ---- ends that are wanted ---------------------------------------------------------------------

# stops NAME CODE COMMAND [SRUN-OPTION...]: the ranks save and exit with 75, and nothing is restarted
stops()
{
	afresh
	for r in 0 1 2 3; do echo 'trap "sleep 0.5; exit 75" TERM' >do.0.$r; done
	begin --ddp=restart=5 -N2 --ntasks-per-node=2 --job-name=stops "${@:4}"
	up 0 4
	on_cluster sh -c "$3"
	ended 60
	if [ "$2" = any ]; then status_is_not 0 "$1: the step has failed"; else status_is "$2" "$1: the ranks' code"; fi
	prints_not "$line" "$1: no restart"
	check "$1: no second generation" test ! -e up.1.0
	check "$1: nothing is left" wait_until 30 none_left
}
stops "scancel -s TERM" 75 'scancel --name=stops -s TERM'
stops "scancel" any 'scancel --name=stops'
stops "time limit" any 'scontrol update JobId=$(squeue -h -n stops -o %i) TimeLimit=0:01' --time=5
stops "scancel of the step" any 'scancel $(squeue -h -n stops -o %i).0'
stops "scancel -s USR1, which ends ranks" any 'scancel --name=stops -s USR1'

stops "preemption" any 'srun --partition=high -N4 --exclusive true' --partition=low --exclusive

# ---- stalls -----------------------------------------------------------------------------------

if [ -x "$prefix/bin/gpt" ]; then
	afresh
	cat "$source/libruntime/include/ddp/"*.h >text
	cat >stalled.sh <<-'END'
	[ "$DDP_RESTART_COUNT$RANK" != 03 ] || (sleep 2; kill -STOP $$) &
	exec "$@"
	END
	chmod 644 stalled.sh text
	(as_user srun --ddp=restart=3,stall=3 -N2 --ntasks-per-node=2 sh ./stalled.sh "$prefix/bin/gpt" --data text \
		--layers 2 --width 64 --heads 4 --length 32 --vocab 1000 --threads 1 --steps 1000000 --batch 3 \
		>out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
	step=$!
	check "a stalled rank: srun restarts the step" wait_until 60 grep -qE "$line" out
	output=$(cat out)
	prints 'ddp: the step stalls: no rank has made progress for [0-9.]+ s; .*rank 3 of 4 on n1.*; restart 1 of 3' "a stalled rank: the line names it"
	prints_not 'the step is ended' "a stalled rank: the step goes on"
	on_cluster scancel -u nobody
	ended
else
	skip "a stalled rank" "examples/gpt is not built"
fi

# ---- SLURM's daemons --------------------------------------------------------------------------

afresh
on_rank 0 3 'until [ -e fail ]; do sleep 0.05; done; exit 7'
begin --ddp=restart=3 -N2 --ntasks-per-node=2
up 0 4
on_cluster sh -c 'kill -STOP $(pgrep -x slurmctld)'
: >fail
up 1 4
on_cluster_now() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
on_cluster_now sh -c 'kill -CONT $(pgrep -x slurmctld)'
finish
status_is 0 "slurmctld away: the step ends well"
prints_times 1 "$line" "slurmctld away: it was restarted meanwhile"
rm -f fail

afresh
on_rank 0 3 'until [ -e fail ]; do sleep 0.05; done; exit 7'
begin --ddp=restart=3 -N2 --ntasks-per-node=2
up 0 4
on_node n1 pkill -x slurmd
: >fail
up 1 4
on_node n1 slurmd
finish
status_is 0 "slurmd restarted: the step ends well"
prints_times 1 "$line" "slurmd restarted: a rank's failure meanwhile restarts the step"
wait_until 60 idle
rm -f fail

# ---- allocations ------------------------------------------------------------------------------

afresh
on_rank 0 3 'exit 7'
(as_user salloc -N2 --ntasks-per-node=2 --ddp=restart=3 srun bash ./rank.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
step=$!
up 1 4
finish
status_is 0 "salloc: the step ends well"
prints_times 1 "$line" "salloc: it was restarted"

afresh
on_rank 0 3 'exit 7'
printf '#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 --ddp=restart=3\ncd %s\nsrun bash ./rank.sh\nenv | grep NO_KILL\n' "$work" >batch.sh
(batch_job --output="$work/out" "$work/batch.sh" >/dev/null 2>&1; echo $? >status.new; mv status.new status) &
step=$!
up 1 4
finish
status_is 1 "sbatch: the step ends well, and the script has no variable that is not its own"
prints_times 1 "$line" "sbatch: it was restarted"

# The job outlives a node that SLURM takes for down.
downs()
{
	afresh
	"${@:2}" >out 2>&1 </dev/null &
	step=$!
	up 0 6
	on_cluster scontrol update NodeName=n1 State=DOWN Reason=test
	up 1 6
	check "$1: a node that SLURM takes for down is replaced" test -e up.1.0
	prints_not_in_out "$1"
	on_cluster scontrol update NodeName=n1 State=RESUME
	: >finish
	wait $step
	restored 1
}
# shellcheck disable=SC2034
prints_not_in_out()
{
	output=$(cat out)
	prints "restart 1 of 3: n3 takes the place of n1" "$1: the line says so"
}
downs srun as_user srun --ddp=restart=3,spare=1 -N4 --ntasks-per-node=2 bash ./rank.sh
downs salloc as_user salloc --ddp=restart=3,spare=1 -N4 --ntasks-per-node=2 srun bash ./rank.sh

# Two steps beside each other have generations of their own.
afresh
on_rank 0 1 'exit 7'
cat >two.sh <<'END'
mkdir -p a b; cp rank.sh a; cp rank.sh b; cp do.0.1 a; chmod 777 a b
(cd a && srun --overlap -N2 --ntasks-per-node=1 bash ./rank.sh) &
(cd b && srun --overlap -N2 --ntasks-per-node=1 bash ./rank.sh) &
wait
END
chmod 644 two.sh
(as_user salloc -N2 --ntasks-per-node=1 --ddp=restart=3 bash ./two.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
step=$!
check "two steps: one is restarted" wait_until 30 test -e a/up.1.1
check "two steps: the other one is not" test ! -e b/up.1.1 -a -e b/up.0.1
touch a/finish b/finish
ended
status_is 0 "two steps: both end well"
prints_times 1 "$line" "two steps: one line"

done_testing
