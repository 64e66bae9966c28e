/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* device/cuda without a GPU: what it makes of each error of CUDA's, and how it treats the
   program's own choice of a GPU, over the fake GPU; with a GPU, test_device
   runs the module on the real one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/backend.h"
#include "device/module.h"
#include "tests/device/fake_gpu.h"
#include "tests/device/include/cuda_runtime_api.h"
#include "tests/support/device_checks.h"
#include "tests/support/test.h"

static const ddp_device_backend *cuda;
static fake_gpu_switches *gpu;

/* Three GPUs, of which the program has chosen number 2. */
static int reset(void **state)
{
	gpu = test_fake_gpu();
	OK(ddp_device_cuda(&cuda));
	gpu->count = 3;
	gpu->driver = 0;
	gpu->failing = NULL;
	gpu->broken = false;
	gpu->capability = 75;
	*gpu->current() = 2;
	unsetenv("CUDA_VISIBLE_DEVICES");
	return 0;
}

static ddp_status open_index(int index, void **self)
{
	const ddp_device_request request = { .index = index, .fail = ddp_fail };
	ddp_device_info info;
	const ddp_status status = cuda->open(&request, &info, self);

	if (status == DDP_OK)
		assert_int_equal(info.capability, gpu->capability);
	return status;
}

TEST_WITH(a_missing_gpu_is_told_with_what_is_missing, reset, NULL)
{
	void *self = NULL;

	FAILS(open_index(3, &self), DDP_ERR_INVALID, "no device cuda:3: this process sees 3 GPUs");
	gpu->failing = "cudaGetDeviceCount";
	gpu->error = cudaErrorInsufficientDriver;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "no NVIDIA driver");
	gpu->driver = 10020;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "is for CUDA 10.2, and libddp_cuda.so needs");
	gpu->error = cudaErrorNoDevice;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "sees no GPU: use a node");
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "CUDA_VISIBLE_DEVICES=''");
	gpu->error = cudaErrorMemoryAllocation;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "cudaGetDeviceCount: out of memory");
	gpu->failing = NULL;
	gpu->driver = gpu->count = 0;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "sees no GPU");
	assert_int_equal(gpu->last(), cudaSuccess);
	assert_int_equal(*gpu->current(), 2);
	assert_null(self);
}

TEST_WITH(a_gpu_that_cannot_be_opened_leaves_nothing, reset, NULL)
{
	static const char *const calls[] = {
		"cuDevicePrimaryCtxRetain", "cudaDeviceGetStreamPriorityRange", "cudaEventCreateWithFlags",
		"cudaGetDeviceProperties",
	};
	void *self = NULL;

	gpu->error = cudaErrorDevicesUnavailable;
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		gpu->failing = calls[i];
		FAILS(open_index(1, &self), DDP_ERR_IO, calls[i]);
		assert_int_equal(gpu->objects, 0);
		assert_int_equal(*gpu->current(), 2);
	}
	assert_null(self);
}

static void do_nothing(void *argument)
{
}

static void note_current(void *argument)
{
	*(int *)argument = *gpu->current();
}

