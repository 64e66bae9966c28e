#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 700
# Unmodified programs of PyTorch under srun --ddp=python: an exception, a killed worker, a hanging DataLoader and a barrier of one
# rank, beside ranks that wait for it in DistributedDataParallel.
# TEST_PYTHON: interpreters to try first, with colons between them.
. "$source/tests/cluster/lib.sh"

python=
IFS=: read -r -a candidates <<<"${TEST_PYTHON-}"
for candidate in "${candidates[@]}" /usr/bin/python3 python3; do
	"$candidate" -c 'import torch.distributed' 2>/dev/null && python=$candidate && break
done
[ -n "$python" ] || skip_all "no python3 with torch (install python3-torch)"
# Debian 13's PyTorch lacks libuv, which its own default asks for.
export USE_LIBUV=0
folder=$prefix/lib/slurm-ddp/python
limit=180
brief=$(stretched 2)

cat >"$work/train.py" <<'END'
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        if os.environ["RANK"] == "2" and index == 33:
            if sys.argv[1] == "hang":
                time.sleep(600)
            if sys.argv[1] == "kill":
                os.kill(os.getpid(), 9)
            if sys.argv[1] == "raise":
                raise ValueError("bad sample")
        return torch.ones(4)
def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = 0
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=1 if sys.argv[1] == "kill" else 0):
        model(batch).sum().backward()
        optimizer.step()
        steps += 1
        if sys.argv[1] == "differ" and os.environ["RANK"] == "1" and steps == 3:
            dist.barrier()
main()
END
chmod 755 "$work/train.py"
ranks=(-N2 --ntasks-per-node=2 --mpi=none "$python" "$work/train.py")
export OMP_NUM_THREADS=1

capture as_user srun --ddp=python="$folder" "${ranks[@]}" raise
status_is_not 0 "a rank that raises ends the step"
prints 'rank 2 of 4 on n1 exited with code 1 .*, loading data of step 9 for [0-9.]+ s.*: ValueError: bad sample \(train.py:14' \
	"its exception is told, with the step, and not those of ranks that lost it"
capture as_user srun --ddp=python="$folder" "${ranks[@]}" kill
prints 'rank 2 of 4 on n1 exited with code 1 .*: a DataLoader worker (\(pid [0-9]+\) )?(was killed by signal Killed|ended unexpectedly)' \
	"a worker that was killed is named as such"

as_user srun --ddp=python="$folder",stall=$((4 * brief)) -J hang "${ranks[@]}" hang >"$work/hang.out" 2>&1 &
step=$!
check "a DataLoader that hangs makes its step stall" wait_until 120 grep -q 'the step stalls' "$work/hang.out"
on_cluster scancel --name hang
wait "$step"
capture cat "$work/hang.out"
if "$python" -c 'import sys, torch; sys.exit(not hasattr(torch.distributed.ProcessGroup, "register_pre_hook"))'; then
	prints 'the step stalls: .*; rank 2 of 4 on n1 never came: it is loading data of step 9 for [0-9.]+ s, last collective #[0-9]+ .*; waiting: ranks 0-1,3 in collective #[0-9]+ all_reduce float32\[20\]' \
		"and its rank is named, with the step, and who waits in which collective of DistributedDataParallel"
else
	prints 'the step stalls: .*rank 2 of 4 on n1 is loading data of step 9 for [0-9.]+ s' "and its rank is named, with the step"
fi

if "$python" -c 'import sys, torch; sys.exit(not hasattr(torch.distributed.ProcessGroup, "register_pre_hook"))'; then
	as_user srun --ddp=python="$folder",stall=$((4 * brief)) -J differ "${ranks[@]}" differ >"$work/differ.out" 2>&1 &
	step=$!
	check "a barrier of one rank makes its step stall" wait_until 120 grep -q 'the step stalls' "$work/differ.out"
	on_cluster scancel --name differ
	wait "$step"
	capture cat "$work/differ.out"
	prints 'the step stalls: .*; ranks call different operations as collective #[0-9]+: rank 1 of 4 on n0 calls barrier.*, and others call all_reduce float32\[20\]; waiting: ranks 0-3 for' \
		"that rank is named, with its operation and that of the others"
else
	skip "a barrier of one rank" "this torch has no hooks of process groups"
fi

done_testing
