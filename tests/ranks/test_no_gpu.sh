#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit; all: tsan asan
# What the examples say where a GPU is asked for and none can be used: for want of a driver, of libddp's
# modules, of NCCL, or as one of these, or the GPU, is too old. One sentence a rank, which names what is
# amiss and what to do, an error at the end, and no hang. Where a GPU is needed to come that far,
# the fake one does (tests/device). Prints TAP.
program=${GPT:-examples/gpt/gpt}
# shellcheck source=tests/support/example.sh
. "$(dirname "$0")/../support/example.sh"

yes 'the quick brown fox' | head -n 100 >"$work/text"
gpt=(--data "$work/text" --layers 1 --heads 2 --width 32 --length 32 --batch 2 --steps 2)
images=(--data "$work" --steps 2)
absent=(--data "$work/absent")
a_run_on_the_host_succeeds() {
	run "${gpt[@]}" --spawn 2 && examples/vision/synthetic mnist "$work" 480 101 >"$work/out" 2>"$work/err"
}

# tells NUMBER MESSAGE: so many ranks at most have told of it, by one sentence each and nothing else
tells() {
	grep -qF -- "$2" "$work/err" && ! grep -vF -- "$2" "$work/err" && [ "$(wc -l <"$work/err")" -le "$1" ]
}

# refuses_a_gpu MESSAGE: the machine. Alone and on two ranks, gpt and what trains on images; before data
# are looked for, of which there are none.
refuses_a_gpu() {
	local host=$program program ranks
	for program in "$host" examples/vision/mnist_mlp; do
		for ranks in 1 2; do
			refuses "$1" "${absent[@]}" --device cuda --spawn $ranks && tells $ranks "$1" || return
		done
	done
}

# refuses_nccl LIBRARY MESSAGE: between ranks; one does without.
refuses_nccl() {
	local -x DDP_NCCL=$1
	refuses "$2" "${gpt[@]}" --device cuda --spawn 3 && tells 3 "$2" || return
	local program=examples/vision/mnist_mlp
	refuses "$2" "${images[@]}" --device cuda --spawn 2 && tells 2 "$2"
}

