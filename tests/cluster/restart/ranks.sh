# SPDX-License-Identifier: Apache-2.0
# Ranks whose failures a test chooses, and steps of them with restart=. A test of a cluster reads this behind lib.sh.
# shellcheck shell=bash disable=SC2154 # lib.sh and tests/run set the others
cd "$work" || exit 1
# A rank leaves its start and its place, then does what the file of its generation and rank says, or waits for the end.
# If the file 'lives' is there, what it has started tells how long it lives.
{ echo "$no_process" && cat <<'END'; } >rank.sh
g=$DDP_RESTART_COUNT
echo "$SLURMD_NODENAME $WORLD_SIZE $NODE_RANK $SLURM_STEP_NODELIST" >place.$g.$RANK
date +%s%N >start.$g.$RANK
mv start.$g.$RANK up.$g.$RANK
[ ! -e lives ] || (setsid sh -c "while :; do : >alive.$g.$RANK; sleep 0.1; done" &)
[ ! -e do.$g.$RANK ] || . ./do.$g.$RANK
until [ -e finish ]; do sleep 0.2; done
END
chmod 644 rank.sh

# on_rank GENERATION RANK COMMANDS: what it does once all ranks of its generation are up
on_rank() { echo "until all=(up.$1.*); [ \${#all[@]} = \$WORLD_SIZE ]; do sleep 0.05; done; $3" >"do.$1.$2"; }
afresh() { rm -f granted dead fail.* place.* start.* up.* alive.* lives do.* finish out status; }
# begin SRUN-OPTION...: the step, in the background
begin()
{
	(as_user srun "$@" bash ./rank.sh >out 2>&1 </dev/null; echo $? >status.new; mv status.new status) &
	step=$!
}
count_up() { local all=(up."$1".*); [ -e "${all[0]}" ] && [ ${#all[@]} = "$2" ]; }
# up GENERATION RANKS
up() { wait_until 30 count_up "$@" || not_ok "generation $1 has $2 ranks" "$(cat out)" "$(ls up.* 2>/dev/null)"; }
# ended: waits for the step; $output and $status are srun's
# shellcheck disable=SC2034,SC2120 # lib.sh looks at both; tests give a time
ended()
{
	wait_until "${1:-60}" test -e status || kill "$step"
	wait "$step"
	output=$(cat out) status=$(cat status 2>/dev/null || echo 124)
}
finish() { : >finish; ended 60; }
# places GENERATION RANK...: their nodes
places()
{
	local node rank nodes=()
	for rank in "${@:2}"; do
		if read -r node _ <"place.$1.$rank"; then nodes+=("$node"); fi
	done 2>/dev/null
	echo "${nodes[*]}"
}
# after MOMENT FILE: how many ms after it the file's time is
after() { echo $((($(cat "$2") - $1) / 1000000)); }

# head COMMAND...: on the head, as root, at once: on_cluster waits for jobs that are being cleaned up, and SLURM cannot
# clean up on a node that has lost its power.
head() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
link() { head ip link set "n$1" "$2"; }
# power_off NODE...: their links go, then all of their processes; nothing says good-bye
power_off()
{
	local node
	for node in "$@"; do link "$node" down; done
	# shellcheck disable=SC2034 # tests look at it
	off=$(date +%s%N)
	for node in "$@"; do on_node "n$node" sh -c 'pkill -9 slurmstepd; pkill -9 -x ddp-agent; pkill -9 -u nobody; true'; done
}
# restored NODE...: a cluster as before. SLURM forgets the jobs of a node that it is told to take for down.
restored()
{
	# shellcheck disable=SC2016 # the head expands it
	head sh -c 'for node; do ip link set "n$node" up; done
		IFS=,; scancel -u nobody
		scontrol update NodeName="n[$*]" State=DOWN Reason=test; scontrol update NodeName="n[$*]" State=RESUME' restored "$@"
	wait_until 60 idle
}
# shellcheck disable=SC2016 # the head expands it
idle() { head sh -c '[ -z "$(squeue -h -o %i)" ] && [ "$(sinfo -h -t idle -o %D)" = 4 ]'; }
# shellcheck disable=SC2034 # tests look for it
readonly line='ddp: .*restart [0-9]+ of [0-9]+'
left() { for i in 0 1 2 3; do on_node n$i pgrep -x 'ddp-agent|slurmstepd'; done | wc -l; }
none_left() { [ "$(left)" = 0 ]; }
