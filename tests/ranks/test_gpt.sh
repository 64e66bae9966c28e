#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit; all: tsan asan; takes: 24
# examples/gpt as a user runs it: training, checkpoints, errors. Prints TAP.
program=${GPT:-examples/gpt/gpt}
# shellcheck source=tests/support/example.sh
. "$(dirname "$0")/../support/example.sh"

# train ARGUMENT...: a small model on a small text
train() {
	run --data "$work/text" --layers 2 --heads 2 --width 32 --length 32 --batch 4 --lr 3e-3 "$@"
}

for i in $(seq 200); do
	echo "the quick brown fox number $((i % 7)) jumps over $((i % 3)) lazy dogs"
done >"$work/text"
printf '\001\000\002\000\054\001\003\000%.0s' $(seq 100) >"$work/tokens" # 1 2 300 3 ...
printf 'abc' >"$work/short"

every_option_is_in_help() {
	tells_of data test format model layers heads width vocab length untied batch accumulate \
		tokens-per-update steps optimizer lr schedule warmup decay momentum weight-decay clip dropout recompute seed dtype loss-scale checkpoint checkpoint-every checkpoint-async resume survive buddy keep metrics trace \
		shard compress powersgd-rank powersgd-start local-steps local-start bucket-mb device no-graphs spawn threads \
		readers generate json verbose version
}

# Sizes of GPT-2 that are named, but for those that are given, before the name or behind it.
a_model_has_a_name() {
	run --data "$work/text" --layers 1 --model 124M --vocab 256 --length 16 --batch 1 --steps 1 &&
		says '^GPT-2 .* parameters: 1 layers, 12 heads, width 768, vocabulary 256, length 16$'
}

loss_falls() {
	train --spawn 2 --steps 60 --lr 1e-2 --json "$@" || return
	awk -F'"first_loss": |"last_loss": |,' '
		match($0, /"first_loss": [0-9.]+/) { first = substr($0, RSTART + 14, RLENGTH - 14) }
		match($0, /"last_loss": [0-9.]+/) { last = substr($0, RSTART + 13, RLENGTH - 13) }
		END { exit !(first > 5 && last > 0 && last < 2.6) }' "$work/out"
}

tokens_per_update_say_how_much_accumulates() {
	train --spawn 2 --steps 3 --tokens-per-update 512 --checkpoint "$work/tokens_per_update" &&
		train --spawn 2 --steps 3 --accumulate 2 --checkpoint "$work/accumulate" &&
		same "$work/tokens_per_update/step-00000003.safetensors" "$work/accumulate/step-00000003.safetensors"
}

# optimizers: all that the program knows, of its help
optimizers() {
	"$program" --help | sed -n 's/^  --optimizer NAME *\(.*\) (adamw).*/\1/p' | sed 's/,//g; s/ or / /'
}

each_optimizer_learns() {
	local optimizer schedules=(constant linear wsd inverse-root cosine) rates=(2e-2 2e-2 2e-2 1e-1 2e-2)
	for optimizer in $(optimizers); do
		[ "$optimizer" != adamw ] || continue # as in all other cases
		train --spawn 2 --steps 25 --lr "${rates[0]:-2e-3}" --optimizer "$optimizer" \
			--schedule "${schedules[0]:-cosine}" --json ||
			return
		rates=("${rates[@]:1}")
		schedules=("${schedules[@]:1}")
		awk 'match($0, /"last_loss": [0-9.]+/) { last = substr($0, RSTART + 13, RLENGTH - 13) }
			END { exit !(last > 0 && last < 5) }' "$work/out" ||
			{ echo "# $optimizer does not learn"; return 1; }
	done
}

two_runs_give_the_same_bytes() {
	train --spawn 2 --steps 8 --checkpoint "$work/a" &&
		train --spawn 2 --steps 8 --checkpoint "$work/b" &&
		same "$work/a/step-00000008.safetensors" "$work/b/step-00000008.safetensors"
}

