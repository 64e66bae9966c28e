#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 700
# Unmodified programs of PyTorch under srun --ddp=python: an exception, a killed worker, a hanging DataLoader and a barrier of one
# rank, beside ranks that wait for it in DistributedDataParallel.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/python/lib.sh"

find_python torch || skip_all "no python3 with torch (install python3-torch)"
limit=180
brief=$(stretched 2)

# One rank does what the argument says. To import torch takes seconds, so a case has only as many ranks as it needs.
program train.py <<'END'
import multiprocessing, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
steps = multiprocessing.Value("i", 0)
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        if rank == size // 2 and index == 33:
            if sys.argv[1] == "hang":
                time.sleep(600)
            if sys.argv[1] == "kill":
                while steps.value < 8:  # earlier batches come out of this process
                    time.sleep(0.01)
                os.kill(os.getpid(), 9)
            if sys.argv[1] == "raise":
                raise ValueError("bad sample")
        return torch.ones(4)
def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if rank == 0:
        os.write(1, b"hooks\n" if hasattr(dist.ProcessGroup, "register_pre_hook") else b"no hooks\n")
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=1 if sys.argv[1] == "kill" else 0):
        model(batch).sum().backward()
        optimizer.step()
        steps.value += 1
        if sys.argv[1] == "differ" and rank == 1 and steps.value == 3:
            dist.barrier()
main()
END
# train CASE NODES RANKS-PER-NODE [,KEY...]
train()
{
	as_user srun --ddp=python="$folder${4-}" -J "$1" "-N$2" "--ntasks-per-node=$3" --mpi=none "$python" "$work/train.py" "$1"
}
# stalls CASE RANKS-PER-NODE NAME: its step on two nodes stalls, and then ends
stalls()
{
	local step
	train "$1" 2 "$2" ",stall=$((4 * brief))" >"$work/$1.out" 2>&1 &
	step=$!
	check "$3" wait_until 120 grep -q 'the step stalls' "$work/$1.out"
	on_cluster scancel --name "$1"
	wait "$step"
	capture cat "$work/$1.out"
}

capture train raise 2 1
status_is_not 0 "a rank that raises ends the step"
prints 'rank 1 of 2 on n1 exited with code 1 .*, loading data of step 9 for [0-9.]+ s.*: ValueError: bad sample \(train.py:18' \
	"its exception is told, with the step, and not those of ranks that lost it"
hooks=$(grep -cx hooks <<<"$output")

capture train kill 1 1
prints 'rank 0 of 1 on n0 exited with code 1 .*: a DataLoader worker (\(pid [0-9]+\) )?(was killed by signal Killed|ended unexpectedly)' \
	"a worker that was killed is named as such"

stalls hang 1 "a DataLoader that hangs makes its step stall"
if [ "$hooks" = 0 ]; then
	prints 'the step stalls: .*rank 1 of 2 on n1 is loading data of step 9 for [0-9.]+ s' "and its rank is named, with the step"
	skip "a barrier of one rank" "this torch has no hooks of process groups"
else
	prints 'the step stalls: .*; rank 1 of 2 on n1 never came: it is loading data of step 9 for [0-9.]+ s, last collective #[0-9]+ .*; waiting: rank 0 .*in collective #[0-9]+ all_reduce float32\[20\]' \
		"and its rank is named, with the step, and who waits in which collective of DistributedDataParallel"
	stalls differ 2 "a barrier of one rank makes its step stall"
	prints 'the step stalls: .*; ranks call different operations as collective #[0-9]+: rank 1 of 4 on n0 calls barrier.*, and others call all_reduce float32\[20\]; waiting: ranks 0-3 for' \
		"that rank is named, with its operation and that of the others"
fi

done_testing
