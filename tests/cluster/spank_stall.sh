#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# seconds: 240
# stall=: steps in which no rank makes progress any more, and such as only look so.
. "$source/tests/cluster/lib.sh"

install -m 755 "$build/tests/cluster/training_probe" "$work/training_probe"
probe="$work/training_probe"
report='ddp: rank [0-9]+ of'
# As short as an idle machine allows: a step's start is no stall.
brief=$(stretched 1)

# begin NAME SRUN-ARGUMENT...: a step in the background, whose output is in $work/NAME
begin()
{
	rm -f "$work/up"
	as_user srun -J "$1" "${@:2}" >"$work/$1" 2>&1 &
	step=$!
}
# says NAME TEST: the test that a stall of the step NAME is said
says() { check "$2" wait_until 30 grep -q 'the step stalls' "$work/$1"; }
# finish NAME: ends the step; what it printed is the output
finish()
{
	on_cluster scancel --name "$1"
	wait "$step"
	capture cat "$work/$1"
}
# on_rank_of_n1 SIGNAL: to n1's only rank
on_rank_of_n1() { on_node n1 pkill "-$1" -x training_probe; }

# ---- steps that stall ------------------------------------------------------------------

begin hang --ddp=stall=$((2 * brief)) -N2 --ntasks-per-node=2 "$probe" hang 3
says hang "a rank that hangs makes its step stall, and that is said"
check "the step goes on" kill -0 "$step"
finish hang
prints 'ddp: the step stalls: no rank has made progress for [0-9.]+ s; rank 3 of 4 on n1 never came: it is in forward of step 4 for [0-9.]+ s, last collective #[0-9]+ .*ago; waiting: ranks 0-2 in collective #[0-9]+ all_reduce [a-z0-9]+\[[0-9]+\] sum for [0-9.]+ s$' \
	"with the rank that never came, what it does, and who waits in what"
prints_times 1 'the step stalls' "it was said once"
prints_not "$report" "and nothing else"

begin stop --ddp=stall=$((2 * brief)) -N2 --ntasks-per-node=1 "$probe" hang 9 "$work/never"
check "a step runs" wait_until 30 on_rank_of_n1 0
sleep "$brief" # until it trains
on_rank_of_n1 STOP
says stop "a rank that is stopped by a signal makes its step stall"
on_rank_of_n1 CONT
sleep "$brief" # for longer than the next look takes to come
on_rank_of_n1 STOP
check "when it went on, it is said of the next stall, too" \
	wait_until 30 sh -c "[ \$(grep -c 'the step stalls' '$work/stop') = 2 ]"
on_rank_of_n1 CONT
check "and the step goes on" kill -0 "$step"
finish stop
prints 'the step stalls: .*; rank 1 of 2 on n1 is stopped by a signal or a debugger, .*; waiting: rank 0 in ' \
	"with that rank, and who waits"

capture as_user srun --ddp=stall="$brief",stall-action=kill,on-failure=continue -N1 -n1 "$probe" hang 0 : \
	-N1 -n1 "$probe" hang 0
status_is 137 "all components of a heterogeneous step end"
prints 'the step stalls: .*; rank 0 of 2 on n[01] never came: .*; waiting: rank 1 in collective' "of which one stalls"

capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=2 "$probe" miss 3
status_is 137 "a rank that is stopped before ddp_finalize() makes its step stall"
prints 'the step stalls: .*; rank 3 of 4 on n1 is stopped by a signal or a debugger, .*; waiting: ranks 0-2 in collective #[0-9]+ ddp_finalize\(\) or destroy_process_group\(\) for' \
	"with that rank, for which the others wait there"

capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=2 "$probe" halt 3
status_is 137 "so does one that is stopped behind it, while the others have ended"
prints 'the step stalls: .*; rank 3 of 4 on n1 is stopped by a signal or a debugger, [0-9.]+ s after ddp_finalize\(\) or destroy_process_group\(\); the step is ended \(stall-action=kill\)$' \
	"with that rank"
prints_not "$report" "and no rank that is ended is reported"

capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=2 "$probe" pair 3
status_is 137 "a step stalls also where ranks wait in the second context of their processes, and a third has ended"
prints 'the step stalls: .*; rank 3 of 4 on n1 never came: it is in forward of step 4 for [0-9.]+ s, last collective #[0-9]+ .*ago; waiting: ranks 0-2 in barrier for [0-9.]+ s; the step is ended' \
	"with the rank that never came, and what the others wait in"

# Wherever a rank is in the end of its program, it either gets through or is named.
for microseconds in 200 1000 3000 10000; do
	capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=2 "$probe" alarm 2 "$work/alarm" $microseconds
	case $status in
	0) prints_not 'ddp:' "a rank that was to stop after $microseconds us had ended by then" ;;
	*)
		status_is 137 "a rank that stops $microseconds us behind its last step makes its step stall"
		prints 'the step stalls: .*; rank 2 of 4 on n1 is stopped by a signal or a debugger, ' "with that rank"
		;;
	esac
done

# NCCL's programs know nothing of libddp.
install -m 755 "$build/libruntime/nccl_plugins/profiler/.libs/libnccl-profiler-ddp.so" "$source/tests/cluster/nccl_probe.py" "$work"
begin nccl --ddp="watch=$work/libnccl-profiler-ddp.so,stall=$((2 * brief))" -N2 --ntasks-per-node=2 \
	python3 "$work/nccl_probe.py" 3
says nccl "with watch, a rank that no longer calls NCCL makes its step stall"
finish nccl
prints 'the step stalls: .*; rank 3 of 4 on n1 never came: it is outside NCCL, last collective #2 NCCL all_reduce f32\[1000\] .*ago; waiting: ranks 0-2 in collective #3 NCCL all_reduce f32\[1000\] for' \
	"with that rank, and the collective that the others wait in"

# ---- steps that do not -----------------------------------------------------------------

for action in busy save; do
	capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=2 "$probe" $action 2 "$work/$action" $((4 * brief))
	status_is 0 "an evaluation or a checkpoint that takes longer is no stall ($action)"
	prints_not 'ddp:' "and nothing is said"
done

capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=1 sh -c "'$probe' none 9; sleep $((3 * brief))"
status_is 0 "nor a script that goes on behind its training"
prints_not 'ddp:' "of which nothing is known"

capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=1 sleep $((3 * brief))
status_is 0 "nor is a program without libddp"
prints_not 'ddp:' "of which nothing is known"

capture as_user srun --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=1 sh -c \
	'[ $RANK = 0 ] || sleep '$((3 * brief))'; exec '"'$probe'"' none 9'
status_is 0 "nor a step in which one rank comes late to ddp_init()"
prints_not 'ddp:' "which nobody can know"

begin suspend --ddp=stall="$brief",stall-action=kill -N2 --ntasks-per-node=1 "$probe" hang 9
check "a step runs" wait_until 30 on_rank_of_n1 0
job=$(on_cluster squeue -h --name suspend -o %A)
on_cluster scontrol suspend "$job"
sleep $((4 * brief))
on_cluster scontrol resume "$job"
sleep $((2 * brief))
check "a step that was suspended goes on" kill -0 "$step"
finish suspend
prints_not 'the step stalls' "and nothing was said"

done_testing
