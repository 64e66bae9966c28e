#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --conf KillOnBadExit=1 --conf WaitTime=1 --conf PreemptType=preempt/partition_prio --conf PreemptMode=CANCEL --conf 'PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=20 MaxTime=INFINITE' --conf 'PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE'
# seconds: 300
# A step that Slurm asks to stop may take its time: no rank is ended while it
# saves, and none is called a failure. What is a failure is none the less.
. "$source/tests/cluster/lib.sh"

report='ddp: (rank|launcher|all|slurmstepd)'

# A rank. What it does with SIGTERM: save SECONDS CODE, or end as by default. It
# notes when it is ready for the signal, and when all is saved.
{ echo "$no_process" && cat <<'END'; } >"$work/rank.sh"
rank=${RANK:-$PET_NODE_RANK}
if [ "$1" = save ]; then
	trap "sleep $2; echo whole >saved.$rank; exit $3" TERM
fi
set -- "" "$2" "$3"
: >up.$rank
while :; do sleep 0.05; done
END
# ready.sh RANKS "COMMAND" SRUN-ARGUMENT...: runs COMMAND when so many ranks are ready
{ echo "$no_process" && cat <<'END'; } >"$work/ready.sh"
ranks=$1 command=$2
shift 2
rm -f up.* saved.*
"$@" &
until all=(up.*); [ -e "${all[0]}" ] && [ ${#all[@]} = $ranks ]; do sleep 0.05; kill -0 $! 2>/dev/null || break; done
eval "$command"
wait $!
END
cd "$work" || exit 1
when_ready() { capture as_user bash "$work/ready.sh" "$@"; }
saved() { cat "$work"/saved.* 2>/dev/null | grep -c whole; }
term='scancel -s TERM --user 65534'
# within SECONDS NAME: of an idle machine's time
within() { if is_within $((took * 1000)) $(($1 * 1000)); then ok "$2"; else not_ok "$2" "it took $took s"; fi; }

# ---- Slurm asks the step to stop ----------------------------------------------------

when_ready 4 "$term" srun --ddp -N2 --ntasks-per-node=2 \
	bash -c 'if [ $RANK = 0 ]; then . ./rank.sh save 4 0; else . ./rank.sh; fi'
same 1 "$(saved)" "scancel -s TERM: rank 0 alone saves for 4 s, and all of it"
prints_not "$report" "nothing is called a failure"

when_ready 4 "$term" srun --ddp -N2 --ntasks-per-node=2 bash -c '. ./rank.sh save $RANK 143'
same 4 "$(saved)" "all ranks save, for as many seconds as their number, and exit with 143"
prints_not "$report" "nothing is called a failure"

when_ready 4 "$term" srun --ddp -N2 --ntasks-per-node=2 bash -c '. ./rank.sh save $RANK 3'
same 4 "$(saved)" "they exit with a code of their own"
prints_not "$report" "nothing is called a failure"
status_is 3 "and srun tells it"

when_ready 2 "$term" srun --ddp=launcher -N2 --ntasks-per-node=1 \
	bash -c 'if [ $PET_NODE_RANK = 0 ]; then . ./rank.sh save 3 0; else . ./rank.sh; fi'
same 1 "$(saved)" "a launcher may save when the other one has ended"
prints_not "$report" "nothing is called a failure"

when_ready 2 'srun -N2 -n2 -p high true' srun -p low --ddp -N2 --ntasks-per-node=1 --exclusive \
	bash -c 'if [ $RANK = 0 ]; then . ./rank.sh save 8 0; else . ./rank.sh; fi'
same 1 "$(saved)" "preempted, a rank saves within the partition's GraceTime"
prints_not "$report" "nothing is called a failure"

when_ready 4 "$term" srun --ddp -N2 --ntasks-per-node=2 \
	bash -c 'if [ $RANK = 0 ]; then trap "" TERM; fi; . ./rank.sh'
prints 'ddp: rank [123] of 4 on n[01] .* 5\.[0-9] s later the step was still running, and is ended' \
	"a rank that does not stop is ended after KillWait"
prints_times 1 "$report" "and a line says so"

# The controller looks at limits twice a minute, and may send the signal 30 s too early. So the job gets its limit when the
# ranks are ready.
limit=100 when_ready 2 'scontrol update JobId=$(squeue -h -o %i) TimeLimit=1' srun --ddp -t5 --signal=TERM@25 -N2 --ntasks-per-node=1 \
	bash -c 'if [ $RANK = 0 ]; then . ./rank.sh save 8 0; else . ./rank.sh; fi'
same 1 "$(saved)" "--signal=TERM@25: a rank saves"
prints_not "$report" "nothing is called a failure"

# ---- Slurm sends another signal -----------------------------------------------------

# A rank that saves for $1 seconds when it is sent SIGUSR1, and exits with code $2.
saves=$no_process'
	save_on_usr1() { trap "sleep $1; echo whole >saved.$RANK; exit $2" USR1; : >up.$RANK; while :; do sleep 0.05; done; }
	'
usr1='scancel -s USR1 --user 65534'
for grace in '' =grace=60; do
	when_ready 4 "$usr1" srun "--ddp$grace" -N2 --ntasks-per-node=2 bash -c "$saves"'
		if [ $RANK = 0 ]; then save_on_usr1 4 0; else save_on_usr1 0 75; fi'
	same 4 "$(saved)" "scancel -s USR1: rank 0 saves for 4 s when the others have ended (--ddp$grace)"
	prints 'ddp: rank [123] of 4 on n[01] exited with code 75 after [0-9.]+ s; the step was sent a signal before, so the others may save' \
		"what ended first is told, and why the others go on"
	status_is 75 "with its code"
done
when_ready 4 'kill -USR1 $!' srun --ddp -N2 --ntasks-per-node=2 bash -c "$saves"'
	if [ $RANK = 0 ]; then save_on_usr1 2 0; fi; : >up.$RANK; while :; do sleep 0.05; done'
same 1 "$(saved)" "a signal to srun, which hands it on: a rank saves beside others that it ends"
when_ready 4 "$usr1" srun --ddp=grace=1 -N2 --ntasks-per-node=2 bash -c "$saves"'
	if [ $RANK = 0 ]; then save_on_usr1 60 0; else save_on_usr1 0 75; fi'
prints 'ddp: rank [123] of 4 on n[01] exited with code 75 after [0-9.]+ s; 1.0 s later the step was still running, and is ended' \
	"what still runs after grace= is ended"
within 8 "in time"

# ---- what does not end by itself -----------------------------------------------------

when_ready 2 "$term" srun --ddp=grace=2 -N2 --ntasks-per-node=1 \
	bash -c 'if [ $RANK = 0 ]; then trap "" TERM; fi; . ./rank.sh'
prints 'ddp: rank 1 of 2 on n1 was killed by signal 15 \(SIGTERM\) after [0-9.]+ s; 2.0 s later the step was still running, and is ended' \
	"what has not stopped after grace= is ended, and why is said"
within 8 "in time"
prints_times 1 "$report" "in one line"

when_ready 2 "$term" srun --ddp=grace=1,on-failure=continue -N2 --ntasks-per-node=1 \
	bash -c 'if [ $RANK = 0 ]; then . ./rank.sh save 3 0; else . ./rank.sh; fi'
same 1 "$(saved)" "on-failure=continue ends nothing"
prints_not "$report" "and finds nothing to say"

# ---- ends of which Slurm knows nothing --------------------------------------------------

capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c \
	'case $RANK in 0) sleep 1; kill -TERM $$;; 1) sleep 1.03; exit 1;; *) exec sleep 30;; esac'
prints 'ddp: rank 1 of 4 on n0 exited with code 1' "a failure beside a rank that ended by SIGTERM is reported"
prints_times 1 "$report" "alone"
status_is 1 "srun tells its code"
within 8 "and ends the step"

capture as_user srun --ddp=grace=2 -N2 --ntasks-per-node=2 sh -c \
	'case $RANK in [01]) sleep 0.5; kill -TERM $$;; *) exec sleep 30;; esac'
prints 'ddp: (rank [01] of 4|all 2 tasks) on n0 .*SIGTERM.*; 2.0 s later the step was still running, and is ended' \
	"when all tasks of a node end by SIGTERM, the others' are ended after grace="
within 10 "in time"

# A rank of a training that a person ends takes along all that wait for it.
install -m 755 "$build/tests/cluster/training_probe" "$work/training_probe"
# ended SIGNAL RANK TASKS-PER-NODE OPTIONS
ended()
{
	rm -f trains
	capture as_user srun "--ddp$4" -N2 --ntasks-per-node="$3" sh -c '
		[ $RANK != $1 ] || (until [ -e trains ]; do sleep 0.05; done; kill -$0 $$) &
		exec ./training_probe go 0 trains' "$1" "$2"
}
while read -r signal number rank per_node options; do
	ended "$signal" "$rank" "$per_node" "$options"
	prints "ddp: rank $rank of $((2 * per_node)) on n$((rank / per_node)) was killed by signal $number \\(SIG$signal\\)" \
		"a rank that a person ends by SIG$signal is named, not those that lost it ($rank, $per_node a node$options)"
	prints_times 1 "$report" "in one line"
	status_is $((128 + number)) "srun tells 128 + $number"
	within 8 "and ends the step, without grace="
done <<-'END'
	TERM 15 0 1
	INT 2 3 2
	TERM 15 0 2 =on-failure=continue
END

capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c \
	'case $RANK in
	2) until [ -s pid.3 ]; do sleep 0.05; done; kill -9 $(cat pid.3) $$;;
	3) echo $$ >pid.3;;
	esac
	exec sleep 30'
