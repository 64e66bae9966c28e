#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# UCX writes into TCP sockets by libddp's, or the plugin's, functions.
if ! command -v python3 >/dev/null; then
	echo "1..0 # SKIP there is no python3, which loads the libraries"
	exit 0
fi
if [ ! -f libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so ]; then
	echo "1..0 # SKIP this build is without UCX"
	exit 0
fi
if nm -D libruntime/.libs/libddp.so | grep -qE '__(asan|tsan)_init'; then
	echo "1..0 # SKIP a sanitizer's library has to be loaded first"
	exit 0
fi
echo 1..4
number=0
for library in libruntime/.libs/libddp.so libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so; do
	bound=$(LD_BIND_NOW=1 LD_DEBUG=bindings python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' $library 2>&1 |
		grep 'binding file .*/libuct\.so.*ucs_socket_send')
	for symbol in ucs_socket_sendv_nb ucs_socket_send; do
		number=$((number + 1))
		one=$(printf '%s\n' "$bound" | grep "symbol .$symbol'")
		case $one in
		*" to $library "*) echo "ok $number - $symbol() of $library is taken" ;;
		*) printf 'not ok %d - %s() of %s is taken\n# %s\n' $number $symbol $library "$one" ;;
		esac
	done
done
