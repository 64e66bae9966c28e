#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 180
# What --ddp takes, what it says to mistakes, and its dry run.
. "$source/tests/cluster/lib.sh"

for program in srun sbatch salloc; do
	capture as_user $program --help
	prints '--ddp=KEY=VALUE' "$program --help shows --ddp"
	prints '\[ddp\]' "with its text"
done

# refused COMMAND-NAME LIST NAMED COMMAND...
refused()
{
	local named=$3 name="$1 --ddp=$2 is refused"
	shift 3
	capture as_user "$@"
	if [ "$status" != 0 ] && [ "$status" != 124 ] && grep -qF -- "$named" <<<"$output"; then ok "$name"
	else not_ok "$name" "status $status, or it does not say: $named"; fi
}
printf '#!/bin/sh\ntrue\n' >"$work/script"
refused srun prot=1 "unknown key 'prot'" srun --ddp=prot=1 true
refused sbatch prot=1 "unknown key 'prot'" sbatch --ddp=prot=1 "$work/script"
refused salloc prot=1 "unknown key 'prot'" salloc --ddp=prot=1 true
capture as_user env SLURM_SPANK__SLURM_SPANK_OPTION_spank_ddp_ddp=prot=1 srun true
status_is_not 0 "a malformed inherited list is refused, too"
prints "unknown key 'prot'" "by name"

# dry run of a step of four tasks on three nodes
capture as_user srun --ddp=check,timeout=90 -N3 -n4 sh -c "touch $work/ran"
status_is 0 "check succeeds"
prints_times 4 '^rank [0-3]/4  local [01]/[12]  node [0-2]/3 n[0-2]  master n0:[0-9]+  omp [0-9]+  gpus 0$' \
	"and prints a row for each task"