another_seed_gives_others() {
	train --spawn 2 --steps 8 --checkpoint "$work/c" --seed 2 &&
		! cmp -s "$work/a/step-00000008.safetensors" "$work/c/step-00000008.safetensors"
}

# The first run sharded its state, being on one node.
the_way_of_gradients_does_not_change_a_byte() {
	train --spawn 2 --steps 8 --checkpoint "$work/k" --shard none --bucket-mb 0.01 &&
		same "$work/a/step-00000008.safetensors" "$work/k/step-00000008.safetensors" &&
		DDP_MEASURE=no-overlap train --spawn 2 --steps 8 --checkpoint "$work/e" --shard none &&
		same "$work/a/step-00000008.safetensors" "$work/e/step-00000008.safetensors" &&
		train --spawn 2 --steps 8 --checkpoint "$work/z" --shard gradients &&
		same "$work/a/step-00000008.safetensors" "$work/z/step-00000008.safetensors"
}

summary_tells_of_the_update() {
	train --spawn 2 --steps 2 --json && says '"shard": "state"' &&
		train --spawn 2 --steps 2 && says '^overlap  none needed' &&
		train --spawn 2 --steps 2 --shard none && says '^overlap  [0-9]*% of'
}

resumed_equals_uninterrupted() {
	train --spawn 2 --steps 12 --accumulate 2 --checkpoint "$work/f" --checkpoint-every 5 &&
		mkdir "$work/g" && cp "$work/f/step-00000005.safetensors" "$work/g" &&
		train --spawn 2 --steps 12 --accumulate 2 --checkpoint "$work/g" --resume &&
		same "$work/f/step-00000012.safetensors" "$work/g/step-00000012.safetensors"
}

# dropout_goes_on_where_it_was TYPE
dropout_goes_on_where_it_was() {
	local drop=$work/drop-$1 dropped=(--spawn 2 --steps 6 --accumulate 2 --dropout 0.2 --dtype "$1")
	train "${dropped[@]}" --checkpoint "$drop" --checkpoint-every 2 &&
		mkdir "$drop-on" && cp "$drop/step-00000002.safetensors" "$drop-on" &&
		train "${dropped[@]}" --checkpoint "$drop-on" --resume &&
		same "$drop/step-00000006.safetensors" "$drop-on/step-00000006.safetensors" &&
		train "${dropped[@]}" --dropout 0 --checkpoint "$drop-none" &&
		! cmp -s "$drop/step-00000006.safetensors" "$drop-none/step-00000006.safetensors"
}

# activations ARGUMENT...: their bytes, of a training that dropout makes random
activations() {
	train --spawn 2 --layers 6 --steps 4 --accumulate 2 --dropout 0.2 --json "$@" &&
		sed -n 's/.*"activation_bytes": \([0-9]*\).*/\1/p' "$work/out"
}

# recompute_takes_memory_and_no_bit ARGUMENT...
recompute_takes_memory_and_no_bit() {
	local kept again
	rm -rf "$work/kept" "$work/again"
	kept=$(activations --checkpoint "$work/kept" "$@") && again=$(activations --recompute --checkpoint "$work/again" "$@") &&
		same "$work/kept/step-00000004.safetensors" "$work/again/step-00000004.safetensors" || return 1
	echo "# activations: $kept bytes, recomputed $again"
	awk -v kept="$kept" -v again="$again" 'BEGIN { exit !(again > 0 && again < kept / 2) }'
}

what_is_recomputed_is_told() {
	train --steps 1 --recompute && says '^activations: [0-9.]* MiB a rank; layers are computed again in backward$' &&
		train --steps 1 && says '^activations: [0-9.]* MiB a rank$'
}

# bf16 ARGUMENT...: a small model trained in bf16
bf16() {
	train --dtype bf16 --spawn 2 --accumulate 2 --steps 6 "$@"
}

