/*
 * device/cuda without a GPU: what it makes of each error of CUDA's, and how it treats the
 * program's own choice of a GPU. CUDA's runtime is played by the functions below, whose
 * memory is the host's; with a GPU, test_device runs the module on the real one.
 */
#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "cuda/gpu.h"
#include "device/backend.h"
#include "tests/support/device_checks.h"

DDP_API extern const ddp_device_backend ddp_device_module;
static const ddp_device_backend *cuda = &ddp_device_module;

/* ---- the runtime ---- */

enum { NONE = -1 };

static struct {
	int count, driver;      /* GPUs, version */
	int current;            /* the GPU of the thread's context; NONE: it has no context */
	int below[4], depth;    /* those pushed aside */
	int contexts;           /* made by cudaSetDevice() */
	const char *failing;    /* the call that fails, */
	cudaError_t error;      /* in this way */
	bool broken;            /* each call fails */
	cudaError_t last;       /* what cudaGetLastError() gives, and forgets */
	int on_other;           /* calls made for another GPU than number 1 */
	int priority;           /* of the last stream */
	void *objects[64];      /* memory, streams and events; NULL: freed */
} runtime;

static int left(void)
{
	int count = 0;

	for (size_t i = 0; i < sizeof(runtime.objects) / sizeof(*runtime.objects); i++)
		count += runtime.objects[i] != NULL;
	return count;
}

static void replace(void *object, void *by)
{
	size_t i = 0;

	while (runtime.objects[i] != object)
		i++;
	runtime.objects[i] = by;
}

static cudaError_t called(const char *call)
{
	cudaError_t error = cudaSuccess;

	if (runtime.broken)
		error = cudaErrorIllegalAddress;
	else if (runtime.failing != NULL && strcmp(call, runtime.failing) == 0)
		error = runtime.error;
	else if (runtime.current != 1)
		runtime.on_other++;
	if (error != cudaSuccess)
		runtime.last = error;
	return error;
}

static cudaError_t made(const char *call, void **object)
{
	cudaError_t error = called(call);

	if (error == cudaSuccess) {
		*object = malloc(64);
		replace(NULL, *object);
	}
	return error;
}

static cudaError_t unmade(const char *call, void *object)
{
	cudaError_t error = called(call);

	if (error == cudaSuccess) {
		replace(object, NULL);
		free(object);
	}
	return error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t last = runtime.last;

	runtime.last = cudaSuccess;
	return last;
}

const char *cudaGetErrorName(cudaError_t error)
{
	return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOther";
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error == cudaErrorMemoryAllocation ? "out of memory" : "something else";
}

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = runtime.count;
	return runtime.failing != NULL ? called("cudaGetDeviceCount") : cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = runtime.driver;
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = runtime.current == NONE ? 0 : runtime.current;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	runtime.current = device;
	runtime.contexts++;
	return cudaSuccess;
}

/* What the driver has of it: a context is its GPU's index, after `contexts`. */
static char contexts[4];

static CUresult find_gpu(CUdevice *device, int index)
{
	*device = index;
	return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
	*context = (CUcontext)(void *)&contexts[device];
	return runtime.failing != NULL && strcmp(runtime.failing, "cuDevicePrimaryCtxRetain") == 0
		? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	if (runtime.failing != NULL && strcmp(runtime.failing, "cuCtxPushCurrent") == 0)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	runtime.below[runtime.depth++] = runtime.current;
	runtime.current = (int)((char *)context - contexts);
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	assert_true(runtime.depth > 0);
	*context = (CUcontext)(void *)&contexts[runtime.current];
	runtime.current = runtime.below[--runtime.depth];
	return CUDA_SUCCESS;
}

