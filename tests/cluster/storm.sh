#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 3600
# STORM_ARGS: options of tests/cluster/storm, such as '--rounds 300 --seed 7', or '--seed 7 --only 41'
# to repeat a round: `make check-storm`. STORM_REPORT: a file for what it prints.
# Trainings that are hurt at random end in time, with the right verdict, and resume exactly.
. "$source/tests/cluster/lib.sh"

nodes=4 own=/run/slurm-ddp/storm-$$ place=$work/place
grep -qs '^#define HAVE_UCX 1' "$build/config.h" || skip_all "libddp is built without UCX"
trap '"$source/slurm/cluster" stop --dir "$own" >/dev/null 2>&1' EXIT
trap 'keep_hung "the whole test"; exit 124' TERM
mkdir "$place"
# All nodes see the small disk, as the cluster starts in a namespace that has it.
# shellcheck disable=SC2016 # the inner shell is to expand it
check "a cluster of $nodes nodes starts" unshare --mount sh -c '
	mount -t tmpfs -o size=16m,mode=755 storm "$1" && shift && exec "$@"' sh "$place" \
	"$source/slurm/cluster" start --dir "$own" --nodes $nodes --for $$ --plugin "$build/spank/.libs/spank_ddp.so" \
	--conf PreemptType=preempt/partition_prio --conf PreemptMode=REQUEUE \
	--conf 'PartitionName=low Nodes=ALL PriorityTier=1 MaxTime=INFINITE' \
	--conf 'PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE'
[ "$status" = 0 ] || { done_testing; exit; }
cluster=$own
# shellcheck disable=SC2016
check "the storm's files are there" "$source/slurm/cluster" run --dir "$own" -- sh -c '
	install -m 755 "$1/tests/cluster/storm_probe" "$2" && cp "$3/slurm.conf" "$2/plain.conf" &&
	{ cat "$3/slurm.conf" && echo KillOnBadExit=1 && echo WaitTime=1; } >"$2/strict.conf"' sh "$build" "$place" "$own"
# shellcheck disable=SC2086 # words are wanted
"$source/slurm/cluster" run --dir "$own" -- python3 "$source/tests/cluster/storm" --cluster "$own" \
	--place "$place" --keep "$work/hung" ${STORM_ARGS---rounds $([ -n "$all" ] && echo 20 || echo 10) --seed 1} 2>&1 |
	tee "${STORM_REPORT:-/dev/null}" | sed 's/^/# /'
status=${PIPESTATUS[0]}
status_is 0 "all rounds have the right verdict, and resume exactly"
done_testing
