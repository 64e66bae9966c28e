#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# runs:; all: unit; needs: NCCL_NET
# What libnccl-net-ddpucx.so shows: NCCL's tables, and nothing of libddp or UCX.
plugin=libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so

if [ ! -f $plugin ]; then
	echo "1..0 # SKIP the plugin is not built: configure --enable-nccl-net"
	exit 0
fi
echo 1..2
shown=$(nm -D --defined-only $plugin | awk '{ print $3 }' | LC_ALL=C sort | tr '\n' ' ')
if [ "$shown" = "ncclNetPlugin_v10 ncclNetPlugin_v11 ncclNetPlugin_v12 ncclNetPlugin_v8 " ]; then
	echo "ok 1 - it exports NCCL's tables and nothing else"
else
	echo "not ok 1 - it exports NCCL's tables and nothing else"
	echo "# $shown"
fi
needed=$(readelf -d $plugin | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' | grep -E 'nccl|cuda|libddp')
if [ -z "$needed" ] && readelf -d $plugin | grep -q NODELETE; then
	echo "ok 2 - it needs neither NCCL nor CUDA nor libddp, and stays loaded"
else
	echo "not ok 2 - it needs neither NCCL nor CUDA nor libddp, and stays loaded"
	echo "# needs: $needed"
fi
