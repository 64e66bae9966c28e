#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 1800
# TEST_NODES: as many nodes as a step may have here, such as 32, which takes two
# cores some minutes; without it, the test is skipped. spank_code has the same for
# two to four.
# The controller gets one request or two for a failing step, on these as on two.
. "$source/tests/cluster/lib.sh"

nodes=${TEST_NODES-}
[ -n "$nodes" ] || skip_all "TEST_NODES is not set"
own=/run/slurm-ddp/scale-$$
trap '"$source/slurm/cluster" stop --dir "$own" >/dev/null 2>&1' EXIT
check "a cluster of $nodes nodes starts" "$source/slurm/cluster" start --dir "$own" --nodes "$nodes" --for $$ \
	--timeout 600 --plugin "$build/spank/.libs/spank_ddp.so"
[ "$status" = 0 ] || { done_testing; exit; }
cluster=$own limit=300
counts=''
for count in 2 $((nodes / 4)) "$nodes"; do
	for end in 'exit 3' 'kill -9 $$'; do
		rm -rf "$cluster/work/up" && mkdir -m 1777 "$cluster/work/up"
		asked=$(requests)
		capture as_user srun --ddp -N"$count" --ntasks-per-node=2 sh -c ": >$cluster/work/up/\$RANK
			if [ \$RANK = 1 ]; then
				until [ \$(ls $cluster/work/up | wc -l) = \$WORLD_SIZE ]; do sleep 0.1; done
				date +%s%N >$cluster/work/failed_at; $end
			fi; exec sleep 1000"
		took=$((($(date +%s%N) - $(<"$cluster/work/failed_at")) / 1000000))
		asked=$(($(requests) - asked))
		echo "# $count nodes, $end: $asked requests, the step's end after $took ms"
		prints_times 1 "ddp: rank 1 of $((2 * count)) on n0" "$count nodes, $end: one report"
		counts+=" $asked"
	done
done
case $counts in
' '[12]' '[12]' '[12]' '[12]' '[12]' '[12]) ok "one request or two, on two nodes, $((nodes / 4)) and $nodes" ;;
*) not_ok "one request or two, on two nodes, $((nodes / 4)) and $nodes" "requests:$counts" ;;
esac
done_testing
