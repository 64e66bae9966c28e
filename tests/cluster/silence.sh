#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 600
# A node that falls silent is named after DDP_SILENCE seconds, on all other nodes; the ranks that are left go on.
# The nodes are namespaces of this machine: three, of two ranks each, in one network. Power loss: a node's link
# goes down, and then its processes are killed, so that nobody hears of their end.
. "$source/tests/cluster/lib.sh"
. "$source/tests/support/slowness.sh"

grep -qs '^#define HAVE_UCX 1' "$build/config.h" || skip_all "libddp is built without UCX"
[ "$(id -u)" = 0 ] || skip_all "namespaces need root"

nodes=3 per_node=2
probe=$work/probe hub=ddp-$$
cp "$build/tests/cluster/silence_probe" "$probe" && chmod 755 "$probe"
ip netns add "$hub" && ip -n "$hub" link add br0 type bridge && ip -n "$hub" link set br0 up || exit 1
pids=()
trap 'power_off_all; ip netns del "$hub"' EXIT

# start WHAT [VARIABLE=VALUE...]: all ranks; each writes to $work/RUN.RANK. $mark is the beginning of files' names.
run=0
start()
{
	local what=$1 n r
	shift
	run=$((run + 1)) mark=$work/mark$run pids=()
	[ -z "${hold-}" ] || touch "$mark.hold$hold"
	for ((n = 0; n < nodes; n++)); do
		mkfifo "$mark.link$n" || return 1
		# shellcheck disable=SC2016 # the inner shell is to expand it
		unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc \
			env "$@" RUN="$work/$run" MARK="$mark" WHAT="$what" LAST="${last-}" PROBE="$probe" PER_NODE=$per_node NODE_RANK=$n \
			NNODES=$nodes LOCAL_WORLD_SIZE=$per_node WORLD_SIZE=$((nodes * per_node)) MASTER_ADDR=10.9.8.1 MASTER_PORT=29501 \
			DDP_KEY="$(printf %064d $((run + 77)))" LC_ALL=C sh -c '
				hostname "n$NODE_RANK"
				ip link set lo up
				read -r up <"$MARK.link$NODE_RANK"
				until [ ! -e "$MARK.hold$NODE_RANK" ]; do sleep 0.02; done
				i=0
				while [ $i -lt "$PER_NODE" ]; do
					rank=$((NODE_RANK * PER_NODE + i))
					RANK=$rank LOCAL_RANK=$i "$PROBE" "$WHAT" "$MARK" $LAST >"$RUN.$rank" 2>&1 &
					i=$((i + 1))
				done
				wait' &
		pids+=($!)
	done
	for ((n = 0; n < nodes; n++)); do
		wait_until 20 inner "$n" || return 1
		ip -n "$hub" link add "v$n" type veth peer name eth0 netns "$(inner "$n")" &&
			ip -n "$hub" link set "v$n" master br0 up &&
			nsenter -t "$(inner "$n")" -n sh -c "ip addr add 10.9.8.$((n + 1))/24 dev eth0 && ip link set eth0 up" || return 1
		echo >"$mark.link$n" # which waits until the node reads it
	done
	[ -z "${hold-}" ] || return 0
	for ((r = 0; r < nodes * per_node; r++)); do
		wait_until 60 test -e "$mark.$r" || return 1
	done
}
inner() { pgrep -P "${pids[$1]}"; }

