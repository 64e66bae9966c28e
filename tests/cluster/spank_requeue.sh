#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --conf KillOnBadExit=1 --conf PreemptType=preempt/partition_prio --conf PreemptMode=REQUEUE --conf 'PartitionName=low Nodes=ALL PriorityTier=1 MaxTime=INFINITE' --conf 'PartitionName=grace Nodes=ALL PriorityTier=1 GraceTime=60 MaxTime=INFINITE' --conf 'PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE'
# seconds: 480
# requeue=N: srun has Slurm start the job again after a failure, a stop, and at the time
# limit, and in no other case.
. "$source/tests/cluster/lib.sh"

# Each job has a folder, and its output is in the file `out` there.
cat >"$work/job.sh" <<'END'
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --open-mode=append
echo "run ${SLURM_RESTART_COUNT:-0}"
srun bash -c "$PROGRAM"
echo "srun gave $?"
END
chmod 755 "$work/job.sh"
# start NAME PROGRAM SBATCH-OPTION...: sets $job and $out
start()
{
	[ -d "$work/$1" ] || mkdir -m 777 "$work/$1"
	out=$work/$1/out
	job=$(PROGRAM=$2 as_user sbatch --parsable --chdir="$work/$1" --output="$out" "${@:3}" "$work/job.sh")
}
has() { wait_until "$1" grep -qE -- "$2" "$out"; }
ended() { [ -z "$(on_cluster squeue -h -j "$1" -o %i 2>/dev/null)" ]; }
# finish: the job ends by itself; $output is what it has written
finish() { wait_until 60 ended "$job" || not_ok "job $job ends"; output=$(cat "$out"); }
# Before its first run a job is pending, too.
waits_again() { grep -qs '^run 0' "$2" && is_pending "$1"; }
comes_again() { check "$1" wait_until 60 waits_again "$job" "$out"; output=$(cat "$out"); }
restarts() { on_cluster scontrol -o show job "$1" | sed 's/.* Restarts=\([0-9]*\).*/\1/'; }
# A rank that saves for CODE when it is told to stop
saves() { echo "$no_process; : >up.\$RANK; trap 'echo rank \$RANK saved; exit $1' TERM; while :; do sleep 0.05; done"; }
sleeps=': >up.$RANK; exec sleep 100'
both_up() { wait_until 60 test -e "$work/$1/up.0" -a -e "$work/$1/up.1"; }

# ---- the time limit, which takes a minute: meanwhile others run ----------------------------

# On a busy machine these jobs may have begun again before they are looked at.
once='[ $DDP_RESTART_COUNT = 0 ] || exit 0; '
start limit "$once$(saves 75)" --time=1 --ddp=requeue=3
limit_job=$job
start limited "$once$sleeps" --time=1 --ddp=requeue=3
limited_job=$job

# ---- failures -----------------------------------------------------------------------------

start failure '[ $DDP_RESTART_COUNT = 1 ] || { [ $RANK = 0 ] && exec sleep 100; exit 9; }' --ddp=requeue=2
comes_again "a job whose step fails is requeued"
prints 'ddp: rank 1 of 2 on n1 exited with code 9' "the failure is named"
prints 'ddp: the job is requeued \(1 of 2\): the step has failed with code 9$' "and why the job comes again"
prints_not '^srun gave' "the script does not go on behind srun"
check "it runs again" runs_again "$job" "$out" 'run 1'
finish
prints '^srun gave 0$' "and succeeds"
prints_times 1 'ddp: the job is' "a success is no reason to requeue it, nor to say anything"

start at-once 'exit 9' --ddp=requeue=5 --comment='mine, and stays'
comes_again "a job that fails at once is requeued"
check "it runs again" runs_again "$job" "$out" 'run 1'
finish
prints 'ddp: the job is not requeued: two runs in a row have failed without progress, this one within 60 s' \
	"but not a second time in a row"
prints '^srun gave 9$' "the script sees the program's code"
capture on_cluster scontrol show job "$job"
prints 'Comment=mine, and stays \[ddp: run 0 failed at once\]' "the note of it leaves the user's comment"

start never 'exit 9' --ddp=requeue=5 --no-requeue
finish
prints_times 2 'ddp: the job is not requeued: SLURM does not allow it \(--no-requeue' \
	"--no-requeue: that Slurm does not allow it is said at the start and at the end"
prints '^srun gave 9$' "and the script goes on"

