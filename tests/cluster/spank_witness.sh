#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --conf KillWait=30
# seconds: 300
# Somebody kills a node's witness and nothing else. SLURM has killed nothing then, so that a rank that fails
# is named and ends the step as soon as with the witness, and not KillWait later.
. "$source/tests/cluster/lib.sh"

cd "$work" || exit 1
# A rank waits for its order, which only the one that is to fail gets.
{ echo "$no_process" && cat <<'END'; } >"$work/rank.sh"
echo $$ >pid.$RANK
: >up.$RANK
until [ -e go.$RANK ]; do sleep 0.02; done
date +%s%N >began
eval "$(cat go.$RANK)"
END
# A witness makes its keeper a moment after the step's start.
keepers_are_there() { wait_until 30 on_node n0 pgrep -x ddp-keeper >keepers && wait_until 30 on_node n1 pgrep -x ddp-keeper >keepers; }
# kill_witness NODE, and kill_both NODE with the keeper, which makes another witness
kill_witness() { on_node "$1" pkill -KILL -x ddp-witness; }
kill_both() { on_node "$1" pkill -KILL -x 'ddp-(witness|keeper)'; }

# fails NAME RANKS "BEFORE" RANK "ORDER" [OPTION]: a step of so many ranks on n0 and n1. When all ranks run, BEFORE
# is evaluated, and then the rank gets its order. $took_ms is what passes between that and srun's end.
fails()
{
	local name=$1 ranks=$2 before=$3 rank=$4 order=$5 srun
	rm -f up.* go.* pid.* began
	as_user srun "--ddp${6:+=$6}" -N2 --ntasks-per-node=$((ranks / 2)) bash -c '. ./rank.sh' >out 2>&1 &
	srun=$!
	wait_until 30 sh -c "[ \$(ls $work/up.* | wc -l) = $ranks ]"
	keepers_are_there
	eval "$before"
	echo "$order" >go.tmp && mv go.tmp "go.$rank"
	status=0
	wait $srun || status=$?
	took_ms=$((($(date +%s%N) - $(cat began)) / 1000000))
	output=$(cat out)
	if is_within $took_ms 2000; then ok "$name: the step ends soon"; else not_ok "$name: the step ends soon" "after $took_ms ms"; fi
	printf '# %s: %s ms\n' "$name" $took_ms
}

# Evaluated by fails().
twice()
{
	local i
	for i in 1 2; do
		kill_witness n0
		kill_witness n1
		sleep 1 # the killed ones have the name until they are reaped
		wait_until 10 on_node n0 pgrep -x ddp-witness
		wait_until 10 on_node n1 pgrep -x ddp-witness
	done
	for i in n0 n1; do on_node $i pgrep -c -x ddp-witness; done | xargs >there
}

fails "with all witnesses" 4 '' 1 'kill -9 $$'
prints_times 1 'ddp: rank 1 of 4 on n0 was killed by signal 9' "rank 1 is named"

fails "n0's witness was killed before rank 1 is" 4 'kill_witness n0; sleep 1' 1 'kill -9 $$'
prints_times 1 'ddp: rank 1 of 4 on n0 was killed by signal 9' "rank 1 is named"
status_is 137 "and srun tells its signal"

fails "n1's witness was killed as rank 2 exits" 4 '' 2 'pkill -KILL -x ddp-witness; exit 7'
prints_times 1 'ddp: rank 2 of 4 on n1 exited with code 7' "rank 2 is named"
status_is 7 "and srun tells its code"

fails "n1's witness was killed with its only rank" 2 '' 1 'pkill -KILL -x ddp-witness; kill -9 $$'
prints_times 1 'ddp: rank 1 of 2 on n1 was killed by signal 9' "rank 1 is named"

fails "both nodes' witnesses were killed twice" 4 'twice' 3 'exit 7'
prints_times 1 'ddp: rank 3 of 4 on n1 exited with code 7' "rank 3 is named"
status_is 7 "and srun tells its code"
same '1 1' "$(cat there)" "and both nodes had a witness again"

