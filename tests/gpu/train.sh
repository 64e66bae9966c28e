#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# train.sh: the examples train on a GPU, as a user has them do it: to the
# losses of the host, to the same bytes however the device is given its work, and on two ranks that
# share it. Prints TAP; runs in the build folder. tests/ranks/test_train.sh runs it on the fake GPU.
set -u
carrier='by NCCL: NCCL [0-9]' # of what ranks reduce
program=${GPT:-examples/gpt/gpt}
# shellcheck source=tests/support/example.sh
. "$(dirname "$0")/../support/example.sh"

for i in $(seq 200); do
	echo "the quick brown fox number $((i % 7)) jumps over $((i % 3)) lazy dogs"
done >"$work/text"
head -c 3000 "$work/text" | tr '[:lower:]' '[:upper:]' >"$work/other"

# Heads of 64 are what a GPU's attention in bf16 is made for. Sanitizers see in a smaller model what they see in this one.
heads=2 length=64 images=24
if [ -n "${sanitizer-}" ]; then heads=1 length=32 images=8; fi
small=(--data "$work/text" --layers 2 --heads "$heads" --width "$((64 * heads))" --length "$length" --batch 4 --steps 12 --lr 1e-3
	--schedule constant --warmup 0)
train() {
	run "${small[@]}" "$@"
}

# there ARGUMENT...: on the device, whose passes can be graphs
there() {
	train --device cuda "$@" && ! grep -q graphs "$work/err"
}

# losses FILE: of each step of the last run that had --metrics
losses() {
	sed -n 's/.*"loss":\([-+.0-9e]*\),.*/\1/p' "$work/metrics" >"$1"
	rm -f "$work/metrics"
}

# agree BOUND: those here and there, at each step; and that the model has learnt, or so many steps
# that go wrong alike would tell nothing
agree() {
	paste "$work/losses-here" "$work/losses-there" | awk -v bound="$1" '
		NR == 1 { first = $1 }
		{ apart = $1 > $2 ? $1 - $2 : $2 - $1; most = apart > most ? apart : most; last = $1 }
		NF != 2 || !(apart <= bound) { print "# step " NR ": loss " $1 " here, " $2 " there"; bad = 1; exit }
		END { if (!bad) print "# at most " most + 0 " apart, of " bound; exit bad || NR < 4 || !(last < first) }'
}

# trains_to_the_losses_of_the_host BOUND ARGUMENT...
trains_to_the_losses_of_the_host() {
	local bound=$1
	shift
	train --metrics "$work/metrics" "$@" --dtype f32 && losses "$work/losses-here" &&
		there --metrics "$work/metrics" "$@" && losses "$work/losses-there" && agree "$bound"
}

# optimizers: all that the program knows, of its help
optimizers() {
	"$program" --help | sed -n 's/^  --optimizer NAME *\(.*\) (adamw).*/\1/p' | sed 's/,//g; s/ or / /'
}

each_optimizer_does() {
	local optimizer
	for optimizer in $(optimizers); do
		trains_to_the_losses_of_the_host 0.005 --steps 6 --optimizer "$optimizer" || { echo "# by $optimizer"; return 1; }
	done
}

# test_loss ARGUMENT...: of a model just trained, on other data
test_loss() {
	"$@" --test "$work/other" --steps 4 --json && sed -n 's/.*"test_loss": \([0-9.]*\).*/\1/p' "$work/out"
}

other_data_have_the_loss_of_the_host() {
	test_loss train >"$work/losses-here" && test_loss there >"$work/losses-there" &&
		paste "$work/losses-here" "$work/losses-there" |
		awk '{ apart = $1 - $2 } END { exit !(NR == 1 && NF == 2 && apart < 0.001 && apart > -0.001) }'
}

# graphs_do_not_change_a_byte NAME ARGUMENT...: of several passes a step, each of which drops others
graphs_do_not_change_a_byte() {
	local folder=$work/graphs-$1
	shift
	there "$@" --accumulate 2 --dropout 0.2 --checkpoint "$folder" &&
		train --device cuda "$@" --accumulate 2 --dropout 0.2 --no-graphs --checkpoint "$folder-none" &&
		same "$folder/step-00000012.safetensors" "$folder-none/step-00000012.safetensors"
}

# resumes_bit_for_bit NAME ARGUMENT...
resumes_bit_for_bit() {
	local folder=$work/resumed-$1
	shift
	there "$@" --dropout 0.2 --checkpoint "$folder" --checkpoint-every 5 &&
		mkdir "$folder-on" && cp "$folder/step-00000005.safetensors" "$folder-on" &&
		there "$@" --dropout 0.2 --checkpoint "$folder-on" --resume &&
		same "$folder/step-00000012.safetensors" "$folder-on/step-00000012.safetensors"
}

generates_text() {
	there "$@" --generate 100 && [ "$(sed '1,/^overlap/d' "$work/out" | wc -c)" -ge 100 ]
}

# ---- two ranks ------------------------------------------------------------------------------

# free_port: below those that the system itself gives
free_port() {
	local port
	while port=$((20000 + RANDOM % 12000)) && (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
	echo "$port"
}

# two_ranks ARGUMENT...: on the one device, as no launcher but the environment starts them. NCCL
# refuses two ranks on one GPU, unless they are of different hosts to it.
two_ranks() {
	local rank pids=() status=0
	DDP_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
	export DDP_KEY WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT
	MASTER_PORT=$(free_port)
	for rank in 0 1; do
		RANK=$rank LOCAL_RANK=$rank DDP_LOCAL_DEVICE=0 NCCL_HOSTID=node$rank NCCL_MAX_CTAS=2 \
			NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} \
			timeout "$limit" "$program" "${small[@]}" --device cuda --verbose "$@" \
			>"$work/out.$rank" 2>"$work/err.$rank" &
		pids+=($!)
	done
	wait "${pids[0]}" || status=1
	wait "${pids[1]}" || status=1
	unset DDP_KEY WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
	cat "$work"/out.? >"$work/out"
	cat "$work"/err.? >"$work/err"
	[ $status = 0 ] && for rank in 0 1; do
		grep -q "operations on the memory of .* run $carrier" "$work/err.$rank" ||
			{ echo "# rank $rank does not say that its operations are run $carrier"; return 1; }
	done
}

