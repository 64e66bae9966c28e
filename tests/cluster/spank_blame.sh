#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# cluster: --conf KillOnBadExit=1 --conf WaitTime=1
# seconds: 240
# takes: 400
# A rank that hangs, and one that leaves: they are named, not those that wait for them.
. "$source/tests/cluster/lib.sh"

install -m 755 "$build/tests/cluster/training_probe" "$work/training_probe"
probe="$work/training_probe"
hung='ddp: rank 3 of 4 on n1 was still running, in forward of step 4 for [0-9.]+ s, last collective #[0-9]+ .*ago; rank [012] of 4 on n[01] exited with code 3'
any='ddp: rank [0-9]+ of'
# For ranks that come, but not at once.
seconds=$(stretched 2)

# One node: slurmstepd sees who is blamed.
capture as_user srun "--ddp=timeout=$seconds" -N1 -n2 "$probe" hang 1
status_is_not 0 "ranks that wait for one that hangs give up"
prints 'ddp: rank 1 of 2 on n0 was still running, in forward of step 4 for [0-9.]+ s, .*; rank 0 of 2 on n0 exited with code 3' \
	"the report begins with the one that hangs"
prints 'last collective #[0-9]+ all_reduce [a-z0-9]+\[[0-9]+\] sum [0-9.]+ s ago: .*rank 1 on n0 ' "and says what the other waited in"
prints_times 1 "$any" "in one line"

# Two nodes: another rank of n1 tells of it.
capture as_user srun "--ddp=timeout=$seconds" -N2 --ntasks-per-node=2 "$probe" hang 3
prints "$hung" "a rank that hangs on another node is named"
prints_times 1 "$any" "in one line"
capture as_user srun "--ddp=timeout=$seconds" -N2 --ntasks-per-node=1 "$probe" spin 1
prints 'ddp: rank 1 of 2 on n1 did not come \(in forward of step 4 for [0-9.]+ s, .*\); rank 0 of 2 on n0 exited with code 3 .*: rank 1 on n1 \(pid [0-9]+\) did not come within '"${seconds}000 ms" \
	"the report begins with one that is alone on its node, and says what it does"
prints_times 1 "$any" "in one line"

# A rank that is stopped, while it trains or before ddp_init(). Its node tells of it.
# stopped NODES TASKS-PER-NODE RANK start|train OPTIONS
stopped()
{
	local ranks=$(($1 * $2))
	rm -f "$work/trains"
	capture as_user srun "--ddp=timeout=$seconds$5" -N"$1" --ntasks-per-node="$2" sh -c '
		cd "$3" || exit
		case $RANK$2 in
		$0start) kill -STOP $$;;
		$0train) (until [ -e trains ]; do sleep 0.05; done; kill -STOP $$) &
		esac
		exec ./training_probe go "$1" trains' "$3" $((($3 + 1) % ranks)) "$4" "$work"
	prints "ddp: rank $3 of $ranks on n$(($3 / $2)) (did not come \\(|was )stopped by a signal or a debugger.*; rank [0-9]+ of $ranks on n[0-9] exited with code 3" \
		"a rank that is stopped leads ($1 nodes of $2, rank $3, $4$5)"
	prints_times 1 "$any" "in one line"
	status_is 3 "srun tells the code of a rank that has given up"
}
for when in start train; do
	stopped 4 1 3 "$when" ''
	stopped 2 2 2 "$when" ''
	stopped 2 1 1 "$when" ,stall=1
done
# A rank that nothing is known of but that it has not come.
for rank in 0 2; do
	capture as_user srun --ddp=timeout="$seconds" -N3 --ntasks-per-node=1 sh -c "[ \$RANK != $rank ] || exec sleep 60; exec $probe none 9"
	prints "ddp: rank $rank of 3 on n$rank did not come; rank [0-9] of 3 on n[0-9] exited with code 3" \
		"one that does not come to ddp_init() leads, with its node (rank $rank)"
	prints_times 1 "$any" "in one line"
done

# Of an error that all ranks get, such as a full disk, the one that has met it speaks.
install -m 755 "$build/tests/cluster/storm_probe" "$work/storm_probe"
mkdir -m 555 "$work/full"
: >"$work/state"
chmod 666 "$work/state"
capture as_user srun --ddp -N2 --ntasks-per-node=2 "$work/storm_probe" "$work/full/checkpoints" "$work/state"
prints 'ddp: rank 0 of 4 on n0 exited with code 3 after [0-9.]+ s, .*: checkpoint of step 10 was not saved: cannot ' \
	"a checkpoint that cannot be written is told by the rank that writes"
