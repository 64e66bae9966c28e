/* SPDX-License-Identifier: Apache-2.0 */
/* The fake GPU: which there are, the thread's, errors and switches; and what device/cuda takes of the driver. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "tests/device/runtime.h"

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

static int *current_of_thread(void);
static int last_of_thread(void);
static int view_for_tests(const void *address, size_t bytes, bool writes, void **view);

fake_gpu_switches fake_gpu = {
	.seed = 1, .delay_us = 200, .check_order = true, .count = 1, .capability = 80,
	.current = current_of_thread, .last = last_of_thread, .view = view_for_tests,
};

/* ---- errors ---- */

static _Thread_local cudaError_t last;
static _Thread_local char reason[FAKE_GPU_TEXT]; /* of the thread's last error */

cudaError_t fake_gpu_fail(cudaError_t error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reason, sizeof(reason), format, arguments);
	va_end(arguments);
	last = error;
	return error;
}

const char *fake_gpu_reason(void)
{
	return reason;
}

static int last_of_thread(void)
{
	return last;
}

cudaError_t cudaGetLastError(void)
{
	const cudaError_t error = last;

	last = cudaSuccess;
	return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
	return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOther";
}

/* Right after the call that failed. */
const char *cudaGetErrorString(cudaError_t error)
{
	if (error == cudaErrorContextIsDestroyed)
		return "context is destroyed";
	return reason;
}

cudaError_t fake_gpu_broken_locked(const fake_gpu_device *gpu)
{
	return gpu->broken ? fake_gpu_fail(cudaErrorLaunchFailure, "the GPU is broken: %s", gpu->reason) : cudaSuccess;
}

/* ---- captures ---- */

static _Thread_local struct {
	bool on;
	const char *refused;
} capture;

void fake_gpu_capture_begin(void)
{
	capture.on = true;
	capture.refused = NULL;
}

const char *fake_gpu_capture_end(void)
{
	capture.on = false;
	return capture.refused;
}

/* ---- the thread's GPU ---- */

fake_gpu_device *fake_gpus[FAKE_GPUS];
static pthread_mutex_t gpus_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current = FAKE_GPU_NONE, below[8], depth;

static int *current_of_thread(void)
{
	return &current;
}

fake_gpu_device *fake_gpu_here(void)
{
	return current != FAKE_GPU_NONE ? fake_gpus[current] : NULL;
}

void fake_gpu_count(fake_gpu_device *gpu, int change)
{
	atomic_fetch_add(&gpu->objects, change);
	fake_gpu.objects = atomic_load(&gpu->objects);
}

cudaError_t fake_gpu_refuse(const char *call)
{
	if (fake_gpu.broken && call[2] == 'd') /* of the runtime, not of the driver */
		return fake_gpu_fail(cudaErrorIllegalAddress, "something else");
	if (fake_gpu.failing == NULL || strcmp(fake_gpu.failing, call) != 0)
		return cudaSuccess;
	return fake_gpu_fail(fake_gpu.error != 0 ? (cudaError_t)fake_gpu.error : cudaErrorIllegalAddress,
	                     fake_gpu.error == cudaErrorMemoryAllocation ? "out of memory" : "something else");
}

/* What a stream's function does not call, nor a thread that captures: `captured` is wrong with it. If it is
   cudaSuccess, the thread's GPU is locked, until fake_gpu_leave(). */
cudaError_t fake_gpu_enter(const char *call, const char *captured, fake_gpu_device **gpu)
{
	const cudaError_t refused = fake_gpu_refuse(call);
	if (refused != cudaSuccess)
		return refused;
	if (fake_gpu_running() != NULL)
		return fake_gpu_fail(cudaErrorNotPermitted, "a function that a stream runs must not call CUDA");
	if (capture.on && captured != NULL) {
		capture.refused = capture.refused != NULL ? capture.refused : captured;
		/* The caller may ask whether the GPU is well before it asks for the sentence. */
		return last == cudaErrorStreamCaptureUnsupported ? last
			: fake_gpu_fail(cudaErrorStreamCaptureUnsupported, "while the thread captures a graph, %s", captured);
	}
	*gpu = fake_gpu_here();
	if (*gpu == NULL)
		return fake_gpu_fail(cudaErrorInvalidValue, "the thread has no GPU's context");
	pthread_mutex_lock(&(*gpu)->lock);
	const cudaError_t error = fake_gpu_broken_locked(*gpu);
	if (error != cudaSuccess)
		pthread_mutex_unlock(&(*gpu)->lock);
	return error;
}

cudaError_t fake_gpu_leave(fake_gpu_device *gpu, cudaError_t error)
{
	pthread_mutex_unlock(&gpu->lock);
	return error;
}