start plain 'exit 9' --ddp
finish
prints_not 'requeue' "without the option nothing is said of it"
same 0 "$(restarts "$job")" "nor done"

for command in srun salloc; do
	words=(srun --ddp=requeue=2)
	[ $command = srun ] || words=(salloc -Q --ddp=requeue=2 -N2 srun)
	capture as_user "${words[@]}" -N2 --ntasks-per-node=1 sh -c 'sleep 1; exit 9'
	prints_times 1 'ddp: requeue= has no effect here: SLURM can requeue jobs of sbatch only' "$command alone: that is said"
	status_is 9 "and srun's code is the program's"
done

start both '[ $RANK = 0 ] && exec sleep 100; sleep 1; exit 9' --ddp=restart=1,requeue=2
comes_again "with restart= a job is requeued that the restarts have not cured"
prints 'exited with code 9 .*; restart 1 of 1$' "the step restarts first"
prints_times 1 'ddp: the job is requeued \(1 of 2\): the step has failed with code 9$' "then the job does"
on_cluster scancel "$job"

# A step that a task starts is that task's matter.
start nested '[ $RANK = 1 ] || { srun --overlap -N1 -n1 sh -c "exit 9"; echo inner gave $?; }' --ddp=requeue=2
finish
prints '^inner gave 9$' "a step within a task fails"
prints '^srun gave 0$' "and the job is not requeued for that"

# ---- one element of an array ---------------------------------------------------------------

# The last element has the number of the whole array.
mkdir -m 777 "$work/array"
start array 'cp /dev/null up.$SLURM_ARRAY_TASK_ID.$DDP_RESTART_COUNT
	[ $SLURM_ARRAY_TASK_ID = 1 ] || { until [ -e go ]; do sleep 0.05; done; exit 0; }
	until [ -e up.0.0 ]; do sleep 0.05; done
	[ $DDP_RESTART_COUNT = 1 ] || exit 75' --array=0-1 --output="$work/array/out.%a" --ddp=requeue=2
check "the last element of an array is requeued" wait_until 60 waits_again "${job}_1" "$work/array/out.1"
same RUNNING "$(on_cluster squeue -h -j "${job}_0" -o %T)" "and the other one runs on"
: >"$work/array/go"
check "it runs again" runs_again "${job}_1" "$work/array/out.1" 'run 1'
wait_until 60 ended "$job"
output=$(cat "$work/array/out.0")
prints_times 1 '^run ' "the other one has run once"
output=$(cat "$work/array/out.1")
prints '^srun gave 0$' "the element succeeds"

# ---- stops --------------------------------------------------------------------------------------

start stop "$(saves 75)" --ddp=requeue=2
both_up stop
on_cluster scancel --signal=TERM "$job"
comes_again "a job that is told to stop is requeued"
prints_times 2 '^rank [01] saved' "its ranks save before"
prints 'ddp: the job is requeued \(1 of 2\): the step was asked to stop, and ended with code 75' "and why is said"
on_cluster scancel "$job"

start cancelled "$(saves 75)" --ddp=requeue=2
both_up cancelled
as_user scancel "$job"
wait_until 60 ended "$job"
capture on_cluster scontrol -o show job "$job"
prints 'JobState=CANCELLED .*Restarts=0' "a job that its user cancels stays cancelled"

start cancelled-step "$sleeps" --ddp=requeue=2
both_up cancelled-step
as_user scancel "$job.0"
finish
prints 'ddp: the job is not requeued: the step was cancelled' "nor does one come again whose step is cancelled"
prints '^srun gave' "and its script goes on"

# ---- the time limit ------------------------------------------------------------------------------

job=$limit_job out=$work/limit/out
check "a job at its time limit is requeued" has 100 'ddp: the job is requeued \(1 of 3\): its time limit is near'
check "its ranks save before they end" has 20 '^rank 0 saved'
same 1 "$(restarts "$job")" "it comes again"
output=$(cat "$out")
prints_not 'not requeued' "nothing else is said of it"
job=$limited_job out=$work/limited/out
check "so is one whose ranks do not handle SIGTERM" has 100 'ddp: the job is requeued \(1 of 3\): its time limit is near'
same 1 "$(restarts "$job")" "once"
on_cluster scancel "$limit_job" "$limited_job"

# ---- preemption ---------------------------------------------------------------------------------

