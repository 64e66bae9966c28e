#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 240
# log=: a file for each rank and start, and srun's lines with the rank and the node.
. "$source/tests/cluster/lib.sh"

four=(-N2 --ntasks-per-node=2)
dir=$work/logs
newest() { find "$dir" -mindepth 1 -maxdepth 1 -printf '%T@ %p\n' | sort -n | tail -n1 | cut -d' ' -f2; }
# written RANK [START]: what that start has in its file
written() { cat "$(newest)/rank-$1.start-${2:-1}.log"; }

# shellcheck disable=SC2016
capture as_user srun --ddp=log="$dir",on-failure=continue "${four[@]}" sh -c 'echo "out of $RANK"; echo "err of $RANK" >&2; printf "the end of $RANK"; exit 3'
status_is 3 "the ranks' exit code stays"
prints_times 4 '^\[rank [0-3] n[01]\] out of [0-3]$' "srun's lines have the rank and the node"
prints '^\[rank 3 n1\] err of 3$' "of both streams"
prints '^\[rank 2 n1\] the end of 2$' "and the last line, which has no end"
same 4 "$(find "$(newest)" -name 'rank-?.start-1.log' -user nobody | wc -l)" "each rank has a file, which is the user's"
same "err of 3,out of 3,the end of 3" "$(written 3 | head -n 2 | sort | paste -sd,),$(written 3 | tail -n 1)" "with all that it wrote"

# A relative folder is one of the working directory, and other output of Slurm's stays as it was.
mkdir -m 777 "$work/cwd"
# shellcheck disable=SC2016
capture as_user sh -c 'cd "$1" && seq 3000 | srun --ddp=log=mine -N1 -n2 --output=out-%t sh -c "if [ \$RANK = 0 ]; then cat; else seq 5; fi"' cwd "$work/cwd"
status_is 0 "a folder of the working directory, and standard input"
same "$(seq 3000 | cksum)" "$(cksum <"$work/cwd/out-0")" "--output=%t has no labels"
same "$(seq 5 | cksum)" "$(cat "$work"/cwd/mine/*/rank-1.start-1.log | cksum)" "the file has the same"

# The step ends by SIGKILL as soon as all have written: ddp-log is no process of the step.
# shellcheck disable=SC2016
capture as_user srun --ddp=log="$dir" "${four[@]}" sh -c 'seq 20000; echo "last words"; [ $RANK != 1 ] || { sleep 0.2; kill -9 $$; }; exec sleep 100'
status_is 137 "a step that is killed"
for rank in 0 1 2 3; do
	same "$({ seq 20000; echo "last words"; } | cksum)" "$(written "$rank" | cksum)" "the file of rank $rank has every line"
done
prints '^\[rank 1 n0\] last words$' "and srun has the last ones"
prints_not '^[0-9]|\][^ ]|\].*\[' "lines are whole"
prints 'rank 1 of 4 on n0 was killed by signal 9' "and the failure"

# Each start has a file of its own.
# shellcheck disable=SC2016
capture as_user srun --ddp=log="$dir",restart=2 "${four[@]}" sh -c 'echo "start $DDP_RESTART_COUNT"; [ $RANK = 2 ] && [ $DDP_RESTART_COUNT != 2 ] && exit 1; [ $DDP_RESTART_COUNT = 2 ] || sleep 100'
status_is 0 "a step that starts again"
same "start 0,start 1,start 2" "$(for i in 1 2 3; do written 0 $i; done | paste -sd,)" "each start has its file"
prints_times 4 '^\[rank [0-3] n[01]\] start 2$' "and its lines"

# A terminal, an unbuffered output and a lone rank
capture as_user sh -c 'script -qec "srun --pty --ddp=log=$1 -n1 test -t 1" /dev/null' pty "$dir"
status_is 0 "--pty keeps its terminal"
capture as_user srun -u --ddp=log="$dir" -N2 sh -c 'test -t 1 && echo terminal'
prints_times 2 '^\[rank [01] n[01]\] terminal' "-u keeps a terminal"
capture as_user srun --ddp=log="$dir" -N1 -n1 echo alone
prints '^alone$' "a lone rank needs no label"

# The folder cannot be made, the disk is full.
capture as_user srun --ddp=log=/proc/none "${four[@]}" true
status_is_not 0 "a folder that cannot be"
prints 'n[01]: log=/proc/none: cannot make the folder: ' "says why"
install -d -m 1777 "$work/small"
trap 'on_node n1 umount "$work/small" 2>/dev/null; true' EXIT
on_node n1 mount -t tmpfs -o size=16k,mode=1777 small "$work/small"
capture as_user srun --ddp=log="$work/small" "${four[@]}" sh -c 'seq 9000'
status_is 0 "a full disk fails no rank"
prints "ddp: rank [23] on n1: what it writes does not reach its file $work/small/[0-9.]+/rank-[23].start-1.log: No space left" "is told"
prints_times 4 '^\[rank [0-3] n[01]\] 9000$' "and srun has all lines"

# slurmstepd makes ddp-log while it is root by its real and saved ids. Other clusters may have some, too.
# shellcheck disable=SC2016
logs() { on_node "$1" sh -c 'for pid in $(pgrep --ns $$ --nslist net -x ddp-log); do grep "^Uid:" /proc/$pid/status; done' | tr -s '\t' ' '; }
# shellcheck disable=SC2016
as_user srun --ddp=log="$dir" -w n0 -N1 -n1 sh -c 'touch "$1/runs"; while [ -e "$1/runs" ]; do sleep 0.1; done' ids "$dir" >/dev/null 2>&1 &
for ((i = 0; i < 300; i++)); do [ ! -e "$dir/runs" ] || break; sleep 0.1; done
id=$(id -u nobody)
same "2 Uid: $id $id $id $id" "$(logs n0 | uniq -c | sed 's/^ *//')" "ddp-log has the user's id alone"
rm -f "$dir/runs"
wait $!
same "" "$(logs n0; logs n1)" "no ddp-log is left"
done_testing
