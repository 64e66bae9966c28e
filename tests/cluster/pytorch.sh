#!/bin/bash
# nodes: 2
# seconds: 180
# A plain PyTorch DDP script finds its ranks by srun --ddp alone.
. "$source/tests/cluster/lib.sh"

python=
for candidate in /usr/bin/python3 python3; do
	"$candidate" -c 'import torch.distributed' 2>/dev/null && python=$candidate && break
done
[ -n "$python" ] || skip_all "no python3 with torch (install python3-torch)"

cp "$source/examples/pytorch/train.py" "$work/train.py"
chmod 755 "$work/train.py"

# Debian 13's PyTorch lacks libuv, which its own default asks for.
export USE_LIBUV=0
limit=150
capture as_user env OMP_NUM_THREADS=1 srun --ddp --mpi=none -N2 --ntasks-per-node=2 \
	"$python" "$work/train.py" --steps 40
status_is 0 "init_process_group(env://) meets across two nodes"
for rank in 0 1 2 3; do
	prints "^rank $rank of 4, local rank $((rank % 2)), on n$((rank / 2))\$" "rank $rank knows its place"
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
capture as_user env OMP_NUM_THREADS=1 srun --ddp --mpi=none -N2 --ntasks-per-node=2 "$python" "$work/readme.py"
status_is 0 "README.md's program runs"
prints_times 4 '^rank [0-3] of 4 on n[01]$' "on all ranks"

done_testing