# Masters are f32, of which bf16 would lose bits, and so a run that goes on from them.
bf16_resumes_bit_for_bit() {
	local way=$1
	shift
	bf16 "$@" --checkpoint "$work/n-$way" --checkpoint-every 3 &&
		mkdir "$work/o-$way" && cp "$work/n-$way/step-00000003.safetensors" "$work/o-$way" &&
		bf16 "$@" --checkpoint "$work/o-$way" --resume &&
		same "$work/n-$way/step-00000006.safetensors" "$work/o-$way/step-00000006.safetensors"
}

bf16_checkpoints_hold_f32_only() {
	local file=$work/n-plain/step-00000006.safetensors
	grep -aq '"dtype": *"F32"' "$file" && ! grep -aq '"dtype": *"BF16"' "$file" &&
		mkdir "$work/q" && cp "$file" "$work/q" &&
		train --spawn 2 --accumulate 2 --steps 8 --checkpoint "$work/q" --resume && says '^step 8/8  loss '
}

# losses NAME ARGUMENT...: of 30 steps, in $work/losses-NAME
losses() {
	train --spawn 2 --steps 30 --lr 1e-3 --schedule constant --warmup 0 --metrics "$work/metrics-$1" "${@:2}" &&
		sed -n 's/.*"loss":\([0-9.]*\),.*/\1/p' "$work/metrics-$1" >"$work/losses-$1"
}

# Typically 0.002 apart, and 0.03 where masters are rounded to bf16 with the parameters.
bf16_trains_to_the_losses_of_f32() {
	losses f32 && losses bf16 --dtype bf16 || return
	paste "$work/losses-f32" "$work/losses-bf16" | awk '
		{ apart = $1 - $2; last = $1 }
		apart > 0.01 || apart < -0.01 { print "# step " NR ": " $1 " in f32, " $2 " in bf16"; bad = 1; exit }
		END { exit bad || NR != 30 || last < 1 || last > 5 }'
}

# Typically 0.0005 apart. No step overflows with this loss scale, so all steps have the same samples.
f16_trains_to_the_losses_of_f32() {
	losses whole && losses half --dtype f16 --loss-scale 256 && says '^loss scale 256, steps skipped: 0$' || return
	paste "$work/losses-whole" "$work/losses-half" | awk '
		{ apart = $1 - $2; last = $1 }
		apart > 0.005 || apart < -0.005 { print "# step " NR ": " $1 " in f32, " $2 " in f16"; bad = 1; exit }
		END { exit bad || NR != 30 || last < 1 || last > 5 }'
}

# Gradients of 2^24 times the loss are not finite on any rank: all ranks skip these steps, and none counts.
f16_skips_steps_that_overflow() {
	local scale
	train --dtype f16 --spawn 2 --steps 6 --loss-scale 16777216 --metrics "$work/metrics-f16" --checkpoint "$work/f16" 		--checkpoint-every 3 --verbose || return
	scale=$(sed -n 's/^loss scale \([0-9]*\), steps skipped: .*/\1/p' "$work/out")
	says '^step 1 is skipped: gradients overflow f16; the loss scale is now 8.38861e+06$' && says '^step 6/6  loss [1-9]' &&
		grep -q 'are not finite (on 2 ranks before they are summed)' "$work/err" &&
		[ "$(grep -c '^step [0-9]* is skipped' "$work/out")" -eq "$(sed -n 's/^loss scale .* skipped: //p' "$work/out")" ] &&
		awk -v scale="$scale" -v skipped="$(sed -n 's/^loss scale .* skipped: //p' "$work/out")" \
			'BEGIN { exit !(skipped > 0 && scale * 2 ^ skipped == 2 ^ 24) }'
}

# The checkpoint has the scale to which the overflows led.
f16_resumes_bit_for_bit() {
	mkdir "$work/f16-on" && cp "$work/f16/step-00000003.safetensors" "$work/f16-on" &&
		train --dtype f16 --spawn 2 --steps 6 --loss-scale 16777216 --checkpoint "$work/f16-on" --resume --json &&
		says '"skipped": 0, "loss_scale": ' && same "$work/f16/step-00000006.safetensors" "$work/f16-on/step-00000006.safetensors"
}

