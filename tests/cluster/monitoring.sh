#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --plugin-args comment=failures --conf KillWait=5
# seconds: 120
# A failure is one line in slurmd's log on its node and, with comment=failures, a note in the job's comment; ddp-failures counts them.
. "$source/tests/cluster/lib.sh"

# comment JOB
comment() { on_cluster scontrol show job "$1" | sed -n 's/^ *Comment=\(.*[^ ]\) *$/\1/p'; }
# has_note JOB WORDS
has_note() { comment "$1" | grep -qE -- "$2"; }
# lines NODE JOB: the failures in that node's log
lines() { grep -E "ddp: failure v=1 .* job=$2 " "$cluster/log/$1.slurmd.log"; }

cat >"$work/crash.sh" <<'END'
#!/bin/sh
#SBATCH --comment=mine
srun --ddp sh -c 'if [ $RANK = 1 ]; then sleep 0.3; kill -SEGV $$; fi; exec sleep 60'
srun --ddp true
END
chmod 755 "$work/crash.sh"
install -m 755 "$build/tests/cluster/training_probe" "$work/training_probe"
job=$(as_user sbatch --parsable -N2 --ntasks-per-node=1 -o "$work/crash.out" "$work/crash.sh")
wait_until 30 has_note "$job" kind=crash
output=$(comment "$job")
prints "^mine \[ddp: failure v=1 kind=crash job=$job step=0 uid=[0-9]+ node=n1 signal=11 time=[0-9]+ text=\"rank 1 of 2 on n1 was killed by signal 11 \(SIGSEGV\).*\"\]$" \
	"srun notes behind the user's words in the job's comment why the step failed"
wait_until 10 lines n1 "$job"
output=$(lines n1 "$job")
prints_times 1 "ddp: failure v=1 kind=crash job=$job step=0 uid=[0-9]+ node=n1 rank=1 ranks=2 signal=11 seconds=[0-9.]+ time=[0-9]+ text=\"rank 1 of 2 .*\"$" \
	"the failure is one line in the log of its node"
over() { [ -z "$(on_cluster squeue -h -j "$1" -o %i 2>/dev/null)" ]; }
wait_until 30 over "$job"
output=$(lines n0 "$job")
same '' "$output" "and none in that of another node, whose task was ended for it"
output=$(comment "$job")
prints '^mine \[ddp: failure .*kind=crash .*\]$' "a later step that succeeds leaves the note"

# srun's own allocation ends with the step.
capture as_user srun --ddp -N2 -n2 --comment=mine sh -c 'echo "job $SLURM_JOB_ID"; [ $RANK = 0 ] || exit 7; exec sleep 60'
status_is 7 "a step in an allocation of srun's own fails"
job=$(sed -n 's/^job //p' <<<"$output" | head -n 1)
wait_until 10 has_note "$job" 'kind=exit'
output=$(comment "$job")
prints '^mine \[ddp: failure v=1 kind=exit .* node=n1 code=7 ' "and the note is in its job's comment"

# Who is stopped has not failed.
as_user srun --ddp -J stopped -N2 -n2 --comment=mine sh -c 'touch '"$work"'/runs.$RANK; exec sleep 60' >/dev/null 2>&1 &
wait_until 20 test -e "$work/runs.0" -a -e "$work/runs.1"
job=$(on_cluster squeue -h -n stopped -o %i)
on_cluster scancel "$job"
wait $!
output=$(comment "$job")
same mine "$output" "a job that is cancelled gets no note"
output=$(lines n0 "$job"; lines n1 "$job")
same '' "$output" "and no line in a log"

# A rank that hangs, and the other that waits for it.
capture as_user srun --ddp=stall=1,stall-action=kill -N2 -n2 --comment=mine sh -c "echo job \$SLURM_JOB_ID; exec $work/training_probe hang 1 $work/hangs"
prints 'the step is ended \(stall-action=kill\)' "a step that stalls is ended"
job=$(sed -n 's/^job //p' <<<"$output" | head -n 1)
wait_until 10 has_note "$job" 'kind=stall'
output=$(comment "$job")
prints '^mine \[ddp: failure v=1 kind=stall ' "and noted"
wait_until 10 lines n1 "$job"
output=$(lines n1 "$job")
prints_times 1 "kind=stall job=$job step=0 uid=[0-9]+ node=n1 stalls=1 " "a line in the log counts its stalls"

# What an administrator asks for afterwards.
capture "$source/spank/status/ddp-failures" "$cluster"/log/n*.slurmd.log
status_is 0 "ddp-failures reads the nodes' logs"
prints '^3 failures of 3 jobs' "and counts each failure once"
prints '^n1 +2 ' "on the node where it began"

# Without the site's word, srun leaves the comment alone.
sed -i 's/ comment=failures//' "$cluster/plugstack.conf"
capture as_user srun --ddp -n1 --comment=mine sh -c 'echo "job $SLURM_JOB_ID"; exit 3'
status_is 3 "a step fails at a site that notes nothing"
job=$(sed -n 's/^job //p' <<<"$output" | head -n 1)
output=$(comment "$job")
same mine "$output" "and the comment is the user's"

done_testing
