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

static void give(const kernel_place *place, float *to, const float *from, int64_t n)
{
	(void)place;
	check(ddp_device_copy(device, stream, to, from, (size_t)n * sizeof(float)));
	check(ddp_device_queue_sync(device, stream));
}

static void take(const kernel_place *place, float *to, const float *from, int64_t n)
{
	give(place, to, from, n);
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
	if (round > 0)
		return false;
	if (device == NULL)
		check(ddp_device_open("test", &options, &device));
	check(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &stream));
	*place = (kernel_place){.type = DK_F32, .most = MOST, .close = close_place, .alloc = allocate,
		.free = release, .shuffle = shuffle, .give = give, .take = take};
	check(ddp_kernel_queue_open(device, stream, DK_F32, &place->queue));
	return true;
}
