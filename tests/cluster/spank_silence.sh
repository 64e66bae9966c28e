#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 900
# A node that falls silent: srun names it and ends soon, and what only looks like that does nothing. Nodes of a cluster
# of its own lose their power, that is, their link goes down and then all their processes are killed.
. "$source/tests/cluster/lib.sh"

own=/run/slurm-ddp/silence-$$
trap '"$source/slurm/cluster" stop --dir "$own" >/dev/null 2>&1' EXIT
check "a cluster starts" "$source/slurm/cluster" start --dir "$own" --nodes 3 --for $$ \
	--plugin "$build/spank/.libs/spank_ddp.so"
[ "$status" = 0 ] || { done_testing; exit; }
cluster=$own

now() { echo $(($(date +%s%N) / 1000000)); }
# head COMMAND...: at once; SLURM may be cleaning up behind a job meanwhile
head() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
link() { head ip link set "$1" "$2"; }
# links STATE: of all nodes, as near to at once as it goes
links() { head sh -c "for node in n0 n1 n2; do echo link set \$node $1; done | ip -batch -"; }
power_off()
{
	link "$1" down
	"$source/slurm/cluster" run --dir "$cluster" --node "$1" -- kill -KILL -1
	lost_at=$(now)
}
all_idle() { [ "$(head sinfo -h -o '%T %D')" = "idle 3" ]; }
power_on()
{
	# SLURM waits for the end of its job there otherwise.
	head scontrol update NodeName="$1" State=DOWN Reason=test
	link "$1" up
	# shellcheck disable=SC2016 # the node's shell expands it
	on_node "$1" sh -c 'rm -f "$1"/local/munge.sock*
		munged --key-file="$1/munge.key" --socket="$1/local/munge.sock" --num-threads=2 \
			--pid-file="$1/local/run/munged.pid" --log-file="$1/log/$2.munged.log" --seed-file="$1/local/munged.seed"
		slurmd' power_on "$cluster" "$1" >/dev/null 2>&1
	wait_until 60 all_idle || not_ok "$1 comes back"
}

up=$cluster/work/up log=$cluster/work/log
# start RANKS COMMAND...: in the background as an ordinary user, until so many ranks have started; each line of its
# output gets the time.
start()
{
	local ranks=$1
	shift
	rm -rf "$up" "$log" && mkdir -m 1777 "$up" && : >"$log"
	# shellcheck disable=SC2016 # the inner shell expands it
	as_user bash -c 'set -o pipefail; "$@" 2>&1 | while IFS= read -r line; do echo "$(($(date +%s%N) / 1000000)) $line"; done' \
		start "$@" >"$log" </dev/null &
	started=$!
	wait_until 60 all_up "$ranks" || not_ok "$ranks ranks start" "$(<"$log")"
	sleep 0.5 # the nodes' links
}
all_up() { [ "$(find "$up" -type f | wc -l)" -ge "$1" ]; }
# finish: until it has ended; $output without the times, $ended_at
finish()
{
	status=0
	wait "$started" || status=$?
	ended_at=$(now)
	output=$(sed 's/^[0-9]* //' "$log")
}
# since_loss REGEX: how long after the power loss a line came
since_loss()
{
	local at
	at=$(grep -E -- "$1" "$log" | sed 1q | cut -d ' ' -f 1)
	echo $((${at:-0} - lost_at))
}
# is_soon MS BOUND NAME
is_soon()
{
	if [ "$1" -gt 0 ] && is_within "$1" "$2"; then ok "$3"; else not_ok "$3" "after $1 ms, not $2"; fi
}
# sleeps SECONDS: what a rank does that is no program of libddp's
sleeps() { echo ": >$up/\$RANK; exec sleep $1"; }
left_on() { on_node "$1" pgrep -f 'sleep 10[0-9][0-9]'; }

# ---- what is a verdict --------------------------------------------------------------------

