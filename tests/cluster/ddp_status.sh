#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# seconds: 120
# ddp-status: each rank of a running step, from its progress page and from the kernel.
. "$source/tests/cluster/lib.sh"

install -m 755 "$build/spank/status/ddp-status" "$prefix/bin/ddp-status"
install -m 755 "$build/tests/cluster/training_probe" "$work/training_probe"
tool="$prefix/bin/ddp-status"

job_of() { on_cluster squeue -h -n "$1" -t R -o %i; }
runs() { [ -n "$(job_of "$1")" ]; }

# A rank that hangs in forward, three that wait for it.
as_user srun --ddp -J hang -N2 --ntasks-per-node=2 "$work/training_probe" \
	hang 3 "$work/hangs" >"$work/hang.out" 2>&1 &
hanging=$!
wait_until 20 test -e "$work/hangs"
wait_until 10 runs hang
job=$(job_of hang)
# Until the others have come to the collective.
waiting() { as_user "$tool" --json --interval 0.05 "$job" | grep -c '"waiting": true' | grep -qx 3; }
wait_until 15 waiting
capture as_user "$tool" "$job"
status_is 0 "ddp-status shows a running job"
prints "^step $job.0: 4 ranks, 3 waiting for others" "with a summary of the step"
same 3 "$(sed -n 3p <<<"$output" | awk '{ print $1 }')" "the rank that the others wait for comes first"
prints '^ +3 +n1 +forward +[0-9.]+ s +4 +after #[0-9]+ +[0-9.]+ s .* [0-9]+% +sleeping in [a-z_0-9]+, training_probe \(' \
	"with phase, step, last collective, and what the kernel knows"
prints_times 3 '^ +[012] +n[01] +wait +[0-9.]+ s +4 +waits in #[0-9]+ all_reduce [a-z0-9]+\[[0-9]+\] sum +[0-9.]+ s' \
	"the others wait in a collective, and since when"
capture on_cluster "$tool" "$job.0"
status_is 0 "root may look at it"
prints_times 4 'training_probe' "and sees all of it"
capture on_cluster "$tool" --json "$job"
prints '^ +"rank": 3' "there is JSON"
check "which programs can read" python3 -c '
import json, sys
ranks = json.loads(sys.argv[1])["ranks"]
assert [r["rank"] for r in ranks] == [3, 0, 1, 2], ranks
assert ranks[0]["phase"] == "forward" and not ranks[0]["waiting"] and ranks[1]["waiting"]
assert ranks[0]["samples_per_second"] > 0 and ranks[0]["cpu_percent"] < 50
' "$output"
# As a timer does on each node. The nodes of this cluster share their processes, but not with the machine, where a
# cluster of another test may have a job of the same number.
capture on_cluster env SLURMD_NODENAME=n1 "$tool" --textfile "$work/ddp.prom"
status_is 0 "root writes the figures of all jobs of a node into a file"
output=$(grep "jobid=\"$job\"" "$work/ddp.prom")
prints_times 2 "^slurm_ddp_rank_step\{jobid=\"$job\",stepid=\"0\",rank=\"[23]\",node=\"n1\",user=\"[a-z]+\",partition=\"[a-z]+\"\} 4$" \
	"of the node's ranks alone, with user and partition"
prints_times 1 ',rank="3",.*,phase="forward"\} 1$' "the phase is a label"
prints_times 2 '^slurm_ddp_rank_exposed_communication_ratio\{.*\} [01](\.[0-9]+)?(e-[0-9]+)?$' "libddp tells exposed communication"
capture as_user "$tool" --format prometheus "$job"
prints_times 4 '^slurm_ddp_rank_up\{.*\} 1$' "the job's owner gets the figures of all nodes"
capture as_user env SLURMD_NODENAME=n0 "$tool" --node
prints "^step $job.0: 2 ranks, 2 waiting" "and the ranks of one node"
capture "$source/slurm/cluster" run --dir "$cluster" --user daemon -- env SLURMD_NODENAME=n0 "$tool" --node
prints_not "^step $job" "another user does not see them"
capture "$source/slurm/cluster" run --dir "$cluster" --user daemon -- "$tool" "$job"
status_is 3 "another user may not"
prints "job $job is user [0-9]+'s: only that user and root may look at it" "and is told so"
capture as_user "$tool" "$job.7"
status_is 1 "a step that does not run is none"
prints "no rank of $job.7 runs now" "and that is said"
kill %1
on_cluster scancel "$job"
wait "$hanging"

