#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 900
# all: cluster
# init_process_group("ddp") under plain srun --ddp, over two nodes: losses are gloo's, a rank that is killed is named by
# the others' exceptions and by srun, a training goes on from its checkpoint inside the step, and with survive() the other
# ranks go on in their processes, also over gloo.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/python/lib.sh"
limit=150

find_python torch || skip_all "no python3 with torch (install python3-torch)"
capture env CFLAGS='-O0 -g0' "$source/libruntime/python/torch/tests/build.sh" "$build" "$python"
[ "$status" != 77 ] || skip_all "${output#SKIP: }"
status_is 0 "the backend compiles"
[ "$status" = 0 ] || { done_testing; exit 1; }
# As an installation would be: a user of the nodes can read it, and libddp is that of make install.
cp -r "${output##*$'\n'}" "$work/package" && chmod -R a+rX "$work/package"
export PYTHONPATH=$work/package

# Nothing in it knows of Slurm. Arguments are BACKEND STEPS FOLDER [RANK STEP]: the rank is killed in that step of its first
# start. Without them rank 2 is killed after the training, and after the same training by gloo.
program train.py <<'END'
import datetime, os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):  # it has no entry points, which name the backend
    import slurm_ddp_torch
backend, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
victim = tuple(map(int, sys.argv[4:6]))
saved = os.path.join(folder, "state.pt")

