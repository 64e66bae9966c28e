#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# cluster: --conf KillWait=5 --conf WaitTime=1 --conf PreemptType=preempt/partition_prio --conf PreemptMode=CANCEL --conf 'PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=20 MaxTime=INFINITE' --conf 'PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE'
# seconds: 500
# restart= where ranks fail, stall or are stopped, and where SLURM's daemons are away: when a step goes on, and when it ends.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/restart/ranks.sh"

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
rm -f port listens fail
on_rank 0 0 'echo $MASTER_PORT >port'
on_rank 0 3 'until [ -e fail ]; do sleep 0.05; done; exit 7'
begin --ddp=restart=1 -N2 --ntasks-per-node=2
up 0 4
wait_until 10 test -s port
on_node n0 python3 -c 'import socket, sys, time
taken = socket.create_server(("", int(sys.argv[1]) + 1))
open(sys.argv[2], "w")
time.sleep(20)' "$(cat port)" "$work/listens" &
listener=$!
check "a port that is taken: a program takes it" wait_until 10 test -e listens
: >fail
up 1 4
finish
kill $listener
status_is 0 "a port that is taken: the step ends well"
prints 'ddp: .*port [0-9]+ .* cannot be used on n0.*; the next port is tried, which is no restart' "a port that is taken: it is said"
prints_times 1 "$line" "a port that is taken: it costs no restart"
rm -f port listens fail

afresh
(as_user srun --ddp=restart=5 -N2 --ntasks-per-node=2 ./missing >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
step=$!
ended
status_is 2 "a program that is missing: its code"
prints 'ddp: rank [0-3] of 4 .*; no restart, as SLURM could not start the program$' "a program that is missing: it is said why"
prints_not "$line" "a program that is missing: no restart"

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

afresh
rm -f dumped.*
for r in 0 1 2; do on_rank 0 $r "trap ': >dumped.$r' USR1; : >dumps.$r"; done
on_rank 0 3 "trap ': >dumped.3' USR1; : >dumps.3; until [ -e dumped.3 ]; do sleep 0.05; done; exit 7"
begin --ddp=restart=1 -N2 --ntasks-per-node=2 --job-name=dumps
check "a signal that asks for a stack: all ranks handle it" wait_until 20 test -e dumps.0 -a -e dumps.1 -a -e dumps.2 -a -e dumps.3
on_cluster scancel --name=dumps -s USR1
up 1 4
finish
status_is 0 "a signal that asks for a stack: a later failure restarts the step"
prints_times 1 "$line" "a signal that asks for a stack: once"

stops "preemption" any 'srun --partition=high -N4 --exclusive true' --partition=low --exclusive

. "$source/tests/cluster/restart/suspended.sh"

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