# Gradient by gradient, on memory that only the device's queues reach; from the checkpoint
# that the host's run left, to the bytes of the one at its end.
a_device_trains_to_the_bytes_of_the_host() {
	local there=$work/there-${1-plain}
	mkdir "$there" && cp "$work/f/step-00000005.safetensors" "$there" &&
		train --device cuda --spawn 2 --steps 12 --accumulate 2 --bucket-mb 0.02 \
			--checkpoint "$there" --resume ${1+--shard "$1"} &&
		same "$work/f/step-00000012.safetensors" "$there/step-00000012.safetensors"
}

# TF32 may be taken, and is not, where there is none.
a_device_without_tf32_computes_in_f32() {
	train --device cuda --steps 2 --dtype tf32 --generate 40 && says ', products in TF32$' &&
		sed '1,/^overlap/d' "$work/out" >"$work/tf32.txt" && same "$work/there.txt" "$work/tf32.txt"
}

# The same in bf16, from a checkpoint of the host's run that did so.
a_device_trains_in_bf16_to_the_bytes_of_the_host() {
	mkdir "$work/there-bf16" && cp "$work/n-plain/step-00000003.safetensors" "$work/there-bf16" &&
		bf16 --device cuda --bucket-mb 0.02 --checkpoint "$work/there-bf16" --resume --generate 20 &&
		tail -c 21 "$work/out" >"$work/there.txt" &&
		same "$work/n-plain/step-00000006.safetensors" "$work/there-bf16/step-00000006.safetensors" &&
		bf16 --checkpoint "$work/o-plain" --resume --generate 20 && tail -c 21 "$work/out" >"$work/here.txt" &&
		same "$work/here.txt" "$work/there.txt"
}

a_device_generates_what_the_host_does() {
	train --steps 2 --generate 40 && sed '1,/^overlap/d' "$work/out" >"$work/here.txt" &&
		train --device cuda --no-graphs --steps 2 --generate 40 &&
		sed '1,/^overlap/d' "$work/out" >"$work/no-graphs.txt" && same "$work/here.txt" "$work/no-graphs.txt" &&
		train --device cuda --steps 2 --generate 40 && sed '1,/^overlap/d' "$work/out" >"$work/there.txt" &&
		same "$work/here.txt" "$work/there.txt"
}

# a_device_drops_what_the_host_does TYPE: from the beginning, and where the host's run was
a_device_drops_what_the_host_does() {
	local drop=$work/drop-$1 dropped=(--device cuda --spawn 2 --steps 6 --accumulate 2 --dropout 0.2 --dtype "$1")
	train "${dropped[@]}" --bucket-mb 0.02 --checkpoint "$drop-there" &&
		same "$drop/step-00000006.safetensors" "$drop-there/step-00000006.safetensors" &&
		mkdir "$drop-there-on" && cp "$drop/step-00000002.safetensors" "$drop-there-on" &&
		train "${dropped[@]}" --checkpoint "$drop-there-on" --resume &&
		same "$drop/step-00000006.safetensors" "$drop-there-on/step-00000006.safetensors"
}

# final_loss BATCH ARGUMENT...: of a vocabulary so large that rows travel by themselves
final_loss() {
	run --data "$work/text" --layers 2 --heads 2 --width 32 --length 32 --lr 3e-3 --vocab 1000 \
		--steps 20 --json --batch "$@" && sed -n 's/.*"last_loss": \([-+.0-9e]*\).*/\1/p' "$work/out"
}

ranks_whose_rows_travel_train_like_one() {
	local one loss ranks
	one=$(final_loss 12) || return
	for ranks in 2 3 4; do
		loss=$(final_loss $((12 / ranks)) --spawn $ranks --shard none) || return
		awk -v a="$one" -v b="$loss" 'BEGIN { d = (a - b) / a; exit !(a > 0 && d < 1e-5 && d > -1e-5) }' || {
			echo "# one rank: $one, $ranks ranks: $loss"
			return 1
		}
	done
}