def train(group, begin, state):
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    model = DistributedDataParallel(layers, process_group=group, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if state:
        layers.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(begin, steps):
        if (rank, step) == victim and not os.path.exists(saved + ".killed"):
            open(saved + ".killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        draw = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(16, 32, generator=draw)
        loss = (model(x) - x[:, :8].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if victim and rank == 0 and step % 5 == 4:
            torch.save({"step": step + 1, "model": layers.state_dict(), "optimizer": optimizer.state_dict()}, saved + ".new")
            os.replace(saved + ".new", saved)
    loss = loss.detach().double()
    dist.all_reduce(loss, group=group)
    return loss.item() / size

try:
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    state = torch.load(saved) if os.path.exists(saved) else None
    begin = state["step"] if state else 0
    loss = train(dist.group.WORLD, begin, state)
    os.write(1, b"rank %d of %d, from step %d to loss %.7f\n" % (rank, size, begin, loss))
    if not victim:
        gloo = train(dist.new_group(backend="gloo"), 0, None)
        os.write(1, b"beside gloo: %s\n" % (b"equal" if abs(loss - gloo) < 1e-6 else b"%.7f" % gloo))
        dist.barrier()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    dist.destroy_process_group()
except RuntimeError as error:
    signal.signal(signal.SIGTERM, signal.SIG_IGN) # srun ends the step
    os.write(1, b"rank %d heard: %s: %s\n" % (rank, type(error).__name__.encode(), str(error).split("\n")[0].encode()))
    raise
END
ranks=(-N2 --ntasks-per-node=2 --mpi=none "$python" "$work/train.py")

capture as_user srun --ddp "${ranks[@]}" ddp 40 "$work"
prints_times 4 '^rank [0-3] of 4, from step 0 to loss 0\.[0-9]+$' "ranks of two nodes train by the backend"
prints_times 4 '^beside gloo: equal$' "with gloo's losses"
loss=$(sed -n 's/^rank 0 .* to \(loss .*\)/\1/p' <<<"$output")
status_is_not 0 "a rank that is killed ends the step"
prints 'rank 2 of 4 on n1 was killed by signal 9' "srun names it"
for rank in 0 1 3; do
	prints "^rank $rank heard: (DistBackend|Runtime)Error: .*rank 2 on n1" "the exception of rank $rank names it"
done
if python_has 'torch>=2.15'; then
	capture as_user srun --ddp "${ranks[@]}" cpu:ddp,cuda:gloo 40 "$work"
	prints_times 4 "^rank [0-3] of 4, from step 0 to $loss\$" "it serves the host's tensors beside another backend for a GPU's"
else
	skip "backends by device" "this torch has none"
fi

# Who raises is named, and not who hears of it and ends before: Python takes its time to end.
program raises.py <<'END'
import torch
import torch.distributed as dist
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
    import slurm_ddp_torch
dist.init_process_group("ddp")
if dist.get_rank() == 1:
    raise KeyError("weights")
while True:
    dist.all_reduce(torch.ones(1000))
END
for form in --ddp --ddp="python=$folder"; do
	capture as_user srun "$form" -N2 --ntasks-per-node=2 --mpi=none "$python" "$work/raises.py"
	prints 'ddp: rank 1 of 4 on n0 exited with code 1 .*: KeyError:' "${form%%=/*}: the rank that raises is named, not one that hears of it"
done

# A rank that leaves too early is named, with the function of torch that it called.
program leaves.py <<'END'
import torch
import torch.distributed as dist
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
    import slurm_ddp_torch
dist.init_process_group("ddp")
if dist.get_rank() == 0:
    dist.destroy_process_group()
else:
    dist.all_reduce(torch.ones(1000))
END
capture as_user srun --ddp -N2 --ntasks-per-node=1 --mpi=none "$python" "$work/leaves.py"
prints 'ddp: rank [01] of 2 on .* rank 0 on n0 issued .*destroy_process_group\(\)' "a failure line names what the program called"

# A bit flips in rank 3, behind step 3 of the first start.
program flips.py <<'END'
import sys
import torch
import torch.distributed as dist
import slurm_ddp
if sys.argv[1] == "ddp" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
    import slurm_ddp_torch
dist.init_process_group(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters())
for step in range(1, 7):
    optimizer.zero_grad()
    model(torch.ones(2, 8) * dist.get_rank()).square().mean().backward()
    optimizer.step()
    if (step, dist.get_rank(), slurm_ddp.restart_count) == (3, 3, 0):
        model.module.weight.detach().view(torch.int32)[2, 2] ^= 1 << 7
    slurm_ddp.compare(model, optimizer, every=2, step=step)
print("trained by", dist.get_world_size())
END
for backend in ddp gloo; do
	capture as_user srun --ddp="python=$folder,restart=1,min-nodes=1" -N2 --ntasks-per-node=2 --mpi=none "$python" "$work/flips.py" $backend
	status_is 0 "$backend: the training goes on without the node of a rank with a flipped bit"
	prints 'ddp: rank 3 of 4 on n1 exited with code 1 .*DamageError: rank 3 on n1 has other parameters than 3 of 4 ranks after step 4: .*; restart 1 of 1: the step goes on with 1 of 2 nodes$' \
		"$backend: srun names it"
	prints_times 2 'trained by 2$' "$backend: the others train to the end"
done

mkdir -m 777 "$work/restarted"
submit cpu --nodes=2 --ntasks-per-node=2 --ddp="python=$folder,restart=2" -- ddp 40 "$work/restarted" 2 12
status_is 0 "cpu.sh: with restart= the training goes on inside the step"
prints 'ddp: .*rank 2 .*on n1 .*signal 9.*restart 1 of 2' "cpu.sh: srun says why it starts again"
prints_times 4 "^rank [0-3] of 4, from step 10 to $loss\$" "cpu.sh: from its checkpoint, and ends with the loss of the undisturbed one"

# Rank 0 kills itself in the middle of step 8, and n1 loses its power later. `refer` does, with so many ranks, the steps
# between both from the state that the survivors had, once for each backend.
program survives.py <<'END'
import hashlib, os, signal, sys, time
import torch
import slurm_ddp
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
    import slurm_ddp_torch
folder, me = sys.argv[1], slurm_ddp.job().rank

def train(backend, begin=0, end=100000):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    x = torch.randn(1000, 32)
    data = torch.utils.data.TensorDataset(x, x[:, :8].sin())
    run = slurm_ddp.survive(net, optimizer, scheduler, backend=backend, timeout=100)
    loader = torch.utils.data.DataLoader(data, batch_sampler=run.sampler(1000, batch=24, seed=3))
    torch.manual_seed(me)
    if begin:
        state = torch.load("%s/%s.%d.%d" % (folder, backend, begin, run.rank))
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.manual_seed(state["seed"])
        run.step = begin
    ranks = run.world_size

    def digest():
        assert all(state["step"] == run.step for state in optimizer.state.values())
        bits = b"".join(value.detach().numpy().tobytes() for value in net.parameters())
        return "%d %s lr %r" % (run.step, hashlib.sha256(bits).hexdigest()[:12], scheduler.get_last_lr())

    for step, (x, y) in run.batches(loader, end):
        entered = time.monotonic()
        with run as model:
            loss = (model(x) - y).square().sum() * run.world_size / 24
            optimizer.zero_grad()
            loss.backward()
            if me == 0 and step == 8 and not begin:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            scheduler.step()
        if run.world_size != ranks:
            ranks, seconds = run.world_size, time.monotonic() - entered
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                        "seed": me}, "%s/%s.%d.%d" % (folder, backend, run.step, run.rank))
            os.write(1, b"%s: rank %d is %d of %d in %.2f s: %s\n" % (backend.encode(), me, run.rank, ranks, seconds, digest().encode()))
        if step == 14 and me == 1 and not begin:
            open("%s/%s.at14" % (folder, backend), "w").close()
        if not begin:
            time.sleep(0.05)
            if ranks == 1 and run.step > 60:
                break
    os.write(1, b"%s: %d of %d ends: %s\n" % (backend.encode(), run.rank, ranks, digest().encode()))

if sys.argv[2] != "refer":
    train(sys.argv[2])
for given in sys.argv[3:]:
    # torch is imported once.
    child = os.fork()
    if child == 0:
        backend, begin, end = given.split(":")
        train(backend, int(begin), int(end))
        torch.distributed.destroy_process_group()
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(given)
END
head() { "$source/slurm/cluster" run --dir "$cluster" -- "$@"; }
mkdir -m 777 "$work/survivors"
refer=()
for backend in ddp gloo; do
	as_user srun --ddp="python=$folder,silence=2" --no-kill -N2 --ntasks-per-node=2 --mpi=none "$python" "$work/survives.py" \
		"$work/survivors" $backend >"$work/$backend.out" 2>&1 &
	training=$!
	check "$backend: the training goes on after rank 0's death" wait_until 120 test -e "$work/survivors/$backend.at14"
	head ip link set n1 down
	on_node n1 sh -c 'pkill -9 slurmstepd; pkill -9 -u nobody; true'
	status=0
	wait $training || status=$?
	output=$(cat "$work/$backend.out")
	status_is 0 "$backend: a training that survives ends well, although rank 0 and then a node have died"
	head ip link set n1 up
	head scancel -u nobody
	head scontrol update NodeName=n1 State=DOWN Reason=test
	head scontrol update NodeName=n1 State=RESUME
	wait_until 60 sh -c "[ -z \"\$('$source/slurm/cluster' run --dir '$cluster' -- squeue -h -o %i)\" ]"
	prints 'ddp: rank 0 of 4 on n0 was killed by signal 9.*; the other ranks go on$' "$backend: srun names the rank"
	prints '^slurm_ddp: rank 0 on n0 has ended; 3 of 4 ranks go on with step [89], after ' "$backend: so do the others"
	prints '^slurm_ddp: .*rank 3 on n1 .*; 1 of 3 ranks go on with step [0-9]+, after ' "$backend: and the node's ranks"
	refer+=("$backend:$(sed -n "s/^$backend: rank 1 is 0 of 3 in [0-9.]* s: \([0-9]*\) .*/\1/p" <<<"$output")")
	refer[-1]+=:$(sed -n "s/^$backend: rank 1 is 0 of 1 in [0-9.]* s: \([0-9]*\) .*/\1/p" <<<"$output")
	sed -n "s/^$backend: rank 1 is 0 of 1 in [0-9.]* s: /$backend: /p" <<<"$output" | sort -u >>"$work/ended"
	grep 'go on with' <<<"$output" | sed 's/^/# /'
done
# The backend ddp adds up a node's ranks first, so ranks are to be on the same nodes.
printf 'n0\nn1\nn1\n' >"$work/hosts"
capture as_user env SLURM_HOSTFILE="$work/hosts" srun --ddp="python=$folder" -n3 -m arbitrary --mpi=none "$python" \
	"$work/survives.py" "$work/survivors" refer "${refer[@]}"
status_is 0 "runs with so many ranks from the survivors' state end well"
same "$(cat "$work/ended")" "$(sed -n 's/^\([a-z]*\): [0-2] of 3 ends: /\1: /p' <<<"$output" | sort -u)" \
	"the survivors had their parameters, to the bit, when the node died"
done_testing
