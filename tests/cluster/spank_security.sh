#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 120
# Who can read a step's key, what a task inherits, and whose words reach the
# log of root's slurmd.
. "$source/tests/cluster/lib.sh"

# ---- the key -----------------------------------------------------------------

# A step of two tasks waits on n0. Its key is known here, by /proc.
as_user srun --ddp=verbose -J secretive -w n0 -n2 sh -c "echo \$SLURM_JOB_ID >$work/job; sleep 1000" >"$work/srun.out" 2>&1 &
holder=$!
wait_until 15 test -s "$work/job"
job=$(<"$work/job")
# pid and key of a process on n0 that has one
key_of_n0()
{
	on_node n0 sh -c 'for p in /proc/[0-9]*; do
		k=$(tr "\0" "\n" <$p/environ 2>/dev/null | sed -n s/^DDP_KEY=//p)
		[ -z "$k" ] || { echo "${p#/proc/} $k"; exit; }; done'
}
read -r pid key < <(key_of_n0)
output="$pid"
if [[ $key =~ ^step:[0-9a-f]{64}$ ]]; then ok "a task has a key"; else not_ok "a task has a key" "'$key'"; fi
same '' "$(grep -rlaF "${key#step:}" "$cluster/log" "$cluster/state" "$cluster/local" "$cluster"/*.conf "$work" 2>/dev/null)" \
	"no log, spool or state file of the cluster holds it"
capture on_cluster sh -c "scontrol show -d step $job.0; scontrol show -d job $job; scontrol listpids $job; squeue -s -o '%all'; squeue -o '%all'"
prints 'secretive' "what Slurm tells of the step"
prints_not "${key#step:}" "does not hold it"
capture on_node n0 sh -c 'for p in /proc/[0-9]*; do tr "\0" "\n" <$p/cmdline 2>/dev/null; done'
prints_not "${key#step:}" "nor does a command line"
daemon=$(id -u daemon 2>/dev/null || echo 1)
capture on_node n0 setpriv --reuid="$daemon" --regid="$daemon" --clear-groups cat "/proc/$pid/environ"
prints 'Permission denied' "another user cannot read the task's environment"
capture on_node n0 sh -c 'for e in /proc/[0-9]*/environ; do
	tr "\0" "\n" <$e 2>/dev/null | grep -q ^DDP_KEY && stat -c %u $e; done; true'
prints '^65534$' "the user's processes hold the key"
prints_not '^0$' "and no process of root holds the key"
capture on_node n0 setpriv --reuid="$daemon" --regid="$daemon" --clear-groups ls "/proc/$pid/fd"
prints 'Permission denied' "nor reach its descriptors"
capture on_node n0 sh -c "for f in /proc/$pid/fd/*; do echo \"\$(readlink \$f) \$(stat -L -c %a \$f)\"; done"
prints '^/memfd:ddp_progress.* 600$' "the file of progress pages is private"
on_cluster scancel --user 65534
wait $holder 2>/dev/null

capture as_user env SLURM_DDP_KEY="${key#step:}" DDP_KEY="$key" srun --ddp -n1 printenv DDP_KEY
prints '^step:[0-9a-f]{64}$' "a step has a key of its own"
prints_not "${key#step:}" "whatever the caller had"

# ---- what a task inherits -------------------------------------------------------

list='for f in /proc/self/fd/*; do readlink $f; done; exit 0'
capture as_user srun -w n1 -n1 sh -c "$list"
without=$(grep -c . <<<"$output")
capture as_user srun --ddp -w n1 -n1 sh -c "$list"
same "$((without + 1))" "$(grep -c . <<<"$output")" "a task inherits one descriptor more"
prints_times 1 'memfd:ddp_progress' "the progress pages"

# names: of the variables in $output, without those that differ between any two steps
names() { sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' <<<"$output" | sort -u; }
capture as_user srun -N2 -n2 --ntasks-per-node=1 env
before=$(names)
capture as_user srun --ddp=timeout=9,bucket-mb=2,trace=/tmp -N2 -n2 --ntasks-per-node=1 env
output=$(comm -13 <(echo "$before") <(names))
same '' "$(grep -vE '^(DDP_[A-Z_]+|JAX_(COORDINATOR_ADDRESS|NUM_PROCESSES|PROCESS_ID)|(LOCAL_)?(RANK|WORLD_SIZE)|NODE_RANK|NNODES|GROUP_RANK|MASTER_(ADDR|PORT)|PET_(NNODES|NODE_RANK|MASTER_ADDR|MASTER_PORT|RDZV_ID)|OMP_NUM_THREADS|SLURM_SPANK_.*|_SLURM_SPANK_.*)$' <<<"$output")" \
	"--ddp adds the variables that srun-ddp(7) names, and no other"
capture as_user env UCX_TLS=tcp NCCL_IB_HCA=mlx5 NCCL_SOCKET_IFNAME=eth7 srun --ddp -n1 env
prints '^UCX_TLS=tcp$' "what a user says of the transports"
prints '^NCCL_IB_HCA=mlx5$' "stays"
prints '^NCCL_SOCKET_IFNAME=eth7$' "as it is"

# ---- words of users in root's log --------------------------------------------------

forged='slurmd: error: forged by a user'
capture as_user env OMP_NUM_THREADS="1
$forged" srun --ddp=verbose -w n1 -n1 true
status_is 0 "a variable with a line of its own"
capture as_user env SLURM_RESTART_COUNT="1
$forged" srun --ddp -w n1 -n1 true
fails_without_hanging "and one that is no number"
prints "ddp: SLURM_RESTART_COUNT='1\?slurmd: error: forged" "are quoted in printable bytes"
capture as_user srun --ddp -w n1 -n2 /usr/bin/python3 -c "
import mmap, os, struct
page = mmap.mmap(int(os.environ['DDP_PROGRESS_FD']), 4096, offset=4096 * int(os.environ['LOCAL_RANK']))
body = struct.pack('<IIqQiiQ64s256sI', 0x31706464, 3, 1, 1, 0, 0, 1, b'x\n$forged'.replace(b'\\n', b'\n'), b'y\n$forged', 0)
page[:len(body)] = body
os._exit(3)"
prints 'ddp: rank [01] of 2 on n1 exited with code 3' "and so is what a task says of itself"
output=$(cat "$cluster"/log/*)
prints 'forged by a user' "they are in the log"
prints_not "^$forged" "but not as a line of slurmd's"

# ---- root for another user -----------------------------------------------------------

# srun 22.05 takes it, but does not name it in --help.
capture on_cluster srun --uid=nobody -n1 true
if grep -q 'unrecognized option' <<<"$output"; then
	skip "root's srun --uid gives the user's tasks all they need" "srun has no --uid since Slurm 23.02"
else
	capture on_cluster srun --uid=nobody --ddp -N2 -n2 sh -c 'echo "$(id -u) $RANK $WORLD_SIZE ${#DDP_KEY} $(stat -L -c %F /proc/self/fd/$DDP_PROGRESS_FD)"'
	prints_times 2 "^$(id -u nobody) [01] 2 69 regular" "root's srun --uid gives the user's tasks all they need"
fi
capture as_user sh -c 'ulimit -n 40; srun --ddp -n1 printenv RANK'
prints '^0$' "few descriptors are enough"

# ---- another user at srun's port -------------------------------------------------------

# Holds 518 connections to where srun hears of failures, with a byte of a message sent
# on each, and opens another for each that srun closes. That port is the only one of
# both families.
cat >"$work/hold.py" <<'END'
import select, socket, sys, time

def port(user):
    while True:
        for line in open("/proc/net/tcp6").readlines()[1:]:
            field = line.split()
            if field[3] == "0A" and field[7] == user:
                return int(field[1].split(":")[-1], 16)
        time.sleep(0.01)

target = ("127.0.0.1", port(sys.argv[1]))
held, poll = {}, select.epoll()

def hold():
    one = socket.create_connection(target)
    one.send(b"x")
    poll.register(one, select.EPOLLIN)
    held[one.fileno()] = one

try:
    for _ in range(518):
        hold()
    open(sys.argv[2], "w").close()
    while True:
        for fd, _ in poll.poll():
            held.pop(fd).close()
            hold()
except OSError:
    pass  # srun has ended
END
chmod 1777 "$work"
# fails_after FILE: rank 3 of 6 does once FILE is there; $took is the time to srun's end, in ms
fails_after()
{
	rm -f "$work/failed_at"
	capture as_user srun --ddp -N3 --ntasks-per-node=2 sh -c 'until [ -e $0 ]; do sleep 0.02; done
		if [ $RANK = 3 ]; then sleep 0.5; date +%s%N >$1; exit 7; fi; exec sleep 30' "$1" "$work/failed_at"
	took=$((($(date +%s%N) - $(cat "$work/failed_at" 2>/dev/null || echo 0)) / 1000000))
}
plain='' attacked='' reports='' right=0
if ! [ -e /proc/net/tcp6 ]; then
	skip "srun's port under attack" "there is no IPv6, by which to tell the port"
else
	for round in 1 2 3; do
		fails_after /
		plain+="$took "
		on_node head setpriv --reuid="$daemon" --regid="$daemon" --clear-groups \
			/usr/bin/python3 "$work/hold.py" "$(id -u nobody)" "$work/held.$round" >/dev/null 2>&1 &
		attacker=$!
		fails_after "$work/held.$round"
		attacked+="$took "
		reports+=$(grep -c 'ddp: ' <<<"$output")
		grep -q 'ddp: rank 3 of 6 on n1 exited with code 7' <<<"$output" && right=$((right + 1))
		kill $attacker 2>/dev/null; wait $attacker 2>/dev/null
	done
	echo "# from failure to end, in ms: $plain, with 518 connections held: $attacked"
	same 111 "$reports" "with srun's port held by another user, a failure is said once, three times"
	same 3 "$right" "and is the one that it is"
	# middle NUMBER...: of three
	middle() { printf '%s\n' "$@" | sort -n | sed -n 2p; }
	# shellcheck disable=SC2086 # numbers are words
	if [ "$(middle $attacked)" -lt $((2 * $(middle $plain))) ]; then ok "and the step ends as soon"
	else not_ok "and the step ends as soon" "in ms: $attacked, and $plain without"; fi
fi

capture "$source/slurm/cluster" status --dir "$cluster"
prints_not 'drain|down|fail' "no node was drained"

done_testing
