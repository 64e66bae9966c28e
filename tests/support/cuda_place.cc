/* kernels/cuda over the emulation, with a plain matrix product, as a place of kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/functions.cuh"
#include "tests/support/kernel_place.h"

bool dk_cuda_product_open(dk_cuda_queue *)
{
	return true;
}

void dk_cuda_product_close(dk_cuda_queue *)
{
}

template <typename D, typename T>
static void product(D *d, T *, const dk_product_args *p)
{
	const T *a = static_cast<const T *>(p->a), *b = static_cast<const T *>(p->b);
	const D *c = static_cast<const D *>(p->c), *bias = static_cast<const D *>(p->bias);

	for (int64_t i = 0; i < p->m; i++)
		for (int64_t j = 0; j < p->n; j++) {
			float sum = 0;
			for (int64_t l = 0; l < p->k; l++)
				sum += wide(p->transpose_a ? a[l * p->lda + i] : a[i * p->lda + l]) *
				       wide(p->transpose_b ? b[j * p->ldb + l] : b[l * p->ldb + j]);
			if (p->beta != 0)
				sum += p->beta * wide(c[i * p->ldc + j]);
			put(d + i * p->ldc + j, sum + (bias != NULL ? wide(bias[j]) : 0));
		}
}

void dk_cuda_product(dk_cuda_queue *q, const dk_product_args *p)
{
	if (!dk_cuda_narrow(q))
		product(static_cast<float *>(p->d), static_cast<float *>(NULL), p);
	else if (p->wide)
		product(static_cast<float *>(p->d), static_cast<bf16 *>(NULL), p);
	else
		product(static_cast<bf16 *>(p->d), static_cast<bf16 *>(NULL), p);
}

/* ---- its GPU ---- */

bool dk_cuda_gpu_open(dk_cuda_queue *, int device)
{
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
	void *memory = malloc(bytes); /* of that size, so that the sanitizers see its end */

	if (memory == NULL) {
		fprintf(stderr, "out of memory\n");
		abort();
	}
	memset(memory, 0xff, bytes);
	return memory;
}

static bool has_bf16(const kernel_place *place)
{
	return place->type == DK_BF16 || place->type == DK_MIXED;
}

static void give(const kernel_place *place, float *to, const float *from, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (has_bf16(place))
			put(reinterpret_cast<bf16 *>(to) + i, from[i]);
		else
			to[i] = from[i];
}

static void take(const kernel_place *place, float *to, const float *from, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = has_bf16(place) ? wide(reinterpret_cast<const bf16 *>(from)[i]) : from[i];
}

static void leave_scratch(kernel_place *place, int64_t numbers)
{
	static int64_t all;

	if (all == 0)
		all = own(place->queue)->scratch_size;
	own(place->queue)->scratch_size = numbers > 0 ? numbers : all;
}

bool kernel_place_open(int round, kernel_place *place, const char **why)
{
	/* Of DK_MIXED only what it has not of the others is left to try. */
	static const struct { dk_type type; int64_t most; } rounds[] = {{DK_F32, 8400}, {DK_BF16, 8400}, {DK_MIXED, 2000}};

	*why = NULL;
	if (round >= (int)(sizeof(rounds) / sizeof(rounds[0])))
		return false;
	place->type = rounds[round].type;
	place->most = rounds[round].most;
	place->host_memory = true;
	place->close = close_queue;
	place->alloc = allocate;
	place->free = free;
	place->shuffle = cuda_emulation_seed;
	place->give = give;
	place->take = take;
	place->leave_scratch = leave_scratch;
	place->queue = dk_cuda_table.open(CUDA_EMULATION_GPU, NULL, place->type, why);
	return place->queue != NULL;
}
