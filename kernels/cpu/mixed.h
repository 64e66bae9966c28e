/* SPDX-License-Identifier: Apache-2.0 */
/* mixed: the functions of kernels.h on the host of type DK_MIXED: tensors are bf16, matrix
   products go by bf16.h, and all other work is that of inner.h, in f32: rows are widened in
   the first cache, and what comes out is rounded. */
#pragma once

#include "cpu/bf16.h"
#include "table.h"

typedef struct dk_mixed {
	dk_queue base;
	const dk_bf16_set *set;
	void *memory[2];       /* scratch, of a function at a time: packed sides, and sums */
	size_t bytes[2];
	_Atomic(const char *) failure; /* the first */
} dk_mixed;

static inline dk_mixed *dk_mixed_of(dk_queue *queue)
{
	return (dk_mixed *)queue;
}

/* A bf16 tensor's address in kernels.h. */
static inline uint16_t *dk_narrow(float *x)
{
	return (uint16_t *)(void *)x;
}

static inline const uint16_t *dk_narrow_const(const float *x)
{
	return (const uint16_t *)(const void *)x;
}

/* The functions of a queue of DK_MIXED. */
const dk_table *dk_mixed_table(void);

/* Returns `bytes` of scratch 0 or 1. NULL: there is no memory, and the queue keeps the failure. */
void *dk_mixed_scratch(dk_mixed *q, int which, size_t bytes);
/* A thread's own, for free(); or NULL likewise. */
void *dk_mixed_alloc(dk_mixed *q, size_t bytes);

/* out [a's rows, b's rows], f32, = a by b or, if `adds`, + that; with all threads. */
void dk_mixed_product_f32(dk_mixed *q, const dk_side *a, const dk_side *b, float *out, bool adds);
/* Strips of a side, with all threads. */
void dk_mixed_pack(dk_mixed *q, uint16_t *packed, const dk_side *side);

void dk_mixed_gemm(dk_queue *queue, const dk_gemm_args *args);
void dk_mixed_linear_forward(dk_queue *queue, float *out, const float *in, const float *weight,
		const float *bias, const float *residual, int64_t rows, int64_t inputs, int64_t outputs);
void dk_mixed_linear_backward_params(dk_queue *queue, float *dweight, float *dbias, const float *dout,
		const float *in, int64_t rows, int64_t inputs, int64_t outputs);
void dk_mixed_linear_backward_input(dk_queue *queue, float *din, const float *dout, const float *weight,
		int64_t rows, int64_t inputs, int64_t outputs);
void dk_mixed_embedding_forward(dk_queue *queue, float *out, const int32_t *tokens, const float *wte,
		const float *wpe, int64_t batch, int64_t length, int64_t width);
void dk_mixed_embedding_backward(dk_queue *queue, float *dwte, float *dwpe, const float *dout,
		const int32_t *tokens, int64_t batch, int64_t length, int64_t width);
void dk_mixed_layernorm_forward(dk_queue *queue, float *out, float *mean, float *rstd, const float *in,
		const float *gain, const float *bias, int64_t rows, int64_t width);
void dk_mixed_layernorm_backward(dk_queue *queue, float *din, float *dgain, float *dbias,
		const float *dout, const float *in, const float *mean, const float *rstd,
		const float *gain, int64_t rows, int64_t width);
void dk_mixed_gelu_forward(dk_queue *queue, float *out, const float *in, int64_t n);
void dk_mixed_gelu_backward(dk_queue *queue, float *grad, const float *in, int64_t n);
void dk_mixed_add(dk_queue *queue, float *out, const float *a, const float *b, int64_t n);
void dk_mixed_dropout(dk_queue *queue, float *out, const float *in, int64_t n, double probability,
		const dk_random *random, uint64_t ahead);
void dk_mixed_attention_forward(dk_queue *queue, float *out, float *lse, const float *qkv,
		int64_t batch, int64_t length, int64_t heads, int64_t width);
void dk_mixed_attention_backward(dk_queue *queue, float *dqkv, const float *dout, const float *qkv,
		const float *out, const float *lse, int64_t batch, int64_t length, int64_t heads,
		int64_t width);
double dk_mixed_classifier_forward(dk_queue *queue, float *work, const float *in, const float *weight,
		const int32_t *targets, int64_t rows, int64_t width, int64_t vocab);
void dk_mixed_classifier_backward(dk_queue *queue, float *din, float *dweight, float *work,
		const float *in, const float *weight, const int32_t *targets, int64_t rows,
		int64_t width, int64_t vocab);
