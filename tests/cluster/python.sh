#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 300
# Programs of Python under srun --ddp=python: the exception in the failure line, stalls, ddp-status.
. "$source/tests/cluster/lib.sh"

python=/usr/bin/python3
[ -x "$python" ] || skip_all "there is no /usr/bin/python3"
folder=$prefix/lib/slurm-ddp/python
[ -e "$folder/site/sitecustomize.py" ] || { not_ok "make install brings slurm_ddp" "$folder lacks it"; done_testing; exit 1; }
four=(-N2 --ntasks-per-node=2)
brief=$(stretched 1)

# program NAME: from the standard input, where any user can read it
program() { cat >"$work/$1" && chmod 755 "$work/$1"; }

# ---- the failure line --------------------------------------------------------------------

program plain.py <<'END'
import os, time
def load(index):
    if os.environ["RANK"] == "2":
        raise ValueError("bad batch: shape mismatch %d" % index)
    time.sleep(60)
load(42)
END
capture as_user srun --ddp=python="$folder" "${four[@]}" "$python" "$work/plain.py"
status_is_not 0 "a program that raises fails"
prints 'rank 2 of 4 on n1 exited with code 1 after [0-9.]+ s, starting for [0-9.]+ s: ValueError: bad batch: shape mismatch 42 \(plain.py:4\)$' \
	"the failure line of an unmodified program ends with the exception and its line"
# A rank that only hears of another one's end is not the cause.
program peers.py <<'END'
import os, time
class DistBackendError(RuntimeError):
    pass
if os.environ["RANK"] == "2":
    time.sleep(0.3)
    raise KeyError("weights")
raise DistBackendError("gloo: Connection closed by peer [127.0.0.1]:2345")
END
capture as_user srun --ddp=python="$folder" "${four[@]}" "$python" "$work/peers.py"
prints "rank 2 of 4 on n1 exited with code 1 .*: KeyError: 'weights' \(peers.py:6\)\$" "the cause is told, and not who lost a connection before"
capture as_user srun --ddp=python=/none "${four[@]}" true
status_is 0 "a folder that nodes lack is no failure"
prints_times 2 "ddp: n[01] cannot read /none/site/sitecustomize.py \(No such file or directory\), so" "but each node says so once"
capture as_user srun --ddp=python="$folder" "${four[@]}" true
prints_not "sitecustomize" "and says nothing where the folder is"
capture as_user env PYTHONPATH=/mine srun --ddp=python="$folder" -N1 -n1 "$python" -c \
	'import os; print(os.environ["PYTHONPATH"], os.environ["DDP_PYTHON"])'
prints '^/mine yes$' "the user's PYTHONPATH is there"
capture as_user env PYTHONPATH="$folder" srun --ddp "${four[@]}" "$python" -c '
import slurm_ddp
job = slurm_ddp.check_launched()
print(job.rank, job.world_size, job.local_rank, job.node_rank, job.node_name, job.by_plugin, 0 < slurm_ddp.time_left())'
status_is 0 "slurm_ddp.job() knows the rank"
prints '^3 4 1 1 n1 True True$' "as the plugin told it"

# ---- stalls --------------------------------------------------------------------------------

program steps.py <<'END'
import os, sys, time
import slurm_ddp
slurm_ddp.install()
def loader():
    for number in range(1, 1000):
        if os.environ["RANK"] == "2" and number == 5:
            open(sys.argv[1], "w").close()
            rest(80)
        yield number
def rest(frames): # with a stack of kilobytes
    rest(frames - 1) if frames else time.sleep(600)
for number in slurm_ddp.steps(loader()):
    if number == 5:
        rest(80) # a collective of which slurm_ddp knows nothing
    time.sleep(0.05)
    slurm_ddp.step(loss=1 / number, samples=32)
END
begin()
{
	as_user env PYTHONPATH="$folder" srun -J "$1" "${@:2}" >"$work/$1.out" 2>&1 &
	step=$!
}
finish() { on_cluster scancel --name "$1"; wait "$step"; capture cat "$work/$1.out"; }
begin hang --ddp=stall=$((2 * brief)) "${four[@]}" "$python" "$work/steps.py" "$work/hangs"
check "a loader that hangs makes its step stall" wait_until 60 grep -q 'the step stalls' "$work/hang.out"
install -m 755 "$build/spank/status/ddp-status" "$prefix/bin/ddp-status"
job=$(on_cluster squeue -h -n hang -t R -o %i)
capture as_user "$prefix/bin/ddp-status" --stack "$job"
prints '^ +2 +n1 +data +[0-9.]+ s +5 +- +- +[0-9.]+/s +0\.25 ' "ddp-status shows phase, step, rate and loss"
prints '^ +File "'"$work"'/steps.py", line 8 in loader$' "and with --stack where it hangs"
prints_times 4 'Current thread .*most recent call first|Thread .* \(most recent call first' "each rank has answered"
check "programs can read it" python3 -c '
import json, sys
ranks = json.loads(sys.argv[1])["ranks"]
assert ranks[0]["rank"] in (0, 1, 2, 3) and all(abs(rank["loss"] - 0.25) < 1e-6 for rank in ranks), ranks
assert all(rank["stack"].count("in rest") > 20 for rank in ranks), ranks
' "$(as_user "$prefix/bin/ddp-status" --json --stack "$job")"
finish hang
prints 'the step stalls: no rank has made progress for [0-9.]+ s; none waits for another: rank 2 of 4 on n1 is loading data of step 5 for [0-9.]+ s' \
	"and its rank is named, with the step"