/* Does all there is to do; returns the first error. */
static ddp_status go_through(void *self)
{
	static char host[10]; /* which work may use when this has returned */
	void *memory = NULL, *pinned = NULL;
	ddp_device_queue *queue = NULL;
	ddp_device_event *event = NULL;
	bool done = false;
	double seconds = 0;
	ddp_status status, failed = DDP_OK;
	char text[1024] = "";

#define DO(call) \
	do { \
		status = (call); \
		if (status != DDP_OK && failed == DDP_OK) { \
			failed = status; \
			snprintf(text, sizeof(text), "%s", ddp_last_error()); \
		} \
	} while (0)
	DO(cuda->alloc(self, 64, &memory));
	DO(cuda->host_alloc(self, 64, &pinned));
	DO(cuda->queue_create(self, DDP_DEVICE_HIGH, &queue));
	DO(cuda->event_create(self, true, &event));
	if (memory != NULL)
		assert_true(cuda->owns(self, memory));
	if (memory != NULL)
		DO(cuda->copy(self, queue, memory, host, sizeof(host)));
	if (memory != NULL)
		DO(cuda->fill(self, queue, memory, 1, 64));
	DO(cuda->launch(self, queue, do_nothing, NULL));
	DO(cuda->event_record(self, event, queue));
	DO(cuda->queue_wait(self, queue, event));
	DO(cuda->queue_query(self, queue, &done));
	DO(cuda->queue_sync(self, queue));
	DO(cuda->event_query(self, event, &done));
	DO(cuda->event_sync(self, event));
	DO(cuda->event_seconds(self, event, event, &seconds));
	assert_true(status != DDP_OK || seconds == 0);
	DO(cuda->error(self));
	int current = -1;
	DO(cuda->within(self, note_current, &current));
	assert_int_equal(current, status == DDP_OK ? 1 : -1);
	if (event != NULL)
		DO(cuda->event_free(self, event));
	if (queue != NULL)
		DO(cuda->queue_free(self, queue));
	if (pinned != NULL)
		DO(cuda->host_free(self, pinned));
	if (memory != NULL)
		DO(cuda->free(self, memory));
	if (failed != DDP_OK)
		ddp_fail(failed, "%s", text);
	return failed;
}

TEST_WITH(each_call_that_fails_is_named, reset, NULL)
{
	static const char *const calls[] = {
		"cudaMalloc", "cudaHostAlloc", "cudaStreamCreateWithPriority", "cudaEventCreateWithFlags",
		"cudaMemcpyAsync", "cudaMemsetAsync", "cudaLaunchHostFunc", "cudaEventRecord",
		"cudaStreamWaitEvent", "cudaStreamQuery", "cudaStreamSynchronize", "cudaEventQuery",
		"cudaEventSynchronize", "cudaEventElapsedTime", "cudaEventDestroy", "cudaStreamDestroy", "cudaFreeHost",
		"cudaFree",
	};
	char text[200];
	void *self = NULL;

	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_int_equal(go_through(self), DDP_OK);
	assert_int_equal(gpu->priority, -5);
	assert_int_equal(gpu->objects, 1); /* the device's own event */
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		gpu->failing = calls[i];
		gpu->error = cudaErrorMemoryAllocation;
		snprintf(text, sizeof(text), "device cuda:1: %s: out of memory (cudaErrorMemoryAllocation)",
		         calls[i]);
		FAILS(go_through(self), DDP_ERR_NOMEM, text);
		assert_int_equal(gpu->last(), cudaSuccess);
		assert_int_equal(*gpu->current(), 2);
	}
	gpu->failing = "cudaMalloc";
	gpu->error = cudaErrorInvalidValue;
	assert_int_equal(go_through(self), DDP_ERR_INVALID);
	gpu->failing = NULL;
	cuda->close(self);
}

/* A thread without a context gets none, least of all on GPU 0. */
TEST_WITH(a_thread_is_left_with_the_gpu_that_it_had, reset, NULL)
{
	static const int before[] = { FAKE_GPU_NONE, 0, 1, 2 };
	void *self = NULL;

	for (size_t i = 0; i < sizeof(before) / sizeof(*before); i++) {
		*gpu->current() = before[i];
		assert_int_equal(open_index(1, &self), DDP_OK);
		assert_int_equal(*gpu->current(), before[i]);
		assert_int_equal(go_through(self), DDP_OK);
		assert_int_equal(*gpu->current(), before[i]);
		cuda->close(self);
		assert_int_equal(*gpu->current(), before[i]);
	}
}

