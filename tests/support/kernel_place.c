/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kernel_place.h"

#include <stdio.h>
#include <stdlib.h>

size_t type_bytes(dk_type type)
{
	return type == DK_BF16 || type == DK_MIXED || type == DK_MIXED_F16 ? sizeof(uint16_t) : sizeof(float);
}

static uint16_t *make_narrow(int64_t n)
{
	uint16_t *narrow = malloc((size_t)n * sizeof(*narrow));

	if (narrow != NULL)
		return narrow;
	fprintf(stderr, "out of memory\n");
	abort();
}

void kernel_place_give(const kernel_place *place, float *to, const float *from, int64_t n)
{
	if (type_bytes(place->type) == sizeof(float)) {
		place->copy(to, from, (size_t)n * sizeof(*from));
		return;
	}
	uint16_t *narrow = make_narrow(n);
	dk_queue *before = dk_use(NULL);
	if (place->type == DK_MIXED_F16)
		dk_to_f16(narrow, from, n, 1);
	else
		dk_to_bf16(narrow, from, n);
	dk_use(before);
	place->copy(to, narrow, (size_t)n * sizeof(*narrow));
	free(narrow);
}

void kernel_place_take(const kernel_place *place, float *to, const float *from, int64_t n)
{
	if (type_bytes(place->type) == sizeof(float)) {
		place->copy(to, from, (size_t)n * sizeof(*to));
		return;
	}
	uint16_t *narrow = make_narrow(n);
	place->copy(narrow, from, (size_t)n * sizeof(*narrow));
	dk_queue *before = dk_use(NULL);
	if (place->type == DK_MIXED_F16)
		dk_from_f16(to, narrow, n, 1);
	else
		dk_from_bf16(to, narrow, n);
	dk_use(before);
	free(narrow);
}
