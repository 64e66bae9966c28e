/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/driver/program.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/ranks.h"

#define FOLDER "tests/support/driver/.libs/"

cuda_calls cuda;

static void find(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);

	CHECK(symbol != NULL);
	memcpy(function, &symbol, sizeof(symbol));
}

void cuda_load_driver(void)
{
	void *library = dlopen(FOLDER "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	CUcontext context;

	if (library == NULL)
		fprintf(stderr, "# %s\n", dlerror());
	CHECK(library != NULL && dlopen(FOLDER "libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL);
	find(library, "cuda_driver", &cuda.switches);
	find(library, "cuInit", &cuda.init);
	find(library, "cuDevicePrimaryCtxRetain", &cuda.retain);
	find(library, "cuCtxPushCurrent_v2", &cuda.push);
	find(library, "cuMemAlloc_v2", &cuda.allocate);
	find(library, "cuMemFree_v2", &cuda.free);
	find(library, "cuMemcpyHtoD_v2", &cuda.to_device);
	find(library, "cuMemcpyDtoH_v2", &cuda.to_host);
	find(library, "cuMemcpyAsync", &cuda.copy);
	find(library, "cuStreamCreate", &cuda.make_stream);
	find(library, "cuEventCreate", &cuda.make_event);
	find(library, "cuEventRecord", &cuda.record);
	find(library, "cuEventQuery", &cuda.query);
	find(library, "cuStreamDestroy_v2", &cuda.end_stream);
	find(library, "cuEventDestroy_v2", &cuda.end_event);
	CHECK(cuda.init(0) == CUDA_SUCCESS && cuda.retain(&context, 0) == CUDA_SUCCESS);
	CHECK(cuda.push(context) == CUDA_SUCCESS);
}

CUdeviceptr cuda_address(const void *data)
{
	return (CUdeviceptr)(uintptr_t)data;
}

static void *take(size_t bytes)
{
	CUdeviceptr address = 0;

	CHECK(cuda.allocate(&address, bytes) == CUDA_SUCCESS);
	return (void *)(uintptr_t)address;
}

static void give_back(void *data)
{
	CHECK(cuda.free(cuda_address(data)) == CUDA_SUCCESS);
}

static void write_device(void *to, const void *from, size_t bytes)
{
	CHECK(cuda.to_device(cuda_address(to), from, bytes) == CUDA_SUCCESS);
}

static void read_device(void *to, const void *from, size_t bytes)
{
	CHECK(cuda.to_host(to, cuda_address(from), bytes) == CUDA_SUCCESS);
}

const place cuda_on_device = {
	.memory = NET_CUDA, .take = take, .give_back = give_back, .write = write_device, .read = read_device,
};
