#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# seconds: 240
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
	limit=120 capture on_cluster srun --ddp -N4 --ntasks-per-node=1 "$@" --json "$results/$name.json" \
		--exclude-file "$results/$name.exclude"
}
# named NAME: "about node peer" of each finding, in order
named()
{
	python3 -c '
import json, sys
for f in json.load(open(sys.argv[1]))["odd"]:
    print(f["about"], f.get("node", "-"), f.get("peer", "-"))' "$results/$1.json" | sort | tr '\n' ';'
}
excluded() { cat "$results/$1.exclude"; }

# often NAME WANTED FUNCTION TEXT: calls FUNCTION so many times, and says in how many the findings were the wanted ones,
# a regular expression
often()
{
	local right=0 wrong=''
	for ((i = 0; i < runs; i++)); do
		"$3"
		if [[ $(named "$1") =~ ^($2)$ ]]; then right=$((right + 1)); else wrong+="run $i: $(named "$1") status $status"$'\n'; fi
	done
	echo "# $1: $right of $runs, load $(cut -d' ' -f1-3 /proc/loadavg)"
	[ "$right" = "$runs" ] || output=$wrong$output
	same "$runs" "$right" "$4"
}

clean() { preflight clean "$tool" --history "$results/history"; }
for ((i = 0; i < load; i++)); do
	(while :; do :; done) &
	burners+=($!)
done
often clean '' clean 'where nothing is wrong, nothing is named'
[ ${#burners[@]} = 0 ] || kill "${burners[@]}"
burners=()
status_is 0 'and it exits with 0'
prints 'nothing is odd' 'says so'
prints 'ddp-preflight: 4 ranks on 4 nodes' 'and for whom'
same '' "$(excluded clean)" 'no node is to be left out'
same "$runs" "$(grep -c '"preflight":1' "$results/history")" 'each run is added to the history'
check 'a program can read the result' python3 -c '
import json, sys
all = json.load(open(sys.argv[1]))
assert all["preflight"] == 1 and len(all["nodes"]) == 4 and len(all["ranks"]) == 4 and len(all["links"]) == 6, all
assert all["ranks"][3]["product"]["alone"]["peak"] > 0 and all["links"][0]["bandwidth"] > 0, all
' "$results/clean.json"

limits() { preflight limits sh -c '[ $SLURM_PROCID != 2 ] || ulimit -n 700; exec "$@"' limits "$tool"; }
often limits 'limit n2 -;' limits 'a wrong limit is named'
status_is 1 'and it exits with 1'
prints 'ODD: +rank 2 on n2: the limit of open files \(nofile\) is 700, and others have' 'with both values'
same n2 "$(excluded limits)" 'the node can be left out by srun --exclude'

# Packets of one link wait for a bucket of tokens.
slow_link()
{
	on_node n1 sh -ec 'tc qdisc add dev eth0 root handle 1: htb default 10
		tc class add dev eth0 parent 1: classid 1:10 htb rate 10gbit quantum 60000
		tc class add dev eth0 parent 1: classid 1:20 htb rate 100mbit quantum 60000
		tc filter add dev eth0 parent 1: protocol ip u32 match ip dst "$1"/32 flowid 1:20' tc "$1"
}
link() { preflight link "$tool"; }
address=$(on_node n1 getent hosts n2 | cut -d' ' -f1)
if slow_link "$address" >"$work/tc.log" 2>&1; then
	often link 'bandwidth n1 n2;' link 'a slow link is named'
	status_is 1 'and it exits with 1'
	same n2 "$(excluded link)" 'one of its ends is to be left out'
else
	skip 'a slow link is named' "this kernel has no traffic control: $(head -n 1 "$work/tc.log")"
fi
on_node n1 tc qdisc del dev eth0 root >/dev/null 2>&1

install -m 755 "$source/tests/cluster/preflight/hobble.py" "$work/hobble.py"
rank()
{
	preflight rank sh -c '[ $SLURM_PROCID != 2 ] || '"$work/hobble.py"' $$ & exec "$@"' rank "$tool"
}
# On a busy machine, what is named may be the work that it gets done.
often rank '([a-z]+ n2 -;)+' rank 'a rank that does not get its processor is named'
prints 'ODD: +rank 2 on n2: .*[0-9]+%' 'and how much it gets'

# Half of a processor is less than others have only where processors are free.
neighbour()
{
	taskset -c 1 sh -c 'while :; do :; done' &
	burners=($!)
	preflight neighbour sh -c '[ $SLURM_PROCID != 2 ] || taskset -cp 1 $$ >/dev/null; exec "$@"' neighbour "$tool"
	kill "${burners[@]}"
	wait "${burners[@]}" 2>/dev/null
	burners=()
}
if [ "$runs" = 1 ]; then
	:
elif awk '{ exit $1 < 3 }' /proc/loadavg; then
	skip 'a rank is named that shares its processor with a busy neighbour' "the machine's load is $(cut -d' ' -f1 /proc/loadavg)"
else
	often neighbour 'binding n2 -;cpu n2 -;' neighbour 'a rank is named that shares its processor with a busy neighbour'
fi

capture on_cluster srun --ddp -N1 -n1 "$tool" --history /dev/zero
status_is 2 'a history that is no file is an error'
prints 'ddp-preflight: cannot read /dev/zero: ' 'which is said'
capture "$tool" --timeout 0
status_is 2 'a wrong option is one, too'
capture "$tool" --help
status_is 0 'there is a help text'
done_testing
