#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 300
# A plain PyTorch DDP script finds its ranks by srun --ddp alone; programs of libddp start
# beside PyTorch, and under torchrun.
. "$source/tests/cluster/lib.sh"
. "$source/tests/cluster/python/lib.sh"

find_python torch || skip_all "no python3 with torch (install python3-torch)"

cp "$source/examples/pytorch/train.py" "$work/train.py"
chmod 755 "$work/train.py"

limit=120
capture as_user srun --ddp --mpi=none -N2 -n3 --ntasks-per-node=2 "$python" "$work/train.py" --steps 40
status_is 0 "init_process_group(env://) meets across two nodes"
for rank in 0 1 2; do # two on one node; to import torch takes each a second and a half of a processor
	prints "^rank $rank of 3, local rank $((rank % 2)), on n$((rank / 2))\$" "rank $rank knows its place"
done
prints '^all ranks hold the same parameters' "all ranks end with the same parameters"

# loss STEP
loss() { sed -n "s/^step $1 loss //p" <<<"$output"; }
if awk -v first="$(loss 1)" -v last="$(loss 40)" 'BEGIN { exit !(first > 5 && last > 0 && last < 0.7 * first) }'; then
	ok "the loss falls by a third at least ($(loss 1) to $(loss 40))"
else
	not_ok "the loss falls by a third at least" "from $(loss 1) to $(loss 40)"
fi

awk '/^```python$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source/README.md" >"$work/readme.py"
chmod 755 "$work/readme.py"
capture as_user srun --ddp --mpi=none -N2 --ntasks-per-node=1 "$python" "$work/readme.py"
status_is 0 "README.md's program runs"
prints_times 2 '^rank [01] of 2 on n[01]$' "on all ranks"

# ---- libddp beside PyTorch, whose store holds MASTER_PORT ------------------------------

# Python would take a libddp.so beside libddp.py for the module.
cp "$build/libruntime/.libs/libddp.so" "$work/library.so"
cp "$source/tests/support/libddp.py" "$work"
cat >"$work/beside.py" <<'END'
import ctypes
import os
import sys
import torch
import torch.distributed as dist
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
import libddp

def sum_by_ddp(library):
    context, value = ctypes.c_void_p(), ctypes.c_int32(rank + 1)
    if library.ddp_init(None, ctypes.byref(context)) != 0:
        sys.exit("rank %d: %s" % (rank, library.ddp_last_error().decode()))
    world = ctypes.c_void_p(library.ddp_world(context))
    status = library.ddp_all_reduce(world, None, ctypes.byref(value), ctypes.c_int64(1), 2, 0)
    library.ddp_finalize(context)
    return value.value if status == 0 else library.ddp_last_error()

def sum_by_torch():
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    return int(total.item())

rank = int(os.environ["RANK"])
library = libddp.load()
before = sum_by_ddp(library)
dist.init_process_group("gloo")
line = "rank %d: %s before, %s by PyTorch, %s after\n" % (rank, before, sum_by_torch(), sum_by_ddp(library))
os.write(1, line.encode())
dist.barrier()
END
chmod 755 "$work/library.so" "$work/libddp.py" "$work/beside.py"
capture as_user env DDP_TIMEOUT=60 DDP_LIBRARY="$work/library.so" srun --ddp --mpi=none -N2 --ntasks-per-node=1 \
	"$python" "$work/beside.py"
status_is 0 "ddp_init() finds the others before and after init_process_group(env://)"
prints_times 2 '^rank [01]: 3 before, 3 by PyTorch, 3 after$' "on all ranks"

# ---- libddp under torchrun, whose agent holds MASTER_PORT ------------------------------

# Redirects of a rank that is not there: PyTorch 1.13 cannot read its own default with
# Python 3.11.
torchrun="$python -m torch.distributed.run --redirects 9:1 --tee 9:1"
# shellcheck disable=SC2086
capture as_user env DDP_TIMEOUT=60 $torchrun --no_python --nproc_per_node=2 "$prefix/bin/linear"
if [ "$status" != 0 ] && grep -q "built without libuv" <<<"$output"; then
	skip "libddp under torchrun" "this PyTorch lacks libuv"
else
	status_is 0 "linear runs under torchrun without Slurm, and without a key"
	prints '^2 ranks, 400 steps: loss 0.000000, y = 3.00 a -2.00 b' "as one world"
	# Rank 3 dies in the first attempt.
	cat >"$work/flaky" <<'END'
#!/bin/sh
[ "$RANK $TORCHELASTIC_RESTART_COUNT" != "3 0" ] || [ -z "$FLAKY" ] || exit 9
exec "$@"
END
	chmod 755 "$work/flaky"
	# shellcheck disable=SC2086
	capture as_user env DDP_TIMEOUT=60 srun --ddp=launcher --mpi=none -N2 --ntasks-per-node=1 \
		$torchrun --no_python --nproc_per_node=2 "$prefix/bin/linear"
	status_is 0 "it does on two nodes, by the static rendezvous"
	prints '^4 ranks, 400 steps: loss 0.000000, y = 3.00 a -2.00 b' "as one world"
	# shellcheck disable=SC2016
	capture as_user env DDP_TIMEOUT=60 FLAKY=1 srun --ddp=launcher --mpi=none -N2 \
		--ntasks-per-node=1 sh -c 'exec $1 --max_restarts=2 --rdzv_backend=c10d \
		--rdzv_endpoint="$PET_MASTER_ADDR:$PET_MASTER_PORT" --no_python --nproc_per_node=2 "$2" "$3"' \
		sh "$torchrun" "$work/flaky" "$prefix/bin/linear"
	status_is 0 "by c10d, it is there again after a rank has died"
	prints 'exitcode: 9' "which torchrun has seen"
	prints '^4 ranks, 400 steps: loss 0.000000, y = 3.00 a -2.00 b' "as one world"
fi

done_testing
