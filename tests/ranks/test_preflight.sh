#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit; all: tsan asan; takes: 6
# ddp-preflight without Slurm: its options, what it prints and writes, and the GPU's part on the fake one.
# shellcheck disable=SC2015,SC2317 # A && B || C means just that; check() calls the functions
program=libruntime/preflight/ddp-preflight
# shellcheck source=tests/support/example.sh
. "$(dirname "$0")/../support/example.sh"

says() { grep -qE -- "$1" "$work/out"; }
complains() { grep -qE -- "$1" "$work/err"; }
exits_with() { local code=$1 got=0; shift; run "$@" || got=$?; [ "$got" = "$code" ]; }

measures() {
	run --spawn 2 --json "$work/json" --exclude-file "$work/exclude" && says '^ddp-preflight: 2 ranks on 1 node, ' &&
		says '^  matrix product, alone +[0-9.]+ +[0-9.]+ +[0-9.]+ GFLOP/s' && says '^nothing is odd$' && [ ! -s "$work/exclude" ] &&
		python3 -c 'import json, sys; all = json.load(open(sys.argv[1])); assert len(all["ranks"]) == 2 and not all["odd"]' \
			"$work/json"
}
measures_a_device() {
	DDP_TEST_SMALL=yes run --spawn 2 --device cuda --json "$work/json" && says '^  matrix product on the GPU, alone ' &&
		says '^  memory of the GPU, all at once '
}
is_quiet() { run --spawn 1 --quiet && [ ! -s "$work/out" ]; }
answers_srun() { run --spawn 1 --for-srun --quiet && [ "$(cat "$work/out")" = '0 0 ' ]; }
set_limit run --spawn 1 --quiet || :
check 'two ranks are measured' measures
check 'and on a device' measures_a_device
check '--quiet prints nothing where nothing is odd' is_quiet
check '--for-srun answers in a line' answers_srun
check 'there is a help text' exits_with 0 --help
check 'and a version' exits_with 0 --version
check 'an unknown option is an error' exits_with 2 --unknown
check 'so is a word' exits_with 2 word
check 'and which one, is said' complains "it takes options only, not word"
check 'a number that is none is an error' exits_with 2 --spawn 0
# Nothing is measured, whose table would be printed.
refuses() { exits_with 2 --spawn 2 "$@" && [ ! -s "$work/out" ]; }
check 'a file that cannot be written is an error before anything is measured' refuses --json /nowhere/at/all \
	--exclude-file /nor/here/x
check 'and which one, is said' complains '^ddp-preflight: --json cannot write /nowhere/at/all: there is no such folder: make it'
check 'so is another one' complains '^ddp-preflight: --exclude-file cannot write /nor/here/x: there is no such folder: make it'
end_of_tests
