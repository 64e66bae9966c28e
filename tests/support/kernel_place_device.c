/* SPDX-License-Identifier: Apache-2.0 */
/* The host's kernels on a queue of the asynchronous test device, as a place of kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/kernel_queue.h"
#include "tests/support/kernel_place.h"

static ddp_device *device;
static ddp_device_queue *stream;

static void check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "%s\n", ddp_last_error());
	abort();
}

static void *allocate(size_t bytes)
{
	void *memory;

	check(ddp_device_alloc(device, bytes, &memory));
	return memory;
}

static void release(void *memory)
{
	check(ddp_device_queue_sync(device, stream));
	check(ddp_device_free(device, memory));
}

static void shuffle(uint64_t seed)
{
	(void)seed;
}

static void copy(void *to, const void *from, size_t bytes)
{
	check(ddp_device_copy(device, stream, to, from, bytes));
	check(ddp_device_queue_sync(device, stream));
}

static uint16_t *make_narrow(int64_t n)
{
	uint16_t *narrow = malloc((size_t)n * sizeof(*narrow));

	if (narrow != NULL)
		return narrow;
	fprintf(stderr, "out of memory\n");
	abort();
}

static void give(const kernel_place *place, float *to, const float *from, int64_t n)
{
	if (place->type != DK_MIXED) {
		copy(to, from, (size_t)n * sizeof(*from));
		return;
	}
	uint16_t *narrow = make_narrow(n);
	dk_queue *before = dk_use(NULL);
	dk_to_bf16(narrow, from, n);
	dk_use(before);
	copy(to, narrow, (size_t)n * sizeof(*narrow));
	free(narrow);
}

static void take(const kernel_place *place, float *to, const float *from, int64_t n)
{
	if (place->type != DK_MIXED) {
		copy(to, from, (size_t)n * sizeof(*from));
		return;
	}
	uint16_t *narrow = make_narrow(n);
	copy(narrow, from, (size_t)n * sizeof(*narrow));
	dk_queue *before = dk_use(NULL);
	dk_from_bf16(to, narrow, n);
	dk_use(before);
	free(narrow);
}

/* Memory that a test did not give back, as on a GPU, goes with the process. */
static void close_place(kernel_place *place)
{
	ddp_kernel_queue_close(place->queue);
	check(ddp_device_queue_free(device, stream));
}

bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	const ddp_device_options options = {.seed = 1, .check_order = true};
	enum { MOST = 8400 };

	*why = NULL;
	if (round > 1)
		return false;
	if (device == NULL)
		check(ddp_device_open("test", &options, &device));
	check(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &stream));
	*place = (kernel_place){.type = round == 0 ? DK_F32 : DK_MIXED, .most = MOST, .host_kernels = true, .close = close_place, .alloc = allocate,
		.free = release, .shuffle = shuffle, .give = give, .take = take};
	check(ddp_kernel_queue_open(device, stream, place->type, &place->queue));
	return true;
}
