#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit; takes: 60
# A kit for a machine with a GPU (tests/gpu/kit.sh), its run and check-gpu, and netplugin.sh, with
# a GPU that nvidia-smi alone has, and tests and a benchmark of some lines. Prints TAP.
set -u
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
unset GPU_ARCHIVE GPU_SECONDS
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/checks.sh
. "$source/tests/support/checks.sh"
holds() { tar -xzOf "$archive" "gpu-results/$1" 2>/dev/null | grep -qE -- "$2"; }
# What is killed may take a moment to end.
ends()
{
	local tries
	for ((tries = 0; tries < 50; tries++)); do
		grep -qs sleep "/proc/$1/cmdline" || return 0
		sleep 0.1
	done
	return 1
}
# A build: `gpt` tells with which libraries it runs.
build=$work/build kit=$work/kit
export PATH=$work/bin:$PATH
mkdir -p "$work/bin" "$build"/{examples/{gpt,vision},tests/{bench,gpu,ranks,unit},kernels,libruntime/device/cuda/.libs}
printf '#!/bin/sh\necho "GPU 0: of a test"\n' >"$work/bin/nvidia-smi"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/python3"
# shellcheck disable=SC2016 # it is what they expand
printf '#!/bin/sh\necho "libraries $LD_LIBRARY_PATH"; echo 1..1; echo "ok 1 - runs"\n' | tee "$build/examples/gpt/gpt" \
	"$build"/examples/vision/{cifar_net,mnist_cnn,resnet,synthetic} \
	"$build"/tests/bench/gpu_{kernels,nccl} "$build/tests/unit/passes" >"$build/tests/unit/comes_later"
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "under ${TOOL:-none}"; echo 1..1; echo "ok 1 - computes"\n' >"$build/tests/unit/test_kernel"
printf '#!/bin/sh\necho 1..1; echo "not ok 1 - breaks"; exit 1\n' >"$build/tests/unit/fails"
printf '#!/bin/sh\necho 1..1; echo "ok 1 - nothing # SKIP no GPU"\n' >"$build/tests/unit/skips"
# shellcheck disable=SC2016
printf '#!/bin/sh\necho 1..1; sleep 1000 & echo $! >$0.pid; wait\n' >"$build/tests/unit/hangs"
chmod +x "$work"/bin/* "$build"/{examples,tests}/*/*
: >"$build/kernels/libddp_kernels_cuda.so"
: >"$build/libruntime/device/cuda/.libs/libddp_cuda.so"
# A UCX of its own folder, with a transport that nobody may execute and that has a library of UCX's.
ucx=$work/ucx
mkdir -p "$ucx/lib/ucx" "$ucx/own" "$build/libruntime/nccl_plugins/net/.libs"
# library FILE OPTION...: one without functions, under the file's name
library() { "${CC:-cc}" -shared -x c /dev/null -x none -o "$1" -Wl,-soname,"${1##*/}" -Wl,--no-as-needed "${@:2}"; }
library "$ucx/own/libown.so.1"
library "$ucx/lib/libuct.so.0"
library "$ucx/lib/ucx/libuct_cuda.so.0" "$ucx/own/libown.so.1" -Wl,-rpath,"$ucx/own"
chmod a-x "$ucx/lib/ucx/libuct_cuda.so.0"
library "$build/libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so" "$ucx/lib/libuct.so.0" -Wl,-rpath,"$ucx/lib"

cd "$build" || exit 1
call "$source/tests/gpu/kit.sh" "$kit" tests/unit/fails tests/unit/skips tests/unit/hangs tests/unit/passes \
	tests/unit/comes_later tests/unit/test_kernel
check "a kit is made" status_is 0
check "it has the UCX of the build" [ -e "$kit/lib/libuct.so.0" ]
check "with its transports" [ -e "$kit/lib/ucx/libuct_cuda.so.0" ]
check "and what they need of it" [ -e "$kit/lib/libown.so.1" ]
cd "$work" || exit 1
archive=$kit/gpu-results.tar.gz
# What the machine has is not the kit's to replace.
cat >"$kit/tests/bench/gpu" <<'END'
#!/bin/bash
echo "benchmark $*, libraries ${LD_LIBRARY_PATH:-of the machine}"
examples/gpt/gpt
exit "${BENCH_STATUS:-0}"
END

