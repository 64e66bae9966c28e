#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 240
# record=: the flight records of ranks that differ, hang and die, and ddp-report's verdict.
. "$source/tests/cluster/lib.sh"

install -m 755 "$build/tests/cluster/record_probe" "$work/record_probe"
probe=$work/record_probe
four=(-N2 --ntasks-per-node=2)
dir=$work/records
brief=$(stretched 1)

# merge: the newest step's records
merge()
{
	capture as_user "$prefix/bin/ddp-report" --record "$dir"
	status_is 0 "ddp-report merges them"
}
# files_of STEP: so many of the user's files
files_of() { find "$1" -name 'rank-*.jsonl' -user nobody | wc -l; }
newest() { find "$dir" -mindepth 1 -maxdepth 1 -printf '%T@ %p\n' | sort -n | tail -n1 | cut -d' ' -f2; }

# ---- a failure -------------------------------------------------------------------------

capture as_user srun --ddp=record="$dir" "${four[@]}" "$probe" mismatch 1 "$work/never"
status_is_not 0 "a step whose ranks call different operations fails"
same 4 "$(files_of "$(newest)")" "each rank of both nodes has a file, which is the user's"
merge
prints '^mismatch in #[0-9]+ of all ranks: rank 1 called broadcast f32\[2048\] root 0, where ranks 0, 2-3 called all_reduce f32\[4096\] sum; operations differ$' \
	"who called what"

capture as_user srun --ddp=record="$dir" "${four[@]}" "$probe" die 3 "$work/never"
status_is_not 0 "a step with a rank that dies fails"
merge
prints '^ranks 0-2 were in all_reduce f32\[4096\] sum #[0-9]+ \(16 KiB, all ranks\), which failed after' "the others were in the sum"
prints '^  rank 3 on n1 has not begun it: its last was barrier #[0-9]+, .*its program ended with signal 9' "the dead rank had not begun it"
prints '^  3 +n1 .* barrier +-$' "the table has each rank's last operations"
check "the page is there" grep -q '<svg class="record"' "$(newest)/record.html"

# The program dies again in the second generation.
capture as_user srun --ddp=record="$dir",restart=1 "${four[@]}" "$probe" die 3 "$work/never"
status_is_not 0 "a step whose restarts are used up fails"
same 1,2 "$(grep -o '"generation":[0-9]*' "$(newest)/rank-0.jsonl" | cut -d: -f2 | sort -u | paste -sd,)" "each generation has its records"
merge
prints '^step .*, generation 2$' "the last one counts"
prints '^  rank 3 on n1 has not begun it: its last was barrier #' "with its own operations"

# Another file is in the way of one, and the disk of the other node is full.
install -d -m 1777 "$work/small"
trap 'on_node n1 umount "$work/small" 2>/dev/null; true' EXIT
on_node n1 mount -t tmpfs -o size=8k,mode=1777 small "$work/small"
capture as_user srun --ddp=record="$work/small" "${four[@]}" sh -c '
	[ $RANK != 1 ] || mkfifo "$DDP_RECORD_DIR/$SLURM_JOB_ID.$SLURM_STEP_ID/rank-1.jsonl"; exec "$@"' way "$probe" die 3 "$work/never"
prints "flight records of node n0 were not written to $work/small: cannot open rank-1.jsonl: " "a FIFO in a file's way is told"
prints "flight records of node n1 were not written to $work/small: cannot write rank-[23].jsonl: No space left on device" "a full disk, too"
prints 'rank 3 of 4 on n1 was killed by signal 9' "and the failure"
prints_times 2 'flight records of' "once for each node"

# ---- a stall ---------------------------------------------------------------------------

