/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda over the emulation as a place of kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/functions.cuh"
#include "tests/support/kernel_place.h"

/* ---- its GPU ---- */

enum { HOPPER = 9, AMPERE = 8 };

bool dk_cuda_gpu_open(dk_cuda_queue *queue, int device)
{
	queue->capability = HOPPER;
	return device == CUDA_EMULATION_GPU;
}

void dk_cuda_gpu_close(dk_cuda_queue *)
{
}

void dk_cuda_enter(dk_queue *queue)
{
	own(queue)->entered++;
	cuda_emulation_gpu = CUDA_EMULATION_GPU;
}

void dk_cuda_leave(dk_queue *queue)
{
	cuda_emulation_gpu = --own(queue)->entered > 0 ? CUDA_EMULATION_GPU : 0;
}

/* ---- the place ---- */

static void close_queue(kernel_place *place)
{
	dk_cuda_table.close(place->queue);
}

static void *allocate(size_t bytes)
{
	void *memory = cuda_emulation_allocate(bytes);

	if (memory == NULL) {
		fprintf(stderr, "out of memory\n");
		abort();
	}
	memset(memory, 0xff, bytes);
	return memory;
}

static void copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

static void leave_scratch(kernel_place *place, int64_t numbers)
{
	static int64_t all;

	if (all == 0)
		all = own(place->queue)->scratch_size;
	own(place->queue)->scratch_size = numbers > 0 ? numbers : all;
}

static void fail_graph(int call)
{
	cuda_emulation_fails = call;
}

static int have_gelu(kernel_place *place, kernel_gelu how)
{
	own(place->queue)->capability = how == GELU_SLOW ? AMPERE : HOPPER;
	cublas_emulation_refuses_gelu = how == GELU_REFUSED;
	cublas_emulation_fails_gelu = how == GELU_FAILS;
	return cublas_emulation_gelus;
}

bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	/* Of the last two, only what they have not of the others is left to try. */
	static const struct { dk_type type; int64_t most; } rounds[] = {{DK_F32, 8400}, {DK_BF16, 8400},
		{DK_MIXED, 2000}, {DK_TF32, 300}};

	*why = NULL;
	if (round >= (int)(sizeof(rounds) / sizeof(rounds[0])))
		return false;
	place->type = rounds[round].type;
	place->most = rounds[round].most;
	place->host_memory = true;
	place->close = close_queue;
	place->alloc = allocate;
	place->free = cuda_emulation_free;
	place->shuffle = cuda_emulation_seed;
	place->copy = copy;
	place->leave_scratch = leave_scratch;
	place->fail_graph = fail_graph;
	place->have_gelu = have_gelu;
	place->queue = dk_cuda_table.open(CUDA_EMULATION_GPU, NULL, place->type, why);
	return place->queue != NULL;
}
