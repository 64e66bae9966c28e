/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/bench/gpu_place.h"

static dk_queue *queue;

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes);

	if (memory == NULL) {
		fprintf(stderr, "gpu_kernels: out of memory for %zu bytes\n", bytes);
		exit(EXIT_FAILURE);
	}
	return memory;
}

static double time_of(void (*work)(const void *argument), const void *argument, int times)
{
	const uint64_t start_ns = ddp_now_ns();

	for (int i = 0; i < times; i++)
		work(argument);
	return ddp_seconds_since(start_ns) / times;
}

static void copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

static void close_place(void)
{
	dk_close(queue);
}

bool bench_place_open_host(dk_type type, bench_place *place, const char **why)
{
	queue = type == DK_MIXED ? dk_open_mixed() : NULL;
	*why = type == DK_TF32 ? "the host has no TF32" : "out of memory";
	*place = (bench_place){ .queue = queue, .type = type, .name = "the host", .alloc = allocate, .free = free,
		.copy = copy, .product = dk_gemm, .time = time_of, .close = close_place };
	return type == DK_F32 || queue != NULL;
}