prints 'ddp: all 2 tasks on n1 were killed by signal 9 \(SIGKILL\) after' "all tasks of a node that were killed are named as that"
prints_times 1 "$report" "once"
status_is 137 "srun tells 128 + 9"

# What a task does to its own process group is not Slurm's doing.
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c \
	'trap "" TERM; [ $RANK != 1 ] || { sleep 1; kill -TERM 0; exit 7; }; exec sleep 30'
prints 'ddp: rank 1 of 4 on n0 exited with code 7 after [0-9.]+ s$' \
	"a rank that signals its own process group and fails is a failure"
status_is 7 "srun tells its code"
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c \
	'[ $RANK != 2 ] || { sleep 1; kill -KILL 0; }; exec sleep 30'
prints 'ddp: all 2 tasks on n1 were killed by signal 9 \(SIGKILL\) after' "and so is one that kills its group"
within 6 "at once"

# With everything that slurmstepd has forked.
: >"$work/killed"
(
	wait_until 30 test -e "$work/up.3"
	on_node n1 sh -c 'pkill -KILL -P "$(pgrep -o -x slurmstepd)"'
) &
when_ready 4 true srun --ddp -N2 --ntasks-per-node=2 bash -c '. ./rank.sh'
wait
prints 'ddp: all 2 tasks on n1 were killed by signal 9 \(SIGKILL\) after' "also when the node's witness was killed with them"
prints_times 1 "$report" "once"