# Any program, without the plugin: what the kernel knows.
as_user srun -J plain -N2 --ntasks-per-node=1 \
	sh -c 'if [ $SLURM_PROCID = 1 ]; then touch '"$work/plain"'; while :; do :; done; fi; exec sleep 60' \
	>/dev/null 2>&1 &
plain=$!
wait_until 20 test -e "$work/plain"
job=$(job_of plain)
# Until the other one's shell has become it.
sleeping() { as_user "$tool" --interval 0.05 "$job" | grep -q 'sleep ('; }
wait_until 15 sleeping
capture as_user "$tool" "$job"
prints '^ +0 +n0 +- .* 0% +sleeping in [a-z_0-9]+, sleep \(' "of a program without pages, a sleeper sleeps"
prints '^ +1 +n1 +- .* [1-9][0-9]*% +running, sh \(' "and one that computes is running"
# Rows of a node that has an older ddp-status: nothing shows where one begins.
mkdir -p "$work/older"
printf '%s\n' '#!/bin/sh' 'echo "prolog"' "echo '1: {\"job\":$job,\"rank\":1}'" 'for i in 2 3; do echo "0: {\"job\":1}"; done' >"$work/older/srun"
chmod 755 "$work/older/srun"
capture as_user env PATH="$work/older:$PATH" "$tool" "$job"
status_is 1 "rows in an older form are none"
prints "^ddp-status: job $job: 3 rows are left out, as another version of ddp-status has written them: first on node 2 of 2; install" "and are counted"
on_cluster scancel "$job"
wait "$plain"

# A node that waits for another one's place.
as_user srun --ddp=restart=1,spare=1 -J spare -N2 --ntasks-per-node=1 sh -c 'touch '"$work/spare"'; exec sleep 60' \
	>/dev/null 2>&1 &
spare=$!
wait_until 20 test -e "$work/spare"
job=$(job_of spare)
shown() { as_user "$tool" --interval 0.05 "$job" | grep -q ' spare '; }
wait_until 15 shown
capture as_user "$tool" --interval 0.05 "$job"
prints "^step $job.0: 1 ranks, 0 waiting for others, 1 spare$" "a node that waits is a spare, and no rank"
prints '^ +- +n1 +spare +waits to take the place of another node$' "with its name"
capture as_user env SLURMD_NODENAME=n0 "$tool" --node --format prometheus
prints_times 1 "^slurm_ddp_spare_up\{jobid=\"$job\",stepid=\"0\",node=\"n1\",user=\"[a-z]+\"(,partition=\"[a-z]+\")?\} 1$" \
	"rank 0's node has a figure for it"
prints '^slurm_ddp_node_ranks\{node="n0"\} 1$' "and counts its own rank alone"
on_cluster scancel "$job"
wait "$spare"

# A user's word on how many ranks there are does not cost root its memory.
as_user env RANK=0 WORLD_SIZE=1000000 srun -J liar -n1 sh -c 'touch '"$work/liar"'; exec sleep 60' >/dev/null 2>&1 &
liar=$!
wait_until 20 test -e "$work/liar"
job=$(job_of liar)
capture on_cluster "$tool" "$job"
prints "^step $job.0: 1 ranks" "a rank that claims a world beyond the job's size is shown alone"
on_cluster scancel "$job"
wait "$liar"

capture as_user "$tool"
status_is 2 "no job is a usage error"
capture as_user "$tool" '1;id'
status_is 2 "and so is what is no job"
capture as_user "$tool" 99999
status_is 1 "an unknown job is none"
prints 'Slurm tells of no job 99999' "and that is said"

done_testing
