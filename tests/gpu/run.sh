#!/bin/bash
# run [MINUTES [OPTION...]]: in a folder of `make gpu-kit`, on a machine with a GPU: first its
# tests, then the benchmark, which begins nothing new after so many minutes in all (15; 0: only the
# tests) and gets the options. gpu-results beside this file keeps what they print.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here" || exit 1
minutes=${1:-15}
shift $(($# > 0))
tests/support/check-gpu --here || exit

# Where libraries of CUDA's and NCCL may be that the system does not find by itself.
folders()
{
	local folder
	for folder in "${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib} "${NCCL_HOME:-/usr/local/nccl}"/lib; do
		echo "$folder"
	done
	python3 -c 'import glob, sys
for path in sys.path:
    for folder in glob.glob(path + "/nvidia/*/lib"):
        print(folder)' 2>/dev/null
}

# found NAME: its folder, or "" where the system finds it
found()
{
	local folder
	[ "$(ldconfig -p 2>/dev/null | grep -cF "$1")" = 0 ] || return 0
	folders | while read -r folder; do
		[ ! -e "$folder/$1" ] || { echo "$folder"; break; }
	done
}

export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} UCX_MODULE_DIR=$here/lib/ucx
missing=$(find . -type f -perm -u+x -exec ldd {} \; 2>/dev/null | awk '/not found/ { print $1 }' | sort -u)
for name in $missing; do
	folder=$(found "$name")
	if [ -n "$folder" ]; then
		LD_LIBRARY_PATH+=:$folder
	else
		echo "run: no $name here: what needs it fails; CUDA_HOME or NCCL_HOME says where CUDA or NCCL is" >&2
	fi
done
# libddp loads NCCL by its name.
folder=$(found libnccl.so.2)
[ -z "$folder" ] || export DDP_NCCL=${DDP_NCCL:-$folder/libnccl.so.2}
export DDP_CUDA_MODULE=$here/libruntime/device/cuda/.libs/libddp_cuda.so DDP_CUDA_KERNELS=$here/kernels/libddp_kernels_cuda.so

mapfile -t tests <gpu-tests
status=0
tests/support/check-gpu "${tests[@]}" || status=1
left=$((minutes - SECONDS / 60))
if [ "$left" -gt 0 ]; then
	tests/bench/gpu --python "$(command -v python3)" --minutes "$left" --json gpu-results/bench.json "$@" 2>&1 |
		tee gpu-results/bench.txt || status=1
fi
exit $status
