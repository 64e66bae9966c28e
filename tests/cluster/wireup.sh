#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 180
# How ranks find each other: by PMIx, by TCP, and what is said when they can't.
. "$source/tests/cluster/lib.sh"

cp "$build/tests/cluster/wireup_probe" "$work/probe" || exit 1
chmod 755 "$work/probe"
probe=$work/probe

# For ranks that come, but not at once.
seconds=$(stretched 2)

# ranks COUNT WORDS NAME: COUNT ranks printed their identity, with WORDS in it
ranks() { prints_times "$1" "^\{\"rank\":.*$2" "$3"; }

# ---- PMIx -------------------------------------------------------------------------

pmix_right()
{
	# Several nodes by PMIx as root only: a slurmstepd that forks the tasks of another
	# user runs as that user meanwhile, refuses another node's connection, and PMIx's
	# fence never ends (Slurm 22.05, 23.11).

	capture on_cluster srun --mpi=pmix -N3 --ntasks-per-node=2 "$probe"
	status_is 0 "PMIx alone wires up three nodes"
	ranks 6 '"world_size":6.*"local_world_size":2.*"nnodes":3.*"identity_source":"pmix".* by pmix' \
		"every rank knows sizes and nodes by PMIx"
	for node in 0 1 2; do
		ranks 2 "\"node_rank\":$node,.*\"hostname\":\"n$node\"" "node $node is n$node, although PMIx's own node ids are wrong"
	done

	capture as_user srun --mpi=pmix -N1 -n3 "$probe"
	status_is 0 "PMIx serves an ordinary user"
	ranks 3 '"world_size":3.*"nnodes":1.*"identity_source":"pmix".* by pmix' "on one node"

	capture on_cluster srun --mpi=pmix --exclusive -N3 -n7 -m cyclic "$probe" -b 20000 -n 10
	status_is 0 "PMIx wires up uneven, cyclic ranks, ten exchanges of 20 kB"
	prints_times 1 '^\{"rank":3,"world_size":7,"local_rank":1,"local_world_size":3,"node_rank":0' "rank 3 of 7 is the second on n0"
	prints_times 1 '^\{"rank":5,"world_size":7,"local_rank":1,"local_world_size":2,"node_rank":2' "rank 5 of 7 is the second on n2"

	capture as_user srun --mpi=pmix --ddp --exclusive -N3 -n5 -m cyclic "$probe"
	status_is 0 "plugin and PMIx together"
	ranks 5 '"identity_source":"environment".*"plugin":true.* by tcp' "the plugin's address is preferred to PMIx"

	capture on_cluster srun --mpi=pmix -N2 -n4 --ddp "$probe" -w pmix
	status_is 0 "PMIx may be asked for"
	ranks 4 '"plugin":true.* by pmix' "and is then taken"

	# Two programs on each node, one PMIx process: ranks are the programs'.
	cat >"$work/pairs" <<'END'
#!/bin/bash
export WORLD_SIZE=6 MASTER_ADDR=n0 MASTER_PORT=29700
export DDP_KEY=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
RANK=$((2 * SLURM_PROCID)) "$1" & RANK=$((2 * SLURM_PROCID + 1)) "$1"; wait $!
END
	chmod 755 "$work/pairs"
	capture as_user srun --mpi=pmix -N3 --ntasks-per-node=1 "$work/pairs" "$probe"
	status_is 0 "a launcher's ranks below one PMIx process per node"
	ranks 6 '"world_size":6.*"local_world_size":2.*"nnodes":3.* by tcp' "take TCP and find their nodes"
}

pmix_wrong()
{
	capture on_cluster srun --mpi=pmix --kill-on-bad-exit=0 -N2 -n4 "$probe" -t "$seconds" -a 3
	prints_times 3 'DDP_ERR_TIMEOUT.*rank 3 on n1 did not come to the PMIx server' "PMIx: a rank that does not come is named to all"

	capture as_user srun --mpi=pmix --kill-on-bad-exit=0 -N2 -n4 "$probe" -t "$seconds" -a 3
	prints_times 3 'DDP_ERR_TIMEOUT.*did not come to the PMIx server.*Munge decode failed.*srun --mpi=none --ddp' \
		"and to an ordinary user what else it may be, and what to do"

	capture on_cluster srun --mpi=pmix --kill-on-bad-exit=0 -N2 -n4 "$probe" -d 2
	# Who it was is PMIx's to say; its server may just fail over the missing data.
	prints 'DDP_ERR_PEER after [0-9]\..*(rank 2 on n[01] has ended|the PMIx fence failed.*has a rank ended)' "PMIx: a rank that dies is an error at once"
}

