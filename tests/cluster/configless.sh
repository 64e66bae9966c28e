#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --conf SlurmctldParameters=enable_configless
# Nodes without a file of Slurm's: they fetch slurm.conf and plugstack.conf.
. "$source/tests/cluster/lib.sh"

# Beside slurm.conf is where slurmctld looks for plugstack.conf then.
sed -i '/^PlugStackConfig=/d' "$cluster/slurm.conf"
check "the controller takes plugstack.conf from beside slurm.conf" on_cluster scontrol reconfigure

# A slurmd knows no socket of munge but the usual one before it has a configuration.
cat >"$work/fetch" <<'END'
pkill -x slurmd
while pgrep -x slurmd >/dev/null; do sleep 0.05; done
run=$1/local/fetch
mkdir -p "$run/munge" "$run/slurm-ddp" && mount --rbind /run/slurm-ddp "$run/slurm-ddp" &&
	ln -s "$1/local/munge.sock" "$run/munge/munge.socket.2" && mount --rbind "$run" /run || exit 1
exec env -u SLURM_CONF slurmd -D --conf-server head
END
started=()
for node in n0 n1; do
	limit=600 on_node $node unshare --mount sh "$work/fetch" "$cluster" >"$work/$node.log" 2>&1 &
	started+=($!)
done
# The test's end is theirs.
trap 'kill "${started[@]}" 2>/dev/null' EXIT
for node in n0 n1; do
	wait_until 30 on_node $node test -s "$cluster/local/spool/conf-cache/plugstack.conf"
	capture on_node $node cat "$cluster/local/spool/conf-cache/plugstack.conf"
	prints "^optional $cluster/spank_ddp.so" "$node has fetched the plugin's line"
done
# registered: both have told slurmctld so
registered() { [ "$(on_cluster sinfo -h -o '%T %D')" = 'idle 2' ]; }
wait_until 30 registered
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c 'echo "rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME, $MASTER_ADDR"'
[ "$status" = 0 ] || output+=$'\n'$(cat "$work"/n?.log)
status_is 0 "srun --ddp runs there"
for rank in 0 1 2 3; do
	prints "^rank $rank of 4 on n$((rank / 2)), n0$" "rank $rank knows who it is"
done
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c 'if [ $RANK = 3 ]; then exit 7; fi; exec sleep 30'
prints_times 1 'ddp: rank 3 of 4 on n1 exited with code 7' "a failure is said once"
status_is 7 "and ends the step, with its code"

# A change on the controller's host alone.
sed -i 's/^optional .*/& timeout=77/' "$cluster/plugstack.conf"
on_cluster scontrol reconfigure
# fetched: by both
fetched() { on_node n0 grep -q timeout=77 "$1" && on_node n1 grep -q timeout=77 "$1"; }
wait_until 30 fetched "$cluster/local/spool/conf-cache/plugstack.conf"
capture as_user srun --ddp -N2 -n2 printenv DDP_TIMEOUT
prints_times 2 '^77$' "after scontrol reconfigure both nodes have another default"
done_testing
