#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# cluster: --conf KillWait=5 --conf WaitTime=1
# seconds: 500
# restart= where nodes lose their power or their network: which node takes which place, and when a step goes on.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/restart/ranks.sh"

# ---- nodes without power ----------------------------------------------------------------------

# fails_before NODE RANK: the rank has told of its end when the node loses its power
fails_before()
{
	# Nothing is started in between: the next generation may begin soon.
	# shellcheck disable=SC2016 # the head expands it
	head bash -c "$no_process"'
		exec 9> >(exec ip -batch -)
		: >"fail.$2"; until [ -e "fail.$2.told" ]; do sleep 0.01; done; sleep 0.15; echo "link set n$1 down" >&9' fails_before "$@"
}
# loses NODE PLACES NAME [RANK]: with a spare, ranks keep their numbers. The node's rank fails just before.
loses()
{
	local failed=
	afresh
	[ $# = 3 ] || on_rank 0 "$4" "until [ -e fail.$4 ]; do sleep 0.01; done; : >fail.$4.told; exit 3"
	begin --ddp=restart=3,spare=1,silence=3 -N4 --ntasks-per-node=2 --overlap
	up 0 6
	if [ $# = 4 ]; then
		failed="rank $4 of 6 on n$1 exited with code 3 .*; "
		fails_before "$1" "$4"
	fi
	power_off "$1"
	up 1 6
	prints_in_time "$off" 4200 up.1.0 "$3: the next generation begins within silence= and a second"
	finish
	status_is 0 "$3: the step ends well"
	prints "ddp: ${failed}node n$1 has been silent for 3\.[0-9] s, with ranks $((2 * $1))-$((2 * $1 + 1)).*; restart 1 of 3: n3 takes the place of n$1 \(0 spares left\)$" "$3: one line says who failed and who takes its place"
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
loses 0 "n3 n3 n1 n1 n2 n2" "node 0's power, and a failure of its rank" 1

# The node is back, and knows nothing of a connection on which srun sends it input.
# shellcheck disable=SC2317,SC2329 # wait_until calls it
no_fin() { ! on_node n1 ss -Htn | grep -q FIN; }
afresh
rm -f input
mkfifo input
(as_user srun --ddp=restart=3,spare=1,silence=3 -N4 --ntasks-per-node=1 --overlap bash ./rank.sh >out 2>&1 <input
	echo $? >status.new
	mv status.new status) &
step=$!
exec 8>input
up 0 3
on_node n1 sysctl -qw net.ipv4.tcp_orphan_retries=1
power_off 1
up 1 3
check "a node that is back: its kernel has forgotten what was" wait_until 60 no_fin
link 1 up
echo a line >&8
sleep 2
exec 8>&-
finish
status_is 0 "a node that is back: the step goes on without it"
prints_times 1 "$line" "a node that is back: it was replaced once"
on_node n1 sysctl -qw net.ipv4.tcp_orphan_retries=0
restored 1

# ---- in an allocation -------------------------------------------------------------------------

# SLURM would keep the step, and the nodes for it: srun takes the lost nodes out of the job before the last slurmstepd ends.
# allocate SPARES COMMANDS: a step of rank.sh, and then commands
allocate()
{
	afresh
	printf '%s\n' 'srun bash ./rank.sh' 'echo "first $?"' "$2" >script.sh
	chmod 644 script.sh
	(as_user salloc --ddp="restart=3,spare=$1,silence=3" -N4 --ntasks-per-node=1 bash ./script.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
	step=$!
}
# shellcheck disable=SC2016 # the ranks expand it
second='sh -c '\''echo "second $RANK of $WORLD_SIZE"'\'

allocate 1 "srun -N3 -n3 $second"
up 0 3
power_off 1
up 1 3
finish
prints '^first 0$' "salloc: the step ends well with a dead node"
prints 'ddp: job [0-9]+ goes on without node n1$' "salloc: the node leaves the job"
prints_times 2 '^second [01] of 2$' "salloc: the next step has the nodes that are left, less the spare"
restored 1

# SLURM without slurmdbd changes the nodes of a job once.
allocate 2 "srun --ddp=spare=0 -N2 -n2 $second"
up 0 2
power_off 1
up 1 2
power_off 0
up 2 2
finish
prints '^first 0$' "salloc: the step ends well with two dead nodes"
prints_times 1 'ddp: job [0-9]+ goes on without nodes n[01],n[01]$' "salloc: both leave the job at once"
prints_times 2 '^second [01] of 2$' "salloc: the next step has the nodes that are left"
restored 0 1

allocate 1 "srun -N3 -n3 $second"
up 0 3
power_off 1
up 1 3
head sh -c 'scancel $(squeue -h -o %i).0'
ended 60
prints '^first [1-9]' "salloc: a step with a dead node is cancelled"
prints_times 2 '^second [01] of 2$' "salloc: the next step starts"
restored 1

# ---- a network without nodes ------------------------------------------------------------------

# Both sides are alive: the one without srun ends its ranks before srun gives them to others.
afresh
: >lives
begin --ddp=restart=3,spare=1,silence=5 -N4 --ntasks-per-node=2 --overlap
up 0 6
link 1 down
up 1 6
overlap=$(($(cat up.1.2) - $(stat -c %.9Y alive.0.2 | tr -d .)))
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
# All links come back at once: srun waits for the others for silence= once it hears a node.
head sh -c 'links() { for i in 0 1 2 3; do echo "link set n$i $1"; done | ip -batch -; }; links down; sleep 12; links up'
up 1 6
finish
status_is 0 "srun cut off: the step ends well"
prints_times 1 "$line" "srun cut off: one restart"
same "n0 n0 n1 n1 n2 n2" "$(places 1 0 1 2 3 4 5)" "srun cut off: no node is replaced"

# The host of srun is a node of the step: srun hears that node, and no other one.
afresh
printf '%s\n' '#!/bin/sh' 'srun bash ./rank.sh' >batch.sh
chmod 755 batch.sh
(as_user sh -c "$until_ended" batch_job --ddp=restart=3,spare=1,silence=3 -N4 --ntasks-per-node=2 -o out ./batch.sh >submitted 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
step=$!
up 0 6
link 0 down
sleep 12
link 0 up
up 1 6
finish
status_is 0 "batch script cut off: the step ends well"
prints_times 1 'srun did not reach any other node for .*; restart 1 of 3 \(1 spare left\)' "batch script cut off: one restart, and no node is replaced"

# ---- and no spare -------------------------------------------------------------------------------

afresh
begin --ddp=restart=3,silence=3 -w "n[0-2]" --ntasks-per-node=2
up 0 6
power_off 2
ended 30
status_is 1 "without a spare: the step fails"
prints 'ddp: node n2 has been silent for .*, with ranks 4-5 .*; no spare is left to take its place' "without a spare: the line names the node"
prints_not 'restart [0-9]+ of' "without a spare: nothing is restarted"
restored 2

# ---- nodes that are dead when the step is launched ------------------------------------------------

# SLURM tries for ten seconds to reach such a node. It gives no job a node of which it knows that it does not answer.
readonly has_nodes=': >granted; until [ -e dead ]; do sleep 0.05; done'
afresh
printf '%s\n' '#!/bin/sh' "$has_nodes" 'srun sleep 60' 'echo "srun gave $?"' >batch.sh
(as_user sh -c "$until_ended" batch_job --ddp=requeue=2 -N4 --ntasks-per-node=1 -o out ./batch.sh >submitted 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
step=$!
wait_until 30 test -e granted
link 3 down
: >dead
check "dead at launch: srun decides about the job" wait_until 30 grep -q 'ddp: the job is' out
link 3 up
head scontrol update NodeName=n3 State=DOWN Reason=test
waits_again() { [ "$(head squeue -h -o %T)" = PENDING ]; }
check "dead at launch: the job waits for its next run" wait_until 30 waits_again
restored 3
ended
prints_times 1 'ddp: SLURM could not start the step: no task has begun on node n3 ' "dead at launch: a line names the node"
prints 'ddp: the job is requeued \(1 of 2\): the step has failed with code [0-9]+$' "dead at launch: the line says that the job is requeued"
prints_not '^srun gave' "dead at launch: the script does not go on"

# launches NODES DEAD... : a step of an allocation, with one spare and two nodes at least
launches()
{
	local node
	afresh
	printf '%s\n' "$has_nodes" 'srun -N4 bash ./rank.sh --nodes=1' 'echo "first $?"' >script.sh
	(as_user salloc --ddp="restart=3,spare=1,min-nodes=2,silence=3" -N4 --ntasks-per-node=1 bash ./script.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
	step=$!
	wait_until 30 test -e granted
	for node in "${@:2}"; do link "$node" down; done
	: >dead
	up 0 "$1"
	for node in "${@:2}"; do link "$node" up; done
	finish
	prints '^first 0$' "dead at launch: the step ends well without n$2"
	restored "${@:2}"
}
launches 3 1
prints_times 1 'ddp: SLURM could not start the step: no task has begun on node n1 .*; another step begins on 3 of 4 nodes \(0 spares left\)$' "dead at launch: the line says so"
same "n0 n2 n3" "$(places 0 0 1 2)" "dead at launch: the spare takes part"
launches 2 1 2
prints 'ddp: SLURM could not start the step: no task has begun on nodes n1,n2 .*; another step begins on 2 of 4 nodes' "dead at launch: min-nodes= goes on with fewer"
same "n0 n3" "$(places 0 0 1)" "dead at launch: on those that are left"

# Somebody ends srun while SLURM still tries to reach a node.
afresh
printf '%s\n' "$has_nodes" 'timeout 2 srun -N4 bash ./rank.sh' 'echo "first $?"' >script.sh
(as_user salloc --ddp="restart=3,spare=1,silence=3" -N4 --ntasks-per-node=1 bash ./script.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
step=$!
wait_until 30 test -e granted
link 1 down
: >dead
ended 60
prints '^first 124$' "dead at launch: srun ends when it is sent SIGTERM"
prints_not 'another step begins' "dead at launch: no other step begins then"
restored 1

# srun has made the job itself. Its next job has no place on the dead node, and no node more is there.
afresh
link 3 down
begin --ddp=restart=3,spare=1,silence=3 -N4 --ntasks-per-node=1
up 0 3
link 3 up
finish
status_is 0 "dead at launch: a step with a job of its own ends well"
prints_times 1 'ddp: SLURM could not start the step: no task has begun on node n3 .*; srun asks for another job, of 3 nodes without it \(0 spares left\)$' "dead at launch: the line says that another job begins"
same "n0 n1 n2" "$(places 0 0 1 2)" "dead at launch: it has the other nodes"
restored 3

done_testing
