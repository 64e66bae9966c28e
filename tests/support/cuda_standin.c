/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/gpu.h"
#include "tests/support/cuda_standin.h"

cuda_runtime cuda_standin;

void cuda_standin_reset(void)
{
	cuda_standin = (cuda_runtime){ .count = 3, .current = 2, .capability = 75 };
}

int cuda_standin_left(void)
{
	int count = 0;

	for (size_t i = 0; i < sizeof(cuda_standin.objects) / sizeof(*cuda_standin.objects); i++)
		count += cuda_standin.objects[i] != NULL;
	return count;
}

void cuda_standin_clean(void)
{
	for (size_t i = 0; i < sizeof(cuda_standin.objects) / sizeof(*cuda_standin.objects); i++)
		free(cuda_standin.objects[i]);
}

static void replace(void *object, void *by)
{
	size_t i = 0;

	while (cuda_standin.objects[i] != object)
		i++;
	cuda_standin.objects[i] = by;
}

static cudaError_t called(const char *call)
{
	cudaError_t error = cudaSuccess;

	if (cuda_standin.broken)
		error = cudaErrorIllegalAddress;
	else if (cuda_standin.failing != NULL && strcmp(call, cuda_standin.failing) == 0)
		error = cuda_standin.error;
	else if (cuda_standin.current != 1)
		cuda_standin.on_other++;
	if (error != cudaSuccess)
		cuda_standin.last = error;
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
	cudaError_t last = cuda_standin.last;

	cuda_standin.last = cudaSuccess;
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
	*count = cuda_standin.count;
	return cuda_standin.failing != NULL ? called("cudaGetDeviceCount") : cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = cuda_standin.driver;
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = cuda_standin.current == NO_CONTEXT ? 0 : cuda_standin.current;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	cuda_standin.current = device;
	cuda_standin.contexts++;
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
	return cuda_standin.failing != NULL && strcmp(cuda_standin.failing, "cuDevicePrimaryCtxRetain") == 0
		? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	if (cuda_standin.failing != NULL && strcmp(cuda_standin.failing, "cuCtxPushCurrent") == 0)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	cuda_standin.below[cuda_standin.depth++] = cuda_standin.current;
	cuda_standin.current = (int)((char *)context - contexts);
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	assert_true(cuda_standin.depth > 0);
	*context = (CUcontext)(void *)&contexts[cuda_standin.current];
	cuda_standin.current = cuda_standin.below[--cuda_standin.depth];
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
	properties->major = cuda_standin.capability / 10;
	properties->minor = cuda_standin.capability % 10;
	/* Of whatever GPU is the thread's. */
	const int on_other = cuda_standin.on_other;
	const cudaError_t error = called("cudaGetDeviceProperties");
	cuda_standin.on_other = on_other;
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
	return called("cudaPointerGetAttributes");
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
	cuda_standin.priority = priority;
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
	assert_true(flags == cudaEventDisableTiming || flags == cudaEventDefault);
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
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
	(void)from;
	(void)to;
	*milliseconds = 250;
	return called("cudaEventElapsedTime");
}
