/* SPDX-License-Identifier: Apache-2.0 */
/* scratch: memory in huge pages that kernels work in, and that is kept from one call to the next. */
#pragma once

#include <stdint.h>

typedef struct dk_scratch {
	int64_t floats;
	float *x;
} dk_scratch;

/* Calls of one kind share a pool, so that they ask for about as much. A pool begins as zeros. */
enum { DK_SCRATCH_KEPT = 128 };
typedef struct dk_scratch_pool {
	_Atomic(dk_scratch *) kept[DK_SCRATCH_KEPT];
} dk_scratch_pool;

/* At least so many floats, which may be anything. NULL: there is no memory. Any thread may call this at any time. */
dk_scratch *dk_scratch_take(dk_scratch_pool *pool, int64_t floats);
void dk_scratch_give(dk_scratch_pool *pool, dk_scratch *scratch);