# two_ranks_train_to_the_losses_of_the_host BOUND ARGUMENT...
two_ranks_train_to_the_losses_of_the_host() {
	local bound=$1
	shift
	train --spawn 2 --metrics "$work/metrics" && losses "$work/losses-here" &&
		two_ranks --metrics "$work/metrics" "$@" && losses "$work/losses-there" && agree "$bound"
}

# two_ranks_resume_bit_for_bit NAME ARGUMENT...
two_ranks_resume_bit_for_bit() {
	local folder=$work/two-$1
	shift
	two_ranks "$@" --checkpoint "$folder" --checkpoint-every 5 &&
		mkdir "$folder-on" && cp "$folder/step-00000005.safetensors" "$folder-on" &&
		two_ranks "$@" --checkpoint "$folder-on" --resume &&
		same "$folder/step-00000012.safetensors" "$folder-on/step-00000012.safetensors"
}

# ---- images -----------------------------------------------------------------------------------

# images_train_to_the_losses_of_the_host BOUND PROGRAM ARGUMENT...: neither dropout nor random cuts
images_train_to_the_losses_of_the_host() {
	local bound=$1 program=examples/vision/$2
	local arguments=(--data "$work" --plain --steps 6 --metrics "$work/metrics" "${@:3}")
	run "${arguments[@]}" && losses "$work/losses-here" && run "${arguments[@]}" --device cuda &&
		! grep -q graphs "$work/err" && losses "$work/losses-there" && agree "$bound"
}

# images_have_the_same_bytes_without_graphs PROGRAM ARGUMENT...
images_have_the_same_bytes_without_graphs() {
	local program=examples/vision/$1 folder=$work/images-$1
	local arguments=(--data "$work" --device cuda --steps 5 "${@:2}")
	run "${arguments[@]}" --checkpoint "$folder" &&
		run "${arguments[@]}" --no-graphs --checkpoint "$folder-none" &&
		same "$folder/step-00000005.safetensors" "$folder-none/step-00000005.safetensors"
}

# check_images NAME HOW... PROGRAM ARGUMENT...: unless the build has no such program
check_images() {
	local name=$1 word
	for word in "${@:2}"; do
		case $word in
			mnist_cnn | cifar_net | resnet)
				if [ ! -x "examples/vision/$word" ] || [ ! -x examples/vision/synthetic ]; then
					skip_numbers "$name" "this build has no examples/vision/$word"
					return
				fi ;;
		esac
	done
	check "$@"
}

# The device's first run takes longest: that of a GPU makes its context.
check "a plain run succeeds" set_limit there --steps 2
check "f32 trains to the losses of the host" trains_to_the_losses_of_the_host 0.0005
check "so it does where heads are small" trains_to_the_losses_of_the_host 0.0005 --heads 4 --untied
check "tf32 trains to losses near them" trains_to_the_losses_of_the_host 0.01 --dtype tf32
check "so does bf16" trains_to_the_losses_of_the_host 0.02 --dtype bf16
check "so does bf16 where heads are small" trains_to_the_losses_of_the_host 0.02 --dtype bf16 --heads 4
check "each optimizer trains to the losses of the host" each_optimizer_does
check "other data have the loss of the host" other_data_have_the_loss_of_the_host
check "graphs do not change a byte" graphs_do_not_change_a_byte f32
check "nor in bf16" graphs_do_not_change_a_byte bf16 --dtype bf16
check "a resumed run equals an uninterrupted one" resumes_bit_for_bit f32
check "so it does in bf16, from what was written beside training" resumes_bit_for_bit bf16 --dtype bf16 \
	--checkpoint-async
check "text is generated" generates_text
check "so it is in bf16" generates_text --dtype bf16
check "two ranks train to the losses of the host" two_ranks_train_to_the_losses_of_the_host 0.0005 --shard none
check "so they do with the optimizer's state in shards" two_ranks_train_to_the_losses_of_the_host 0.0005 --shard state
check "and with gradients in shards, in bf16" two_ranks_train_to_the_losses_of_the_host 0.02 --shard gradients --dtype bf16
check "and with gradients that travel in bf16" two_ranks_train_to_the_losses_of_the_host 0.02 --shard none --compress bf16
check "two ranks resume bit for bit" two_ranks_resume_bit_for_bit state --shard state --bucket-mb 0.1

for kind in mnist cifar10; do
	[ ! -x examples/vision/synthetic ] || examples/vision/synthetic $kind "$work" 480 101 >"$work/out" 2>"$work/err"
done
check_images "mnist_cnn trains to the losses of the host" images_train_to_the_losses_of_the_host 0.002 mnist_cnn --batch "$images"
check_images "so does cifar_net" images_train_to_the_losses_of_the_host 0.002 cifar_net --batch "$images"
check_images "so does a ResNet" images_train_to_the_losses_of_the_host 0.01 resnet --batch 16 --width 16 --lr 0.01
check_images "graphs do not change a byte of mnist_cnn" images_have_the_same_bytes_without_graphs mnist_cnn --batch "$images"
check_images "nor of a ResNet" images_have_the_same_bytes_without_graphs resnet --batch 16 --width 16
end_of_tests