call "$kit/run" tests passes comes_later
check "the tests that are named run, and pass" prints 'check-gpu: 2 of 2 tests passed'
check "and the status is 0" status_is 0
check "their logs are in the archive" holds passes.log 'ok 1 - runs'
check "and what machine it was" holds machine.txt 'GPU 0: of a test'
check "a program has the libraries of the kit" holds passes.log "^libraries $kit/lib"
call "$kit/run" tests none
check "a name that no test has is refused" status_is 2
check "with those there are" prints 'there are: fails skips hangs passes comes_later test_kernel'

PATH=$work/bin:/usr/bin:/bin CUDA_HOME=$work call "$kit/run" sanitize
check "without compute-sanitizer, its tests fail" status_is 1
check "and say what is missing" prints 'there is no compute-sanitizer here'
# The tool, before the program, finds a race.
cat >"$work/bin/compute-sanitizer" <<'END'
#!/bin/bash
[ "$1" = --tool ] || exit 2
TOOL=$2 "${@: -1}" || exit
[ "$2" != racecheck ] || { echo '========= ERROR: a race'; exit 9; }
END
chmod +x "$work/bin/compute-sanitizer"
call "$kit/run" sanitize
check "tests of kernels, and no others, run under each of its tools" prints 'passed  test_kernel.memcheck'
check "which see the program" holds test_kernel.initcheck.log 'under initcheck'
check "and fail if a tool finds something" prints '^FAILED  test_kernel.racecheck'
check "which is told" prints '^=+ ERROR: a race'
check "and the others run none the less" prints 'passed  test_kernel.initcheck'
check "the status is 1" status_is 1

GPU_ARCHIVE=$work/one/file.tgz
archive=$GPU_ARCHIVE
export GPU_ARCHIVE
call "$kit/run" tests fails skips passes
check "after a failure, and a skip, the others run" prints 'check-gpu: 1 of 3 tests passed'
check "a failure is told" prints '^not ok 1 - breaks'
check "the archive is where GPU_ARCHIVE says" holds passes.log 'ok 1 - runs'

cd "$kit" || exit 1
GPU_SECONDS=25 call tests/support/check-gpu tests/unit/hangs tests/unit/passes
check "a test that hangs is ended before the time of all" within 4 50
check "and has failed" prints '^FAILED  hangs'
check "which its log tells" holds hangs.log '^Bail out!'
check "nothing is left of it" ends "$(cat tests/unit/.libs/hangs.pid)"
cd "$work" || exit 1

call "$kit/run" 3 bench --models tiny
check "the benchmark gets its options" prints 'benchmark --minutes [12](\.[0-9]+)? --json .*/bench.json --models tiny'
check "and the libraries of the machine" prints 'tiny, libraries of the machine'
check "its programs those of the kit" prints "^libraries $kit/lib"
check "what it prints is in the archive" holds bench.txt 'models tiny'
BENCH_STATUS=1 call "$kit/run" kernels
check "the kernels run alone" prints 'benchmark .*kernels.json --no-steps'
check "a benchmark that fails is a failure" status_is 1

printf '%s\n' tests/unit/fails tests/unit/passes >"$kit/gpu-tests"
call "$kit/run" 3
check "without a name, tests run, and then the benchmark" holds bench.txt "^benchmark --minutes"
check "a failure of either is one" status_is 1

# One rank fails, the other waits for it.
mkdir -p "$build/tests/gpu" "$build/libruntime/nccl_plugins/net"
cat >"$build/tests/gpu/nccl_sums" <<'END'
#!/bin/sh
[ "$1" = 0 ] || exec sleep 1000
echo "rank 0: no GPU"
exit 1
END
chmod +x "$build/tests/gpu/nccl_sums"
cd "$build" || exit 1
call "$source/tests/gpu/netplugin.sh"
check "NCCL's ranks are ended when one fails" within 0 35
check "and each case is told" prints '^not ok 7'
check "with what the rank said" prints '^# rank 0: no GPU'
echo "1..$count"
