#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# NCCL itself through libnccl-net-ddpucx.so, 2 and 4 ranks on one GPU, each with a host id
# of its own, so that all their traffic takes the network. First 2 of them watched by
# libnccl-profiler-ddp.so, and 2 of PyTorch where python3 (PYTHON) has it; and last 2 whose GPU's memory
# the plugin gets, where its UCX has transports for that. Prints TAP; runs in the build folder. DDP_NCCL names NCCL's library, if not libnccl.so.2.
set -u
here=$(cd "$(dirname "$0")" && pwd)
plugin=$PWD/libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so
sums=$PWD/tests/gpu/nccl_sums
[ -x "$sums" ] || { echo 'Bail out! this build has no tests/gpu/nccl_sums: configure --with-cuda=DIR'; exit 1; }
# The folder is removed by a shell that has no ranks: a trap on EXIT runs in a rank, too, that is killed before it is a
# program.
if [ -z "${NETPLUGIN_WORK-}" ]; then
	NETPLUGIN_WORK=$(mktemp -d) || exit 1
	export NETPLUGIN_WORK
	bash "$0" "$@"
	status=$?
	rm -rf "$NETPLUGIN_WORK"
	exit $status
fi
work=$NETPLUGIN_WORK
number=0

# result STATUS NAME: of the ranks that ran last
result()
{
	number=$((number + 1))
	if [ "$1" = 0 ]; then
		echo "ok $number - $2"
		return
	fi
	echo "not ok $number - $2"
	grep -hE 'WARN|ddpucx|rank [0-9]|rror' "$work"/*.log | head -n 60 | sed 's/^/# /'
}

# run RANKS TRANSPORTS PROGRAM...: all ranks of it; their output is in $work/RANK.log. When one
# fails, the others are ended.
run()
{
	local rank pids=() status=0
	rm -f "$work"/{id,store} "$work"/*.log
	for ((rank = 0; rank < $1; rank++)); do
		env RANK="$rank" LOCAL_RANK="$rank" NCCL_HOSTID="node$rank" NCCL_NET_PLUGIN="$plugin" \
			NCCL_NET=ddpucx NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_SOCKET_IFNAME=lo \
			NCCL_MAX_CTAS=2 UCX_TLS="$2" \
			timeout -k 5 40 "${@:3}" "$rank" "$1" "$work" >"$work/$rank.log" 2>&1 &
		pids+=($!)
	done
	for rank in "${!pids[@]}"; do
		wait -n || {
			status=1
			kill "${pids[@]}" 2>/dev/null
		}
	done
	return $status
}

# went_by TRANSPORTS: whether these alone carried the connections that ranks have closed. One whose peer closed
# before has none to name, but not all of them.
went_by()
{
	local names
	names=$(sed -n 's/.*NET\/ddpucx: closed connection .* by \([^ ]*\): [0-9]* messages.*/\1/p' "$work"/*.log |
		tr + '\n' | sed 's/\/.*//' | sort -u)
	[ -n "$names" ] && ! grep -qvxF "${1//,/$'\n'}" <<<"$names" && return
	echo "# UCX took ${names//$'\n'/,} instead of $1"
	return 1
}

# NCCL loads this profiler from 2.27 on.
python=${PYTHON:-python3} torch=0
without=$("$python" -c 'import torch
version = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
print("" if version >= (2, 27) else "without NCCL 2.27" if version else "without CUDA")' 2>&1) && [ -z "$without" ] && torch=1
[ "$torch" = 1 ] || echo "# PyTorch is left out: ${without##*$'\n'}"
echo 1..$((7 + torch))
DDP_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export DDP_KEY

# watched PROGRAM...: whether both ranks' pages tell of a collective
watched()
{
	rm -f "$work/pages"
	truncate -s $((2 * 4096)) "$work/pages"
	exec 9<>"$work/pages"
	# What srun --ddp=watch sets, and pages in a file.
	NCCL_PROFILER_PLUGIN=$PWD/libruntime/nccl_plugins/profiler/.libs/libnccl-profiler-ddp.so DDP_PROGRESS_FD=9 WORLD_SIZE=2 run 2 tcp "$@" &&
		[ "$(grep -ao 'NCCL all_reduce' "$work/pages" | wc -l)" = 2 ]
}

watched "$sums"
result $? "the profiler has each rank's last collective on its page"
[ "$torch" = 0 ] || {
	# The plugin needs the libraries of a kit in another's process, too.
	watched env ${KIT_LIBRARIES:+LD_LIBRARY_PATH="$KIT_LIBRARIES" UCX_MODULE_DIR="$KIT_UCX"} \
		"$python" "$here/torch_sums.py"
	result $? "and that of PyTorch's ranks"
}
for transports in tcp posix,sysv,cma; do
	for ranks in 2 4; do
		run $ranks $transports "$sums" && went_by $transports
		result $? "the sums of $ranks ranks over $transports, and no other transport, are right"
	done
done
[ "$(grep -lE 'Using network ddpucx' "$work"/*.log 2>/dev/null | wc -l)" = 4 ]
result $? "NCCL says in each rank that it uses this network"

# Otherwise NCCL takes its memory of the host for what goes through sockets.
run 2 tcp,cuda_copy env NCCL_NET_GDR_LEVEL=SYS NCCL_NET_GDR_READ=1 "$sums" && went_by tcp,cuda_copy
status=$? name="the sums of 2 ranks are right whose GPU's memory the network gets"
if [ $status = 0 ] && ! grep -q 'takes CUDA memory' "$work"/*.log; then
	echo "ok $((number + 1)) - $name # SKIP this UCX has no CUDA transports"
elif [ $status = 0 ] && ! grep -q 'NET/ddpucx/.*GDRDMA' "$work"/*.log; then
	echo "ok $((number + 1)) - $name # SKIP NCCL hands out no memory of this GPU"
else
	result $status "$name"
fi
