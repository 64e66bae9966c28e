#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# seconds: 240
# all: cluster
# ddp-preflight: a slow rank, a slow link and a wrong limit are named, and nothing else is. PREFLIGHT_RUNS (1) is how often
# each is tried, and PREFLIGHT_LOAD (0) how many processes compute beside the runs without a fault; make check-preflight
# does it 100 times.
. "$source/tests/cluster/lib.sh"

runs=${PREFLIGHT_RUNS:-1} load=${PREFLIGHT_LOAD:-0}
tool=$prefix/bin/ddp-preflight
[ -x "$tool" ] || "$build/libtool" --mode=install install -c "$build/libruntime/preflight/ddp-preflight" "$tool" \
	>"$work/install.log" 2>&1
results=$work/preflight
mkdir -p "$results"
burners=()
trap 'kill "${burners[@]}" 2>/dev/null' EXIT

# preflight NAME COMMAND...: on four nodes; what it names goes to NAME.json, and the nodes to be left out to NAME.exclude
preflight()
{
	local name=$1
	shift
	rm -f "$results/$name.json"
	limit=120 capture on_cluster srun --ddp -N4 --ntasks-per-node=1 "$@" --json "$results/$name.json" \
		--exclude-file "$results/$name.exclude"
}
# named NAME: "about node peer" of each finding, in order
named()
{
	[ -f "$results/$1.json" ] || { echo no result; return; }
	python3 -c '
import json, sys
for f in json.load(open(sys.argv[1]))["odd"]:
    print(f["about"], f.get("node", "-"), f.get("peer", "-"))' "$results/$1.json" | sort | tr '\n' ';'
}
excluded() { cat "$results/$1.exclude"; }

