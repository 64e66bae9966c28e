# SPDX-License-Identifier: Apache-2.0
# example.sh: what the tests of an example share, which they run as a user does. Prints TAP.
# shellcheck shell=bash disable=SC2154 # the test sets program
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
# The GPU is the fake one, unless there is one to be tested (make check-gpu).
if [ -z "${DDP_TEST_GPU-}" ]; then
	export DDP_CUDA_MODULE=$PWD/tests/device/.libs/libddp_fake_gpu.so
	export DDP_CUDA_KERNELS=$DDP_CUDA_MODULE DDP_NCCL=$DDP_CUDA_MODULE
fi

# shellcheck source=tests/support/checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

# check_numbers: one of numbers, words and files alone, where the thread sanitizer sees no more
check_numbers() {
	[[ ${sanitizer-} == *=thread* ]] || check "$@"
}

# check_again: one whose program only trains once more what it does in other cases, where sanitizers see no more
check_again() {
	[ -n "${sanitizer-}" ] || check "$@"
}

# skip_numbers NAME REASON: such a one that this machine or build cannot tell of
skip_numbers() {
	[[ ${sanitizer-} != *=thread* ]] || return 0
	count=$((count + 1))
	echo "ok $count - $1 # SKIP $2"
}

# check_terminal: one that needs a terminal, which script(1) is to a program
check_terminal() {
	if command -v script >/dev/null; then
		check_numbers "$@"
	else
		skip_numbers "$1" 'there is no script(1)'
	fi
}

# run ARGUMENT...: $program, output in $work/out and $work/err, with a limit for what hangs
limit=0
run() {
	timeout "$limit" "$program" "$@" >"$work/out" 2>"$work/err"
}

# set_limit COMMAND...: a plain run, by which the limit is measured. The longest runs take some
# ten times as long; the limit is many times that, on a busy machine too. (0: none; the test as
# a whole has one.)
set_limit() {
	local start=${EPOCHREALTIME/./}
	"$@" || return
	limit=$((30 + 60 * (${EPOCHREALTIME/./} - start) / 1000000))
}

# on_a_terminal ARGUMENT...: the same as run, but that it sees one
on_a_terminal() {
	TERM=xterm timeout "$limit" script -qec "$program $*" /dev/null >"$work/out" 2>"$work/err" </dev/null
}

# refuses MESSAGE ARGUMENT...: ends with an error, in time, and says so on stderr
refuses() {
	local message=$1 status
	shift
	run "$@"
	status=$?
	[ $status -ne 0 ] && [ $status -ne 124 ] && grep -qF -- "$message" "$work/err"
}

says() {
	grep -q -- "$1" "$work/out"
}

same() {
	[ -s "$1" ] && cmp -s "$1" "$2"
}

# tells_of OPTION...: --help does
tells_of() {
	run --help || return
	local option
	for option; do
		says "^  --$option\\b" || { echo "# --help does not tell of --$option"; return 1; }
	done
}

# await_first_step PROCESS: until its first step is told; fails if it ends before
await_first_step() {
	until says '^step '; do
		kill -0 "$1" 2>/dev/null || return
		sleep 0.05
	done
}

end_of_tests() {
	echo "1..$count"
	[ $failed -eq 0 ]
}