when_ready 4 'scancel -s KILL --user 65534' srun --ddp -N2 --ntasks-per-node=2 bash -c '. ./rank.sh'
prints_not "$report" "but not when it was Slurm who killed them"

# n1 takes its time to end its tasks.
rm -f "$work/up.3"
(
	wait_until 30 test -e "$work/up.3"
	on_node n1 pkill -STOP -x slurmstepd
	on_cluster sh -c 'scancel "$(squeue -h -o %i).0"'
	sleep 4
	on_node n1 pkill -CONT -x slurmstepd
) &
when_ready 4 true srun --ddp=silence=60 -N2 --ntasks-per-node=2 bash -c '. ./rank.sh'
wait
status_is 137 "scancel of a step, with a node that is slow,"
prints_not "$report" "is no failure, either"

rm -f "$work/up.3"
(
	wait_until 30 test -e "$work/up.3"
	on_node n1 pkill -KILL -x slurmstepd
) &
when_ready 4 true srun --ddp -N2 --ntasks-per-node=2 bash -c '. ./rank.sh'
wait
prints 'ddp: slurmstepd on n1 has died, with 2 of the step.s 4 tasks in its care' "a slurmstepd that dies is named"
status_is_not 124 "and the step ends"
capture on_node n1 pgrep -u nobody -f 'rank.sh'
same '' "$output" "with the tasks that it has left behind"

capture "$source/slurm/cluster" status --dir "$cluster"
prints_not 'drain|down|fail' "no node was drained"

done_testing
