/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as a place of kernels, by the module of this build. */
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include <cuda_runtime.h>

extern "C" {
#include "device/module.h"
}
#include "tests/support/kernel_place.h"

static void check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
	abort();
}

static void close_queue(kernel_place *place)
{
	place->queue->table->close(place->queue);
}

static void *allocate(size_t bytes)
{
	void *memory;

	check(cudaMalloc(&memory, bytes), "cudaMalloc");
	check(cudaMemset(memory, 0xff, bytes), "cudaMemset");
	check(cudaDeviceSynchronize(), "cudaMemset");
	return memory;
}

static void release(void *memory)
{
	check(cudaFree(memory), "cudaFree");
}

static void shuffle(uint64_t)
{
}

static bool has_bf16(const kernel_place *place)
{
	return place->type == DK_BF16 || place->type == DK_MIXED;
}

/* The host converts, though the test may be using the GPU's queue. A copy from memory that is not
   pinned may still be under way when cudaMemcpy() returns, and the test's queue waits for none. */
static void give(const kernel_place *place, float *to, const float *from, int64_t n)
{
	std::vector<uint16_t> narrow(n);

	if (has_bf16(place)) {
		dk_queue *before = dk_use(NULL);
		dk_to_bf16(narrow.data(), from, n);
		dk_use(before);
		check(cudaMemcpy(to, narrow.data(), n * sizeof(uint16_t), cudaMemcpyDefault), "cudaMemcpy");
	} else {
		check(cudaMemcpy(to, from, n * sizeof(float), cudaMemcpyDefault), "cudaMemcpy");
	}
	check(cudaDeviceSynchronize(), "cudaMemcpy");
}

/* Work of all queues is done before: the copy is the default queue's. */
static void take(const kernel_place *place, float *to, const float *from, int64_t n)
{
	std::vector<uint16_t> narrow(n);

	check(cudaDeviceSynchronize(), "a kernel");
	if (has_bf16(place)) {
		check(cudaMemcpy(narrow.data(), from, n * sizeof(uint16_t), cudaMemcpyDefault), "cudaMemcpy");
		dk_queue *before = dk_use(NULL);
		dk_from_bf16(to, narrow.data(), n);
		dk_use(before);
	} else {
		check(cudaMemcpy(to, from, n * sizeof(float), cudaMemcpyDefault), "cudaMemcpy");
	}
}

extern "C" bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	static const dk_type types[] = {DK_F32, DK_BF16, DK_TF32, DK_MIXED};
	static cudaStream_t stream;
	const dk_table *table;

	if (round > 3)
		return false;
	if (ddp_device_cuda_kernels(&table) != DDP_OK) {
		*why = ddp_last_error();
		return false;
	}
	if (stream == NULL && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
		*why = cudaGetErrorString(cudaGetLastError());
		return false;
	}
	place->type = types[round];
	place->most = 0;
	place->host_memory = false;
	place->close = close_queue;
	place->alloc = allocate;
	place->free = release;
	place->shuffle = shuffle;
	place->give = give;
	place->take = take;
	place->leave_scratch = NULL;
	place->fail_graph = NULL;
	place->queue = table->open(0, stream, place->type, why);
	if (place->queue == NULL && round > 0) { /* else tests would pass without this type */
		fprintf(stderr, "no queue of type %d: %s\n", (int)place->type, *why);
		abort();
	}
	return place->queue != NULL;
}
