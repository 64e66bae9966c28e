/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/kernel_place.h"

static void close_host(kernel_place *place)
{
	(void)place;
}

static void *allocate(size_t bytes)
{
	void *memory = calloc(bytes, 1);

	if (memory == NULL) {
		fprintf(stderr, "out of memory\n");
		abort();
	}
	return memory;
}

static void shuffle(uint64_t seed)
{
	(void)seed;
}

static void close_mixed(kernel_place *place)
{
	dk_close(place->queue);
}

/* Numbers that the test rounded to bf16 before, if the place has 16 bits: all of them are numbers of f16, too. */
static void give(const kernel_place *place, float *to, const float *from, int64_t n)
{
	if (place->type == DK_MIXED)
		dk_to_bf16((uint16_t *)(void *)to, from, n);
	else if (place->type == DK_MIXED_F16)
		dk_to_f16((uint16_t *)(void *)to, from, n, 1);
	else
		memcpy(to, from, (size_t)n * sizeof(float));
}

static void take(const kernel_place *place, float *to, const float *from, int64_t n)
{
	if (place->type == DK_MIXED)
		dk_from_bf16(to, (const uint16_t *)(const void *)from, n);
	else if (place->type == DK_MIXED_F16)
		dk_from_f16(to, (const uint16_t *)(const void *)from, n, 1);
	else
		memcpy(to, from, (size_t)n * sizeof(float));
}

bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	*why = NULL;
	*place = (kernel_place){.type = DK_F32, .host_memory = true, .close = close_host,
		.alloc = allocate, .free = free, .shuffle = shuffle, .give = give, .take = take};
	if (round == 0)
		return true;
	place->type = round == 1 ? DK_MIXED : DK_MIXED_F16;
	place->most = 200000; /* blocks of products are smaller than those of the host's f32 */
	place->queue = round == 1 ? dk_open_mixed() : round == 2 ? dk_open_f16() : NULL;
	place->close = close_mixed;
	return place->queue != NULL;
}
