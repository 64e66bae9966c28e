/* SPDX-License-Identifier: Apache-2.0 */
/* comm/ops/kernels: element-wise reduction. Sources are combined from the first
   to the last, so the result's bits depend on their order only. f16 and bf16
   are combined in f32, u8 and i8 in i32 ("accumulator form"), and rounded or cut
   once, at the end. What becomes of NaN, zeros, and integers out of range is
   in ddp.h. */
#pragma once

#include <stdbool.h>

#include "comm/ops/names.h"

typedef struct ddp_combination {
	ddp_type type;
	ddp_op op;
	bool wide_src, wide_dst; /* sources, results are in accumulator form */
	int nsrc;             /* at least 1 */
	const void *const *src;
	const double *scale;  /* of each source; NULL: all 1 */
	int ndst;
	void *const *dst;     /* all get the result; may equal sources exactly */
	double divisor;       /* the result is divided by it; 0: it is not */
} ddp_combination;

/* Combines `count` elements at `first` of every source. */
void ddp_combine(const ddp_combination *c, size_t first, size_t count);

/* Copies what another core has written, and writes to each line of `src`,
   which does not change it: the line then moves back to its writer fast, when
   that writes again. Where two cores share a line that neither has modified,
   such a write takes several times as long (measured on Zen 4: 10 instead of
   2.5 ns). `src` is aligned to 64 bytes, and nobody else reads it. */
void ddp_take(void *dst, void *src, size_t bytes);

/* Instruction sets, from what all processors have to what is used where it can be. All
   give the same bits; so that this can be tested: uses one from now on, and returns its
   name. NULL: this processor has not got it, or is not faster by it. */
enum { DDP_KERNEL_LEVELS = 4 };
const char *ddp_kernels_use(int level);
/* The one in use: "avx512". */
const char *ddp_kernels_name(void);
