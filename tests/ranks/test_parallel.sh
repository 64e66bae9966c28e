#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit; all: tsan asan; takes: 13
# examples/parallel: a network that is split has the losses of one that is not. Prints TAP.
program=examples/parallel/parallel
# shellcheck source=tests/support/example.sh
. "$(dirname "$0")/../support/example.sh"

# Sanitizers see in a smaller network what they see in the program's own.
small=()
if [ -n "${sanitizer-}" ]; then small=(--width 32 --length 16 --lr 5e-3); fi
train() {
	run "${small[@]}" "$@"
}

every_option_is_in_help() {
	tells_of spawn stages tensor layers heads width length update micro-batches steps lr checkpoint resume help
}

# like_one RANKS ARGUMENT...: each step's loss is that of one rank but for rounding
like_one() {
	train --spawn "$@" || return
	# shellcheck disable=SC2016 # awk's
	paste "$work/one" "$work/out" | awk '
		function apart(a, b) { return a > b ? a - b : b - a }
		{ if ($2 != $6 || !($4 > 0) || !(apart($4, $8) <= 1e-5 * $4)) wrong++ }
		END { exit !(NR == 20 && !wrong) }'
}

# A copy more or less changes how samples are shared out, and no sample.
a_saved_network_goes_on_with_fewer_copies() {
	train --spawn 8 --stages 2 --tensor 2 --steps 10 --checkpoint "$work/saved" || return
	[ "$(find "$work/saved" -name 'step-00000010.safetensors' | wc -l)" -eq 4 ] || return
	train --spawn 4 --stages 2 --tensor 2 --checkpoint "$work/saved" --resume && says '^resumed after step 10$' || return
	sed -i 1d "$work/out"
	# shellcheck disable=SC2016 # awk's
	paste <(tail -n 10 "$work/one") "$work/out" | awk '
		{ d = $4 - $8; if ($2 != $6 || d * d > 1e-10 * $4 * $4) wrong++ } END { exit !(NR == 10 && !wrong) }'
}

# One stage's last save is missing.
parts_of_different_steps_are_refused() {
	train --spawn 2 --stages 2 --steps 4 --checkpoint "$work/apart" &&
		train --spawn 2 --stages 2 --steps 8 --checkpoint "$work/apart" --resume &&
		rm "$work"/apart/stage-1-slice-0/step-00000008.* &&
		refuses 'are of steps 4 to 8' "${small[@]}" --spawn 2 --stages 2 --checkpoint "$work/apart" --resume
}

check "a plain run succeeds" set_limit train --spawn 1
cp "$work/out" "$work/one"
check_numbers "--help tells of every option" every_option_is_in_help
# shellcheck disable=SC2016 # awk's
check "the loss falls" awk '{ loss[NR] = $4 } END { exit !(NR == 20 && loss[20] < loss[1] - 1) }' "$work/one"
check_numbers "two copies train like one" like_one 2
check_numbers "four stages train like one" like_one 4 --stages 4
check_numbers "four slices train like one" like_one 4 --tensor 4 --micro-batches 2
check "two copies of two stages of two slices train like one rank" like_one 8 --stages 2 --tensor 2
check_numbers "a saved network goes on with fewer copies" a_saved_network_goes_on_with_fewer_copies
check_numbers "parts of different steps are refused" parts_of_different_steps_are_refused
check_numbers "ranks that make no whole copy are refused" refuses '3 ranks: their number must be a multiple of stages times tensor' \
	--spawn 3 --stages 2
check_numbers "layers that make no whole stage are refused" refuses 'layers must be a multiple of stages' --spawn 3 --stages 3
check_numbers "a resume without a folder is refused" refuses '--resume needs --checkpoint DIR' --spawn 1 --resume
end_of_tests
