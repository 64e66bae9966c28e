#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 600
# init_process_group("ddp") under plain srun --ddp, over two nodes: losses are gloo's, a rank that is killed is named by
# the others' exceptions and by srun, and a training goes on from its checkpoint inside the step.
# TEST_PYTHON: interpreters to try first, with colons between them.
. "$source/tests/cluster/lib.sh"

export CFLAGS='-O0 -g0'
IFS=: read -r -a candidates <<<"${TEST_PYTHON-}"
for python in "${candidates[@]}" /usr/bin/python3; do
	as_user "$python" -c 'import torch' >/dev/null 2>&1 || { output="$python has no torch (python3-torch)" status=77; continue; }
	package=$build/libruntime/python/torch/built/$(printf '%s' "$python" | tr -c 'A-Za-z0-9' _)
	capture "$source/libruntime/python/torch/tests/build.sh" "$build" "$python" "$package"
	[ "$status" = 77 ] || break
done
[ "$status" != 77 ] || skip_all "${output#SKIP: }"
status_is 0 "the backend compiles for $("$python" -c 'import torch; print("torch", torch.__version__)')"
[ "$status" = 0 ] || { done_testing; exit 1; }
# As an installation would be: a user of the nodes can read it, and libddp is that of make install.
cp -r "$package" "$work/package" && chmod -R a+rX "$work/package"
export PYTHONPATH=$work/package PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
# Debian 13's PyTorch lacks libuv, which its own default asks for.
export USE_LIBUV=0
limit=150

# newer: this torch has entry points, by which it finds the backend without an import
newer() { "$python" -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15))'; }
if newer; then import=; else import='import slurm_ddp_torch'; fi

# Nothing in it knows of Slurm. A rank is killed in its first start: arguments are BACKEND STEPS FOLDER [RANK STEP].
cat >"$work/train.py" <<END
import datetime, os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
$import
END
cat >>"$work/train.py" <<'END'
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
    dist.destroy_process_group()
except RuntimeError as error:
    signal.signal(signal.SIGTERM, signal.SIG_IGN) # srun ends the step
    os.write(1, b"rank %d heard: %s: %s\n" % (rank, type(error).__name__.encode(), str(error).split("\n")[0].encode()))
    raise
END
chmod 755 "$work/train.py"
ranks=(-N2 --ntasks-per-node=2 --mpi=none "$python" "$work/train.py")

capture as_user srun --ddp "${ranks[@]}" ddp 40 "$work"
status_is 0 "ranks of two nodes train by the backend"
prints_times 4 '^rank [0-3] of 4, from step 0 to loss 0\.[0-9]+$' "all of them"
prints_times 4 '^beside gloo: equal$' "with gloo's losses"
loss=$(sed -n 's/^rank 0 .* to \(loss .*\)/\1/p' <<<"$output")
if newer; then
	capture as_user srun --ddp "${ranks[@]}" cpu:ddp,cuda:gloo 40 "$work"
	status_is 0 "it serves the host's tensors beside another backend for a GPU's"
	prints_times 4 "^rank [0-3] of 4, from step 0 to $loss\$" "with the same losses"
else
	skip "backends by device" "this torch has none"
fi

mkdir -m 777 "$work/killed" "$work/restarted"
capture as_user srun --ddp "${ranks[@]}" ddp 100000 "$work/killed" 2 12
status_is_not 0 "a rank that is killed ends the step"
prints 'rank 2 of 4 on n1 was killed by signal 9' "srun names it"
for rank in 0 1 3; do
	prints "^rank $rank heard: (DistBackend|Runtime)Error: .*rank 2 on n1" "the exception of rank $rank names it"
done

mkdir "$work/bin" && printf '#!/bin/sh\nexec %s "$@"\n' "$python" >"$work/bin/python" && chmod 755 "$work/bin/python"
export PATH=$work/bin:$PATH
submit cpu --nodes=2 --ntasks-per-node=2 --ddp="python=$prefix/lib/slurm-ddp/python,restart=2" -- ddp 40 "$work/restarted" 2 12
status_is 0 "cpu.sh: with restart= the training goes on inside the step"
prints 'ddp: .*rank 2 .*on n1 .*signal 9.*restart 1 of 2' "cpu.sh: srun says why it starts again"
prints_times 4 "^rank [0-3] of 4, from step 10 to $loss\$" "cpu.sh: from its checkpoint, and ends with the loss of the undisturbed one"
done_testing
