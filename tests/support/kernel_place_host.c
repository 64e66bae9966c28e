/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/kernel_place.h"

static void close_place(kernel_place *place)
{
	if (place->queue != NULL)
		dk_close(place->queue);
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

static void copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	*why = NULL;
	*place = (kernel_place){.type = DK_F32, .host_memory = true, .close = close_place,
		.alloc = allocate, .free = free, .shuffle = shuffle, .copy = copy};
	if (round == 0)
		return true;
	place->type = round == 1 ? DK_MIXED : DK_MIXED_F16;
	place->most = 200000; /* blocks of products are smaller than those of the host's f32 */
	place->queue = round == 1 ? dk_open_mixed() : round == 2 ? dk_open_f16() : NULL;
	return place->queue != NULL;
}
