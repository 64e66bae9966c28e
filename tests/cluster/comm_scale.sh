#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 2400
# TEST_NODES: as many nodes as the world has, such as 16, of TEST_PER_NODE ranks each (16):
# `make check-scale`. Without it, the test is skipped. It takes two cores some minutes.
# TEST_REPORT: a file for what each part took.
# A large world wires up, does random operations, loses a rank, and shrinks.
. "$source/tests/cluster/lib.sh"

nodes=${TEST_NODES-} per_node=${TEST_PER_NODE:-16}
[ -n "$nodes" ] || skip_all "TEST_NODES is not set"
[ -x "$build/tests/cluster/scale_probe" ] || skip_all "there is no cmocka"
own=/run/slurm-ddp/scale-$$
trap '"$source/slurm/cluster" stop --dir "$own" >/dev/null 2>&1' EXIT
check "a cluster of $nodes nodes starts" "$source/slurm/cluster" start --dir "$own" --nodes "$nodes" --cpus "$per_node" \
	--for $$ --timeout 600 --plugin "$build/spank/.libs/spank_ddp.so"
[ "$status" = 0 ] || { done_testing; exit; }
cluster=$own
cp "$build/tests/cluster/scale_probe" "$work/probe" && chmod 755 "$work/probe"

# Some 150 ranks share a core here: each that is waited for may be the last to run.
ranks=$((nodes * per_node)) limit=1500
capture as_user srun --mpi=none --ddp=on-failure=continue,timeout=600 --kill-on-bad-exit=0 -N"$nodes" \
	--ntasks-per-node="$per_node" "$work/probe"
printf '%s\n' "$output" | grep -E '^(wire-up|random|all_to_all|a death|shrink)' | tee "${TEST_REPORT:-/dev/null}" | sed 's/^/# /'
status_is 137 "the step's exit code is that of the rank that was killed"
prints "ddp: rank $((ranks / 2)) of $ranks on n[0-9]+ was killed by signal 9" "which is named"
prints_times 1 "^$((ranks - 1)) of $ranks ranks went on" "the others shrink, and go on"
prints_not 'Assert|Aborted|exit code' "and end in peace"
done_testing
