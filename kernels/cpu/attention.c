/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention by blocks: a block of queries meets the keys in blocks, with
   the softmax kept up to date as they pass (Milakov and Gimelshein, "Online
   normalizer calculation for softmax", 2018; Dao et al., "FlashAttention",
   NeurIPS 2022). Blocks above the diagonal are never computed, no matrix of
   length x length exists, and scratch stays in the cache. Each (sample, head)
   is one thread's. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/numbers.h"
#include "cpu/product.h"

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

/* One (sample, head) begins here in qkv, out and lse, and in their gradients. */
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

/* ---- products, whose right sides are packed once for several of them ---------------------- */

/* The products of one (sample, head) share these. Without memory, or a processor for it, all are NULL. */
struct packed {
	dk_scratch *scratch;
	float *k_down, *v_down;       /* of k^T and v^T: keys are columns */
	float *k_along, *v_along;     /* of k and v: keys are the depth */
	float *q_along, *dout_along;  /* the same of a block of queries */
	float *tiles;
};

static dk_scratch_pool scratches;

/* The next floats of the memory; without any, only counts. */
static float *carve(const struct packed *p, int64_t *used, int64_t floats)
{
	float *here = p->scratch != NULL ? p->scratch->x + *used : NULL;

	*used += dk_round_up(floats, 16);
	return here;
}

static int64_t panels_floats(int64_t columns, int64_t depth)
{
	return dk_round_up(columns, DK_PANEL) * depth;
}

/* Forward has all keys packed, backward a block of them. */
static int64_t lay_out(struct packed *p, const struct attention *a, bool backward)
{
	const int64_t keys = backward ? KEYS : dk_round_up(a->length, KEYS);
	int64_t used = 0;

	p->k_down = carve(p, &used, panels_floats(keys, a->head));
	p->v_along = backward ? NULL : carve(p, &used, panels_floats(a->head, keys));
	p->v_down = backward ? carve(p, &used, panels_floats(keys, a->head)) : NULL;
	p->k_along = backward ? carve(p, &used, panels_floats(a->head, keys)) : NULL;
	p->q_along = backward ? carve(p, &used, panels_floats(a->head, QUERIES)) : NULL;
	p->dout_along = backward ? carve(p, &used, panels_floats(a->head, QUERIES)) : NULL;
	p->tiles = carve(p, &used, dk_larger(DK_TILES_FLOATS(QUERIES, dk_larger(KEYS, a->head)),
		DK_TILES_FLOATS(KEYS, QUERIES)));
	return used;
}

static struct packed take_packed(const struct attention *a, bool backward)
{
	struct packed p = {.scratch = NULL};
	const int64_t floats = lay_out(&p, a, backward);

	if (dk_has_panels())
		p.scratch = dk_scratch_take(&scratches, floats);
	lay_out(&p, a, backward);
	return p;
}

static void give_packed(const struct packed *p)
{
	if (p->scratch != NULL)
		dk_scratch_give(&scratches, p->scratch);
}

/* Rows of `from` become columns of the right side. */
static void pack_down(float *to, const float *from, int64_t ld, int64_t rows, int64_t head)
{
	if (to != NULL)
		dk_pack_panels(to, &(dk_lines){.from = from, .ld = ld, .count = rows, .depth = head});
}

/* Rows of `from` become the depth. */
static void pack_along(float *to, const float *from, int64_t ld, int64_t rows, int64_t head)
{
	if (to != NULL)
		dk_pack_panels(to, &(dk_lines){.from = from, .ld = ld, .across = true, .count = head, .depth = rows});
}

/* `panels`, of so much depth, are what g->b becomes by one of these. */
static void multiply(const struct packed *p, const dk_gemm_args *g, const float *panels, int64_t depth)
{
	if (p->scratch != NULL)
		dk_product_by_panels(g, panels, depth * DK_PANEL, p->tiles);
	else
		dk_cpu_gemm(g);
}

/* score [queries, KEYS] = q k^T, or dout v^T: `down` has the packed keys. */
static void scores(const struct attention *a, const struct packed *p, float *score, const float *q, int64_t q_stride,
                   const float *k, const float *down, int64_t queries, int64_t keys)
{
	multiply(p, &(dk_gemm_args){.transpose_b = true, .m = queries, .n = keys, .k = a->head, .a = q, .lda = q_stride,
		.b = k, .ldb = a->stride, .c = score, .ldc = KEYS}, down, a->head);
}

/* ---- forward ------------------------------------------------------------------------------ */

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

/* Where a block of keys begins in panels of which keys are columns. */
static const float *keys_down(const struct attention *a, const float *panels, int64_t key)
{
	return panels != NULL ? panels + panels_floats(key, a->head) : NULL;
}

/* The same where they are the depth: each block of them has panels of its own. */
static float *keys_along(const struct attention *a, float *panels, int64_t key)
{
	return panels != NULL ? panels + panels_floats(a->head, key) : NULL;
}

