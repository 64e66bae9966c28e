#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# The throw-away cluster itself: what a job sees on it.
. "$source/tests/cluster/lib.sh"

check "status finds every node idle" "$source/slurm/cluster" status --dir "$cluster"
prints 'n0 +idle' "status names n0"

capture as_user srun -N2 --ntasks-per-node=2 --label sh -c 'id -un; hostname; pwd'
status_is 0 "srun runs two tasks on each of two nodes as an ordinary user"
prints_times 4 'nobody$' "every task runs as that user"
prints_times 2 'n0$' "two tasks run on n0"
prints_times 2 'n1$' "two tasks run on n1"
prints_times 4 ": $work\$" "every task starts in the caller's folder"

capture as_user srun -N2 sh -c 'readlink /proc/self/ns/net /proc/self/ns/mnt /proc/self/ns/ipc /proc/self/ns/uts /proc/self/ns/pid'
same 10 "$(sort -u <<<"$output" | grep -c :)" "two nodes share no namespace"

capture as_user srun -N2 sh -c 'ls /sys/class/net'
prints_times 2 '^eth0$' "a node sees its own network devices in /sys"

capture as_user srun -N2 sh -c 'touch /dev/shm/only-on-$(hostname) && ls /dev/shm'
prints_times 2 'only-on' "a node's /dev/shm is its own"

show='echo "ports $SLURM_STEP_RESV_PORTS, rank ${PMIX_RANK-none}"'
capture as_user srun -N2 sh -c "$show"
prints_times 2 '^ports [0-9-]+, rank none' "a step has reserved ports, and no PMIx"
if [[ $(as_user srun --mpi=list 2>&1) == *pmix* ]]; then
	capture on_cluster srun --mpi=pmix -N2 sh -c "$show"
	prints_times 2 'rank [01]$' "but where it asks for it"
else
	skip "but where it asks for it" "this SLURM has no PMIx plugin"
fi

capture as_user srun -N1 --kill-on-bad-exit=0 sh -c 'exit 7'
status_is 7 "run passes the exit status on"

capture as_user sh -c 'test ! -r "$0"/munge.key' "$cluster"
status_is 0 "an ordinary user cannot read the munge key"

capture "$source/slurm/cluster" run --dir "$cluster" --node n9 -- true
status_is_not 0 "a node that does not exist is an error"
prints 'no node n9' "which names the node"

capture as_user srun -w n1 --time=1 sh -c 'sleep 300 & sleep 300' &
waiting=$!
wait_until 20 sh -c 'on=$("$0" run --dir "$1" -- squeue -h -t R -o %i); test -n "$on"' "$source/slurm/cluster" "$cluster"
on_cluster scancel --user 65534
if wait_until 20 sh -c '! kill -0 '$waiting; then ok "scancel ends a job's srun"
else not_ok "scancel ends a job's srun"; kill $waiting; fi

done_testing