/* The same for calls with a stream, NULL being the default one. */
cudaError_t fake_gpu_enter_stream(const char *call, const char *captured, cudaStream_t *stream, fake_gpu_device **gpu)
{
	const cudaError_t error = fake_gpu_enter(call, captured, gpu);

	if (error != cudaSuccess)
		return error;
	if (*stream == NULL)
		*stream = (*gpu)->standard;
	if ((*stream)->gpu != *gpu)
		return fake_gpu_leave(*gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is a stream of another GPU"));
	return cudaSuccess;
}

/* The same for calls with an event. */
cudaError_t fake_gpu_enter_event(const char *call, const char *captured, cudaEvent_t event, fake_gpu_device **gpu)
{
	const cudaError_t error = fake_gpu_enter(call, captured, gpu);

	if (error == cudaSuccess && (event == NULL || event->gpu != *gpu))
		return fake_gpu_leave(*gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is an event of another GPU"));
	return error;
}

/* ---- GPUs ---- */

static fake_gpu_device *make_gpu(int index)
{
	fake_gpu_device *gpu = calloc(1, sizeof(*gpu));

	if (gpu == NULL)
		return NULL;
	gpu->owner = getpid();
	gpu->seed = fake_gpu.seed + ((uint64_t)index << 40);
	gpu->delay_us = fake_gpu.delay_us;
	gpu->check_order = fake_gpu.check_order;
	pthread_mutex_init(&gpu->lock, NULL);
	pthread_cond_init(&gpu->changed, NULL);
	if (fake_gpu_memory_open(&gpu->memory) == cudaSuccess && fake_gpu_stream_create(gpu, &gpu->standard) == cudaSuccess)
		return gpu;
	fake_gpu_memory_close(&gpu->memory);
	free(gpu);
	return NULL;
}

static void close_gpu(fake_gpu_device *gpu)
{
	while (gpu->streams != NULL)
		fake_gpu_stream_free(gpu->streams);
	fake_gpu_order_close(&gpu->order);
	fake_gpu_memory_close(&gpu->memory);
	pthread_cond_destroy(&gpu->changed);
	pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}

/* The GPU of whoever opens it: one that a parent process had is not this one's, and has no threads here. */
static fake_gpu_device *renew(int index)
{
	pthread_mutex_lock(&gpus_lock);
	fake_gpu_device *gpu = fake_gpus[index];
	if (gpu != NULL && gpu->owner == getpid() && (gpu->broken || atomic_load(&gpu->objects) == 0))
		close_gpu(gpu);
	else if (gpu != NULL && gpu->owner == getpid()) {
		pthread_mutex_unlock(&gpus_lock);
		return gpu;
	}
	gpu = fake_gpus[index] = make_gpu(index);
	pthread_mutex_unlock(&gpus_lock);
	return gpu;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = fake_gpu.count;
	if (fake_gpu.driver > 0 && fake_gpu.failing == NULL)
		return fake_gpu_fail(cudaErrorInsufficientDriver, "the driver is too old");
	return fake_gpu_refuse("cudaGetDeviceCount");
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = fake_gpu.driver;
	return cudaSuccess;
}

static CUresult find_gpu(CUdevice *device, int index)
{
	*device = index;
	return CUDA_SUCCESS;
}

/* A context is where its GPU is kept. */
static CUresult retain(CUcontext *context, CUdevice device)
{
	if (fake_gpu_refuse("cuDevicePrimaryCtxRetain") != cudaSuccess || renew(device) == NULL)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	*context = (CUcontext)(void *)&fake_gpus[device];
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	if (fake_gpu_refuse("cuCtxPushCurrent") != cudaSuccess || depth == sizeof(below) / sizeof(below[0]))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	below[depth++] = current;
	current = (int)((fake_gpu_device **)(void *)context - fake_gpus);
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	if (depth == 0)
		abort();
	*context = (CUcontext)(void *)&fake_gpus[current];
	current = below[--depth];
	return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
	static const struct { const char *name; void (*function)(void); } functions[] = {
		{ "cuDeviceGet", (void (*)(void))find_gpu }, { "cuDevicePrimaryCtxRetain", (void (*)(void))retain },
		{ "cuCtxPushCurrent", (void (*)(void))push }, { "cuCtxPopCurrent", (void (*)(void))pop },
	};

	(void)version;
	(void)flags;
	*found = cudaDriverEntryPointSymbolNotFound;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(functions[i].name, symbol) != 0)
			continue;
		memcpy(function, &functions[i].function, sizeof(*function));
		*found = cudaDriverEntryPointSuccess;
	}
	return cudaSuccess;
}

/* Of whatever GPU is the thread's. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
	memset(properties, 0, sizeof(*properties));
	snprintf(properties->name, sizeof(properties->name), "fake GPU number %d", device);
	properties->totalGlobalMem = (size_t)FAKE_GPU_MEMORY_GIB << 30;
	properties->major = fake_gpu.capability / 10;
	properties->minor = fake_gpu.capability % 10;
	return fake_gpu_refuse("cudaGetDeviceProperties");
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter("cudaDeviceGetStreamPriorityRange", NULL, &gpu);

	*least = LOWEST_PRIORITY;
	*greatest = HIGHEST_PRIORITY;
	return error == cudaSuccess ? fake_gpu_leave(gpu, cudaSuccess) : error;
}

/* ---- switches ---- */

static int view_for_tests(const void *address, size_t bytes, bool writes, void **view)
{
	return fake_gpu_view(address, bytes, writes, view);
}

static int number(const char *variable, int otherwise)
{
	const char *given = getenv(variable);

	return given != NULL ? atoi(given) : otherwise;
}

/* FAKE_GPU_DRIVER: the version of CUDA that the driver is for, and is too old by. */
static __attribute__((constructor)) void choose(void)
{
	fake_gpu.count = number("FAKE_GPU_COUNT", fake_gpu.count);
	fake_gpu.capability = number("FAKE_GPU_CAPABILITY", fake_gpu.capability);
	fake_gpu.driver = number("FAKE_GPU_DRIVER", 0);
	if (fake_gpu.count > FAKE_GPUS)
		fake_gpu.count = FAKE_GPUS;
}