prints_not '^([^r]|r[^a])' "and nothing else"
wanted=$(for rank in 0 3 6 9 12 1 4 7 10 13 2 5 8 11; do echo "rank $rank node $((rank % 3))"; done)
got=$(as_user srun --exclusive --ddp=check -N3 -n14 -m cyclic true 2>/dev/null | sed -n 's/^\(rank\) *\([0-9]*\).*  \(node\) *\([0-9]*\).*/\1 \2 \3 \4/p')
same "$wanted" "$got" "by node and rank on stdout"
as_user srun --ddp=check -N3 -n4 true >"$work/table"
same 4 "$(grep -c ^rank "$work/table")" "into a file, too"
capture as_user srun --ddp=check=json,timeout=90 -N3 -n4 sh -c "touch $work/ran"
prints_not '^[^{]' "check=json prints nothing but objects"
json=$(grep '^{' <<<"$output" | /usr/bin/python3 -c '
import json, sys
tasks = {}
for line in sys.stdin:
    v = json.loads(line)
    tasks.setdefault(v["rank"], {})[v["name"]] = (v["value"], v["source"])
assert sorted(tasks) == [0, 1, 2, 3], tasks
for rank, v in tasks.items():
    assert v["RANK"][0] == str(rank) and v["DDP_TIMEOUT"] == ("90", "timeout"), v
    assert v["MASTER_PORT"][1] == "reserved by Slurm" and v["DDP_KEY"][0] == "(secret)", v
print("good")' 2>&1)
same good "$json" "and the same as JSON, without the key"
if [ ! -e "$work/ran" ]; then ok "and runs nothing"; else not_ok "and runs nothing"; fi

capture as_user srun --ddp=verbose -N2 -n2 true
prints_times 2 'ddp: rank [01]/2  local 0/1 ' "verbose shows the rows and runs the program"

capture as_user srun --ddp=addr=ip -N2 -n2 printenv MASTER_ADDR
prints_times 2 '^198\.18\.0\.1$' "addr=ip gives the address of rank 0's node"
capture as_user srun --ddp=addr=ip,addr-suffix=-ib0 -N2 -n2 true
fails_without_hanging "a fabric's name that does not resolve is an error"
prints "addr=ip: on n[01], 'n0-ib0' does not resolve" "that names it"
capture as_user srun --ddp=addr-suffix=-ib0 -N2 -n2 printenv MASTER_ADDR
prints_times 2 '^n0-ib0$' "addr-suffix is glued to the node's name"

# n0 believes that it is 127.0.1.1, as Debian's installer would have it.
printf '127.0.0.1 localhost\n127.0.1.1 n0\n' >"$work/hosts"
trap 'on_node n0 umount /etc/hosts 2>/dev/null; true' EXIT
on_node n0 mount --bind "$work/hosts" /etc/hosts
capture as_user srun --ddp=addr=ip -N2 -n2 printenv MASTER_ADDR
prints_times 2 '^198\.18\.0\.1$' "addr=ip: where a name is loopback, Slurm's NodeAddr counts"
# slurmstepd reads the file at each start.
cp "$cluster/slurm.conf" "$work/same.conf"
sed -i 's/^NodeName=n\([0-9]*\) /&NodeHostname=host\1 /' "$cluster/slurm.conf"
capture as_user srun --ddp=addr=ip -N2 -n2 printenv MASTER_ADDR
prints_times 2 '^198\.18\.0\.1$' "also where a node's host has another name than the node"
capture as_user srun --ddp=addr=ip,restart=1 -N2 -n2 sh -c 'echo $DDP_RESTART_COUNT $MASTER_ADDR; exit $((1 - DDP_RESTART_COUNT))'
prints_times 2 '^1 198\.18\.0\.1$' "and in a generation after a restart"
cp "$work/same.conf" "$cluster/slurm.conf"
capture as_user srun --ddp --mpi=none -N2 -n3 "$prefix/bin/allreduce" --count 1000
prints_times 1 '^all 1000 sums over 3 ranks are right$' "libddp: rank 0 listens where others find its node"
printf '127.0.0.1 localhost\n127.0.1.1 n0-ib0\n' >"$work/hosts"
capture as_user srun --ddp=addr=ip,addr-suffix=-ib0 -w n0 -n2 true
fails_without_hanging "another name that resolves to loopback is an error"
prints "'n0-ib0' resolves to 127.0.1.1 only" "that names the address"
# n1 knows no name of n0 at all.
printf '127.0.0.1 localhost\n' >"$work/hosts"
on_node n0 umount /etc/hosts
trap 'on_node n1 umount /etc/hosts 2>/dev/null; true' EXIT
on_node n1 mount --bind "$work/hosts" /etc/hosts
capture as_user srun --ddp=addr=ip --mpi=none -N2 -n3 "$prefix/bin/allreduce" --count 1000
prints_times 1 '^all 1000 sums over 3 ranks are right$' "addr=ip needs no name of rank 0's node"
capture as_user srun --ddp=timeout=5 --mpi=none -N2 -n3 "$prefix/bin/allreduce" --count 1000
on_node n1 umount /etc/hosts
trap - EXIT
fails_without_hanging "without it"
prints 'on n1: MASTER_ADDR n0 (does|did) not resolve.*addr=ip' "the message says what to do"

capture as_user srun --ddp -N1 -n2 -c3 printenv OMP_NUM_THREADS
prints_times 2 '^3$' "cpus per task become threads"
# Since 22.05 a step does not inherit its job's --cpus-per-task.
printf '#!/bin/sh\n#SBATCH -N1 -n2 -c3 --ddp\nsrun -Q printenv OMP_NUM_THREADS; srun -Q -c2 printenv OMP_NUM_THREADS\n' >"$work/cpus"
mkdir -m 777 "$work/batch"
capture batch_job -D "$work/batch" -o out "$work/cpus"
output=$(tr '\n' ' ' <"$work/batch/out")
same "3 3 2 2 " "$output" "whatever a step takes over from its job, its threads are its CPUs"

# Ports: rank 0's node tries the one that is to be used.
on_node n0 /usr/bin/python3 -c 'import socket, sys, time
s = socket.create_server(("", 24400)); open(sys.argv[1], "w").close(); time.sleep(1000)' "$work/listening" &
listener=$!
wait_until 10 test -e "$work/listening"
capture as_user srun --ddp=port=24400 -N2 -n2 true
fails_without_hanging "a port in use is an error"
prints 'ddp: port 24400 \(port=\) cannot be used on n0, rank 0.s node: Address already in use' \
	"that names port, node and reason"
capture as_user srun --ddp=port=24400 -w n1 -n1 printenv MASTER_PORT
prints '^24400$' "but not on another node"
kill $listener 2>/dev/null
capture as_user srun --ddp=port=40000-40010 -N2 -n2 true
fails_without_hanging "a hashed port among the kernel's own is an error"
prints 'lies in the kernel.s range for outgoing connections' "that says so"

# Ports of srun's: it has the first claim on SrunPortRange, and dies without one that it needs.
for range in 45101-45104 45101-45105; do
	sed "\$a SrunPortRange=$range" "$cluster/slurm.conf" >"$work/ports.conf"
	capture as_user env SLURM_CONF="$work/ports.conf" srun --ddp -N2 -n2 sh -c 'sleep 0.5; exit $RANK'
	status_is 1 "SrunPortRange=$range: the step runs, and its failure has its code"
	prints 'ddp: rank 1 of 2 on n1 exited with code 1' "and is said"
	if [ $range = 45101-45104 ]; then
		prints_times 1 'ddp: SrunPortRange=45101-45104 .* less than 5 free ports' "too small for the plugin, too: srun says so"
	else
		prints_not 'SrunPortRange' "with one port more nothing is said of ports"
	fi
done

# So it has on open files. With 20, srun itself fails now and then when it launches a step.
capture as_user sh -c 'ulimit -n 28; exec timeout 20 srun --ddp -N2 -n2 sh -c "exit \$RANK"'
status_is 1 "ulimit -n 28: the step runs, and its failure has its code"
prints 'ddp: srun may have 28 open files .ulimit -n., and srun and the plugin need 36 for 2 nodes' "and srun says what is missing"
capture as_user sh -c 'ulimit -n 20; exec timeout 20 srun --ddp=restart=1 -N2 -n2 true'
status_is 1 "ulimit -n 20 with restart= is refused"
prints 'the step cannot be restarted, as restart=1 asks for: .* open files' "in words"
capture as_user sh -c 'ulimit -S -n 20; exec timeout 20 srun --ddp=restart=1 -N2 -n2 true'
status_is 0 "if the user may raise the limit, srun does"

# Each node's log has a line about each step, whatever its end.
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c 'echo "$SLURM_JOB_ID.$SLURM_STEP_ID"; [ $RANK != 3 ] || exit 7'
step=$(grep -m 1 -E '^[0-9]+\.0$' <<<"$output")
wait_until 10 grep -q "ddp: step $step: " "$cluster/log/n0.slurmd.log"
wait_until 10 grep -q "ddp: step $step: " "$cluster/log/n1.slurmd.log"
same "1 1" "$(for node in n0 n1; do grep -cE "ddp: step $step: 2 ranks from . to . of 4 on $node: .*; plugin [0-9]" "$cluster/log/$node.slurmd.log"; done | paste -sd ' ')" \
	"each node's log has a line about the step"
output=$(cat "$cluster/log/n1.slurmd.log")
prints "ddp: step $step: 2 ranks from 2 to 3 of 4 on n1: rank 3 exited with code 7; plugin" "with how it failed"

capture "$source/slurm/cluster" status --dir "$cluster"
prints_not 'drain|down|fail' "no node was drained"

done_testing
