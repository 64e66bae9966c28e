/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention by blocks: a block of queries meets the keys in blocks, with
 * the softmax kept up to date as they pass (Milakov and Gimelshein, "Online
 * normalizer calculation for softmax", 2018; Dao et al., "FlashAttention",
 * NeurIPS 2022). Blocks above the diagonal are never computed, no matrix of
 * length x length exists, and scratch stays in the cache. Each (sample, head)
 * is one thread's.
 */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/numbers.h"

/* KEYS is a multiple of QUERIES: a block of queries that begins at or behind a
   block of keys sees at least the first of them. */
enum { QUERIES = 64, KEYS = 256 };

struct attention {
	float *new_out, *new_lse, *dqkv;
	const float *qkv, *out, *lse, *dout;
	int64_t length, heads, width;
	int64_t head;   /* a head's width */
	int64_t stride; /* of rows of qkv and dqkv */
	float scale;
};

/* Where one (sample, head) begins in qkv, out and lse, and in their gradients. */
struct head {
	int64_t q, k, v, out, lse;
};

static struct attention prepare(const float *qkv, int64_t length, int64_t heads, int64_t width)
{
	return (struct attention){.qkv = qkv, .length = length, .heads = heads, .width = width,
		.head = width / heads, .stride = 3 * width,
		.scale = 1 / sqrtf((float)(width / heads))};
}

static struct head locate(const struct attention *a, int64_t index)
{
	int64_t row = index / a->heads * a->length, column = index % a->heads * a->head;
	int64_t q = row * a->stride + column;

	return (struct head){.q = q, .k = q + a->width, .v = q + 2 * a->width,
		.out = row * a->width + column, .lse = index * a->length};
}

/* score [queries, KEYS] = q k^T */
static void scores(const struct attention *a, const struct head *h, float *score,
                   int64_t query, int64_t queries, int64_t key, int64_t keys)
{
	dk_cpu_gemm(&(dk_gemm_args){.transpose_b = true, .m = queries, .n = keys,
		.k = a->head, .a = a->qkv + h->q + query * a->stride, .lda = a->stride,
		.b = a->qkv + h->k + key * a->stride, .ldb = a->stride, .c = score,
		.ldc = KEYS});
}

struct running {
	float top[QUERIES], sum[QUERIES];
	float out[QUERIES * DK_HEAD_MAX];
};

/* Takes one block of keys into the running softmax; score becomes its
   probabilities, up to a factor per row. */
static void forward_rows(const struct attention *a, float *score, struct running *run,
                         int64_t query, int64_t queries, int64_t key, int64_t keys)
{
	const struct dk_inner *inner = dk_inner();

	for (int64_t r = 0; r < queries; r++, score += KEYS) {
		int64_t seen = dk_smaller(query + r - key + 1, keys);
		memset(score + seen, 0, (size_t)(keys - seen) * sizeof(float));
		float top = inner->highest(score, seen) * a->scale;
		if (key > 0 && top < run->top[r])
			top = run->top[r];
		float sum = inner->exp_row(score, seen, a->scale, top);
		if (key > 0) {
			float shrink = expf(run->top[r] - top);
			sum += run->sum[r] * shrink;
			inner->scale(run->out + r * a->head, a->head, shrink);
		}
		run->top[r] = top;
		run->sum[r] = sum;
	}
}

static void forward_queries(const struct attention *a, const struct head *h, int64_t query)
{
	_Alignas(64) float score[QUERIES * KEYS];
	struct running run;
	int64_t queries = dk_smaller(QUERIES, a->length - query);
	int64_t last = query + queries;

	for (int64_t key = 0; key < last; key += KEYS) {
		int64_t keys = dk_smaller(KEYS, last - key);
		scores(a, h, score, query, queries, key, keys);
		forward_rows(a, score, &run, query, queries, key, keys);
		dk_cpu_gemm(&(dk_gemm_args){.m = queries, .n = a->head, .k = keys, .a = score,
			.lda = KEYS, .b = a->qkv + h->v + key * a->stride, .ldb = a->stride,
			.beta = key > 0, .c = run.out, .ldc = a->head});
	}
	for (int64_t r = 0; r < queries; r++) {
		float *out = a->new_out + h->out + (query + r) * a->width;
		memcpy(out, run.out + r * a->head, (size_t)a->head * sizeof(float));
		dk_inner()->scale(out, a->head, 1 / run.sum[r]);
		a->new_lse[h->lse + query + r] = run.top[r] + logf(run.sum[r]);
	}
}