static void forward_queries(const struct attention *a, const struct head *h, const struct packed *p, int64_t query)
{
	_Alignas(64) float score[QUERIES * KEYS];
	struct running run;
	int64_t queries = dk_smaller(QUERIES, a->length - query);
	int64_t last = query + queries;

	for (int64_t key = 0; key < last; key += KEYS) {
		int64_t keys = dk_smaller(KEYS, last - key);
		scores(a, p, score, a->qkv + h->q + query * a->stride, a->stride, a->qkv + h->k + key * a->stride,
		       keys_down(a, p->k_down, key), queries, keys);
		forward_rows(a, score, &run, query, queries, key, keys);
		multiply(p, &(dk_gemm_args){.m = queries, .n = a->head, .k = keys, .a = score, .lda = KEYS,
			.b = a->qkv + h->v + key * a->stride, .ldb = a->stride, .beta = key > 0, .c = run.out,
			.ldc = a->head}, keys_along(a, p->v_along, key), dk_smaller(KEYS, a->length - key));
	}
	for (int64_t r = 0; r < queries; r++) {
		float *out = a->new_out + h->out + (query + r) * a->width;
		memcpy(out, run.out + r * a->head, (size_t)a->head * sizeof(float));
		dk_inner()->scale(out, a->head, 1 / run.sum[r]);
		a->new_lse[h->lse + query + r] = run.top[r] + logf(run.sum[r]);
	}
}

static void forward_head(const struct attention *a, const struct head *h, const struct packed *p)
{
	pack_down(p->k_down, a->qkv + h->k, a->stride, a->length, a->head);
	for (int64_t key = 0; key < a->length; key += KEYS)
		pack_along(keys_along(a, p->v_along, key), a->qkv + h->v + key * a->stride, a->stride,
		           dk_smaller(KEYS, a->length - key), a->head);
	for (int64_t query = 0; query < a->length; query += QUERIES)
		forward_queries(a, h, p, query);
}

static void forward_span(void *arg, int64_t first, int64_t last)
{
	const struct attention *a = arg;
	const struct packed p = take_packed(a, false);

	for (int64_t i = first; i < last; i++) {
		struct head h = locate(a, i);
		forward_head(a, &h, &p);
	}
	give_packed(&p);
}

void dk_cpu_attention_forward(float *out, float *lse, const float *qkv, int64_t batch,
                              int64_t length, int64_t heads, int64_t width)
{
	struct attention a = prepare(qkv, length, heads, width);

	a.new_out = out;
	a.new_lse = lse;
	dk_parallel(batch * heads, 1, forward_span, &a);
}

/* ---- backward ----------------------------------------------------------------------------- */

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

static void backward_block(const struct attention *a, const struct head *h, const struct packed *p, int64_t query,
                           int64_t queries, int64_t key, int64_t keys)
{
	_Alignas(64) float score[QUERIES * KEYS], dprob[QUERIES * KEYS];
	const int64_t all = dk_smaller(KEYS, a->length - key); /* that are packed */
	const float *dout = a->dout + h->out + query * a->width;
	int64_t q = h->q + query * a->stride, k = h->k + key * a->stride;
	int64_t v = h->v + key * a->stride;

	scores(a, p, score, a->qkv + q, a->stride, a->qkv + k, p->k_down, queries, keys);
	scores(a, p, dprob, dout, a->width, a->qkv + v, p->v_down, queries, keys);
	backward_rows(a, h, score, dprob, query, queries, key, keys);
	pack_along(p->dout_along, dout, a->width, queries, a->head);
	multiply(p, &(dk_gemm_args){.transpose_a = true, .m = keys, .n = a->head, .k = queries, .a = score, .lda = KEYS,
		.b = dout, .ldb = a->width, .beta = 1, .c = a->dqkv + v, .ldc = a->stride}, p->dout_along, queries);
	pack_along(p->q_along, a->qkv + q, a->stride, queries, a->head);
	multiply(p, &(dk_gemm_args){.transpose_a = true, .m = keys, .n = a->head, .k = queries, .a = dprob, .lda = KEYS,
		.b = a->qkv + q, .ldb = a->stride, .beta = 1, .c = a->dqkv + k, .ldc = a->stride}, p->q_along, queries);
	multiply(p, &(dk_gemm_args){.m = queries, .n = a->head, .k = keys, .a = dprob, .lda = KEYS, .b = a->qkv + k,
		.ldb = a->stride, .beta = key > 0, .c = a->dqkv + q, .ldc = a->stride}, p->k_along, all);
}

/* Keys outside, queries inside: a block of keys gathers from all its queries. */
static void backward_head(const struct attention *a, const struct head *h, const struct packed *p)
{
	size_t bytes = (size_t)a->head * sizeof(float);

	for (int64_t row = 0; row < a->length; row++) {
		memset(a->dqkv + h->k + row * a->stride, 0, bytes);
		memset(a->dqkv + h->v + row * a->stride, 0, bytes);
	}
	for (int64_t key = 0; key < a->length; key += KEYS) {
		const int64_t all = dk_smaller(KEYS, a->length - key);
		const float *k = a->qkv + h->k + key * a->stride, *v = a->qkv + h->v + key * a->stride;
		pack_down(p->k_down, k, a->stride, all, a->head);
		pack_down(p->v_down, v, a->stride, all, a->head);
		pack_along(p->k_along, k, a->stride, all, a->head);
		for (int64_t query = key; query < a->length; query += QUERIES) {
			int64_t queries = dk_smaller(QUERIES, a->length - query);
			backward_block(a, h, p, query, queries, key, dk_smaller(KEYS, query + queries - key));
		}
	}
}

static void backward_span(void *arg, int64_t first, int64_t last)
{
	const struct attention *a = arg;
	const struct packed p = take_packed(a, true);

	for (int64_t i = first; i < last; i++) {
		struct head h = locate(a, i);
		backward_head(a, &h, &p);
	}
	give_packed(&p);
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
