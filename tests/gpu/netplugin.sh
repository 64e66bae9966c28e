#!/bin/bash
# NCCL itself through libnccl-net-ddpucx.so, 2 and 4 ranks on one GPU, each with a host id
# of its own, so that all their traffic takes the network. Prints TAP; runs in the build
# folder. NCCL_HOME and CUDA_HOME say where NCCL and CUDA are, if not where they mostly are.
set -u
here=$(cd "$(dirname "$0")" && pwd)
plugin=$PWD/libruntime/netplugin/.libs/libnccl-net-ddpucx.so
cuda=${CUDA_HOME:-/usr/local/cuda}
nccl=${NCCL_HOME:-$cuda}
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

# run RANKS TRANSPORTS: all ranks; their output is in $work/RANK.log
run()
{
	local rank pids=() status=0
	rm -f "$work"/id "$work"/*.log
	for ((rank = 0; rank < $1; rank++)); do
		env RANK="$rank" NCCL_HOSTID="node$rank" NCCL_NET_PLUGIN="$plugin" NCCL_NET=ddpucx NCCL_DEBUG=INFO \
			NCCL_DEBUG_SUBSYS=INIT,NET NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=2 UCX_TLS="$2" \
			timeout 120 "$work/nccl_sums" "$rank" "$1" "$work" >"$work/$rank.log" 2>&1 &
		pids+=($!)
	done
	for rank in "${!pids[@]}"; do
		wait "${pids[rank]}" || status=1
	done
	return $status
}

echo 1..6
"${CC:-cc}" -O1 "$here/nccl_sums.c" -o "$work/nccl_sums" -I"$nccl/include" -I"$cuda/include" -L"$nccl/lib" -L"$nccl/lib64" \
	-L"$cuda/lib64" -L"$cuda/lib" -Wl,-rpath,"$nccl/lib:$nccl/lib64:$cuda/lib64:$cuda/lib" -lnccl -lcudart 2>"$work/cc.log"
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
