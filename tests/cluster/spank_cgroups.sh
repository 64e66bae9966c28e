#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# cluster: --cgroups
# seconds: 200
# restart= where SLURM tracks processes and limits memory by control groups: the kernel ends a rank, an agent, a spare's agent,
# and SLURM sends a signal, or suspends the job.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/restart/ranks.sh"

# crowd NODE: a process of root's goes over the step's limit there, and the kernel takes the step's agents for it
crowd() { on_node "$1" bash "$work/crowd"; }
cat >crowd <<'END'
agents=$(pgrep -x ddp-agent)
for agent in $agents; do echo 1000 >/proc/$agent/oom_score_adj; done
step=/sys/fs/cgroup/memory$(sed -n 's|.*:memory:.*\(/slurm_.*/step_[0-9]*\).*|\1|p' /proc/$agent/cgroup)
echo 0 >"$step/cgroup.procs" || exit 1
timeout 10 tail /dev/zero &
for ((i = 0; i < 200; i++)); do
	kill -0 $agents 2>/dev/null || break
	sleep 0.05
done
kill $!
! kill -0 $agents 2>/dev/null
END

afresh
on_rank 0 3 'exec tail /dev/zero'
begin --ddp=restart=2 --mem=80M -w 'n[0-1]' --ntasks-per-node=2
up 1 4
finish
status_is 0 "a rank over the job's memory: the step ends well"
prints "rank 3 of 4 on n1 was killed by signal 9 .*: the kernel's out-of-memory killer has ended a process of this step there.*; restart 1 of 2" "and it is said"
prints_times 1 "$line" "one restart"
capture on_cluster scontrol show job "$(on_cluster squeue -h -t all -o %A | sort -n | tail -n 1)"
prints 'JobState=OUT_OF_MEMORY' "SLURM's accounting keeps OUT_OF_MEMORY, as the manual says"
check "nothing is left" wait_until 20 none_left

afresh
begin --ddp=restart=2,spare=1 --mem=80M -w 'n[0-2]' --ntasks-per-node=1
up 0 2
check "an agent: the kernel ends it" crowd n1
up 1 2
finish
status_is 0 "an agent: the step ends well"
prints 'restart 1 of 2: n2 takes the place of n1' "a spare takes the node's place"
check "nothing is left" wait_until 20 none_left

afresh
begin --ddp=restart=2,spare=1 --mem=80M -w 'n[0-2]' --ntasks-per-node=1
up 0 2
check "a spare's agent: the kernel ends it" crowd n2
finish
status_is 0 "a spare's agent: the step ends well"
check "nothing is left" wait_until 20 none_left

# SLURM sends signals to the children of slurmstepd only.
afresh
for r in 0 1 2 3; do on_rank 0 $r "trap 'exit 75' TERM; : >traps.$r"; done
begin --ddp=restart=2 -w 'n[0-1]' --ntasks-per-node=2 --job-name=stops
check "a signal: the ranks are up" wait_until 30 test -e traps.0 -a -e traps.1 -a -e traps.2 -a -e traps.3
on_cluster scancel --name=stops -s TERM
ended
status_is 75 "a signal: the ranks get it, and end as they like"
prints_not "$line" "a signal: no restart"
check "nothing is left" wait_until 20 none_left

. "$source/tests/cluster/restart/suspended.sh"

# shellcheck disable=SC2016
capture as_user srun --ddp=log="$work/logs" -w 'n[0-1]' -N2 --ntasks-per-node=2 sh -c 'seq 20000; [ $RANK != 1 ] || { sleep 0.2; kill -9 $$; }; exec sleep 100'
status_is 137 "log=: a step that is killed"
same "4 $(seq 20000 | cksum)" "$(for file in "$work"/logs/*/rank-?.start-1.log; do cksum <"$file"; done | uniq -c | sed 's/^ *//')" \
	"log=: each file has every line, as ddp-log is in no control group of the step's"

done_testing