# ---- the batch script --------------------------------------------------------------------

mkdir -p "$work/bin"
printf '#!/bin/sh\nexec %s "$@"\n' "$python" >"$work/bin/python"
chmod 755 "$work/bin/python"
program train.py <<'END'
import glob, os, time
import slurm_ddp
def write(state, folder):
    with open(folder + "/state", "w") as file:
        file.write(str(state))
checkpoint = slurm_ddp.Checkpoint("checkpoints", format=write)
job, begun = slurm_ddp.job(), checkpoint.latest_step()
for step in range(begun + 1, 10 ** 6):
    time.sleep(0.02)
    slurm_ddp.step(step, loss=1.0)
    if step == begun + 20:
        open("trains.%d.%d" % (begun, job.rank), "w").close()
    while step == begun + 20 and len(glob.glob("trains.%d.*" % begun)) < job.world_size:
        time.sleep(0.02)  # a rank that starts late would not handle the signal yet
    if step == begun + 20 and job.rank == 0:
        print("trains from step %d" % (begun + 1), flush=True)
    if begun > 0 and step == begun + 30:
        break
    if slurm_ddp.should_stop(margin=1):
        checkpoint.save(step, step)
        if job.rank == 0:
            print("saved step %d" % step, flush=True)
        slurm_ddp.exit_for_requeue()
END
install -m 755 "$source/slurm/batch/python.sh" "$work/python.sh"
job=$(PATH=$work/bin:$PATH as_user sbatch --parsable --chdir="$work" --output="$work/batch.out" --nodes=2 --cpus-per-task=1 \
	--ntasks-per-node=2 --time=30 --ddp="python=$folder,stall=600,requeue=100" "$work/python.sh")
check "python.sh: it trains" wait_until 60 grep -q '^trains from step 1$' "$work/batch.out"
check "python.sh: it is told to stop" on_cluster scancel --signal=TERM "$job"
check "python.sh: it saves" wait_until 60 grep -q '^saved step' "$work/batch.out"
saved=$(sed -n 's/^saved step //p' "$work/batch.out")
check "python.sh: the job comes again" runs_again "$job" "$work/batch.out" "trains from step $((saved + 1))\$"
capture cat "$work/batch.out"
prints "^start 1 of job $job" "python.sh: it was started a second time"

# ---- stopping ------------------------------------------------------------------------------

program stop.py <<'END'
import os, sys, time
import slurm_ddp
slurm_ddp.install()
step = 0
while not slurm_ddp.should_stop(margin=1):
    step += 1
    if step == 20:
        open("%s.%s" % (sys.argv[1], os.environ["RANK"]), "w").close()
    time.sleep(0.01 * (1 + int(os.environ["RANK"])))
os.write(1, b"rank %s stops at step %d\n" % (os.environ["RANK"].encode(), step))
slurm_ddp.exit_for_requeue()
END
# ends_together NAME: all four ranks printed the same step
ends_together()
{
	same "4 1" "$(sed -n 's/^rank [0-3] stops at step //p' "$work/$1.out" | sort | uniq -c | awk '{ ranks += $1 } END { print ranks, NR }')" \
		"$2"
}
stepping() { [ "$(find "$work" -name "$1.[0-3]" | wc -l)" = 4 ]; }
begin one --ddp "${four[@]}" "$python" "$work/stop.py" "$work/one"
check "four ranks train" wait_until 60 stepping one
on_node n1 pkill -USR1 -n -f "$work/stop.py"
wait "$step"
same 75 $? "exit_for_requeue() is srun's exit code"
capture cat "$work/one.out"
ends_together one "a signal to one rank stops all at the same step"
begin all --ddp "${four[@]}" "$python" "$work/stop.py" "$work/all"
check "four ranks train" wait_until 60 stepping all
on_cluster scancel --signal=TERM --name all
wait "$step"
capture cat "$work/all.out"
ends_together all "so does SIGTERM to all of them"
program fails.py <<'END'
import os, time
import slurm_ddp
step = 0
while not slurm_ddp.should_stop(margin=1):
    step += 1
    if os.environ["RANK"] == "1" and step == 100:
        raise ValueError("bad")
    time.sleep(0.02)
    if step == 110:
        time.sleep(600)
END
begin fails --ddp="python=$folder" "${four[@]}" "$python" "$work/fails.py"
before=$SECONDS
wait "$step"
check "a step that fails ends at once, though its ranks handle SIGTERM" is_within $(((SECONDS - before) * 1000)) 20000
capture cat "$work/fails.out"
prints 'rank 1 of 4 on n0 exited with code 1 .*: ValueError: bad' "and the rank that failed is named"

done_testing
