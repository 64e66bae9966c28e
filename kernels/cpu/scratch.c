/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/scratch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cpu/numbers.h"

static void drop(dk_scratch *s)
{
	if (s != NULL)
		free(s->x);
	free(s);
}

static dk_scratch *make(int64_t floats)
{
	enum { HUGE_PAGE = 2 << 20 };
	const size_t bytes = (size_t)dk_round_up(floats * (int64_t)sizeof(float), HUGE_PAGE);
	dk_scratch *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->floats = (int64_t)(bytes / sizeof(float));
	s->x = aligned_alloc(HUGE_PAGE, bytes);
	if (s->x != NULL) {
		madvise(s->x, bytes, MADV_HUGEPAGE);
		return s;
	}
	drop(s);
	return NULL;
}

dk_scratch *dk_scratch_take(dk_scratch_pool *pool, int64_t floats)
{
	for (int i = 0; i < DK_SCRATCH_KEPT; i++) {
		dk_scratch *s = atomic_load(&pool->kept[i]) != NULL ? atomic_exchange(&pool->kept[i], NULL) : NULL;
		if (s != NULL && s->floats >= floats)
			return s;
		drop(s);
	}
	return make(floats);
}

void dk_scratch_give(dk_scratch_pool *pool, dk_scratch *scratch)
{
	for (int i = 0; i < DK_SCRATCH_KEPT; i++) {
		dk_scratch *none = NULL;
		if (atomic_compare_exchange_strong(&pool->kept[i], &none, scratch))
			return;
	}
	drop(scratch);
}