start preempted "$(saves 75)" --exclusive --partition=low --ddp=requeue=3
both_up preempted
on_cluster srun --exclusive -N2 -p high true
comes_again "Slurm requeues the job that it preempts"
same 1 "$(restarts "$job")" "once: the plugin does not requeue it, too"
on_cluster scancel "$job"

start grace "$(saves 75)" --exclusive --partition=grace --ddp=requeue=3
both_up grace
on_cluster srun --exclusive -N2 -p high true
comes_again "a job that stops within its GraceTime comes again"
prints 'ddp: the job is requeued \(1 of 3\): it is preempted' "by the plugin"
same 1 "$(restarts "$job")" "once"
on_cluster scancel "$job"

# ---- a training ------------------------------------------------------------------------------------

if [ -x "$prefix/bin/gpt" ]; then
	install -m 644 "$source/README.md" "$work/text"
	mkdir -m 777 "$work/whole"
	gpt="$prefix/bin/gpt --data $work/text --layers 1 --width 32 --heads 2 --length 32 --batch 2 --steps 300
		--checkpoint-every 100 --resume --checkpoint"
	last=step-00000300.safetensors
	# shellcheck disable=SC2086 # words are wanted
	limit=180 capture as_user srun --ddp -N2 --ntasks-per-node=1 $gpt "$work/whole"
	status_is 0 "a training that nothing disturbs ends"
	make_hold
	touch "$work/hold/hold-200"
	start training "exec ${held[*]} ${gpt//[$'\n\t']/ } checkpoints" --ddp=requeue=2
	wait_until 60 sh -c 'ls "$0"/checkpoints/step-*' "$work/training"
	on_node n1 pkill -KILL -x gpt
	rm "$work/hold/hold-200"
	comes_again "a training of which a rank is killed comes again"
	capture on_cluster scontrol show job "$job"
	prints 'Comment=\[ddp: run 0 failed in step [0-9]+\]' "how far it came is noted"
	check "it runs again" runs_again "$job" "$out" 'run 1'
	limit=180 finish
	prints '^srun gave 0$' "it ends"
	prints_times 1 '^step +1/' "it has begun at its first step once"
	check "its parameters have the bytes of the undisturbed one's" cmp "$work/whole/$last" "$work/training/checkpoints/$last"
else
	skip "a training" "examples/gpt is not built"
fi

# ---- slurmctld is away ---------------------------------------------------------------------------

start away ': >up.$RANK; until [ -e go ]; do sleep 0.05; done; exit 75' --ddp=requeue=2
both_up away
"$source/slurm/cluster" run --dir "$cluster" -- pkill -STOP -x slurmctld
: >"$work/away/go"
check "slurmctld does not answer: srun says so" has 120 'ddp: the job is to be requeued, but slurmctld does not answer'
"$source/slurm/cluster" run --dir "$cluster" -- pkill -CONT -x slurmctld
comes_again "and has the job requeued once slurmctld answers"
prints 'ddp: the job is requeued \(1 of 2\)' "and says that"
on_cluster scancel "$job"

# ---- a node whose Prolog fails --------------------------------------------------------------------

# SLURM drains such a node, and holds the job. This comes last, because slurmctld of SLURM 23.11 and later has another name
# behind the reconfiguration.
printf '%s\n' '#!/bin/sh' "[ ! -e '$work/broken.'\$SLURMD_NODENAME ]" >"$work/prolog"
chmod 755 "$work/prolog"
echo "Prolog=$work/prolog" >>"$cluster/slurm.conf"
on_cluster scontrol reconfigure
: >"$work/broken.n1"
heals() { on_cluster scontrol update NodeName=n1 State=RESUME; }
start unstarted 'exit 0' --ddp=requeue=2
comes_again "a job comes again whose Prolog fails on a node when the step starts"
prints_times 1 'ddp: SLURM could not start the step on each node, has requeued the job \(1 of 2\) and held it; srun releases it$' "a line names the job"
prints_not '^srun gave' "the script does not go on"
capture on_cluster scontrol -o show job "$job"
prints_not ' Priority=0 ' "SLURM holds the job no more"
on_cluster scancel "$job"
heals
capture as_user salloc -Q --ddp=restart=3,spare=1 -N2 srun --ntasks-per-node=1 true
prints_times 1 'ddp: SLURM could not start the step: no task has begun on node n1 ' "salloc, with restart=: a line names the node"
prints_not 'another step begins' "and promises no step of a job that SLURM has ended"
rm "$work/broken.n1"
heals

done_testing