prints_times 1 "$any" "alone"

# A rank that leaves with code 0.
capture as_user srun --ddp=timeout=$((3 * seconds)) -N1 -n2 "$probe" leave 1
prints 'ddp: rank 1 of 2 on n0 had ended with code 0, [0-9.]+ s before; rank 0 of 2 on n0 exited with code 3' \
	"a rank that leaves with code 0 is named"
prints_times 1 "$any" "in one line"
for nodes in 1 2; do
	capture as_user srun --ddp=timeout=$((3 * seconds)) "-N$nodes" -n2 "$probe" finish 1
	prints "ddp: rank 1 of 2 on n[01] exited with code 3 .*: operation #[0-9]+ differs: rank 1 on n[01] issued ddp_finalize\\(\\) or destroy_process_group\\(\\), but rank 0 on n0 issued all_reduce|ddp: rank 1 of 2 on n[01] exited with code 3 .* rank 0 on n0 issued all_reduce .* rank 1 on n[01] issued ddp_finalize" \
		"a rank that calls ddp_finalize() too early is named ($nodes nodes)"
	prints_times 1 "$any" "in one line"
done
# One that never comes to it.
for nodes in 1 2; do
	capture as_user srun "--ddp=timeout=$seconds" "-N$nodes" -n4 "$probe" miss 3
	status_is 3 "a rank that is stopped before ddp_finalize() fails the step ($nodes nodes)"
	prints 'ddp: .*rank 3 (of 4 )?on n[01] .*ddp_finalize\(\)' "it is named"
	prints_times 1 "$any" "in one line"
done
capture as_user srun --ddp -N1 -n2 sh -c 'if [ $RANK = 1 ]; then touch '"$work/left"'; exit 0; fi
	while [ ! -e '"$work/left"' ]; do sleep 0.05; done; sleep 0.5; exit 9'
prints 'ddp: rank 0 of 2 on n0 exited with code 9 after [0-9.]+ s; rank 1 of 2 on n0 had ended with code 0, [0-9.]+ s before' \
	"of a program without pages, the early end is told with the failure"

# A pipeline's status is that of its last program: the task ends with 0, though its rank failed.
capture as_user srun --ddp=timeout=$((3 * seconds)) -N2 --ntasks-per-node=1 sh -c "$probe leave 1 | cat"
status_is 1 "an error of libddp's that a pipeline hides is a failure"
prints 'ddp: rank 1 of 2 on n1 was lost; rank 0 of 2 on n0 failed after [0-9.]+ s, though its task exited with code 0, .*: .*rank 1 ' \
	"and is said"
prints_times 1 "$any" "in one line"
capture as_user srun --ddp=on-failure=continue,timeout=$((3 * seconds)) -N2 --ntasks-per-node=1 sh -c "$probe leave 1 | cat"
status_is 1 "with on-failure=continue, too"

# Others wait for the whole timeout in ddp_init() for a rank that never calls it.
for nodes in 1 2; do
	capture as_user srun --ddp -N"$nodes" -n3 -m block "$probe" never 1
	status_is 1 "a rank that ends before ddp_init() fails the step ($nodes nodes)"
	prints 'ddp: rank 1 of 3 on n0 had ended with code 0, [0-9.]+ s before, and without ddp_init\(\) or init_process_group\("ddp"\): have every task call it, or start fewer tasks \(srun -n\); waiting: ranks 0,2 in the first exchange of all ranks' \
		"it is named"
	prints_times 1 'ddp: ' "in one line"
done
capture as_user srun --ddp -N2 --ntasks-per-node=1 "$probe" never 1
prints_times 1 'ddp: rank 1 of 2 on n1 had ended with code 0' "also when it was alone on its node"

# Nothing is said of those that end well.
capture as_user srun --ddp -N2 --ntasks-per-node=2 "$probe" none 0
status_is 0 "a training that ends well succeeds"
prints_not 'ddp:' "and nothing is said"
for nodes in 1 2; do
	capture as_user srun --ddp -N"$nodes" -n2 "$probe" late 0 /dev/null 1
	status_is 0 "nor is a rank failed that ends after the others ($nodes nodes)"
done
capture as_user srun --ddp -N1 -n2 "$probe" retry 0
status_is 0 "nor one that has gone on after an error of libddp"
prints_not 'ddp:' "and nothing is said of it"

done_testing
