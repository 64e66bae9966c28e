/* SPDX-License-Identifier: Apache-2.0 */
/* gpu: has the calling thread use a GPU for a while, and then what it used before, also if
   that was none, by the driver's stack of contexts. To go back by cudaSetDevice() would
   make a context on GPU 0, of hundreds of MiB, in each process that uses another one. */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stddef.h>

typedef struct dk_gpu {
	CUcontext context; /* the one of CUDA's runtime */
	CUresult (CUDAAPI *push)(CUcontext context);
	CUresult (CUDAAPI *pop)(CUcontext *context);
} dk_gpu;

/* The driver's function, as CUDA 11 has it; NULL: there is none. */
static inline void *dk_gpu_function(const char *name)
{
	void *function = NULL;
#if CUDART_VERSION >= 12000
	enum cudaDriverEntryPointQueryResult found;
#endif
#if CUDART_VERSION >= 12050
	if (cudaGetDriverEntryPointByVersion(name, &function, 11000, cudaEnableDefault, &found) != cudaSuccess)
		return NULL;
#elif CUDART_VERSION >= 12000
	if (cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found) != cudaSuccess)
		return NULL;
#else
	if (cudaGetDriverEntryPoint(name, &function, cudaEnableDefault) != cudaSuccess)
		return NULL;
#endif
	return function;
}

/* The GPU of this index, as CUDA counts them. Its context stays as long as the process:
   CUDA's runtime has it, too. */
static inline cudaError_t dk_gpu_open(dk_gpu *gpu, int index)
{
	CUresult (CUDAAPI *find)(CUdevice *, int), (CUDAAPI *retain)(CUcontext *, CUdevice);
	CUdevice device;

	*(void **)&find = dk_gpu_function("cuDeviceGet");
	*(void **)&retain = dk_gpu_function("cuDevicePrimaryCtxRetain");
	*(void **)&gpu->push = dk_gpu_function("cuCtxPushCurrent");
	*(void **)&gpu->pop = dk_gpu_function("cuCtxPopCurrent");
	if (find == NULL || retain == NULL || gpu->push == NULL || gpu->pop == NULL)
		return cudaErrorSymbolNotFound;
	CUresult result = find(&device, index);
	if (result == CUDA_SUCCESS)
		result = retain(&gpu->context, device);
	return (cudaError_t)result; /* the same numbers */
}

/* Unless it could, there is nothing to leave. */
static inline cudaError_t dk_gpu_enter(const dk_gpu *gpu)
{
	return (cudaError_t)gpu->push(gpu->context); /* the same numbers */
}

static inline void dk_gpu_leave(const dk_gpu *gpu)
{
	CUcontext left;

	gpu->pop(&left);
}