static cudaError_t entry_point(const char *symbol, void **function)
{
	static const struct { const char *name; void (*function)(void); } functions[] = {
		{ "cuDeviceGet", (void (*)(void))find_gpu }, { "cuDevicePrimaryCtxRetain", (void (*)(void))retain },
		{ "cuCtxPushCurrent", (void (*)(void))push }, { "cuCtxPopCurrent", (void (*)(void))pop },
	};

	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		if (strcmp(functions[i].name, symbol) == 0)
			memcpy(function, &functions[i].function, sizeof(*function));
	}
	return cudaSuccess;
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
	(void)version;
	(void)flags;
	*found = cudaDriverEntryPointSuccess;
	return entry_point(symbol, function);
}
#elif CUDART_VERSION >= 12000
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found)
{
	(void)flags;
	*found = cudaDriverEntryPointSuccess;
	return entry_point(symbol, function);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags)
{
	(void)flags;
	return entry_point(symbol, function);
}
#endif

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
	memset(properties, 0, sizeof(*properties));
	snprintf(properties->name, sizeof(properties->name), "GPU number %d", device);
	properties->totalGlobalMem = 1 << 30;
	/* Of whatever GPU is the thread's. */
	const int on_other = runtime.on_other;
	const cudaError_t error = called("cudaGetDeviceProperties");
	runtime.on_other = on_other;
	return error;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return called("cudaDeviceGetStreamPriorityRange");
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
	(void)pointer;
	memset(attributes, 0, sizeof(*attributes));
	attributes->type = cudaMemoryTypeDevice;
	attributes->device = 1;
	return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes) { (void)bytes; return made("cudaMalloc", memory); }
cudaError_t cudaFree(void *memory) { return unmade("cudaFree", memory); }
cudaError_t cudaFreeHost(void *memory) { return unmade("cudaFreeHost", memory); }
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
	(void)bytes;
	assert_int_equal(flags, cudaHostAllocPortable);
	return made("cudaHostAlloc", memory);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	assert_int_equal(flags, cudaStreamNonBlocking);
	runtime.priority = priority;
	return made("cudaStreamCreateWithPriority", (void **)stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return unmade("cudaStreamDestroy", stream); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { (void)stream; return called("cudaStreamQuery"); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	(void)stream;
	return called("cudaStreamSynchronize");
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	(void)stream;
	(void)event;
	assert_int_equal(flags, 0);
	return called("cudaStreamWaitEvent");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
	(void)stream;
	assert_int_equal(kind, cudaMemcpyDefault);
	cudaError_t error = called("cudaMemcpyAsync");
	if (error == cudaSuccess)
		memcpy(to, from, bytes);
	return error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	(void)stream;
	cudaError_t error = called("cudaMemsetAsync");
	if (error == cudaSuccess)
		memset(to, value, bytes);
	return error;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
	(void)stream;
	cudaError_t error = called("cudaLaunchHostFunc");
	if (error == cudaSuccess)
		function(argument);
	return error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	assert_int_equal(flags, cudaEventDisableTiming);
	return made("cudaEventCreateWithFlags", (void **)event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return unmade("cudaEventDestroy", event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { (void)event; return called("cudaEventQuery"); }
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	(void)event;
	return called("cudaEventSynchronize");
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	(void)event;
	(void)stream;
	return called("cudaEventRecord");
}

/* ---- the tests ---- */

static int reset(void **state)
{
	(void)state;
	memset(&runtime, 0, sizeof(runtime));
	runtime.count = 3;
	runtime.current = 2; /* the program's choice; ours is number 1 */
	unsetenv("CUDA_VISIBLE_DEVICES");
	return 0;
}

static int clean(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(runtime.objects) / sizeof(*runtime.objects); i++)
		free(runtime.objects[i]);
	return 0;
}

static ddp_status open_index(int index, void **self)
{
	const ddp_device_request request = { .index = index, .fail = ddp_fail };
	ddp_device_info info;

	return cuda->open(&request, &info, self);
}

static void a_missing_gpu_is_told_with_what_is_missing(void **state)
{
	void *self = NULL;

	(void)state;
	FAILS(open_index(3, &self), DDP_ERR_INVALID, "no device cuda:3: this process sees 3 GPUs");
	runtime.failing = "cudaGetDeviceCount";
	runtime.error = cudaErrorInsufficientDriver;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "no NVIDIA driver");
	runtime.driver = 10020;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "is for CUDA 10.2, and libddp_cuda.so needs");
	runtime.error = cudaErrorNoDevice;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "sees no GPU: use a node");
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "CUDA_VISIBLE_DEVICES=''");
	runtime.error = cudaErrorMemoryAllocation;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "cudaGetDeviceCount: out of memory");
	runtime.failing = NULL;
	runtime.count = 0;
	FAILS(open_index(0, &self), DDP_ERR_UNSUPPORTED, "sees no GPU");
	assert_int_equal(runtime.last, cudaSuccess);
	assert_int_equal(runtime.current, 2);
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
	runtime.error = cudaErrorDevicesUnavailable;
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		runtime.failing = calls[i];
		FAILS(open_index(1, &self), DDP_ERR_IO, calls[i]);
		assert_int_equal(left(), 0);
		assert_int_equal(runtime.current, 2);
	}
	assert_null(self);
}