static void forward_span(void *arg, int64_t first, int64_t last)
{
	const struct attention *a = arg;

	for (int64_t i = first; i < last; i++) {
		struct head h = locate(a, i);
		for (int64_t query = 0; query < a->length; query += QUERIES)
			forward_queries(a, &h, query);
	}
}

void dk_cpu_attention_forward(float *out, float *lse, const float *qkv, int64_t batch,
                              int64_t length, int64_t heads, int64_t width)
{
	struct attention a = prepare(qkv, length, heads, width);

	a.new_out = out;
	a.new_lse = lse;
	dk_parallel(batch * heads, 1, forward_span, &a);
}

/* score -> probabilities, dprob -> gradient of q k^T */
static void backward_rows(const struct attention *a, const struct head *h, float *score,
                          float *dprob, int64_t query, int64_t queries, int64_t key,
                          int64_t keys)
{
	const struct dk_inner *inner = dk_inner();

	for (int64_t r = 0; r < queries; r++, score += KEYS, dprob += KEYS) {
		int64_t seen = dk_smaller(query + r - key + 1, keys);
		int64_t at = h->out + (query + r) * a->width;
		memset(score + seen, 0, (size_t)(keys - seen) * sizeof(float));
		memset(dprob + seen, 0, (size_t)(keys - seen) * sizeof(float));
		inner->exp_row(score, seen, a->scale, a->lse[h->lse + query + r]);
		float mean = inner->dot(a->dout + at, a->out + at, a->head);
		inner->softmax_grad(dprob, score, seen, mean, a->scale);
	}
}

static void backward_block(const struct attention *a, const struct head *h, int64_t query,
                           int64_t queries, int64_t key, int64_t keys)
{
	_Alignas(64) float score[QUERIES * KEYS], dprob[QUERIES * KEYS];
	const float *dout = a->dout + h->out + query * a->width;
	int64_t q = h->q + query * a->stride, k = h->k + key * a->stride;
	int64_t v = h->v + key * a->stride;

	scores(a, h, score, query, queries, key, keys);
	dk_cpu_gemm(&(dk_gemm_args){.transpose_b = true, .m = queries, .n = keys,
		.k = a->head, .a = dout, .lda = a->width, .b = a->qkv + v, .ldb = a->stride,
		.c = dprob, .ldc = KEYS});
	backward_rows(a, h, score, dprob, query, queries, key, keys);
	dk_cpu_gemm(&(dk_gemm_args){.transpose_a = true, .m = keys, .n = a->head,
		.k = queries, .a = score, .lda = KEYS, .b = dout, .ldb = a->width, .beta = 1,
		.c = a->dqkv + v, .ldc = a->stride});
	dk_cpu_gemm(&(dk_gemm_args){.transpose_a = true, .m = keys, .n = a->head,
		.k = queries, .a = dprob, .lda = KEYS, .b = a->qkv + q, .ldb = a->stride,
		.beta = 1, .c = a->dqkv + k, .ldc = a->stride});
	dk_cpu_gemm(&(dk_gemm_args){.m = queries, .n = a->head, .k = keys, .a = dprob,
		.lda = KEYS, .b = a->qkv + k, .ldb = a->stride, .beta = key > 0,
		.c = a->dqkv + q, .ldc = a->stride});
}

/* Keys outside, queries inside: a block of keys gathers from all its queries. */
static void backward_head(const struct attention *a, const struct head *h)
{
	size_t bytes = (size_t)a->head * sizeof(float);

	for (int64_t row = 0; row < a->length; row++) {
		memset(a->dqkv + h->k + row * a->stride, 0, bytes);
		memset(a->dqkv + h->v + row * a->stride, 0, bytes);
	}
	for (int64_t key = 0; key < a->length; key += KEYS)
		for (int64_t query = key; query < a->length; query += QUERIES) {
			int64_t queries = dk_smaller(QUERIES, a->length - query);
			int64_t keys = dk_smaller(KEYS, query + queries - key);
			backward_block(a, h, query, queries, key, keys);
		}
}

static void backward_span(void *arg, int64_t first, int64_t last)
{
	const struct attention *a = arg;

	for (int64_t i = first; i < last; i++) {
		struct head h = locate(a, i);
		backward_head(a, &h);
	}
}

void dk_cpu_attention_backward(float *dqkv, const float *dout, const float *qkv,
                               const float *out, const float *lse, int64_t batch,
                               int64_t length, int64_t heads, int64_t width)
{
	struct attention a = prepare(qkv, length, heads, width);

	a.out = out;
	a.lse = lse;
	a.dqkv = dqkv;
	a.dout = dout;
	dk_parallel(batch * heads, 1, backward_span, &a);
}
