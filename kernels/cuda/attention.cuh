/* SPDX-License-Identifier: Apache-2.0 */
/* Both ways of attention share this: the one for any type (attention.cu), and the one for bf16 by tensor
   cores (attention_bf16.cu, attention_bf16_backward.cu). */
#pragma once

#include "cuda/functions.cuh"

struct attention_shape {
	int64_t length, width;
	int heads, head; /* head: its width */
	float scale;
};

/* One (sample, head): its first row in qkv, in out, and in lse. */
struct attention_head {
	int64_t qkv, out, lse;
};

__device__ inline attention_head find_head(const attention_shape *s)
{
	const int64_t head = blockIdx.y, sample = blockIdx.z;
	const attention_head h = {sample * s->length * 3 * s->width + head * s->head,
		sample * s->length * s->width + head * s->head, (sample * s->heads + head) * s->length};

	return h;
}

/* A block for so many rows of each head. */
static inline dim3 attention_blocks(int64_t batch, const attention_shape *s, int64_t rows)
{
	return dim3((unsigned)ceil_div(s->length, rows), (unsigned)s->heads, (unsigned)batch);
}

/* Whether it begins a piece that tensor_cores.cuh moves. */
static inline bool in_pieces(const void *address)
{
	return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

enum { ATTENTION_SCRATCH = 2 /* numbers of a row of a head, for backward */ };

/* False: not of such a head, or address; nothing was done. */
bool dk_cuda_attention_bf16(dk_cuda_queue *queue, bf16 *out, float *lse, const bf16 *qkv,
		int64_t batch, attention_shape shape);
bool dk_cuda_attention_bf16_backward(dk_cuda_queue *queue, bf16 *dqkv, const bf16 *dout,
		const bf16 *qkv, const bf16 *out, const float *lse, float *scratch, int64_t batch,
		attention_shape shape);