# free_port: below those that the system itself gives
free_port() {
	local port
	while port=$((20000 + RANDOM % 12000)) && (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
	echo "$port"
}

# refuses_one MESSAGE OTHER VARIABLE=VALUE: this is so on rank 1 alone, as on a node that differs: it tells,
# and so does rank 0 in its way, if by a word.
refuses_one() {
	local rank pids=() status
	DDP_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
	export DDP_KEY WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT DDP_LOCAL_DEVICE=0
	MASTER_PORT=$(free_port)
	local amiss=("DDP_LOCAL_DEVICE=0" "$3")
	for rank in 0 1; do
		RANK=$rank LOCAL_RANK=$rank timeout "$limit" env "${amiss[$rank]}" "$program" "${gpt[@]}" --device cuda \
			>"$work/out.$rank" 2>"$work/err.$rank" &
		pids+=($!)
	done
	unset DDP_KEY WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT DDP_LOCAL_DEVICE
	for rank in 0 1; do
		wait "${pids[rank]}"
		status=$?
		if [ $status -eq 0 ] || [ $status -eq 124 ]; then
			echo "# rank $rank ends with $status"
			return 1
		fi
	done
	cp "$work/err.1" "$work/err" && tells 1 "$1" || return
	cp "$work/err.0" "$work/err"
	if [ -n "$2" ]; then tells 1 "$2"; else [ ! -s "$work/err" ]; fi
}

# check_gpu NAME COMMAND...: with the fake GPU
fake=$PWD/tests/device/.libs/libddp_fake_gpu.so
check_gpu() {
	DDP_CUDA_KERNELS=${kernels:-$fake} check_numbers "$@"
}

another_version=$PWD/tests/support/.libs/module_of_another_version.so
check "a run on the host succeeds" set_limit a_run_on_the_host_succeeds

# ---- libddp's modules ----
DDP_CUDA_MODULE=/nowhere check_numbers "libddp's module is needed" refuses_a_gpu \
	'device cuda needs a module of libddp, and there is no /nowhere: install a libddp that was configured --with-cuda, or name'
DDP_CUDA_MODULE=$another_version check_numbers "of the same release" refuses_a_gpu 'install both from one release'
DDP_CUDA_MODULE=$work/text check_numbers "and no other file" refuses_a_gpu \
	"$work/text: invalid ELF header: install that of this libddp, or name it in DDP_CUDA_MODULE"
kernels=/nowhere check_gpu "libddp's kernels are needed" refuses_a_gpu \
	'there is no /nowhere: install a libddp that was configured --with-cuda, or name its module in DDP_CUDA_KERNELS'
kernels=$another_version check_gpu "of the same release, too" refuses_a_gpu 'install both from one release'
kernels=$work/text check_gpu "and no other file either" refuses_a_gpu \
	"$work/text: invalid ELF header: install that of this libddp, or name it in DDP_CUDA_KERNELS"
kernels=$PWD/libruntime/.libs/libddp.so check_gpu "nor another library" refuses_a_gpu \
	'is no module of libddp'"'"'s, since it lacks the symbol dk_cuda_table: install that of this libddp, or name it in DDP_CUDA_KERNELS'

# ---- driver and GPU ----
# What a machine with a driver says, make check-gpu finds out.
cuda_module=libruntime/device/cuda/.libs/libddp_cuda.so
if [ ! -e $cuda_module ]; then
	skip_numbers "a driver is needed" 'configured without CUDA'
elif ldconfig -p | grep -q 'libcuda\.so\.1'; then
	skip_numbers "a driver is needed" 'this machine has one'
else
	DDP_CUDA_MODULE=$cuda_module check_numbers "a driver is needed" refuses_a_gpu \
		'device cuda: this node has no NVIDIA driver (libcuda.so.1), so no GPU: use one that has, or device cpu'
fi
FAKE_GPU_DRIVER=11080 check_gpu "a driver that is new enough is" refuses_a_gpu \
	"device cuda: the driver of this node's GPU is for CUDA 11.8, and libddp_cuda.so needs one for "
FAKE_GPU_COUNT=0 check_gpu "a GPU is" refuses_a_gpu \
	'this process sees no GPU: use a node that has one, and ask srun for it (--gpus-per-node)'
FAKE_GPU_COUNT=0 CUDA_VISIBLE_DEVICES='' check_gpu "one that may be seen" refuses_a_gpu \
	"with CUDA_VISIBLE_DEVICES='': ask srun for one (--gpus-per-node)"
DDP_LOCAL_DEVICE=1 check_gpu "one of this rank's index" refuses_a_gpu \
	'there is no device cuda:1: this process sees 1 GPU, counted from 0: name that, or ask srun for more (--gpus-per-node)'
FAKE_GPU_CAPABILITY=75 check_gpu "and one that is new enough" refuses_a_gpu \
	"device cuda:0: fake GPU number 0 has compute capability 7.5, and libddp's kernels need 8.0 or later: use a newer GPU, or device cpu"

# ---- NCCL ----
check_gpu "NCCL is needed between ranks" refuses_nccl /nowhere/libnccl.so.2 \
	'need NCCL: NCCL does not load: /nowhere/libnccl.so.2: cannot open shared object file: No such file or directory: install it, or name its library in DDP_NCCL'
check_gpu "no other file" refuses_nccl "$work/text" 'invalid ELF header: install it, or name its library in DDP_NCCL'
check_gpu "nor another library" refuses_nccl libm.so.6 \
	'libm.so.6 lacks ncclGetVersion, so it is no NCCL that libddp can use: name another one in DDP_NCCL'
for version in 22702=2.27.2 21801=2.18.1 2708=2.7.8; do
	FAKE_GPU_NCCL=${version%=*} check_gpu "and no NCCL ${version#*=}" refuses_nccl "$fake" \
		"libddp_fake_gpu.so is NCCL ${version#*=}, and libddp needs 2.27.3 or later: name a newer one in DDP_NCCL"
done

# ---- one node of several ----
check_gpu "one rank may lack NCCL" refuses_one 'NCCL does not load: /nowhere: ' 'rank 1 on ' DDP_NCCL=/nowhere
check_gpu "or a GPU" refuses_one 'this process sees no GPU' \
	' could not open its device, or write its metrics or its trace (DDP_ERR_UNSUPPORTED); its own error says why' \
	FAKE_GPU_COUNT=0
check_gpu "or kernels" refuses_one 'there is no /nowhere: install' '' DDP_CUDA_KERNELS=/nowhere
check_gpu "or have an old GPU" refuses_one 'has compute capability 7.5' '' FAKE_GPU_CAPABILITY=75
end_of_tests
