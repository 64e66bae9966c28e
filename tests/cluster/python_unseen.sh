#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 240
# Programs that stall=, watch or python= cannot see: srun says so once.
. "$source/tests/cluster/lib.sh"

python=/usr/bin/python3
[ -x "$python" ] || skip_all "there is no /usr/bin/python3"
folder=$prefix/lib/slurm-ddp/python
four=(-N2 --ntasks-per-node=2)
brief=$(stretched 1)

cat >"$work/sleeps.py" <<'END'
import time
time.sleep(600)
END
cat >"$work/seen.py" <<'END'
import itertools, time
import slurm_ddp
for batch in slurm_ddp.steps(itertools.count()):
    time.sleep(0.1)
END
chmod 644 "$work"/*.py
# begin NAME SRUN-ARGUMENT...
begin() { as_user srun -J "$1" "${@:2}" >"$work/$1.out" 2>&1 & }
limit=200
begin unseen --ddp=stall="$brief" "${four[@]}" sh -c "$python $work/sleeps.py; :"
begin isolated --ddp=python="$folder" "${four[@]}" "$python" -I "$work/sleeps.py"
begin seen --ddp=python="$folder",stall="$brief" "${four[@]}" "$python" "$work/seen.py"
begin quiet --ddp "${four[@]}" "$python" "$work/sleeps.py"
check "a program that stall= cannot see is told" wait_until 100 grep -q 'stall= sees nothing' "$work/unseen.out"
check "and a Python without slurm_ddp" wait_until 100 grep -q 'has not started slurm_ddp' "$work/isolated.out"
sleep "$((2 * brief))" # a second sentence would come with a later look
for name in unseen isolated seen quiet; do on_cluster scancel --name "$name"; done
wait
version=$("$python" -c 'import os, sys; print(os.path.basename(os.path.realpath(sys.executable)))')
capture cat "$work/unseen.out"
prints "ddp: stall= sees nothing of ranks 0-3 \(${version//./\\.}\): [0-9]+ s after the start, the program uses neither libddp nor slurm_ddp; a program of Python is seen with --ddp=python" \
	"with the ranks, the program behind a shell, and what to do"
prints_times 1 'ddp: ' "once"
capture cat "$work/isolated.out"
prints "ddp: --ddp=python has not started slurm_ddp in ranks 0-3 \(${version//./\\.}\): this Python ignores PYTHONPATH .*; install slurm_ddp for it by pip" \
	"with what to do"
prints_times 1 'ddp: ' "once, and not by each rank"
capture cat "$work/seen.out"
prints_not 'ddp: ' "of a program that is seen nothing is said"
capture cat "$work/quiet.out"
prints_not 'ddp: ' "nor if nobody has asked"

done_testing