static void do_nothing(void *argument)
{
	(void)argument;
}

static void note_current(void *argument)
{
	*(int *)argument = runtime.current;
}

/* Does all there is to do; returns the first error. */
static ddp_status go_through(void *self)
{
	char host[10] = { 0 };
	void *memory = NULL, *pinned = NULL;
	ddp_device_queue *queue = NULL;
	ddp_device_event *event = NULL;
	bool done = false;
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
	DO(cuda->event_create(self, &event));
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
		"cudaEventSynchronize", "cudaEventDestroy", "cudaStreamDestroy", "cudaFreeHost", "cudaFree",
	};
	char text[200];
	void *self = NULL;

	(void)state;
	assert_int_equal(open_index(1, &self), DDP_OK);
	assert_int_equal(go_through(self), DDP_OK);
	assert_int_equal(runtime.priority, -5);
	assert_int_equal(left(), 1); /* the device's own event */
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		runtime.failing = calls[i];
		runtime.error = cudaErrorMemoryAllocation;
		snprintf(text, sizeof(text), "device cuda:1: %s: out of memory (cudaErrorMemoryAllocation)",
		         calls[i]);
		FAILS(go_through(self), DDP_ERR_NOMEM, text);
		assert_int_equal(runtime.last, cudaSuccess);
		assert_int_equal(runtime.current, 2);
	}
	runtime.failing = "cudaMalloc";
	runtime.error = cudaErrorInvalidValue;
	assert_int_equal(go_through(self), DDP_ERR_INVALID);
	runtime.failing = NULL;
	assert_int_equal(runtime.on_other, 0);
	cuda->close(self);
}

/* A thread without a context gets none, least of all on GPU 0. */
static void a_thread_is_left_with_the_gpu_that_it_had(void **state)
{
	static const int before[] = { NONE, 0, 1, 2 };
	void *self = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(before) / sizeof(*before); i++) {
		runtime.current = before[i];
		assert_int_equal(open_index(1, &self), DDP_OK);
		assert_int_equal(runtime.current, before[i]);
		assert_int_equal(go_through(self), DDP_OK);
		assert_int_equal(runtime.current, before[i]);
		cuda->close(self);
		assert_int_equal(runtime.current, before[i]);
	}
	assert_int_equal(runtime.contexts, 0);
	assert_int_equal(runtime.on_other, 0);
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
	assert_int_equal(cuda->event_create(self, &event), DDP_OK);
	runtime.failing = "cuCtxPushCurrent";
	FAILS(go_through(self), DDP_ERR_IO, "device cuda:1: cuCtxPushCurrent: something else");
	FAILS(cuda->alloc(self, 64, &none), DDP_ERR_IO, "its context is gone");
	FAILS(cuda->fill(self, queue, memory, 0, 64), DDP_ERR_IO, "as after a cudaDeviceReset()");
	FAILS(cuda->error(self), DDP_ERR_IO, "call it after ddp_finalize()");
	FAILS(cuda->within(self, note_current, &current), DDP_ERR_IO, "cuCtxPushCurrent");
	assert_int_equal(current, -1);
	assert_null(none);
	assert_int_equal(cuda->event_free(self, event), DDP_OK);
	assert_int_equal(cuda->queue_free(self, queue), DDP_OK);
	assert_int_equal(cuda->free(self, memory), DDP_OK);
	assert_int_equal(cuda->host_free(self, pinned), DDP_OK);
	cuda->close(self);
	assert_int_equal(runtime.on_other, 0);
	assert_int_equal(runtime.current, 2);
}

static void work_that_is_not_done_is_no_error(void **state)
{
	void *self = NULL;
	bool done = true;

	(void)state;
	assert_int_equal(open_index(1, &self), DDP_OK);
	runtime.failing = "cudaStreamQuery";
	runtime.error = cudaErrorNotReady;
	assert_int_equal(cuda->queue_query(self, NULL, &done), DDP_OK);
	assert_false(done);
	done = true;
	runtime.failing = "cudaEventQuery";
	assert_int_equal(cuda->event_query(self, NULL, &done), DDP_OK);
	assert_false(done);
	assert_int_equal(runtime.last, cudaSuccess);
	runtime.failing = NULL;
	assert_int_equal(cuda->queue_query(self, NULL, &done), DDP_OK);
	assert_true(done);
	cuda->close(self);
	assert_int_equal(left(), 0);
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
	assert_int_equal(cuda->event_create(self, &event), DDP_OK);
	runtime.broken = true;
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