start 6 srun --ddp -N3 --ntasks-per-node=2 sh -c "$(sleeps 1000)"
power_off n1
finish
status_is 1 "power of n1: srun ends with 1"
prints_times 1 'ddp: node n1 \(ranks 2-3\) has been silent for [0-9.]+ s: is its power or network lost\?' \
	"it names the node and its ranks, once"
prints_times 1 'ddp: ' "and says nothing else"
line=$(since_loss 'ddp: node n1')
echo "# the line came after $line ms, srun's end after $((ended_at - lost_at)) ms"
is_soon "$line" 6000 "within silence= and a second"
# srun rounds its two seconds up.
is_soon $((ended_at - lost_at)) 7500 "srun has ended two seconds later"
power_on n1

start 3 salloc -N3 sh -c "srun --ddp=silence=2 -K1 -m cyclic -n3 sh -c '$(sleeps 1000)'; echo code \$?
	srun -N2 -n2 hostname; echo next \$?"
power_off n0
finish
prints '^code 1$' "power of n0, srun elsewhere, -K1: srun ends with 1"
prints_times 1 'ddp: node n0 \(rank 0\) has been silent for 2\.[0-9] s' "it names n0"
prints 'ddp: job [0-9]+ goes on without node n0' "n0 leaves the job"
prints '^next 0$' "the next step of the job starts"
prints_times 2 '^n[12]$' "on the nodes that are left"
is_soon $(($(since_loss ' next 0$') - $(since_loss ' code 1$'))) 3000 "at once"
power_on n0

# SLURM would keep the step for ever if the others' slurmstepds ended before n1 left the job.
end=$cluster/work/end
start 3 salloc -N3 sh -c "srun --ddp=silence=3 -n3 sh -c ': >$up/\$RANK; until [ -e $end ]; do sleep 0.05; done; exit 1'
	echo code \$?; srun -N2 -n2 hostname; echo next \$?"
power_off n1
sleep 1
: >"$end"
finish
prints '^code 1$' "the other ranks end before the verdict: srun ends with 1"
prints_times 1 'ddp: node n1 \(rank 1\) has been silent for 3\.[0-9] s' "it names the node"
prints '^next 0$' "and the next step of the job starts"
power_on n1

start 3 salloc --no-kill -N3 sh -c "srun --no-kill --ddp=silence=2 sh -c '$(sleeps 6)'; echo code \$?; echo end
	srun -N2 -n2 -w n0,n2 hostname; echo next \$?"
power_off n1
finish
prints_times 1 'ddp: node n1 .*has been silent .*; the step goes on \(--no-kill\)' "--no-kill: the step goes on"
# It had six seconds when the last rank started.
if [ "$(since_loss ' code')" -gt 4000 ]; then ok "as long as its ranks run"; else not_ok "as long as its ranks run"; fi
is_soon "$(since_loss ' code')" 9500 "and srun ends when they have ended"
prints '^next 0$' "the next step starts"
power_on n1

start 3 srun --ddp=silence=2,on-failure=continue -N3 sh -c "$(sleeps 6)"
power_off n1
finish
status_is 1 "on-failure=continue: srun ends with 1"
prints_times 1 'ddp: node n1 .*has been silent' "it names the node"
is_soon $((ended_at - lost_at)) 9500 "and ends when the others have ended"
power_on n1

start 1 srun --ddp=silence=2 -N1 -w n1 sh -c "$(sleeps 1000)"
power_off n1
finish
status_is 1 "a step of one node"
prints_times 1 'ddp: node n1 .*has been silent for 6\.' "which may be srun's own network: after three times as long"
power_on n1

# ---- a link that comes back ------------------------------------------------------------------

start 3 srun --ddp -N3 sh -c "$(sleeps 9)"
# Within one command, as each one starts late on a busy machine.
head sh -c 'ip link set n1 down; sleep 2; ip link set n1 up'
finish
status_is 0 "a link that is away for 2 s"
prints_not 'ddp: ' "is nothing"