capture as_user srun --ddp=record="$dir",stall="$brief",stall-action=kill "${four[@]}" "$probe" hang 2 "$work/never"
status_is_not 0 "a step that stalls is ended"
merge
prints '^step [0-9.]+: 4 of 4 ranks \(stall\)$' "the records of the stall count"
prints '^ranks 0-1, 3 wait in all_reduce f32\[4096\] sum #[0-9]+ \(16 KiB, all ranks\) for ' "they tell of the ranks that wait"
prints '^  rank 2 on n1 has not begun it: its last was barrier #[0-9]+, which ended [0-9.]+ s before; it is ' "and of the one that they wait for"
prints '^after that the programs ended: .*(code|signal) [0-9]+$' "and then how the programs ended"
check "the records of the stall have the threads" grep -q '"reason":"stall".*"threads":"thread [0-9]* (record_probe)' "$(newest)/rank-2.jsonl"
check "and their stacks" grep -q '"reason":"stall".*stack of thread [0-9]* (record_probe):.*(pause+0x' "$(newest)/rank-2.jsonl"

capture as_user srun --ddp=record="$dir",stall="$brief",stall-action=kill "${four[@]}" "$probe" stop 2 "$work/never"
merge
prints '^  rank 2 on n1 has not begun it: .*; it is stopped by a signal or a debugger; it is ' "a stopped rank is told from those that wait"

# The witness writes that record.
capture as_user srun --ddp="record=$work/small,stall=$brief,stall-action=kill" "${four[@]}" "$probe" hang 2 "$work/never"
prints "flight records of node n1 were not written to $work/small: cannot write rank-[23].jsonl: No space left" "a full disk is told of a stall"

# ---- on demand -------------------------------------------------------------------------

as_user srun -J asked --ddp=record="$dir" "${four[@]}" "$probe" wait 2 "$work/go" >"$work/asked" 2>&1 &
step=$!
check "a step runs" wait_until 30 sh -c "[ \$('$source/slurm/cluster' run --dir '$cluster' -- squeue -h -s -n asked -o %i | wc -l) -gt 0 ]"
job=$(on_cluster squeue -h -n asked -o %i)
check "its ranks wait" wait_until 30 sh -c \
	"'$source/slurm/cluster' run --dir '$cluster' --user nobody -- '$prefix/bin/ddp-status' '$job' | grep -q '3 waiting for others'"
sleep 1 # so long a rank waits before the verdict tells of it
capture as_user "$prefix/bin/ddp-status" --dump "$job"
status_is 0 "ddp-status --dump has the records written"
prints "records are in $dir/$job\\.0; 'ddp-report --record $dir/$job\\.0'" "and says where"
merge
prints '^ranks 0-1, 3 wait in all_reduce f32\[4096\] sum #[0-9]+ \(16 KiB, all ranks\) for' "they tell who waits"
capture as_user "$prefix/bin/ddp-status" --dump="$work/elsewhere" "$job"
same 4 "$(files_of "$work/elsewhere")" "also elsewhere"
touch "$work/go"
wait "$step"
same 0 $? "and the step goes on"
same 4 "$(cat "$dir/$job.0"/rank-*.jsonl | wc -l)" "a step that ends well writes no record by itself"

# ---- directories that will not do ------------------------------------------------------

capture as_user srun --ddp=record=/proc/none "${four[@]}" true
status_is_not 0 "a directory that cannot be made is refused"
prints 'record=/proc/none: cannot make the folder: ' "in words, before the program"
install -d -m 755 "$work/locked"
capture as_user srun --ddp=record="$work/locked" "${four[@]}" true
prints "record=$work/locked: cannot make its folder [0-9.]+: Permission denied" "and so is one of another user"
capture as_user srun --ddp=record=relative "${four[@]}" true
prints "key 'record' does not take 'relative': it takes a directory that begins with /" "and one that nodes cannot find"
capture as_user srun --ddp=record="$dir",check=json -N1 -n1 true
prints "\"DDP_RECORD_DIR\".*$dir" "check shows it"
capture as_user srun --ddp=record=no "${four[@]}" "$probe" die 3 "$work/never"
prints_not 'record=' "no turns it off"

done_testing
