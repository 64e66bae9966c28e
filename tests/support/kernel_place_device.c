/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on a queue of a GPU as a place of kernels: the host's on the fake one, or a real one's (make check-gpu). */
#include <stdio.h>
#include <stdlib.h>

#include "device/device.h"
#include "device/kernel_queue.h"
#include "tests/device/fake_gpu.h"
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
	check(ddp_device_fill(device, stream, memory, 0xff, bytes));
	check(ddp_device_queue_sync(device, stream));
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

/* Memory that a test did not give back, as on a GPU, goes with the process. */
static void close_place(kernel_place *place)
{
	ddp_kernel_queue_close(place->queue);
	check(ddp_device_queue_free(device, stream));
}

/* No delays: the cases are many, and in the order of one queue. */
static void open_device(void)
{
	if (!test_on_gpu())
		test_fake_gpu()->delay_us = 0;
	check(ddp_device_open("cuda", &device));
}

bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	static const dk_type types[] = {DK_F32, DK_MIXED, DK_BF16, DK_TF32};
	enum { MOST = 8400, OF_HOST = 2, OF_GPU = 4 };

	*why = NULL;
	if (round >= (test_on_gpu() ? OF_GPU : OF_HOST))
		return false;
	if (device == NULL)
		open_device();
	check(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &stream));
	*place = (kernel_place){.type = types[round], .most = test_on_gpu() ? 0 : MOST, .host_kernels = !test_on_gpu(),
		.close = close_place, .alloc = allocate, .free = release, .shuffle = shuffle, .copy = copy};
	check(ddp_kernel_queue_open(device, stream, place->type, &place->queue));
	return true;
}