# ---- what goes right -------------------------------------------------------------

capture as_user srun --mpi=none --ddp -N3 --ntasks-per-node=2 "$probe" -b 20000
status_is 0 "the plugin alone wires up three nodes by TCP"
ranks 6 '"master_addr":"n0".*"identity_source":"environment".*"plugin":true.* by tcp' \
	"every rank has the plugin's identity"

capture as_user srun --mpi=none -n1 "$probe"
status_is 0 "a step of one task needs neither"
ranks 1 '"world_size":1.*"identity_source":"single".* by self' "it is a world of one"

if has_pmix; then pmix_right; else skip "wire-up by PMIx" "Slurm or libddp has no PMIx"; fi

# ---- what goes wrong ---------------------------------------------------------------

capture as_user srun --mpi=none -N2 -n2 "$probe"
status_is 3 "a step without plugin and PMIx is no world of one"
prints_times 2 'one of 2 tasks of a Slurm step.*start it with srun --ddp' "and says what to do"

capture as_user srun --mpi=none -n2 "$probe" -w pmix
status_is_not 0 "PMIx asked for, but absent"
prints 'DDP_ERR_JOB' "is an error"

cat >"$work/batch" <<END
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 -o $work/batch.out
"$probe"
END
capture batch_job "$work/batch"
output=$(cat "$work/batch.out")
prints 'has 4 tasks, but the program was started without srun' "srun forgotten in a batch script is said"

# shellcheck disable=SC2016 # for the task's shell
capture as_user env DDP_REQUESTED=x srun --mpi=none -n2 sh -c \
	'DDP_REQUESTED=$SLURM_JOB_ID.$SLURM_STEP_ID exec "$0"' "$probe"
status_is 3 "the plugin asked for, but absent on the node"
prints_times 2 'the plugin spank_ddp is absent on this node, n[01]' "is said with the node's name"

# shellcheck disable=SC2016
capture as_user srun --mpi=none --ddp --kill-on-bad-exit=0 -N2 -n4 sh -c \
	'[ $RANK != 2 ] || export DDP_KEY=$(printf "%064d" 7); exec "$0" -t $1' "$probe" "$((seconds + 1))"
prints 'DDP_ERR_AUTH after.*rank 0 at n0:[0-9]+ did not accept this rank.s key' "a rank with another key is refused"

capture as_user srun --mpi=none --ddp=on-failure=continue --kill-on-bad-exit=0 -N2 -n4 "$probe" -t "$seconds" -a 3
prints_times 3 'DDP_ERR_TIMEOUT.*rank 3 on n1 did not come to rank 0 on n0' "TCP: a rank that does not come is named to all"

capture as_user srun --mpi=none --ddp=on-failure=continue --kill-on-bad-exit=0 -N2 -n4 -m cyclic "$probe" -t "$seconds" -a 1
prints_times 3 'DDP_ERR_TIMEOUT.*rank 1 on n1 did not come to rank 0 on n0' "with its node, however tasks are dealt"

capture as_user srun --mpi=none --ddp=on-failure=continue --kill-on-bad-exit=0 -N2 -n4 "$probe" -d 2
prints 'DDP_ERR_PEER.*rank 2 on n[01] ended during wire-up' "TCP: a rank that dies is named at once"

# shellcheck disable=SC2016
capture as_user srun --mpi=none --ddp=on-failure=continue --kill-on-bad-exit=0 -N2 -n2 sh -c '
	if [ $RANK = 0 ]; then
		perl -MIO::Socket::INET -e "\$s = IO::Socket::INET->new(LocalAddr => q($MASTER_ADDR),
			LocalPort => $MASTER_PORT, Listen => 5) or die; system(@ARGV)" "$0" -t 5
	else
		exec "$0" -t $1
	fi' "$probe" "$seconds"
ranks 2 '"world_size":2.* by tcp' "where another program holds the port, ranks meet at one of libddp's own"

# shellcheck disable=SC2016
capture as_user srun --mpi=none --ddp --kill-on-bad-exit=0 -N2 -n2 sh -c \
	'MASTER_ADDR=localhost exec "$0" -t 5' "$probe"
prints 'localhost is a loopback address there' "localhost is refused for two nodes"

if has_pmix; then pmix_wrong; else skip "what goes wrong with PMIx" "Slurm or libddp has no PMIx"; fi

done_testing
