/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/*
 * device/cuda without a GPU: what it makes of each error of CUDA's, and how it treats the
 * program's own choice of a GPU, over a stand-in for CUDA's runtime; with a GPU, test_device
 * runs the module on the real one.
 */
#ifdef HAVE_CUDA
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "device/backend.h"
#include "tests/support/cuda_standin.h"
#include "tests/support/device_checks.h"

DDP_API extern const ddp_device_backend ddp_device_module;
static const ddp_device_backend *cuda = &ddp_device_module;

static int reset(void **state)
{
	(void)state;
	cuda_standin_reset();
	unsetenv("CUDA_VISIBLE_DEVICES");
	return 0;
}

static int clean(void **state)
{
	(void)state;
	cuda_standin_clean();
	return 0;
}

static ddp_status open_index(int index, void **self)
{
	const ddp_device_request request = { .index = index, .fail = ddp_fail };
	ddp_device_info info;
	const ddp_status status = cuda->open(&request, &info, self);

	if (status == DDP_OK)
		assert_int_equal(info.capability, cuda_standin.capability);
	return status;
}

static void a_missing_gpu_is_told_with_what_is_missing(void **state)
{
	void *self = NULL;

	(void)state;
	FAILS(open_index(3, &self), DDP_ERR_INVALID, "no device cuda:3: this process sees 3 GPUs");
	cuda_standin.failing = "cudaGetDeviceCount";
	cuda_standin.error = cudaErrorInsufficientDriver;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "no NVIDIA driver");
	cuda_standin.driver = 10020;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "is for CUDA 10.2, and libddp_cuda.so needs");
	cuda_standin.error = cudaErrorNoDevice;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "sees no GPU: use a node");
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "CUDA_VISIBLE_DEVICES=''");
	cuda_standin.error = cudaErrorMemoryAllocation;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "cudaGetDeviceCount: out of memory");
	cuda_standin.failing = NULL;
	cuda_standin.count = 0;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "sees no GPU");
	assert_int_equal(cuda_standin.last, cudaSuccess);
	assert_int_equal(cuda_standin.current, 2);
	assert_null(self);
}

static void a_gpu_that_cannot_be_opened_leaves_nothing(void **state)
{
	static const char *const calls[] = {
		"cuDevicePrimaryCtxRetain", "cudaDeviceGetStreamPriorityRange", "cudaEventCreateWithFlags",
		"cudaGetDeviceProperties",
	};
	void *self = NULL;

	(void)state;
	cuda_standin.error = cudaErrorDevicesUnavailable;
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		cuda_standin.failing = calls[i];
		FAILS(open_index(1, &self), DDP_ERR_IO, calls[i]);
		assert_int_equal(cuda_standin_left(), 0);
		assert_int_equal(cuda_standin.current, 2);
	}
	assert_null(self);
}

static void do_nothing(void *argument)
{
	(void)argument;
}

static void note_current(void *argument)
{
	*(int *)argument = cuda_standin.current;
}

/* Does all there is to do; returns the first error. */
static ddp_status go_through(void *self)
{
	char host[10] = { 0 };
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
	assert_true(status != DDP_OK || seconds == 0.25);
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

static void each_call_that_fails_is_named(void **state)
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

	(void)state;
	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_int_equal(go_through(self), DDP_OK);
	assert_int_equal(cuda_standin.priority, -5);
	assert_int_equal(cuda_standin_left(), 1); /* the device's own event */
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		cuda_standin.failing = calls[i];
		cuda_standin.error = cudaErrorMemoryAllocation;
		snprintf(text, sizeof(text), "device cuda:1: %s: out of memory (cudaErrorMemoryAllocation)",
		         calls[i]);
		FAILS(go_through(self), DDP_ERR_NOMEM, text);
		assert_int_equal(cuda_standin.last, cudaSuccess);
		assert_int_equal(cuda_standin.current, 2);
	}
	cuda_standin.failing = "cudaMalloc";
	cuda_standin.error = cudaErrorInvalidValue;
	assert_int_equal(go_through(self), DDP_ERR_INVALID);
	cuda_standin.failing = NULL;
	assert_int_equal(cuda_standin.on_other, 0);
	cuda->close(self);
}

/* A thread without a context gets none, least of all on GPU 0. */
static void a_thread_is_left_with_the_gpu_that_it_had(void **state)
{
	static const int before[] = { NO_CONTEXT, 0, 1, 2 };
	void *self = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(before) / sizeof(*before); i++) {
		cuda_standin.current = before[i];
		assert_int_equal(open_index(1, &self), DDP_OK);
		assert_int_equal(cuda_standin.current, before[i]);
		assert_int_equal(go_through(self), DDP_OK);
		assert_int_equal(cuda_standin.current, before[i]);
		cuda->close(self);
		assert_int_equal(cuda_standin.current, before[i]);
	}
	assert_int_equal(cuda_standin.contexts, 0);
	assert_int_equal(cuda_standin.on_other, 0);
}