last_ones_are_kept() {
	train --steps 6 --checkpoint "$work/h" --checkpoint-every 1 --keep 2 &&
		[ "$(cd "$work/h" && echo *)" = "step-00000005.safetensors step-00000006.safetensors" ]
}

writes_metrics_and_traces() {
	train --spawn 2 --steps 5 --metrics "$work/metrics" --trace "$work/trace" &&
		[ "$(grep -c '"loss"' "$work/metrics")" -ge 5 ] && [ "$(find "$work/trace" -type f | wc -l)" -eq 2 ]
}

# 200 lines are 4 shards, of which samples do not go over from one to the next.
a_pattern_is_several_files() {
	split -l 50 -d "$work/text" "$work/shard_" &&
		train --data "$work/shard_*" --spawn 2 --steps 2 &&
		says "^$work/shard_\*: $(stat -c %s "$work"/shard_0? | awk '{ n += int(($1 - 1) / 32) } END { print n }') samples;"
}

# test_loss ARGUMENT...: of the model in $work/tested, on $work/other
test_loss() {
	train --test "$work/other" --steps 2 --checkpoint "$work/tested" --resume --json "$@" &&
		sed -n 's/.*"test_loss": \([0-9.]*\).*/\1/p' "$work/out"
}

# test_losses_agree WAY...: that of one rank with each of other ways to test
test_losses_agree() {
	local one loss way
	one=$(test_loss --batch 12) && [ -n "$one" ] || return
	for way; do
		# shellcheck disable=SC2086 # words of it
		loss=$(test_loss $way) || return
		awk -v a="$one" -v b="$loss" 'BEGIN { d = (a - b) / a; exit !(b > 0 && d < 1e-5 && d > -1e-5) }' || {
			echo "# one rank: $one, $way: $loss"
			return 1
		}
	done
}

# Three samples, of which some ranks have more than others, or none; nothing is dropped.
the_loss_on_other_data_is_that_of_each_sample_once() {
	head -c 100 "$work/text" | tr '[:lower:]' '[:upper:]' >"$work/other"
	train --steps 2 --batch 12 --checkpoint "$work/tested" &&
		test_losses_agree '--spawn 2 --batch 6' '--spawn 4 --batch 3 --dropout 0.5' '--batch 12 --device cuda' &&
		train --steps 2 --batch 12 --checkpoint "$work/tested" --resume --test "$work/other" &&
		says "^test     loss [0-9.]*, perplexity [0-9.]*, on $work/other$"
}

# More than 64 batches.
the_loss_on_much_other_data_is_that_of_each_sample_once() {
	cat "$work/text" "$work/text" "$work/text" "$work/text" >"$work/other"
	test_losses_agree '--spawn 2 --batch 6'
}

other_data_are_looked_for_before_training() {
	refuses "$work/absent" --data "$work/text" --test "$work/absent" && ! says '^step '
}

# Two letters are a token of 16 bits, beyond the vocabulary.
other_data_that_cannot_be_measured_lose_no_summary() {
	local stray=(--data "$work/tokens" --format u16 --vocab 301 --layers 1 --heads 2 --width 32 --length 8 --batch 4)
	stray+=(--test "$work/text" --steps 2 --spawn 2)
	refuses "$work/text holds token" "${stray[@]}" && says '^trained 2 steps in ' && ! says '^test ' &&
		refuses "$work/text holds token" "${stray[@]}" --json && says '"test_loss": null'
}

untied_model_trains() {
	train --spawn 2 --steps 4 --untied --checkpoint "$work/i" &&
		grep -aq 'lm_head.weight' "$work/i/step-00000004.safetensors" &&
		! grep -aq 'lm_head.weight' "$work/a/step-00000008.safetensors"
}