TEST_WITH(a_context_that_is_gone_is_told, reset, NULL)
{
	void *self = NULL, *memory = NULL, *pinned = NULL, *none = NULL;
	ddp_device_queue *queue = NULL;
	ddp_device_event *event = NULL;
	int current = -1;

	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_int_equal(cuda->alloc(self, 64, &memory), DDP_OK);
	assert_int_equal(cuda->host_alloc(self, 64, &pinned), DDP_OK);
	assert_int_equal(cuda->queue_create(self, DDP_DEVICE_NORMAL, &queue), DDP_OK);
	assert_int_equal(cuda->event_create(self, false, &event), DDP_OK);
	gpu->failing = "cuCtxPushCurrent";
	FAILS(go_through(self), DDP_ERR_IO, "device cuda:1: cuCtxPushCurrent: context is destroyed");
	FAILS(cuda->alloc(self, 64, &none), DDP_ERR_IO, "its context is gone");
	FAILS(cuda->fill(self, queue, memory, 0, 64), DDP_ERR_IO, "as after a cudaDeviceReset()");
	assert_false(cuda->owns(self, memory));
	FAILS(cuda->error(self), DDP_ERR_IO, "call it after ddp_finalize()");
	FAILS(cuda->within(self, note_current, &current), DDP_ERR_IO, "cuCtxPushCurrent");
	assert_int_equal(current, -1);
	assert_null(none);
	assert_int_equal(cuda->event_free(self, event), DDP_OK);
	assert_int_equal(cuda->queue_free(self, queue), DDP_OK);
	assert_int_equal(cuda->free(self, memory), DDP_OK);
	assert_int_equal(cuda->host_free(self, pinned), DDP_OK);
	cuda->close(self);
	assert_int_equal(*gpu->current(), 2);
}

/* As CUDA says of an address that it does not know. */
TEST_WITH(memory_of_others_is_not_owned, reset, NULL)
{
	void *self = NULL;
	char host[10];

	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_false(cuda->owns(self, NULL));
	gpu->failing = "cudaPointerGetAttributes";
	gpu->error = cudaErrorInvalidValue;
	assert_false(cuda->owns(self, host));
	FAILS(cuda->fill(self, NULL, host, 0, sizeof(host)), DDP_ERR_INVALID, "is not memory of device cuda:1");
	assert_int_equal(gpu->last(), cudaSuccess);
	assert_int_equal(*gpu->current(), 2);
	cuda->close(self);
}

TEST_WITH(work_that_is_not_done_is_no_error, reset, NULL)
{
	void *self = NULL;
	const int before = gpu->objects; /* what cases left where freeing failed */
	bool done = true;

	assert_int_equal(open_index(1, &self), DDP_OK);
	gpu->failing = "cudaStreamQuery";
	gpu->error = cudaErrorNotReady;
	assert_int_equal(cuda->queue_query(self, NULL, &done), DDP_OK);
	assert_false(done);
	done = true;
	gpu->failing = "cudaEventQuery";
	assert_int_equal(cuda->event_query(self, NULL, &done), DDP_OK);
	assert_false(done);
	assert_int_equal(gpu->last(), cudaSuccess);
	gpu->failing = NULL;
	assert_int_equal(cuda->queue_query(self, NULL, &done), DDP_OK);
	assert_true(done);
	cuda->close(self);
	assert_int_equal(gpu->objects, before);
}

TEST_WITH(a_broken_gpu_says_so_and_can_be_let_go, reset, NULL)
{
	ddp_device_queue *queue;
	ddp_device_event *event;
	void *self = NULL, *memory, *pinned;

	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_int_equal(cuda->alloc(self, 64, &memory), DDP_OK);
	assert_int_equal(cuda->host_alloc(self, 64, &pinned), DDP_OK);
	assert_int_equal(cuda->queue_create(self, DDP_DEVICE_NORMAL, &queue), DDP_OK);
	assert_int_equal(cuda->event_create(self, false, &event), DDP_OK);
	gpu->broken = true;
	FAILS(cuda->error(self), DDP_ERR_IO, "work enqueued earlier: something else");
	FAILS(cuda->queue_sync(self, queue), DDP_ERR_IO, "cudaStreamSynchronize");
	assert_int_equal(cuda->queue_free(self, queue), DDP_OK);
	assert_int_equal(cuda->event_free(self, event), DDP_OK);
	assert_int_equal(cuda->free(self, memory), DDP_OK);
	assert_int_equal(cuda->host_free(self, pinned), DDP_OK);
	cuda->close(self);
}
