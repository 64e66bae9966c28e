#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run [MINUTES] [tests [NAME...] | sanitize [NAME...] | bench [OPTION...] | kernels [OPTION...] | OPTION...]:
# in a folder of `make gpu-kit`, on a machine with a GPU: its tests, or those of these names; or those of
# kernels under each tool of compute-sanitizer; or the benchmark, which gets the options; or of it the
# kernels alone; or, if none is named, tests and then the benchmark. All ends within so many minutes (15).
# gpu-results beside this file keeps what they print, and GPU_ARCHIVE (gpu-results.tar.gz) the same as one file.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
# A relative GPU_ARCHIVE is the caller's.
if [ -n "${GPU_ARCHIVE:-}" ]; then
	GPU_ARCHIVE=$(realpath -m "$GPU_ARCHIVE")
	export GPU_ARCHIVE
fi
cd "$here" || exit 1
# shellcheck source=tests/gpu/lib.sh
. tests/gpu/lib.sh
seconds=900 what=all results=$here/gpu-results status=0
if [[ ${1:-} =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
	seconds=$(awk "BEGIN { print int(60 * $1) }")
	shift
fi
case ${1:-} in
	tests|sanitize|bench|kernels) what=$1; shift ;;
	-*|'') ;;
	*) sed -n '3,8s/^# //p' "$0" >&2; exit 2 ;;
esac
tests/support/check-gpu --here || exit
mkdir -p "$results"

# The kit's libraries are for its own programs (kit.sh), not for the machine's.
export KIT_LIBRARIES=$here/lib KIT_UCX=$here/lib/ucx
missing=$(find . -type f -perm -u+x -exec env LD_LIBRARY_PATH="$KIT_LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ldd {} \; 2>/dev/null |
	awk '/not found/ { print $1 }' | sort -u)
for name in $missing; do
	folder=$(library_folder "$name")
	if [ -n "$folder" ]; then
		KIT_LIBRARIES+=:$folder
	else
		echo "run: no $name here: what needs it fails; CUDA_HOME or NCCL_HOME says where CUDA or NCCL is" >&2
	fi
done
name_nccl
export DDP_CUDA_MODULE=$here/libruntime/device/cuda/.libs/libddp_cuda.so DDP_CUDA_KERNELS=$here/kernels/libddp_kernels_cuda.so

# tests [NAME...]
tests()
{
	local names=("$@") all chosen=() name test
	mapfile -t all <gpu-tests
	[ $# -gt 0 ] || chosen=("${all[@]}")
	for name in "${names[@]}"; do
		for test in "${all[@]}"; do
			[ "${test##*/}" != "$name" ] || { chosen+=("$test"); continue 2; }
		done
		echo "run: no test is called $name; there are: ${all[*]##*/}" >&2
		return 2
	done
	GPU_SECONDS=$((seconds - SECONDS)) tests/support/check-gpu "${chosen[@]}"
}

# sanitize [NAME...]
sanitize()
{
	local names=("$@") tool failed=0
	[ $# -gt 0 ] || mapfile -t names < <(sed -n 's,^tests/unit/\(test_\(kernel\|model_graph\|optimizers\).*\),\1,p' gpu-tests)
	if [ ${#names[@]} = 0 ]; then
		echo "run: this kit has no tests of kernels: its build had no nvcc" >&2
		return 2
	fi
	for tool in memcheck racecheck synccheck initcheck; do
		GPU_SANITIZER=$tool tests "${names[@]}" || failed=$?
		[ $failed != 2 ] || break
	done
	return $failed
}

# bench NAME [OPTION...]: to gpu-results/NAME.json and .txt. It ends by itself, and else it is ended.
bench()
{
	local left=$((seconds - SECONDS)) name=$1 line kept=0
	shift
	if [ $left -lt 20 ]; then
		echo "run: no time is left for the benchmark" >&2
		return 1
	fi
	timeout -k 2 $((left - 3)) tests/bench/gpu --minutes "$(awk "BEGIN { print ($left - 10) / 60 }")" \
			--json "$results/$name.json" "$@" 2>&1 |
		tee "$results/$name.txt" |
		while IFS= read -r line; do
			printf '%s\n' "$line"
			[ $((SECONDS - kept)) -lt 5 ] || { keep_results "$results"; kept=$SECONDS; }
		done || status=1
	keep_results "$results"
}

case $what in
	tests) tests "$@" || status=$? ;;
	sanitize) sanitize "$@" || status=$? ;;
	bench) bench bench "$@" ;;
	kernels) bench kernels --no-steps "$@" ;;
	all) tests || status=$?; bench bench "$@" ;;
esac
exit $status