generates_text() {
	train --steps 2 --generate 100 || return
	# whatever follows the summary
	[ "$(sed '1,/^overlap/d' "$work/out" | wc -c)" -ge 100 ]
}

plain_output_has_no_escapes() {
	train --steps 3 && says '^step 3/3  loss ' && ! grep -q $'\033' "$work/out"
}

# 45 steps, of which every second line stays.
a_terminal_shows_what_time_is_left() {
	on_a_terminal --data "$work/text" --layers 1 --heads 2 --width 32 --length 32 --batch 2 --steps 45 && says 'step  *[1-9][0-9]*/45 .*[0-9]:[0-9][0-9]:[0-9][0-9] left'
}

stray_token_ends_all_ranks() {
	refuses 'holds token 300, but the vocabulary has 300; give --vocab 301 or more' \
		--data "$work/tokens" --format u16 --vocab 300 --length 8 --spawn 3 &&
		! grep -q 'batch callback failed' "$work/err" # once is enough
}

bad_checkpoint_directory_stops_before_training() {
	refuses "checkpoint directory $work/short" --data "$work/text" --steps 3 --spawn 2 \
		--checkpoint "$work/short" && ! says '^step '
}

complete_run_resumes_with_nothing_to_do() {
	train --steps 2 --checkpoint "$work/done" && train --steps 2 --checkpoint "$work/done" --resume &&
		says 'nothing left to train' && train --steps 1 --checkpoint "$work/done" --resume &&
		grep -q 'the checkpoint in .* is of step 2, beyond the 1 steps' "$work/err" && says 'has done 1 steps or more'
}

killed_rank_is_named() {
	# No output of an earlier run counts as this one's.
	: >"$work/out"
	"$program" --data "$work/text" --layers 1 --heads 2 --width 32 --length 32 --batch 4 \
		--steps 1000000000 --spawn 2 >"$work/out" 2>"$work/err" &
	local parent=$!
	await_first_step $parent || return
	kill -KILL "$(pgrep -P $parent | tail -n 1)"
	wait $parent
	[ $? -eq 137 ] && grep -q '^gpt: rank [01] was killed by signal 9$' "$work/err"
}

# The launcher passes the signal on, as srun does.
terminated_run_writes_a_checkpoint_and_can_go_on() {
	: >"$work/out"
	"$program" --data "$work/text" --layers 1 --heads 2 --width 32 --length 32 --batch 4 --spawn 2 \
		--steps 1000000 --checkpoint "$work/term" >"$work/out" 2>"$work/err" &
	local run=$! steps
	await_first_step $run || return
	kill -TERM $run
	wait $run
	[ $? -eq 75 ] || return
	steps=$(sed -n 's/^stopped by a signal after step \([0-9]*\) of 1000000; --resume goes on.*/\1/p' "$work/out")
	[ -n "$steps" ] && [ -s "$work/term/step-$(printf %08d "$steps").safetensors" ] &&
		run --data "$work/text" --layers 1 --heads 2 --width 32 --length 32 --batch 4 --spawn 2 \
			--steps $((steps + 1)) --checkpoint "$work/term" --resume --json &&
		says '"steps": 1,' && says '"stopped": false'
}

stopped_run_exits_as_it_is_told() {
	: >"$work/out"
	"$program" --data "$work/text" --layers 1 --heads 2 --width 32 --length 32 --batch 4 --spawn 2 \
		--steps 1000000 --stopped-exit "$1" >"$work/out" 2>"$work/err" &
	local run=$!
	await_first_step $run || return
	kill -TERM $run
	wait $run
	[ $? -eq "$1" ] && says '^stopped by a signal'
}

