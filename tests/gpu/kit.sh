#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kit.sh FOLDER TEST...: puts into FOLDER what `make check-gpu` and `make bench-gpu` run of the
# build in this folder, and the libraries of this machine that it needs, for one that has a GPU
# but nothing to build with. FOLDER/run runs it there. CUDA, NCCL and PyTorch are that machine's.
set -eu -o pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder/lib"

# put FILE: a program or module of the build. A program becomes a script, as libtool's are, which
# alone gives it the libraries of the kit: what else runs on that machine has its own.
put()
{
	local name=$1 file=$1
	[ ! -e "$(dirname "$1")/.libs/$(basename "$1")" ] || file=$(dirname "$1")/.libs/$(basename "$1")
	case $name in
		*.so) ;;
		*) name=$(dirname "$1")/.libs/$(basename "$1")
			mkdir -p "$folder/$(dirname "$1")"
			cat >"$folder/$1" <<-'END'
				#!/bin/sh
				LD_LIBRARY_PATH=$KIT_LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} UCX_MODULE_DIR=$KIT_UCX
				export LD_LIBRARY_PATH UCX_MODULE_DIR
				exec "${0%/*}/.libs/${0##*/}" "$@"
			END
			chmod +x "$folder/$1" ;;
	esac
	install -D "$file" "$folder/$name"
	strip "$folder/$name" 2>/dev/null || true
}

# take FILE: of the sources
take() { install -D "$source/$1" "$folder/$1"; }

tests=()
for test; do
	case $test in
		*.sh) test=${test#"$source/"}; test=tests/${test#*tests/}; take "$test" ;;
		*) put "$test" ;;
	esac
	tests+=("$test")
done
printf '%s\n' "${tests[@]}" >"$folder/gpu-tests"
for file in tests/support/check-gpu tests/support/checks.sh tests/support/example.sh tests/support/tap tests/support/slowness.sh tests/gpu/lib.sh \
		tests/gpu/torch_sums.py \
		tests/bench/gpu tests/bench/rank_gpt.py; do
	take $file
done
for file in "$source"/tests/bench/harness/*.py; do
	take "tests/bench/harness/${file##*/}"
done
install "$source/tests/gpu/run.sh" "$folder/run"
for file in examples/gpt/gpt examples/vision/{cifar_net,mnist_cnn,resnet,synthetic} tests/bench/gpu_kernels \
		tests/bench/gpu_nccl kernels/libddp_kernels_cuda.so; do
	put "$file"
done
# Where the tests look for them.
for file in libruntime/device/cuda/.libs/libddp_cuda.so libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so \
		libruntime/nccl_plugins/profiler/.libs/libnccl-profiler-ddp.so \
		tests/gpu/nccl_sums tests/support/.libs/module_of_another_version.so; do
	[ ! -e $file ] || put $file
done

# needs FILE...: the libraries of these but those that each Linux has, and CUDA's, which are the other
# machine's
needs()
{
	ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
		sed -E '/\/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcublas|libcublasLt|libcudart|libcuda|libnvidia-ml|libnccl)\.so/d'
}

# copy LIBRARY FOLDER: the file that it stands for, without what debuggers want of it
copy()
{
	cp -L "$1" "$2/"
	strip "$2/${1##*/}" 2>/dev/null || true
}

mapfile -t programs < <(find "$folder" -type f -perm -u+x)
modules=
for library in $(needs "${programs[@]}"); do
	copy "$library" "$folder/lib"
	case $library in
		*/libuct.so*) modules=${library%/*}/ucx ;;
	esac
done
# UCX's transports, by the names that its libraries open. What these need is of this UCX, or that machine's.
if [ -d "$modules" ]; then
	mkdir "$folder/lib/ucx"
	for module in "$modules"/libuc[mt]_*.so.0; do
		copy "$module" "$folder/lib/ucx"
		for library in $(needs "$module"); do
			case $library in
				/lib*|/usr/lib*) ;;
				*) [ -e "$folder/lib/${library##*/}" ] || copy "$library" "$folder/lib" ;;
			esac
		done
	done
fi
git -C "$source" log -1 --format='tree %h %s' >"$folder/tree.txt" 2>/dev/null || true
echo "kit.sh: $folder is ready ($(du -sm "$folder" | cut -f1) MiB): $folder/run there"
