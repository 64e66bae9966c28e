#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 400
# Programs of Python with slurm_ddp under restart=: the exception in the restart line, steps and checkpoints of the next
# start, should_stop() after a restart, and ranks that are killed while they save.
# KILLS: so many ranks are killed while they save (6); 100 take some minutes.
. "$source/tests/cluster/lib.sh"

python=/usr/bin/python3
[ -x "$python" ] || skip_all "there is no /usr/bin/python3"
folder=$prefix/lib/slurm-ddp/python
four=(-N2 --ntasks-per-node=2)
limit=300
install -m 755 "$build/spank/status/ddp-status" "$prefix/bin/ddp-status"

# ---- an exception, and a stop after the restart ----------------------------------------------------

cat >"$work/train.py" <<'END'
import glob, os, sys, time
import slurm_ddp
def write(state, folder):
    with open(folder + "/state", "w") as file:
        file.write(str(state))
checkpoint = slurm_ddp.Checkpoint(sys.argv[1], format=write)
job, begun = slurm_ddp.job(), checkpoint.latest_step()
# Nothing else keeps a rank that starts late from a checkpoint that the others have saved by then.
begins = "%s.begins.%d." % (sys.argv[1], job.restart_count)
open(begins + str(job.rank), "w").close()
while len(glob.glob(begins + "*")) < job.world_size:
    time.sleep(0.01)
def train(step):
    if job.rank == 2 and step > 30 and job.restart_count < 2:
        while checkpoint.latest_step() < begun + 10:
            time.sleep(0.01)
        if job.restart_count == 0:
            raise ValueError("bad batch in step %d" % step)
        os._exit(7)
    time.sleep(0.02)
if job.rank == 0:
    os.write(1, b"start %d of %s goes on from step %d\n" % (slurm_ddp.restart_count, os.environ["DDP_RESTART_COUNT"].encode(), begun))
step = begun
while True:
    step += 1
    train(step)
    slurm_ddp.step(step, loss=1.0, samples=8)
    if step % 10 == 0:
        checkpoint.save(step, step)
    if job.restart_count == 2 and step == begun + 20:
        open("%s.up.%d" % (sys.argv[1], job.rank), "w").close()
    if slurm_ddp.should_stop(margin=1):
        os.write(1, b"rank %d stops at step %d\n" % (job.rank, step))
        checkpoint.save(step, step)
        slurm_ddp.exit_for_requeue()
END
chmod 644 "$work/train.py"
as_user srun --ddp=python="$folder",restart=5,spare=1 -J train -N3 --ntasks-per-node=2 "$python" "$work/train.py" "$work/run" \
	>"$work/train.out" 2>&1 &
step=$!
up() { [ "$(find "$work" -name 'run.up.[0-3]' | wc -l)" = 4 ]; }
check "after two failures, all ranks train" wait_until 120 up
job=$(on_cluster squeue -h -n train -t R -o %i)
capture as_user "$prefix/bin/ddp-status" --json "$job"
check "ddp-status shows the steps and losses of the start that runs" python3 -c '
import json, sys
ranks = json.loads(sys.argv[1])["ranks"]
assert sorted(rank["rank"] for rank in ranks) == [0, 1, 2, 3], ranks
assert all(rank["step"] > 20 and rank["loss"] == 1.0 for rank in ranks), ranks' "$output"
on_cluster scancel --signal=TERM "$job"
wait "$step"
same 75 $? "a stop after restarts ends with 75, and starts nothing again"
capture cat "$work/train.out"
prints 'restart 1 of 5.*: rank 2 of 4 on n1 .*ValueError: bad batch in step 31 \(train.py:13\)|rank 2 of 4 on n1 exited with code 1 .*ValueError: bad batch in step 31 \(train.py:[0-9]+, called at|rank 2 of 4 on n1 .*: ValueError: bad batch in step 31 \(train.py:[0-9]+\).*restart 1 of 5' \
	"the line of the restart has the exception and its place"
prints 'restart 2 of 5' "the second failure restarts, too"
prints '^start 0 of 0 goes on from step 0$' "the first start begins at step 1"
prints '^start 1 of 1 goes on from step [1-9][0-9]*0$' "the next one begins behind the latest checkpoint, and knows its number"
prints '^start 2 of 2 goes on from step [1-9][0-9]*0$' "and so does the third"
same "4 1" "$(sed -n 's/^rank [0-3] stops at step //p' "$work/train.out" | sort | uniq -c | awk '{ ranks += $1 } END { print ranks, NR }')" \
	"should_stop() stops all ranks at the same step, though the starts before had other steps"

# ---- ranks that are killed while they save ------------------------------------------------------------

cat >"$work/saves.py" <<'END'
import os, random, signal, sys, threading, time
import slurm_ddp
kills = int(sys.argv[2])
def write(step, folder):
    for number in range(20):
        with open("%s/part-%02d" % (folder, number), "w") as file:
            file.write("%d\n" % step * 1000)
            time.sleep(0.001)
def is_whole(path):
    step = int(path[-8:])
    files = sorted(os.listdir(path))
    return len(files) == 20 and all(open(os.path.join(path, name)).read() == "%d\n" % step * 1000 for name in files)
checkpoint = slurm_ddp.Checkpoint(sys.argv[1], format=write, keep=2, background=os.environ["DDP_RESTART_COUNT"][-1] in "02468")
job = slurm_ddp.job()
if job.rank == 0:
    latest = checkpoint.latest()
    whole = latest is None or is_whole(latest)
    left = [name for name in os.listdir(sys.argv[1]) if name.startswith(".")] if latest else []
    os.write(1, b"start %d: %s, %d hidden\n" % (job.restart_count, b"whole" if whole else b"TORN " + latest.encode(), len(left)))
begun = checkpoint.latest_step()
if job.rank == 0 and job.restart_count < kills:
    def kill():
        while checkpoint.latest_step() < begun + 2:
            time.sleep(0.001)
        time.sleep(random.random() * 0.06)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
for step in range(begun + 1, begun + 10 if job.restart_count >= kills else 10 ** 8):
    slurm_ddp.step(step)
    checkpoint.save(step, step)
    if job.rank != 0:
        if job.restart_count >= kills:
            break
        time.sleep(0.05)
checkpoint.wait()
END
chmod 644 "$work/saves.py"
kills=${KILLS:-6}
capture as_user srun --ddp=python="$folder",restart=1000 "${four[@]}" "$python" "$work/saves.py" "$work/saved" "$kills"
status_is 0 "a rank that is killed while it saves starts again, $kills times"
prints_times "$((kills + 1))" '^start [0-9]+: whole, [01] hidden$' "each start finds a whole checkpoint, and at most one folder that is not whole"
prints_not TORN "and never a torn one"
same 0 "$(find "$work/saved" -maxdepth 1 -name '.step*' | wc -l)" "at the end no folder is left that is not whole"

done_testing