check "a plain run succeeds" set_limit train --spawn 2 --steps 2
check_numbers "--help tells of every option" every_option_is_in_help
check_numbers "--version tells the version" eval 'run --version && says "^gpt (slurm-ddp) [0-9]"'
check_numbers "a model has a name" a_model_has_a_name
check "the loss falls on two ranks" loss_falls
check_again "each optimizer learns, by each schedule" each_optimizer_learns
check_again "tokens per update say how much accumulates" tokens_per_update_say_how_much_accumulates
check "two runs give the same bytes" two_runs_give_the_same_bytes
check_again "another seed gives others" another_seed_gives_others
check "the way that gradients take does not change a byte" the_way_of_gradients_does_not_change_a_byte
check_numbers "the summary tells of the update" summary_tells_of_the_update
check "a resumed run equals an uninterrupted one" resumed_equals_uninterrupted
check_numbers "dropout goes on where it was" dropout_goes_on_where_it_was f32
check_again "so it does in bf16" dropout_goes_on_where_it_was bf16
check "recomputing takes memory and changes no bit" recompute_takes_memory_and_no_bit
check_numbers "what is recomputed is told" what_is_recomputed_is_told
check_again "the loss falls in bf16" loss_falls --dtype bf16
check_again "and to the losses of f32 at each step" bf16_trains_to_the_losses_of_f32
check "f16 trains to the losses of f32" f16_trains_to_the_losses_of_f32
check "f16 skips steps that overflow, and halves the scale" f16_skips_steps_that_overflow
check_numbers "f16 resumes bit for bit, with its scale" f16_resumes_bit_for_bit
check "bf16 resumes bit for bit" bf16_resumes_bit_for_bit plain
check_numbers "so it does with gradients in bf16, by Muon" bf16_resumes_bit_for_bit compress --compress bf16 \
	--shard none --optimizer muon
check_numbers "and with local steps" bf16_resumes_bit_for_bit local --local-steps 2 --local-start 1
check_numbers "checkpoints of bf16 hold f32 only, and go on in f32" bf16_checkpoints_hold_f32_only
check "a device trains to the bytes of the host" a_device_trains_to_the_bytes_of_the_host
check_numbers "so it does with the optimizer's state in shards" a_device_trains_to_the_bytes_of_the_host gradients
check "so it does in bf16" a_device_trains_in_bf16_to_the_bytes_of_the_host
check_numbers "a device generates what the host does" a_device_generates_what_the_host_does
check_numbers "a device drops what the host does" a_device_drops_what_the_host_does f32
check_again "so it does in bf16" a_device_drops_what_the_host_does bf16
check_again "one without TF32 computes in f32" a_device_without_tf32_computes_in_f32
check "ranks whose rows travel train like one" ranks_whose_rows_travel_train_like_one
check_numbers "only the last checkpoints are kept" last_ones_are_kept
check "metrics and a trace per rank are written" writes_metrics_and_traces
check "a pattern is several files" a_pattern_is_several_files
check_numbers "the loss on other data is that of each sample once" the_loss_on_other_data_is_that_of_each_sample_once
check_again "so it is where ranks wait for each other on the way" the_loss_on_much_other_data_is_that_of_each_sample_once
check_numbers "other data are looked for before training" other_data_are_looked_for_before_training
check_numbers "other data that cannot be measured lose no summary" other_data_that_cannot_be_measured_lose_no_summary
check_numbers "an untied model trains" untied_model_trains
check_numbers "text is generated" generates_text
check_numbers "plain output has no escapes" plain_output_has_no_escapes
check_terminal "a terminal shows what time is left" a_terminal_shows_what_time_is_left
check "a stray token ends all ranks" stray_token_ends_all_ranks
check_numbers "a bad checkpoint directory stops before training" bad_checkpoint_directory_stops_before_training
check_numbers "a complete run resumes with nothing to do" complete_run_resumes_with_nothing_to_do
check "a killed rank is named" killed_rank_is_named
check "a terminated run writes a checkpoint and can go on" terminated_run_writes_a_checkpoint_and_can_go_on
check_numbers "a stopped run's exit code can be chosen" stopped_run_exits_as_it_is_told 0
check "an absent file is an error on all ranks" refuses "$work/absent" --data "$work/absent" --spawn 2
check_numbers "too short a file is an error" refuses "$work/short" --data "$work/short" --spawn 2
check_numbers "a file of another format is an error" refuses "$work/text" --data "$work/text" --format llmc
check_numbers "data is needed" refuses '--data FILE is needed' --steps 3
check_numbers "heads must divide the width" refuses 'width 100 is not a multiple of the 3 heads' \
	--data "$work/text" --width 100 --heads 3
