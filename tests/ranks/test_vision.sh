#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit; all: asan tsan; takes: 15
# examples/vision as a user runs it: data, readers, evaluation, output. Prints TAP.
program=examples/vision/mnist_mlp
synthetic=examples/vision/synthetic
# shellcheck source=tests/support/example.sh
. "$(dirname "$0")/../support/example.sh"

# train ARGUMENT...: 48 images a step on 2 ranks
train() {
	run --data "$work" --spawn 2 --batch 24 "$@"
}

every_option_is_in_help() {
	tells_of data batch images-per-update steps optimizer lr schedule warmup decay momentum \
		weight-decay plain seed checkpoint resume survive stopped-exit metrics trace device no-graphs spawn threads readers verbose version help
}

same_numbers_give_the_same_images() {
	mkdir "$work/again" && "$synthetic" mnist "$work/again" 480 101 >"$work/out" || return
	local file
	for file in "$work"/synthetic-*ubyte; do
		same "$file" "$work/again/${file##*/}" || return
	done
}

# Each of 512 tokens tells the next but for ln 3.
synthetic_tokens_are_learned() {
	"$synthetic" tokens "$work" 40000 400 >"$work/out" && [ "$(wc -l <"$work/out")" -eq 3 ] || return
	local program=examples/gpt/gpt
	local model=(--format llmc --vocab 512 --layers 1 --heads 2 --width 32 --length 32)
	run --data "$work/synthetic-tokens_train_*.bin" "${model[@]}" --steps 150 --lr 1e-2 --json &&
		awk 'match($0, /"last_loss": [0-9.]+/) { last = substr($0, RSTART + 13, RLENGTH - 13) }
			END { exit !(last > 1 && last < 3) }' "$work/out" &&
		run --data "$work/synthetic-tokens_val_000000.bin" "${model[@]}" --steps 1 && says ': 12 samples;'
}

readers_do_not_change_a_byte() {
	train --steps 12 --checkpoint "$work/one" && train --steps 12 --readers 3 --checkpoint "$work/three" &&
		same "$work/one/step-00000012.safetensors" "$work/three/step-00000012.safetensors"
}

# tests_alike DATA IMAGES: by a model that is trained already, on 1 to 4 ranks, of which some have
# more images than others, or none
tests_alike() {
	local ranks
	for ranks in 1 2 3 4; do
		run --data "$1" --spawn $ranks --batch $((48 / ranks)) --steps 12 --checkpoint "$work/one" --resume &&
			grep "^test: .*% of $2 images are right" "$work/out" >>"$work/tests-$2" || return
	done
	awk '{ right[NR] = $2; loss[NR] = $NF; differs += right[NR] != right[1] ||
			(loss[NR] - loss[1]) ^ 2 > 4e-8 } END { exit NR != 4 || differs }' "$work/tests-$2"
}

each_image_is_tested_once() {
	mkdir "$work/few" && "$synthetic" mnist "$work/few" 480 2 >/dev/null &&
		tests_alike "$work" 101 && tests_alike "$work/few" 2
}

images_per_update_say_how_much_accumulates() {
	train --steps 2 --images-per-update 192 && says ', 192 images a step$'
}

writes_metrics_and_traces() {
	train --steps 5 --metrics "$work/metrics" --trace "$work/trace" &&
		[ "$(grep -c '"loss"' "$work/metrics")" -eq 5 ] && [ "$(find "$work/trace" -type f | wc -l)" -eq 2 ]
}

a_run_that_goes_on_goes_on_with_its_metrics() {
	local goes_on=(--steps 8 --metrics "$work/metrics" --checkpoint "$work/goes-on" --resume)
	train --steps 5 --metrics "$work/metrics" --checkpoint "$work/goes-on" && train "${goes_on[@]}" &&
		[ "$(grep -c '"loss"' "$work/metrics")" -eq 8 ] && [ "$(grep -c '"loss"' "$work/metrics.1")" -eq 5 ]
}

# stopped_run_exits_with CODE ARGUMENT...
stopped_run_exits_with() {
	: >"$work/out"
	"$program" --data "$work" --spawn 2 --batch 24 --steps 1000000 "${@:2}" >"$work/out" 2>"$work/err" &
	local run=$!
	await_first_step $run || return
	kill -TERM $run
	wait $run
	[ $? -eq "$1" ] && says '^trained '
}

# Where each pass drops others.
graphs_do_not_change_a_byte() {
	local program=examples/vision/mnist_cnn device=(--device cuda --batch 8 --steps 3 --images-per-update 32)
	train "${device[@]}" --checkpoint "$work/graphs" && ! grep -q graphs "$work/err" &&
		train "${device[@]}" --no-graphs --checkpoint "$work/no-graphs" &&
		same "$work/graphs/step-00000003.safetensors" "$work/no-graphs/step-00000003.safetensors"
}

plain_output_has_no_escapes() {
	train --steps 3 && says '^step 3/3  loss ' && ! grep -q $'\033' "$work/out"
}

# 45 steps, of which every second line stays.
a_terminal_shows_what_time_is_left() {
	on_a_terminal --data "$work" --batch 4 --steps 45 &&
		says 'step  *[1-9][0-9]*/45 .* images/s .*[0-9]:[0-9][0-9]:[0-9][0-9] left'
}

"$synthetic" mnist "$work" 480 101 >"$work/out" 2>"$work/err"
check "a plain run succeeds" set_limit train --steps 2
check "--help tells of every option" every_option_is_in_help
check "the same numbers give the same synthetic images" same_numbers_give_the_same_images
check "synthetic tokens are learned" synthetic_tokens_are_learned
check "several readers do not change a byte" readers_do_not_change_a_byte
check "each image is tested once, on whichever rank" each_image_is_tested_once
check "images per update say how much accumulates" images_per_update_say_how_much_accumulates
check "images per update are divided" refuses '--images-per-update: an update of 50 is no multiple of 48, ' --data "$work" --spawn 2 --batch 24 \
	--images-per-update 50
check "metrics and a trace per rank are written" writes_metrics_and_traces
check "a run that goes on goes on with its metrics" a_run_that_goes_on_goes_on_with_its_metrics
check "a run that is stopped exits with a code of its own" stopped_run_exits_with 75
check "which can be chosen" stopped_run_exits_with 3 --stopped-exit 3
check "graphs do not change a byte" graphs_do_not_change_a_byte
check "plain output has no escapes" plain_output_has_no_escapes
check_terminal "a terminal shows what time is left" a_terminal_shows_what_time_is_left
end_of_tests
