#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: asan; all: unit tsan
# Paths that are given to the examples may be anything: none may hang a program, and each is
# refused in a sentence that names it. Prints TAP.
program=${GPT:-examples/gpt/gpt}
# shellcheck source=tests/support/example.sh
. "$(dirname "$0")/../support/example.sh"

for i in $(seq 60); do
	echo "the quick brown fox number $((i % 7)) jumps over $((i % 3)) lazy dogs"
done >"$work/text"
mkdir "$work/folder" "$work/images"
mkfifo "$work/pipe"
ln -s "$work/nowhere" "$work/dangling"
ln -s "$work/round" "$work/round"
python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$work/socket" || exit 1

# What stands in the place of a file, or of a folder.
# shellcheck disable=SC2034 # each_refused reads it
no_files=(folder pipe socket dangling round text/none)
no_folders=(pipe socket dangling round text text/none)

gpt() {
	program=${GPT:-examples/gpt/gpt} refuses "$1" --layers 1 --heads 1 --width 16 --length 16 --batch 1 --steps 1 "${@:2}"
}

# each_refused NAMES FUNCTION ARGUMENT...: the program fails, in time, and names the path
each_refused() {
	local -n names=$1
	local name
	for name in "${names[@]}"; do
		"$2" "$work/$name" "${@:3}" "$work/$name" || { echo "# with $name"; return 1; }
	done
}

set_limit run --data "$work/text" --layers 1 --heads 1 --width 16 --length 16 --batch 1 --steps 1
check "a small run goes well" test -f "$work/out"

data() {
	each_refused no_files gpt --data && gpt /dev/zero --data /dev/zero && gpt folder/none --data "$work/folder/none"
}
test_data() { each_refused no_files gpt --data "$work/text" --test; }
metrics() {
	local name
	for name in folder pipe socket round text/none; do
		gpt "$work/$name" --data "$work/text" --metrics "$work/$name" || { echo "# with $name"; return 1; }
	done
}
trace() { each_refused no_folders gpt --data "$work/text" --trace; }
checkpoint() { each_refused no_folders gpt --data "$work/text" --checkpoint; }
resumed() {
	mkdir -p "$work/resumed"
	mkfifo "$work/resumed/step-00000009.safetensors" "$work/resumed/.lock" || return
	gpt "$work/resumed/" --data "$work/text" --checkpoint "$work/resumed" --resume
}
# A link to a file that is not there yet is the user's way to name it.
metrics_behind_an_own_link() {
	run --data "$work/text" --layers 1 --heads 1 --width 16 --length 16 --batch 1 --steps 1 --metrics "$work/dangling" &&
		[ -s "$work/nowhere" ] && rm "$work/nowhere"
}

check "--data is a file" data
check "--test is a file" test_data
check "--metrics can be written to" metrics
check "--metrics behind a link of the user's own" metrics_behind_an_own_link
check "--trace is a folder" trace
check "--checkpoint is a folder" checkpoint
check "--resume takes files" resumed

images() {
	program=examples/vision/mnist_mlp
	local name
	for name in "${no_folders[@]}"; do
		refuses "$work/$name" --data "$work/$name" --steps 1 || { echo "# with $name"; return 1; }
	done
	mkfifo "$work/images/train-images-idx3-ubyte" || return
	refuses "$work/images/train-images-idx3-ubyte" --data "$work/images" --steps 1
}
check "--data of images is a folder of files" images

synthetic() {
	program=examples/vision/synthetic
	local name
	for name in "${no_folders[@]}"; do
		refuses "$work/$name" mnist "$work/$name" 10 10 || { echo "# with $name"; return 1; }
	done
}
# in_place MAKE NAME COMMAND...: the command finds something in its file's place, and leaves it alone
in_place() {
	local make=$1 name=$2
	shift 2
	rm -rf "$name"
	"$make" "$name" && refuses "$name" "$@" && [ "$(cat "$work/treasure")" = "all that I have" ]
}
by_link() { ln -s "$work/treasure" "$1"; }
by_hard_link() { ln "$work/treasure" "$1"; }
by_pipe() { mkfifo "$1"; }
echo "all that I have" >"$work/treasure"

synthetic_in_place() {
	program=examples/vision/synthetic
	local make
	for make in by_link by_hard_link by_pipe mkdir; do
		in_place $make "$work/images/synthetic-train-labels-idx1-ubyte" mnist "$work/images" 10 10 || { echo "# $make"; return 1; }
	done
	rm -rf "$work/images/synthetic-train-labels-idx1-ubyte"
	run mnist "$work/images" 10 10
}
check "synthetic writes into a folder" synthetic
check "and follows no link there" synthetic_in_place

scaling() { program=examples/scaling refuses "$1" --layers 1 --heads 1 --width 16 --length 16 --vocab 64 --batch 1 --rounds 1 "${@:2}"; }
table() { each_refused no_files scaling --table && scaling /dev/zero --table /dev/zero; }
table_in_place() {
	program=examples/scaling
	local make
	for make in by_link by_hard_link by_pipe mkdir; do
		in_place $make "$work/table" --layers 1 --heads 1 --width 16 --length 16 --vocab 64 --batch 1 --rounds 1 \
			--table "$work/table" || { echo "# $make"; return 1; }
	done
}
check "scaling's --table is a file" table
check "and no link" table_in_place
end_of_tests