start 3 srun --ddp=silence=2 -N3 sh -c "$(sleeps 1000)"
link n1 down
lost_at=$(now)
finish
status_is 1 "a link that is away for longer"
prints_times 1 'ddp: node n1 .*has been silent' "is a node that is lost"
check "whose ranks run" left_on n1
link n1 up
ends() { ! left_on n1; }
check "until it finds out that srun is gone" wait_until 20 ends
wait_until 60 all_idle

start 3 srun --ddp=silence=2 -N3 sh -c "$(sleeps 16)"
links down
sleep 8
links up
finish
status_is 0 "all links away at once: the step goes on"
prints_times 1 'ddp: all 3 nodes have been silent for [0-9.]+ s: is the network of head, where srun runs, lost\?' \
	"srun asks whether it is its own network"
prints_times 1 'ddp: ' "and says nothing else"

# ---- what only looks like silence ---------------------------------------------------------------

start 3 srun --ddp=silence=2 -N3 sh -c "$(sleeps 12)"
pids=$(pgrep -f "^srun --ddp=silence=2 -N3 sh -c : >$up")
# shellcheck disable=SC2086 # srun has two processes
kill -STOP $pids
sleep 5
# shellcheck disable=SC2086
kill -CONT $pids
finish
status_is 0 "srun is stopped, and goes on"
prints_not 'ddp: ' "that is nothing"

start 3 salloc -N3 sh -c "echo \$SLURM_JOB_ID >$cluster/work/id; srun --ddp=silence=2 sh -c '$(sleeps 8)'"
head scontrol suspend "$(<"$cluster/work/id")"
sleep 5
head scontrol resume "$(<"$cluster/work/id")"
finish
status_is 0 "scontrol suspend and resume"
prints_not 'ddp: ' "that is nothing, either"

start 3 srun --ddp=silence=3 -N3 sh -c "$(sleeps 6)"
burners=''
for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
	nice -n -5 timeout 4 sh -c 'while :; do :; done' &
	burners+=" $!"
done
finish
# shellcheck disable=SC2086
wait $burners
status_is 0 "a busy machine"
prints_not 'ddp: ' "is none that is silent"

# ---- without it -------------------------------------------------------------------------------------

# counts NODE: how many sockets and threads slurmstepd has there, and how many processes the node has
counts() { on_node "$1" sh -c "$counts"; }
# shellcheck disable=SC2016 # the node's shell expands it
counts='pid=$(pgrep -f "^slurmstepd: " | sed 1q)
	echo $(find /proc/$pid/fd -lname "socket:*" | wc -l) $(ls /proc/$pid/task | wc -l) $(ps -e | wc -l)'
start 3 srun --ddp=silence=0 -N3 sh -c "$(sleeps 6)"
read -r sockets rest < <(counts n1)
finish
start 3 srun --ddp -N3 sh -c "$(sleeps 6)"
wanted="$((sockets + 1)) $rest"
has_link() { with=$(counts n1); [ "$with" = "$wanted" ]; }
wait_until 5 has_link
same "$wanted" "$with" "silence= is one connection a node, no thread and no process"
finish
# Of a step of a thousand nodes, on an idle core: a fiftieth of it.
if [ "$(ulimit -Hn)" -gt 1500 ]; then
	check "a thousand links" "$build/tests/cluster/link_probe" 1000 8 5000
	echo "# ${output//$'\n'/; }"
	prints '^links open: 1000$' "all are open"
	prints_not '^said: ' "and none is silent"
	if awk '/^of srun:/ { found = $4 < 200 && $7 < 1100 && $9 < 20000 } END { exit !found }' <<<"${output//,/}"; then
		ok "they cost srun a descriptor each, and little processor time and memory"
	else
		not_ok "they cost srun a descriptor each, and little processor time and memory"
	fi
else
	skip "a thousand links" "a process may have $(ulimit -Hn) descriptors only"
fi
start 3 srun --ddp=silence=0 -N3 sh -c "$(sleeps 8)"
link n1 down
sleep 3
link n1 up
finish
status_is 0 "silence=0: nobody looks"
prints_not 'ddp: ' "for silence"
done_testing