# busy NICE COMMAND...: a process of an own session that computes, and that the kernel prefers by so much. The kernel
# weighs sessions (autogroup) before it weighs processes.
busy()
{
	local nice=$1
	shift
	setsid "$@" nice -n "$nice" sh -c "echo $nice"' 2>/dev/null >/proc/self/autogroup; while :; do :; done' 2>/dev/null &
	burners+=($!)
}
calm()
{
	[ ${#burners[@]} = 0 ] || kill "${burners[@]}" 2>/dev/null
	wait "${burners[@]}" 2>/dev/null
	burners=()
}

clean()
{
	for ((n = 0; n < load; n++)); do busy 0 env; done
	preflight clean "$tool"
	calm
}

limits() { preflight limits sh -c '[ $SLURM_PROCID != 2 ] || ulimit -n 700; exec "$@"' limits "$tool"; }

# Packets of one link wait for a bucket of tokens. All others belong to no class, so they pass at once.
slow_link()
{
	on_node n1 sh -ec 'tc qdisc add dev eth0 root handle 1: htb
		tc class add dev eth0 parent 1: classid 1:20 htb rate 100mbit quantum 60000
		tc filter add dev eth0 parent 1: protocol ip u32 match ip dst "$1"/32 flowid 1:20' tc "$1"
}
fast_link() { on_node n1 tc qdisc del dev eth0 root >/dev/null 2>&1; }
link()
{
	slow_link "$address" >"$work/tc.log" 2>&1
	preflight link "$tool"
	fast_link
}

install -m 755 "$source/tests/cluster/preflight/hobble.py" "$work/hobble.py"

# idle: the processors rest for at least half of the next 0.5 s. The load average still tells of the case before.
idle()
{
	local before after
	before=$(awk '/^cpu / { print $5 + $6 }' /proc/stat)
	sleep 0.5
	after=$(awk '/^cpu / { print $5 + $6 }' /proc/stat)
	[ $((after - before)) -ge $(($(getconf CLK_TCK) * $(nproc) / 4)) ]
}

# On a busy machine, a fifth of a processor may be all that the others have, too.
rank()
{
	preflight rank sh -c '[ $SLURM_PROCID != 2 ] || '"$work/hobble.py"' $$ $0 & exec "$@"' "$(idle && echo 0.2 || echo 0.05)" "$tool"
}

# All ranks are bound to one processor, and that of one rank has a busy neighbour. On an idle machine, the rank has half of
# its processor. On a busy one the others have no more either, so the neighbour takes nearly all.
neighbour()
{
	busy "$(idle && echo 0 || echo -15)" taskset -c "${cpus[1]}"
	preflight neighbour sh -c 'cpu=$1; [ $SLURM_PROCID != 2 ] || cpu=$2; shift 2; exec taskset -c $cpu "$@"' \
		neighbour "${cpus[@]}" "$tool"
	calm
}

cases=(clean limits rank)
address=$(on_node n1 getent hosts n2 | cut -d' ' -f1)
slow_link "$address" >"$work/tc.log" 2>&1 && cases+=(link)
fast_link
read -ra cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2])')
# One run alone stands beside other tests, which are busy neighbours of all ranks.
[ ${#cpus[@]} -lt 2 ] || [ "$runs" = 1 ] || cases+=(neighbour)
# What is to be named, as regular expressions. On a busy machine, it may be the work that a rank gets done.
declare -A wanted=([clean]='' [limits]='limit n2 -;' [link]='bandwidth n1 n2;' [rank]='([a-z]+ n2 -;)+'
	[neighbour]='([a-z]+ n2 -;)+')
declare -A right wrong statuses outputs
# Each round has each case, so that a run that is cut short has tried all as often.
for ((i = 1; i <= runs; i++)); do
	for name in "${cases[@]}"; do
		"$name"
		found=$(named "$name")
		if [[ $found =~ ^(${wanted[$name]})$ ]]; then
			right[$name]=$((${right[$name]:-0} + 1))
		else
			wrong[$name]+="run $i: $found status $status"$'\n'$output$'\n'
			[ "$runs" = 1 ] || cp "$results/$name.json" "$results/$name.$i.json"
		fi
		[ "$runs" = 1 ] || echo "# $name: ${right[$name]:-0} of $i, load $(cut -d' ' -f1-3 /proc/loadavg): $found"
		statuses[$name]=$status outputs[$name]=$output
	done
done
# always NAME TEXT: the case was right in each run; what follows is of its last run
always()
{
	status=${statuses[$1]} output=${outputs[$1]}
	[ "${right[$1]:-0}" = "$runs" ] || output=${wrong[$1]}$output
	same "$runs" "${right[$1]:-0}" "$2"
}

always clean 'where nothing is wrong, nothing is named'
status_is 0 'and it exits with 0'
prints 'nothing is odd' 'says so'
prints 'ddp-preflight: 4 ranks on 4 nodes' 'and for whom'
same '' "$(excluded clean)" 'no node is to be left out'
check 'a program can read the result' python3 -c '
import json, sys
all = json.load(open(sys.argv[1]))
assert all["preflight"] == 1 and len(all["nodes"]) == 4 and len(all["ranks"]) == 4 and len(all["links"]) == 6, all
assert all["ranks"][3]["product"]["alone"]["rate"] > 0 and all["links"][0]["bandwidth"] > 0, all
' "$results/clean.json"

always limits 'a wrong limit is named'
status_is 1 'and it exits with 1'
prints 'ODD: +n2: the limit of open files \(nofile\) is 700, and others have' 'with both values'
same n2 "$(excluded limits)" 'the node can be left out by srun --exclude'

if [ -n "${statuses[link]:-}" ]; then
	always link 'a slow link is named'
	status_is 1 'and it exits with 1'
	same n2 "$(excluded link)" 'one of its ends is to be left out'
else
	skip 'a slow link is named' "this kernel has no traffic control: $(head -n 1 "$work/tc.log")"
fi

always rank 'a rank that does not get its processor is named'
prints 'ODD: +rank 2 on n2: .*[0-9]+%' 'and how much it gets'

if [ -n "${statuses[neighbour]:-}" ]; then
	always neighbour 'a rank is named that shares its processor with a busy neighbour'
else
	skip 'a rank is named that shares its processor with a busy neighbour' 'make check-preflight tries it, on two processors'
fi

# A program whose structures are others, as far as it tells.
sed 's/%d %d %zu %zu/%d:%d %zu %zu/' "$tool" >"$work/other-preflight"
chmod 755 "$work/other-preflight"
capture on_cluster srun --ddp -N4 --ntasks-per-node=1 sh -c '[ $SLURM_PROCID != 2 ] || exec "$2" --no-gpu; exec "$1" --no-gpu' \
	release "$tool" "$work/other-preflight"
status_is 2 'another build on one node is an error'
prints 'ddp-preflight: n2 runs another build of ddp-preflight [^ ]+ than n0: install one build on all nodes' 'which names the node'
same '' "$(grep -E 'matrix product|nothing is odd' <<<"$output")" 'and nothing is measured'
capture "$tool" --timeout 0
status_is 2 'a wrong option is one, too'
capture "$tool" --help
status_is 0 'there is a help text'
done_testing
