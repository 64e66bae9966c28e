#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 600
# all: cluster
# slurm_ddp.survive() with restart=, by the backends ddp and gloo: ranks keep their processes, and those that srun starts
# for dead ones, also on a spare node, join them. Each has the losses of an undisturbed training, to the last bit.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/python/lib.sh"
limit=150

find_python torch || skip_all "no python3 with torch (install python3-torch)"
capture env CFLAGS='-O0 -g0' "$source/libruntime/python/torch/tests/build.sh" "$build" "$python"
[ "$status" != 77 ] || skip_all "${output#SKIP: }"
status_is 0 "the backend compiles"
[ "$status" = 0 ] || { done_testing; exit 1; }
cp -r "${output##*$'\n'}" "$work/package" && chmod -R a+rX "$work/package"
export PYTHONPATH=$work/package

# In its first start, rank 3 dies with all gradients of step 8, and rank 0 before those of step 14. A file tells of step 20.
# DistributedDataParallel cuts other buckets after its first step, unless it looks for unused parameters, and gloo's order of
# additions depends on them.
program train.py <<'END'
import functools, hashlib, os, signal, sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
import slurm_ddp
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
    import slurm_ddp_torch
backend, folder, last, disturbed = sys.argv[1], sys.argv[2], int(sys.argv[3]), len(sys.argv) > 4
me, joins = slurm_ddp.job().rank, os.environ["DDP_JOINS"] != "0"
with open("%s/started.%d" % (folder, me), "a") as file:
    print(os.getpid(), file=file)
if joins and os.path.exists(folder + "/nobody-joins"):
    sys.exit(3)
torch.manual_seed(me)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
x = torch.randn(1000, 32, generator=torch.Generator().manual_seed(1))
run = slurm_ddp.survive(net, optimizer, scheduler, backend=backend, timeout=100,
                        wrap=functools.partial(DistributedDataParallel, find_unused_parameters=True))
data = torch.utils.data.TensorDataset(x, x[:, :8].sin())
loader = torch.utils.data.DataLoader(data, batch_sampler=run.sampler(1000, batch=24, seed=3))
dies = {0: 14, 3: 8}.get(me) if disturbed and not joins and slurm_ddp.restart_count == 0 else None
for step, (x, y) in run.batches(loader, last):
    with run as model:
        loss = (model(x) - y).square().sum() * run.world_size / 24
        optimizer.zero_grad()
        if me == 0 and step == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        if step == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()
    if run.step == step:
        with open("%s/losses.%d" % (folder, me), "a") as file:
            print(step, loss.item().hex(), file=file)
    if disturbed and step >= 20 and me == 1:
        open(folder + "/at20", "w").close()
    if disturbed:
        time.sleep(0.02)
bits = b"".join(value.detach().numpy().tobytes() for value in net.parameters())
os.write(1, b"%d of %d ends: %s\n" % (me, run.world_size, hashlib.sha256(bits).hexdigest().encode()))
END
head() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
# train NAME OPTIONS NODES ARGUMENT...: what it writes goes to the folder NAME
train()
{
	as_user srun --ddp="python=$folder,$2" --no-kill "-N$3" --ntasks-per-node=2 --mpi=none "$python" "$work/train.py" "$4" "$work/$1" "${@:5}"
}
# Each step counts once. A rank that has died, or stood before the end of its step then, has not written that step's loss.
as_before()
{
	local rank
	for rank in 0 1 2 3; do
		[ -z "$(cut -d' ' -f1 "$work/$2/losses.$rank" | sort | uniq -d)" ] || return 1
		[ "$(comm -13 <(sort "$work/$1/losses.$rank") <(sort "$work/$2/losses.$rank") | wc -l)" = 0 ] || return 1
		[ "$(wc -l <"$work/$2/losses.$rank")" -ge $(($(wc -l <"$work/$1/losses.$rank") - 3)) ] || return 1
	done
}
# started NAME: how many programs each rank has had
started() { for rank in 0 1 2 3; do wc -l <"$work/$1/started.$rank"; done | tr '\n' ' '; }
# parameters FILE: those at the end of all ranks
parameters() { sed -n 's/.* ends: //p' "$1" | sort | uniq -c; }

mkdir -m 777 "$work"/{ddp,gloo}{,.before} "$work/refused"
for backend in ddp gloo; do
	capture train $backend.before restart=1 2 $backend 60
	status_is 0 "$backend: an undisturbed training ends well"
	cat <<<"$output" >"$work/$backend.wanted"

	train $backend restart=3,spare=1,silence=2 3 $backend 60 disturbed >"$work/$backend.out" 2>&1 &
	training=$!
	check "$backend: the training goes on after the deaths of ranks 3 and 0" wait_until 120 test -e "$work/$backend/at20"
	head ip link set n1 down
	on_node n1 sh -c 'pkill -9 slurmstepd; pkill -9 -u nobody; true'
	status=0
	wait $training || status=$?
	output=$(cat "$work/$backend.out")
	status_is 0 "$backend: and after that of a node"
	head ip link set n1 up
	head scancel -u nobody
	head scontrol update NodeName=n1 State=DOWN Reason=test
	head scontrol update NodeName=n1 State=RESUME
	wait_until 60 sh -c "[ -z \"\$('$source/slurm/cluster' run --dir '$cluster' -- squeue -h -o %i)\" ]"
	prints 'ddp: rank 3 of 4 on n1 was killed by signal 9.*; restart 1 of 3: the other ranks keep their processes' "$backend: srun tells of a rank"
	prints 'ddp: rank 0 of 4 on n0 was killed by signal 9.*; restart 2 of 3: the other ranks keep their processes' "$backend: and of rank 0"
	prints 'ddp: .*n1.*; restart 3 of 3: n2 takes the place of n1, and the other ranks keep their processes' "$backend: and of the node"
	prints '^slurm_ddp: rank 3 on n1 joined; all 4 ranks go on with step [89], after ' "$backend: so do the ranks"
	prints '^slurm_ddp: rank 0 on n0 joined; all 4 ranks go on with step 14, after ' "$backend: also of rank 0"
	prints '^slurm_ddp: ranks 2, 3 on n2 joined; all 4 ranks go on with step [0-9]+, after ' "$backend: and of the spare node's"
	same "$(started $backend)" "2 1 2 3 " "$backend: the others have kept their processes"
	check "$backend: each step counts once, and its losses are those of the undisturbed training" as_before $backend.before $backend
	same "$(parameters "$work/$backend.out")" "$(parameters "$work/$backend.wanted")" "$backend: so are the parameters at the end"
	grep 'go on with' "$work/$backend.out" | sed 's/^/# /'
done

# Who was started again does not come.
touch "$work/refused/nobody-joins"
capture train refused restart=3 2 gloo 20 disturbed
status_is 0 "all ranks start again, if who was started again fails"
prints '; restart 1 of 3: the other ranks keep their processes' "the others have waited"
prints 'ddp: rank 3 of 4 on n1 exited with code 3.*; restart 2 of 3: all ranks start again' "and srun says that they wait no longer"
done_testing