# Nobody can make another witness now: a node judges by the ends alone.
fails "n0's witness and keeper were killed before rank 1 is" 4 'kill_both n0; sleep 1' 1 'kill -9 $$'
prints_times 1 'ddp: rank 1 of 4 on n0 was killed by signal 9' "rank 1 is named"

fails "n1's witness and keeper were killed with rank 2" 4 '' 2 'pkill -KILL -x "ddp-(witness|keeper)"; kill -9 $$'
prints_times 1 'ddp: rank 2 of 4 on n1 was killed by signal 9' "rank 2 is named"

# Rank 1 has lost rank 2, says its page (DDP_ERR_PEER is 9), while rank 3 lives on: the cause is told first.
cat >"$work/loses.py" <<'END'
import mmap, os, struct, time
page = mmap.mmap(int(os.environ["DDP_PROGRESS_FD"]), 4096, offset=4096 * int(os.environ["LOCAL_RANK"]))
body = struct.pack("<IIqQiiQ64s256sII", 0x31706464, 3, 12, time.monotonic_ns(), 2, 9, 45, b"", b"rank 2 is lost", 9, 3)
page[:len(body)] = body
open("loses", "w").close()
while not os.path.exists("killed"):
    time.sleep(0.002)
os._exit(3)
END
chmod 644 "$work/loses.py"
fails "n1's witness and keeper were killed with rank 2, which rank 1 loses" 4 \
	'rm -f loses killed; echo "exec /usr/bin/python3 ./loses.py" >go.1; wait_until 10 test -e loses' \
	2 'pkill -KILL -x "ddp-(witness|keeper)"; : >killed; kill -9 $$'
prints_times 1 'ddp: rank 2 of 4 on n1 was killed by signal 9' "rank 2 is named"
status_is 137 "and srun tells its signal"

# An srun that is stopped answers nobody: the node itself asks for the step's end.
rm -f up.* go.* stop stopped
as_user sh -c 'srun --ddp -N2 --ntasks-per-node=2 bash -c ". ./rank.sh" &
	until [ -e stop ]; do sleep 0.1; done; kill -STOP $!; : >stopped
	while [ -e stop ]; do sleep 0.1; done; kill -CONT $!; wait' >out 2>&1 &
srun=$!
wait_until 30 sh -c "[ \$(ls $work/up.* | wc -l) = 4 ]"
kill_both n1
sleep 1
: >stop
wait_until 10 test -e stopped
echo 'exit 7' >go.tmp && mv go.tmp go.2
rank_0_is_gone() { ! on_node n0 pgrep -fx 'bash -c \. \./rank\.sh' >/dev/null; }
check "n1's witness and keeper were killed, and srun does not answer: n1 ends the step" wait_until 15 rank_0_is_gone
rm stop
for i in 0 1 3; do [ -e go.$i ] || echo 'exit 0' >go.$i; done
wait $srun

# The next witness sees what the first one would have seen.
{ echo "$no_process" && cat <<'END'; } >"$work/saves.sh"
trap 'sleep 1; exit 3' TERM
: >up.$RANK
while :; do sleep 0.05; done
END
rm -f up.*
as_user srun --ddp -N2 --ntasks-per-node=1 bash -c '. ./saves.sh' >out 2>&1 &
srun=$!
wait_until 30 sh -c "[ \$(ls $work/up.* | wc -l) = 2 ]"
keepers_are_there
kill_witness n0
kill_witness n1
sleep 1
wait_until 10 on_node n0 pgrep -x ddp-witness && wait_until 10 on_node n1 pgrep -x ddp-witness
on_cluster scancel -s TERM --user 65534
status=0
wait $srun || status=$?
output=$(cat out)
status_is 3 "scancel -s TERM after the witnesses were killed: ranks save and end"
prints_not 'ddp: rank' "and none is called a failure"
same '' "$(for node in n0 n1; do on_node $node pgrep -x 'ddp-(witness|keeper)'; done)" "no witness and no keeper is left"
done_testing
