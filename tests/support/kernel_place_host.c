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

static void copy(const kernel_place *place, float *to, const float *from, int64_t n)
{
	(void)place;
	memcpy(to, from, (size_t)n * sizeof(float));
}

bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	*why = NULL;
	*place = (kernel_place){.type = DK_F32, .host_memory = true, .close = close_host,
		.alloc = allocate, .free = free, .shuffle = shuffle, .give = copy, .take = copy};
	return round == 0;
}
