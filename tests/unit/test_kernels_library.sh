#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A program outside the tree computes with the kernels, by what is installed of them: headers,
# libddpkernels.a, and pkg-config's file. Prints TAP. Runs in the build folder.
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

echo 1..2
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
