#!/bin/bash
# NCCL itself through libnccl-net-ddpucx.so, 2 and 4 ranks on one GPU, each with a host id
# of its own, so that all their traffic takes the network; and 2 of them watched by
# libnccl-profiler-ddp.so, and 2 of PyTorch where python3 (PYTHON) has it. Prints TAP; runs in the build folder. NCCL_HOME and CUDA_HOME say
# where NCCL and CUDA are, if not where they mostly are.
# --build FILE: only builds the program, of which a kit (kit.sh) has one beside this script.
set -u
here=$(cd "$(dirname "$0")" && pwd)
plugin=$PWD/libruntime/netplugin/.libs/libnccl-net-ddpucx.so
cuda=${CUDA_HOME:-/usr/local/cuda}
nccl=${NCCL_HOME:-$cuda}

# build FILE. NCCL's packages for Python have no libnccl.so.
build()
{
	"${CC:-cc}" -O1 "$here/nccl_sums.c" -o "$1" -I"$nccl/include" -I"$cuda/include" -L"$nccl/lib" -L"$nccl/lib64" \
		-L"$cuda/lib64" -L"$cuda/lib" -Wl,-rpath,"$nccl/lib:$nccl/lib64:$cuda/lib64:$cuda/lib" -l:libnccl.so.2 -lcudart
}

if [ "${1:-}" = --build ]; then
	build "$2"
	exit
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
number=0

# result STATUS NAME LOG...
result()
{
	number=$((number + 1))
	if [ "$1" = 0 ]; then
		echo "ok $number - $2"
		return
	fi
	echo "not ok $number - $2"
	grep -hE 'WARN|ddpucx|rank [0-9]|rror' "${@:3}" | head -n 60 | sed 's/^/# /'
}

# run RANKS TRANSPORTS [PROGRAM...]: all ranks of it, or of nccl_sums; their output is in $work/RANK.log
run()
{
	local rank pids=() status=0 program=("$work/nccl_sums")
	[ $# -le 2 ] || program=("${@:3}")
	rm -f "$work"/{id,store} "$work"/*.log
	for ((rank = 0; rank < $1; rank++)); do
		env RANK="$rank" LOCAL_RANK="$rank" NCCL_HOSTID="node$rank" NCCL_NET_PLUGIN="$plugin" \
			NCCL_NET=ddpucx NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_SOCKET_IFNAME=lo \
			NCCL_MAX_CTAS=2 UCX_TLS="$2" \
			timeout 120 "${program[@]}" "$rank" "$1" "$work" >"$work/$rank.log" 2>&1 &
		pids+=($!)
	done
	for rank in "${!pids[@]}"; do
		wait "${pids[rank]}" || status=1
	done
	return $status
}

# NCCL loads this profiler from 2.27 on.
python=${PYTHON:-python3} torch=0
without=$("$python" -c 'import torch
version = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
print("" if version >= (2, 27) else "without NCCL 2.27" if version else "without CUDA")' 2>&1) && [ -z "$without" ] && torch=1
[ "$torch" = 1 ] || echo "# PyTorch is left out: ${without##*$'\n'}"
echo 1..$((7 + torch))
if [ -x "$here/nccl_sums" ]; then
	cp "$here/nccl_sums" "$work/"
else
	build "$work/nccl_sums" 2>"$work/cc.log"
fi
result $? "a program for NCCL is built" "$work/cc.log"
DDP_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export DDP_KEY
for ranks in 2 4; do
	for transports in tcp posix,sysv,cma; do
		run $ranks $transports
		result $? "the sums of $ranks ranks over $transports are right" "$work"/*.log
	done
done
[ "$(grep -lE 'Using network ddpucx' "$work"/*.log 2>/dev/null | wc -l)" = 4 ]
result $? "NCCL says in each rank that it uses this network" "$work"/*.log

# What srun --ddp=watch sets, and pages in a file.
export NCCL_PROFILER_PLUGIN=$PWD/libruntime/.libs/libnccl-profiler-ddp.so DDP_PROGRESS_FD=9 WORLD_SIZE=2

# watched [PROGRAM...]: whether both ranks' pages tell of a collective
watched()
{
	rm -f "$work/pages"
	truncate -s $((2 * 4096)) "$work/pages"
	exec 9<>"$work/pages"
	run 2 tcp "$@" && [ "$(grep -ao 'NCCL all_reduce' "$work/pages" | wc -l)" = 2 ]
}

watched
result $? "the profiler has each rank's last collective on its page" "$work"/*.log
[ "$torch" = 0 ] || {
	watched "$python" "$here/torch_sums.py"
	result $? "and that of PyTorch's ranks" "$work"/*.log
}
