#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 120
# Each example that is no GPT (training.sh has that) trains on two nodes, and learns.
. "$source/tests/cluster/lib.sh"
ddp() { as_user srun --ddp -N2 "$@"; }

for example in allreduce linear gpt scaling parallel mnist_mlp mnist_cnn cifar_net resnet broken synthetic; do
	capture "$prefix/bin/$example" --help
	status_is 0 "$example has --help"
	prints "^usage: $example " "$example says how it is used"
done

capture ddp --ntasks-per-node=2 "$prefix/bin/linear"
status_is 0 "linear finds the numbers"
prints '^4 ranks, 400 steps: loss 0\.0' "linear says which they are"

capture ddp --ntasks-per-node=4 "$prefix/bin/parallel" --stages 2 --tensor 2
status_is 0 "a network that is split over ranks of two nodes trains"
prints '^step 20: loss 4\.43262' "parallel has the loss of one rank"

# What ranks write goes where srun is told: of each to a file of its own, or of rank 0 alone.
# shellcheck disable=SC2016 # the ranks' variable
tell='echo "this is rank $RANK"'
capture ddp -n2 --output="$work/log.%t" sh -c "$tell"
status_is 0 "ranks write to files"
same 'this is rank 0,this is rank 1' "$(cat "$work/log.0"),$(cat "$work/log.1")" "each rank has a file of its own"
capture ddp -n2 --output=0 sh -c "$tell"
same 'this is rank 0' "$output" "rank 0 alone is heard"

data=$work/data
mkdir "$data"
capture "$prefix/bin/synthetic" mnist "$data" 800 200
status_is 0 "synthetic images of MNIST's format are made"
capture "$prefix/bin/synthetic" cifar10 "$data" 400 100
status_is 0 "synthetic images of CIFAR-10's format are made"

# learns EXAMPLE STEPS LEAST [OPTION...]: at least so many percent of the test's images are right
learns()
{
	capture ddp -n2 "$prefix/bin/$1" --data "$data" --threads 1 --batch 16 --steps "$2" "${@:4}"
	status_is 0 "$1 trains"
	prints "^$1: [0-9]+ synthetic images of .* 2 ranks on 2 nodes" "$1 says what it trains on"
	if awk -v least="$3" '$1 == "test:" { found = $2 + 0 >= least } END { exit !found }' <<<"$output"
	then ok "$1 knows $3% of the images that it has not seen"
	else not_ok "$1 knows $3% of the images that it has not seen"; fi
}
learns mnist_mlp 40 80
learns mnist_cnn 40 70
learns cifar_net 120 60 --plain --lr 0.03
learns resnet 50 80 --plain --width 8 --sync-batch-norm --device cpu:0

capture ddp -n2 "$prefix/bin/resnet" --depth 50 --data "$data" --threads 1 --batch 2 --steps 1 --width 4
status_is 0 "resnet of 50 layers trains"

# By other convolutions, the first loss is nearly the same. The fake GPU is not installed, and its NCCL is of one node.
fake=$work/libddp_fake_gpu.so
install -m 755 "$build/tests/device/.libs/libddp_fake_gpu.so" "$fake"
for device in cpu cuda; do
	capture as_user env DDP_CUDA_MODULE="$fake" DDP_CUDA_KERNELS="$fake" DDP_NCCL="$fake" srun --ddp -N1 -n2 "$prefix/bin/resnet" --data "$data" --threads 1 --batch 4 --steps 1 --width 4 --plain \
		--sync-batch-norm --device "$device"
	status_is 0 "resnet trains, device $device"
	sed -n 's/^step 1\/1  loss \([0-9.]*\) .*/\1/p' <<<"$output" >>"$work/losses"
done
check "resnet has nearly the same loss on a device" \
	awk '{ loss[NR] = $1 } END { r = loss[1] > 0 ? loss[2] / loss[1] : 0; exit !(NR == 2 && r > 0.999 && r < 1.001) }' "$work/losses"

# What dropout draws goes on, too: two halves are the whole, bit for bit.
half=(--data "$data" --threads 1 --batch 4 --schedule constant)
for parts in 6 '3 6'; do
	for steps in $parts; do
		capture ddp -n2 "$prefix/bin/mnist_cnn" "${half[@]}" --steps "$steps" --checkpoint "$work/${parts%% *}" --resume
		status_is 0 "mnist_cnn trains until step $steps"
	done
done
check "a training that went on ends with the same bits" \
	cmp "$work/6/step-00000006.safetensors" "$work/3/step-00000006.safetensors"

