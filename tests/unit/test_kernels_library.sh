#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# A program outside the tree computes with the kernels, by what is installed of them: headers,
# libddpkernels.a, and pkg-config's file; and the kernels of each instruction set have their own name, also if the
# builder's flags allow every instruction set in all files. Prints TAP. Runs in the build folder.
set -u
source=$(cd "${srcdir:-.}" && pwd)
build=$PWD

if grep -qE -e '__(asan|tsan)_init' libruntime/.libs/libddp.so; then
	echo "1..0 # SKIP the program links no sanitizer"
	exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

cat >"$work/program.c" <<'END'
#include <ddp.h>
#include <ddp/table.h>
#include <stdio.h>

/* 1 + 4 + 9: on the host, and on a queue of the library, if `type` has one here. */
static int sums(ddp_context *context, dk_type type)
{
	const float numbers[] = { 1, 2, 3 };
	dk_queue *queue;

	if (ddp_kernels_open(context, DK_TABLE_VERSION, (int)type, NULL, &queue) != DDP_OK) {
		printf("%s\n", ddp_last_error());
		return 0;
	}
	dk_queue *before = dk_use(queue);
	double sum = dk_sum_squares(numbers, 3);
	dk_use(before);
	ddp_kernels_close(queue);
	return sum == 14;
}

int main(void)
{
	ddp_context *context;

	if (ddp_init(NULL, &context) != DDP_OK)
		return 2;
	int good = sums(context, DK_F32) && sums(context, DK_MIXED);
	return ddp_finalize(context) == DDP_OK && good ? 0 : 1;
}
END

result() # STATUS NUMBER NAME
{
	if [ "$1" = 0 ]; then echo "ok $2 - $3"; return; fi
	echo "not ok $2 - $3"
	sed 's/^/# /' "$work/output"
}

echo 1..3
# As installed, but in the build folder.
mkdir -p "$work/include/ddp" && ln -s "$source/libruntime/include/ddp.h" "$work/include/" &&
	ln -s "$source/libruntime/include/ddp/"*.h "$source/kernels/"*.h "$work/include/ddp/"
for library in libruntime/libddp kernels/libddpkernels; do
	sed -e "s|^libdir=.*|libdir=$build/${library%/*}/.libs|" -e "s|^includedir=.*|includedir=$work/include|" \
		"$library.pc" >"$work/${library#*/}.pc"
done
[ -e kernels/.libs/libddpkernels.a ] || sed -i "s|^libdir=.*|libdir=$build/kernels|" "$work/libddpkernels.pc"
flags=$(PKG_CONFIG_PATH=$work pkg-config --cflags --libs libddpkernels libddp)
compiler=$(sed -n 's/^CC = //p' Makefile) # the library is of its OpenMP
# shellcheck disable=SC2086
$compiler -Wall -Wextra -Werror "$work/program.c" $flags -o "$work/program" >"$work/output" 2>&1
result $? 1 "it compiles with what pkg-config says"
LD_LIBRARY_PATH=$build/libruntime/.libs timeout 60 "$work/program" >"$work/output" 2>&1
result $? 2 "it computes on the host and on a queue"

# CFLAGS=-march=native is usual where programs are built for one machine. Flags of make's go behind those of a file.
# make knows the source by its own name of the folder.
sets=0 wrong='' inner=$(sed -n 's/^srcdir = //p' Makefile)/kernels/cpu/winograd_inner.c
for set in avx2 avx512; do
	flags=$(make -n V=1 -W "$inner" CFLAGS="-mfma -mavx512f" \
		"kernels/cpu/libwinograd_${set}_la-winograd_inner.lo" 2>/dev/null | grep -oE -e ' -[DIm][^ ]+')
	case $flags in *-m$set*) ;; *) continue ;; esac
	sets=$((sets + 1))
	# shellcheck disable=SC2086
	$compiler $flags -c "$inner" -o "$work/$set.o" >"$work/output" 2>&1 &&
		nm "$work/$set.o" | grep -q " dk_winograd_$set\$" || wrong="$wrong $set"
done
if [ "$(grep -c '^#define HAVE_AVX.*2_KERNELS' config.h)" != $sets ]; then wrong="$wrong; only $sets sets were found"; fi
echo "the set's own name is missing:$wrong" >>"$work/output"
[ -z "$wrong" ]
result $? 3 "each instruction set has its name, also where flags allow AVX-512"
