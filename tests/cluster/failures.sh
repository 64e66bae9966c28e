#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 7200
# FAILURES_ARGS: options of tests/cluster/failures, such as '--failures 100 --seed 7', or '--seed 7 --only 3' to
# repeat a training: `make check-failures`. FAILURES_REPORT: a file for what it prints. CALM_SECONDS, CALM_LOAD: how
# long a training has no restart on a busy machine. FAILURES_NODES: of the cluster.
# Trainings whose ranks and nodes fail at random end with code 0 and the bytes of one without failures.
. "$source/tests/cluster/lib.sh"

nodes=${FAILURES_NODES:-5} own=/run/slurm-ddp/failures-$$ place=
grep -qs '^#define HAVE_UCX 1' "$build/config.h" || skip_all "libddp is built without UCX"
trap '"$source/slurm/cluster" stop --dir "$own" >/dev/null 2>&1' EXIT
trap 'keep_hung "the whole test"; exit 124' TERM
check "a cluster of $nodes nodes starts" "$source/slurm/cluster" start --dir "$own" --nodes "$nodes" --for $$ \
	--plugin "$build/spank/.libs/spank_ddp.so"
[ "$status" = 0 ] || { done_testing; exit; }
cluster=$own place=$own/work/failures
mkdir "$place" && install -m 755 "$build/tests/cluster/storm_probe" "$place"

# failures OPTION...: of tests/cluster/failures
failures()
{
	"$source/slurm/cluster" run --dir "$own" -- python3 "$source/tests/cluster/failures" --cluster "$own" \
		--place "$place" --keep "$work/hung" "$@" 2>&1 | tee -a "${FAILURES_REPORT:-/dev/null}" | sed 's/^/# /'
	status=${PIPESTATUS[0]}
}

# shellcheck disable=SC2086 # words are wanted
failures ${FAILURES_ARGS---failures $([ -n "$all" ] && echo 12 || echo 6) --each 6 --seed 1}
status_is 0 "all trainings end well, with the bytes of one without failures"
if [ -n "$all" ] && [ -z "${FAILURES_ARGS+given}" ]; then
	for shard in auto gradients; do
		failures --failures 12 --each 6 --seed 2 --survive --shard $shard
		status_is 0 "also if ranks keep their processes, and others join them (--shard $shard)"
	done
fi
# In twice the time of silence=, a false alarm would come; the processes beside it take what other tests need.
failures --calm "${CALM_SECONDS:-10}" --load "${CALM_LOAD:-4}"
status_is 0 "no restart without a failure, on a busy machine"
done_testing