check_numbers "copies of shards need shards" refuses 'give --survive, and --shard state or gradients' \
	--data "$work/text" --buddy --survive
check_numbers "copies of shards need survivors" refuses 'give --survive, and --shard state or gradients' \
	--data "$work/text" --buddy --shard state
check_numbers "numbers are checked" refuses '--steps 1x: not a whole number' --data "$work/text" --steps 1x
check_numbers "numbers have a range" refuses '--batch 0: not a whole number from 1' --data "$work/text" --batch 0
check_numbers "reals are checked" refuses '--lr nan: not a number' --data "$work/text" --lr nan
check_numbers "not all can be dropped" refuses '--dropout 1: must be below 1' --data "$work/text" --dropout 1
check_numbers "unknown options are refused" refuses 'unrecognized option' --data "$work/text" --frobnicate
check_numbers "unknown optimizers are refused" refuses 'choose adamw, sgd, adam' --data "$work/text" \
	--optimizer best
check_numbers "unknown models are refused" refuses 'choose 124M, 355M, 774M, 1558M or 45M' --data "$work/text" --model 7B
check_numbers "unknown schedules are refused" refuses 'choose constant, linear, cosine, wsd or inverse-root' \
	--data "$work/text" --schedule step
check_numbers "tokens per update are divided" refuses 'an update of 1000 is no multiple of 512, which is 256 of a micro-batch' \
	--data "$work/text" --length 32 --batch 8 --spawn 2 --tokens-per-update 1000
check_numbers "tokens per update and accumulation are not both given" refuses 'leave --accumulate out' --data "$work/text" \
	--tokens-per-update 1000 --accumulate 2
check_numbers "unknown formats are refused" refuses 'choose bytes, u16 or llmc' --data "$work/text" --format png
check_numbers "unknown types are refused" refuses '--dtype f8: choose f32, tf32, bf16 or f16' --data "$work/text" --dtype f8
check_numbers "f16 is the host's" refuses '--dtype f16 computes on the host' --data "$work/text" --dtype f16 --device cuda
check_numbers "a loss scale is f16's" refuses '--loss-scale is for --dtype f16' --data "$work/text" --loss-scale 2
check_numbers "a loss scale is a power of two" refuses 'loss_scaling.initial is 3' --data "$work/text" --dtype f16 --loss-scale 3
check_numbers "TF32 is a GPU's" refuses '--dtype tf32 rounds the matrix products of a GPU; give --device cuda' \
	--data "$work/text" --dtype tf32
check_numbers "which the host is not, whatever its index" refuses '--dtype tf32 rounds' --data "$work/text" \
	--dtype tf32 --device cpu:0
check_numbers "unknown shards are refused" refuses 'choose auto, none, state or gradients' --data "$work/text" \
	--shard twice
check_numbers "unknown devices are refused" refuses "there is no device 'tpu'; the kinds are cpu and cuda" \
	--data "$work/text" --device tpu --spawn 2
check_numbers "stray arguments are refused" refuses 'not an option' --data "$work/text" more
check_numbers "resuming needs a directory" refuses 'needs --checkpoint DIR' --data "$work/text" --resume
check_numbers "a checkpoint of another model is refused" refuses 'safetensors' --data "$work/text" \
	--layers 1 --heads 2 --width 32 --length 32 --spawn 2 --checkpoint "$work/a" --resume --steps 20
check_numbers "text is generated for bytes only" refuses 'for --format bytes only' --data "$work/tokens" \
	--format u16 --generate 5

end_of_tests