power_off() { ip -n "$hub" link set "v$1" down; kill -KILL "${pids[$1]}"; wait "${pids[$1]}" 2>/dev/null; }
power_off_all() { local n; for ((n = 0; n < ${#pids[@]}; n++)); do power_off "$n" 2>/dev/null; ip -n "$hub" link del "v$n" 2>/dev/null; done; pids=(); }
now_ms() { awk '{ printf "%d\n", $1 * 1000 }' /proc/uptime; }

# ends [NODE...]: waits for the end of these nodes (all), a minute at most; what the ranks wrote is in $output
ends()
{
	local n r left=("$@")
	[ $# -gt 0 ] || mapfile -t left < <(seq 0 $((nodes - 1)))
	status=0
	for n in "${left[@]}"; do
		wait_until "${limit:-60}" ended "$n" || status=124
	done
	output=$(for ((r = 0; r < nodes * per_node; r++)); do cat "$work/$run.$r"; done)
	power_off_all
}
ended() { ! kill -0 "${pids[$1]}" 2>/dev/null; }

# were_told: the four ranks that are left have one error, which names the node, in time, and shrink in less than a second
were_told()
{
	local name=$1 slow latest took
	slow=$(slowness)
	status_is 0 "$name: the ranks that are left end"
	prints_times 4 '^rank [0-3]: error [0-9]+ DDP_ERR_PEER .*node n2 \(ranks 4-5\) has been silent for [0-9.]+ s' "$name: all have the error that names the node"
	same 1 "$(sed -nE '/^rank [0-3]: error /{s/^rank [0-3]: error [0-9]* //; s/silent for [0-9.]+ s/silent/; p}' <<<"$output" | sort -u | wc -l)" "$name: all say the same sentence"
	latest=$(sed -n 's/^rank [0-3]: error \([0-9]*\) .*/\1/p' <<<"$output" | sort -n | tail -n 1)
	took=$((${latest:-999999999} - lost_ms))
	[ $took -lt $((silence * 1000 + 1500 * slow)) ]
	same 0 $? "$name: after $took ms"
	took=$(sed -n 's/^rank [0-3]: shrunk \([0-9]*\) 4/\1/p' <<<"$output" | sort -n | tail -n 1)
	[ "${took:-999999}" -lt $((1000 * slow)) ]
	same 0 $? "$name: they shrink in ${took:-no} ms"
	prints_times 4 '^rank [0-3]: ends well' "$name: they go on"
}

# has_connections COUNT: rank 0 has at least as many at its port for wire-up
has_connections() { [ "$(nsenter -t "$(inner 0)" -n cat /proc/net/tcp /proc/net/tcp6 | awk '$2 ~ /:733D$/ && $4 == "01"' | wc -l)" -ge "$1" ]; }

# wanted CASE: is it one of those that are to run?
wanted() { [ -z "${SILENCE_CASES-}" ] || [[ " $SILENCE_CASES " == *" $1 "* ]]; }
# begin CASE WHAT [VARIABLE=VALUE...]: false if it is not to run, or its ranks do not start
begin()
{
	wanted "$1" || return 1
	! start "${@:2}" || return 0
	not_ok "$1: ranks start"
	power_off_all
	return 1
}

silence=${SILENCE:-3}
for what in reduce barrier receive idle groups; do
	begin $what $what DDP_SILENCE="$silence" || continue
	lost_ms=$(now_ms)
	power_off 2
	# A rank that issues nothing learns of it with its next call.
	[ $what != idle ] || { sleep $((silence + 1)); lost_ms=$(now_ms); touch "$mark.go"; }
	ends 0 1
	were_told "power loss, $what"
done

# The first rank of a node watches others, and is watched: when it has ended, another one of its node does.
if begin leader again DDP_SILENCE="$silence"; then
	kill -KILL "$(pgrep -P "$(inner 2)" | head -n 1)"
	wait_until 20 grep -q '^rank 0: shrunk [0-9]* 5' "$work/$run.0"
	sleep 1
	power_off 2
	wait_until 20 grep -q '^rank 0: shrunk [0-9]* 4' "$work/$run.0"
	touch "$mark.stop"
	ends 0 1
	prints_times 4 '^rank [0-3]: error [0-9]+ DDP_ERR_PEER .*node n2 \(ranks 4-5\) has been silent for' \
		"the power of a node whose first rank had ended: all have the error that names the node"
	prints_times 4 '^rank [0-3]: ends well' "they go on"
fi

# Node 0 has rank 0.
if begin first reduce DDP_SILENCE="$silence"; then
	power_off 0
	ends 1 2
	prints_times 4 '^rank [2-5]: error [0-9]+ DDP_ERR_PEER .*node n0 \(ranks 0-1\) has been silent for' \
		"the power of the first node: all have the error that names it"
	prints_times 4 '^rank [2-5]: ends well' "they go on"
fi

# Two nodes at once: the ranks of the third one are told of one of them.
if begin two reduce DDP_SILENCE="$silence"; then
	power_off 1
	power_off 2
	ends 0
	prints_times 2 '^rank [0-1]: error [0-9]+ DDP_ERR_PEER .*node n[12] \(ranks [24]-[35]\) has been silent for' \
		"the power of two nodes: the third one's ranks have the error that names one"
	prints_times 2 '^rank [0-1]: ends well' "they go on"
fi

# A rank's death breaks the communicator; the last node does not come to the agreement, and falls silent then.
last=last
if begin during reduce DDP_SILENCE="$silence"; then
	kill -KILL "$(pgrep -P "$(inner 0)" | tail -n 1)"
	wait_until 20 grep -q '^rank 4: error' "$work/$run.4"
	power_off 2
	ends 0 1
	prints_times 3 '^rank [023]: shrunk [0-9]+ 3' "a node that falls silent during ddp_comm_shrink() is left out"
	took=$(sed -n 's/^rank [0-3]: shrunk \([0-9]*\) 3/\1/p' <<<"$output" | sort -n | tail -n 1)
	[ "${took:-999999}" -lt $((silence * 1000 + 2000 * $(slowness))) ]
	same 0 $? "after ${took:-no} ms"
	prints_times 3 '^rank [023]: ends well' "they go on"
fi
last=''

# During wire-up: node 1 comes late, and the others wait for it meanwhile. Without rank 0, ranks of node 1 would look
# for it until their timeout, as for one that has not come yet.
for lost in 2 0; do
	hold=1
	if begin "wireup$lost" reduce DDP_SILENCE="$silence" DDP_TIMEOUT=120; then
		wait_until 20 has_connections 3
		sleep 0.5
		power_off "$lost"
		rm "$mark.hold1"
		if [ $lost = 2 ]; then
			ends 0 1
			prints_times 4 '^rank -1: ddp_init failed: DDP_ERR_PEER: node n2 \(rank [45]\) has been silent for [0-9.]* s, while rank 0' \
				"the power of a node during wire-up: an error names it"
		else
			ends 2
			prints_times 2 '^rank -1: ddp_init failed: DDP_ERR_PEER: rank [45] on n2 lost rank 0 on n0 during wire-up: its node has been silent' \
				"the power of rank 0's node during wire-up: an error names it"
		fi
	fi
	hold=''
done

# What is not silence: a link that is away for 3 seconds, and stopped processes, whose kernel answers.
if begin link reduce DDP_SILENCE=5; then
	ip -n "$hub" link set v2 down
	sleep 3
	ip -n "$hub" link set v2 up
	sleep 3 # until the silence would be told
	touch "$mark.stop"
	ends
	prints_times 6 '^rank [0-5]: ends well' "a link that was away for 3 s is not silence: no byte is wrong"
	prints_not 'error' "nobody is told of it"
fi
if begin stopped reduce DDP_SILENCE="$silence"; then
	pkill -STOP -P "$(inner 2)"
	sleep 8
	pkill -CONT -P "$(inner 2)"
	touch "$mark.stop"
	ends
	prints_times 6 '^rank [0-5]: ends well' "a node whose ranks are stopped for 8 s is not silent"
	prints_not 'error' "nobody is told of it"
fi

# A network that is back when its node was called silent already: both sides go on for themselves.
if begin back reduce DDP_SILENCE="$silence"; then
	ip -n "$hub" link set v2 down
	sleep $((silence + 3))
	ip -n "$hub" link set v2 up
	ends
	prints_times 4 '^rank [0-3]: shrunk [0-9]+ 4' "a network that comes back too late: the nodes that hear each other go on together"
	prints_times 2 '^rank [45]: shrunk [0-9]+ 2' "and the one that heard none alone"
	prints_times 6 '^rank [0-5]: ends well' "all end well"
fi

# 0: never.
if begin never reduce DDP_SILENCE=0 DDP_TIMEOUT=15; then # also the time for their start
	lost_ms=$(now_ms)
	power_off 2
	ends 0 1
	prints_times 4 '^rank [0-3]: error [0-9]+ DDP_ERR_' "DDP_SILENCE=0: the timeout ends the wait"
	prints_not 'silent' "and nobody is called silent"
	earliest=$(sed -n 's/^rank [0-3]: error \([0-9]*\) .*/\1/p' <<<"$output" | sort -n | head -n 1)
	[ $((${earliest:-0} - lost_ms)) -ge 13000 ]
	same 0 $? "after $((${earliest:-0} - lost_ms)) ms"
fi
done_testing