ln -s "$prefix/bin/scaling" "$work/scaling"
small=(--heads 2 --width 32 --vocab 64 --length 32 --batch 2 --rounds 3)
submit scaling --array=7 --nodes=2 --ntasks-per-node=1 -- --layers 1 "${small[@]}"
status_is 0 "scaling.sh: the job succeeds"
prints_times 2 '^ +1 +1 +[0-9]+ +100\.0% ' "scaling.sh: one node is what others are measured by"
prints_times 1 '^ +2 +2 +[0-9]+ +[0-9.]+% +[0-9.]+ +[0-9.]+ +-?[0-9.]+% +[0-9.]+ +[0-9]+%$' \
	"scaling.sh: two nodes are a row of the same table"
capture "$prefix/bin/scaling" --layers 2 "${small[@]}" --table "$work"/scaling-[0-9]*.txt
status_is 3 "scaling: a table is of one workload"
capture "$prefix/bin/scaling" --layers 1 "${small[@]}" --threads 999 --table "$work"/scaling-[0-9]*.txt
status_is 3 "scaling: a table is of one number of threads"
prints 'is of another workload \(# GPT of 1 layers, .*\); give another --table$' "scaling: it says of which"
submit scaling --array=8 --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 -- --layers 1 "${small[@]}"
status_is 0 "scaling.sh: the job of one node succeeds"
prints_times 1 '^ +1 +2 +[0-9]+ +[0-9.]+% ' "scaling.sh: ranks of one node are rows of one table"
capture taskset -c 0 "$prefix/bin/scaling" --layers 1 "${small[@]}" --spawn 1,2,4
status_is 0 "scaling --spawn 1,2,4 succeeds"
prints_times 1 '^# GPT of 1 layers.* threads of a rank: 1$' "scaling --spawn: one table"
prints_times 1 '^ +1 +1 +[0-9]+ +100\.0% .*[-%]$' "scaling --spawn: a rank that has its processor"
prints_times 2 '^ +1 +[24] +[0-9]+ +[0-9.]+% .* \*$' "scaling --spawn: ranks that share one are marked"
prints '^\* the ranks of a node share processors' "scaling --spawn: it says what the mark means"

# says MISTAKE PATTERN: what the library answers to a program with one
says()
{
	capture ddp -n3 "$prefix/bin/broken" "$1"
	status_is 3 "$1 ends the program"
	prints "^broken: DDP_ERR_[A-Z_]+: .*$2" "the library says to $1: $2"
	# Ranks that err alike, each by itself, do not know of each other.
	[ "$1" = announced-too-often ] || prints_times 1 '^broken: DDP_ERR_' "one rank says it: $1"
}
says no-broadcast 'step 1: rank 1 has other parameters than rank 0: .*ddp_model_broadcast_params\(\)'
says other-shapes 'ranks gave different models: parameter 0 is "weight" \[9\] on rank 2, and "weight" \[8\] on the 2 others'
says other-data 'number of samples in the dataset is 32 on rank 2, and 64 on the 2 others'
prints "^srun: error: ddp: rank [0-2] of 3 .* 32 on rank 2, and 64 on the 2 others" "and so does the step's line"
says other-world 'rank 2 lists other ranks than the 2 others, or in another order'
says skipped-collective 'operation #[0-9]+ differs: .* issued (all_reduce f32\[1\] sum|barrier)'
says other-order 'operation #[0-9]+ differs: .* issued all_reduce f32\[[12]\] sum'
says missing-rank 'step 2: .*rank 2 on n[01] issued ddp_finalize\(\)'
says announced-too-often 'gradient of "weight" was announced twice in one step'
says not-finite 'step 1: the gradient of "weight" is not finite on rank 2'
# Two end well: the library warns, or has done what was forgotten.
capture ddp -n3 "$prefix/bin/broken" no-sampler
status_is 0 "no-sampler trains"
prints_times 1 '^ddp: step 11: 3 ranks .* seem to train on the same samples; ddp_loader' "the library warns of no-sampler, once"
capture ddp -n3 "$prefix/bin/broken" forgotten-zero-grad
status_is 0 "forgotten-zero-grad trains"
prints 'all gradients were 0: ddp_model_step\(\) had cleared them' "nothing is left of a step"
# None is left out here.
same 11 "$("$prefix/bin/broken" --list | wc -l)" "each mistake was made"

# A file that is damaged is named on whichever rank.
truncate -s -5 "$data/synthetic-train-images-idx3-ubyte"
capture ddp -n2 "$prefix/bin/mnist_mlp" --data "$data" --steps 2
fails_without_hanging "a damaged file ends the run"
prints 'synthetic-train-images-idx3-ubyte: ends at byte [0-9]+: its header says' "it is named, with the byte"

done_testing