static void a_context_that_is_gone_is_told(void **state)
{
	void *self = NULL, *memory = NULL, *pinned = NULL, *none = NULL;
	ddp_device_queue *queue = NULL;
	ddp_device_event *event = NULL;
	int current = -1;

	(void)state;
	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_int_equal(cuda->alloc(self, 64, &memory), DDP_OK);
	assert_int_equal(cuda->host_alloc(self, 64, &pinned), DDP_OK);
	assert_int_equal(cuda->queue_create(self, DDP_DEVICE_NORMAL, &queue), DDP_OK);
	assert_int_equal(cuda->event_create(self, false, &event), DDP_OK);
	cuda_standin.failing = "cuCtxPushCurrent";
	FAILS(go_through(self), DDP_ERR_IO, "device cuda:1: cuCtxPushCurrent: something else");
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
	assert_int_equal(cuda_standin.on_other, 0);
	assert_int_equal(cuda_standin.current, 2);
}

/* As CUDA says of an address that it does not know. */
static void memory_of_others_is_not_owned(void **state)
{
	void *self = NULL;
	char host[10];

	(void)state;
	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_false(cuda->owns(self, NULL));
	cuda_standin.failing = "cudaPointerGetAttributes";
	cuda_standin.error = cudaErrorInvalidValue;
	assert_false(cuda->owns(self, host));
	FAILS(cuda->fill(self, NULL, host, 0, sizeof(host)), DDP_ERR_INVALID, "is not memory of device cuda:1");
	assert_int_equal(cuda_standin.last, cudaSuccess);
	assert_int_equal(cuda_standin.current, 2);
	cuda->close(self);
}

static void work_that_is_not_done_is_no_error(void **state)
{
	void *self = NULL;
	bool done = true;

	(void)state;
	assert_int_equal(open_index(1, &self), DDP_OK);
	cuda_standin.failing = "cudaStreamQuery";
	cuda_standin.error = cudaErrorNotReady;
	assert_int_equal(cuda->queue_query(self, NULL, &done), DDP_OK);
	assert_false(done);
	done = true;
	cuda_standin.failing = "cudaEventQuery";
	assert_int_equal(cuda->event_query(self, NULL, &done), DDP_OK);
	assert_false(done);
	assert_int_equal(cuda_standin.last, cudaSuccess);
	cuda_standin.failing = NULL;
	assert_int_equal(cuda->queue_query(self, NULL, &done), DDP_OK);
	assert_true(done);
	cuda->close(self);
	assert_int_equal(cuda_standin_left(), 0);
}

static void a_broken_gpu_says_so_and_can_be_let_go(void **state)
{
	ddp_device_queue *queue;
	ddp_device_event *event;
	void *self = NULL, *memory, *pinned;

	(void)state;
	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_int_equal(cuda->alloc(self, 64, &memory), DDP_OK);
	assert_int_equal(cuda->host_alloc(self, 64, &pinned), DDP_OK);
	assert_int_equal(cuda->queue_create(self, DDP_DEVICE_NORMAL, &queue), DDP_OK);
	assert_int_equal(cuda->event_create(self, false, &event), DDP_OK);
	cuda_standin.broken = true;
	FAILS(cuda->error(self), DDP_ERR_IO, "work enqueued earlier: something else");
	FAILS(cuda->queue_sync(self, queue), DDP_ERR_IO, "cudaStreamSynchronize");
	assert_int_equal(cuda->queue_free(self, queue), DDP_OK);
	assert_int_equal(cuda->event_free(self, event), DDP_OK);
	assert_int_equal(cuda->free(self, memory), DDP_OK);
	assert_int_equal(cuda->host_free(self, pinned), DDP_OK);
	cuda->close(self);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_missing_gpu_is_told_with_what_is_missing, reset, clean),
		cmocka_unit_test_setup_teardown(a_gpu_that_cannot_be_opened_leaves_nothing, reset, clean),
		cmocka_unit_test_setup_teardown(each_call_that_fails_is_named, reset, clean),
		cmocka_unit_test_setup_teardown(a_thread_is_left_with_the_gpu_that_it_had, reset, clean),
		cmocka_unit_test_setup_teardown(a_context_that_is_gone_is_told, reset, clean),
		cmocka_unit_test_setup_teardown(memory_of_others_is_not_owned, reset, clean),
		cmocka_unit_test_setup_teardown(work_that_is_not_done_is_no_error, reset, clean),
		cmocka_unit_test_setup_teardown(a_broken_gpu_says_so_and_can_be_let_go, reset, clean),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

#include <stdio.h>

int main(void)
{
	puts("1..0 # SKIP this build has no CUDA toolkit");
	return 0;
}

#endif
