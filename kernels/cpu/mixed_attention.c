/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention in bf16; see attention.c. Softmax, and all sums, are f32. A head's keys
   and values are packed once; blocks of queries meet them in blocks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/mixed.h"
#include "cpu/numbers.h"

/* KEYS is a multiple of QUERIES, and both of DK_BLOCK. */
enum { QUERIES = 64, KEYS = 256, SCORE = KEYS + 16 };

struct attention {
	dk_mixed *q;
	uint16_t *new_out, *dqkv;
	float *new_lse;
	const uint16_t *qkv, *out, *dout;
	const float *lse;
	int64_t length, heads, width;
	int64_t head;   /* a head's width */
	int64_t wide;   /* the same in whole strips: rows of the sums are as long */
	int64_t stride; /* of rows of qkv and dqkv */
	float scale;
};

/* One (sample, head) begins here in qkv, out and lse, and in their gradients. */
struct head {
	int64_t q, k, v, out, lse;
};

static struct attention prepare(dk_queue *queue, const float *qkv, int64_t length, int64_t heads,
                                int64_t width)
{
	const int64_t head = width / heads;

	return (struct attention){.q = dk_mixed_of(queue), .qkv = dk_narrow_const(qkv), .length = length,
		.heads = heads, .width = width, .head = head, .wide = dk_strips(head) * DK_STRIP,
		.stride = 3 * width, .scale = 1 / sqrtf((float)head)};
}

static struct head locate(const struct attention *a, int64_t index)
{
	const int64_t row = index / a->heads * a->length, column = index % a->heads * a->head;
	const int64_t q = row * a->stride + column;

	return (struct head){.q = q, .k = q + a->width, .v = q + 2 * a->width,
		.out = row * a->width + column, .lse = index * a->length};
}

/* A thread's memory, which it hands out. */
struct memory {
	char *next;
	size_t used; /* in all */
};

static void *carve(struct memory *m, size_t bytes)
{
	void *here = m->next;

	bytes = (bytes + 63) / 64 * 64;
	m->used += bytes;
	if (m->next != NULL)
		m->next += bytes;
	return here;
}

static uint16_t *carve_packed(struct memory *m, int64_t rows, int64_t depth)
{
	return carve(m, (size_t)dk_packed_size(rows, depth) * sizeof(uint16_t));
}

static void pack(const struct attention *a, uint16_t *packed, const uint16_t *from, int64_t ld, bool across,
                 bool pairs, int64_t rows, int64_t depth)
{
	const dk_side side = {from, ld, across, pairs, rows, depth};

	dk_pack(a->q->set, packed, &side, 0, dk_strips(rows));
}

/* The range of `rows` rows from `row` on, of a side that has `depth`. */
static dk_strip_range rows_of(const uint16_t *packed, int64_t depth, int64_t row, int64_t rows)
{
	return dk_range(packed, depth, row / DK_STRIP, dk_strips(rows), 0);
}

/* A head's width of a side that has `depth`, from `first` of it on. */
static dk_strip_range columns_of(const struct attention *a, const uint16_t *packed, int64_t depth,
                                 int64_t first)
{
	return dk_range(packed, depth, 0, dk_strips(a->head), first / DK_DEPTH);
}

/* [queries, SCORE] = one row of `left` by one of `right` */
static void dots(const struct attention *a, float *score, const uint16_t *left, int64_t queries,
                 const uint16_t *right, int64_t key, int64_t keys)
{
	dk_multiply(a->q->set, score, SCORE, rows_of(left, a->head, 0, queries),
	            rows_of(right, a->head, key, keys), dk_ceil_div(a->head, DK_DEPTH), false);
}

/* ---- forward ------------------------------------------------------------------------ */

struct forward {
	uint16_t *keys, *values;            /* packed, of a head */
	uint16_t *queries, *probabilities;  /* packed, of a block */
	uint16_t *rows;                     /* [QUERIES, KEYS]: rounded */
	float *score, *out;                 /* [QUERIES, SCORE], [QUERIES, wide] */
	float top[QUERIES], sum[QUERIES];
};

static size_t carve_forward(const struct attention *a, char *memory, struct forward *f)
{
	struct memory m = {memory, 0};

	f->keys = carve_packed(&m, a->length, a->head);
	f->values = carve_packed(&m, a->head, a->length);
	f->queries = carve_packed(&m, QUERIES, a->head);
	f->probabilities = carve_packed(&m, QUERIES, KEYS);
	f->rows = carve(&m, QUERIES * KEYS * sizeof(*f->rows));
	f->score = carve(&m, QUERIES * SCORE * sizeof(*f->score));
	f->out = carve(&m, QUERIES * (size_t)a->wide * sizeof(*f->out));
	return m.used;
}

/* Takes one block of keys into the running softmax; rows become its probabilities, up to
   a factor per row. */
static void forward_rows(const struct attention *a, struct forward *f, int64_t query, int64_t queries,
                         int64_t key, int64_t keys)
{
	const struct dk_inner *inner = dk_inner();

	for (int64_t r = 0; r < queries; r++) {
		const int64_t seen = dk_smaller(query + r - key + 1, keys);
		float *score = f->score + r * SCORE;
		memset(score + seen, 0, (size_t)(keys - seen) * sizeof(float));
		float top = inner->highest(score, seen) * a->scale;
		if (key > 0 && top < f->top[r])
			top = f->top[r];
		float sum = inner->exp_row(score, seen, a->scale, top);
		if (key > 0) {
			const float shrink = expf(f->top[r] - top);
			sum += f->sum[r] * shrink;
			inner->scale(f->out + r * a->wide, a->head, shrink);
		}
		f->top[r] = top;
		f->sum[r] = sum;
		inner->to_bf16(f->rows + r * KEYS, score, keys);
	}
}

static void forward_queries(const struct attention *a, const struct head *h, struct forward *f,
                            int64_t query)
{
	const int64_t queries = dk_smaller(QUERIES, a->length - query), last = query + queries;

	pack(a, f->queries, a->qkv + h->q + query * a->stride, a->stride, false, false, queries, a->head);
	for (int64_t key = 0; key < last; key += KEYS) {
		const int64_t keys = dk_smaller(KEYS, last - key);
		dots(a, f->score, f->queries, queries, f->keys, key, keys);
		forward_rows(a, f, query, queries, key, keys);
		pack(a, f->probabilities, f->rows, KEYS, false, false, queries, keys);
		dk_multiply(a->q->set, f->out, a->wide, rows_of(f->probabilities, keys, 0, queries),
		            columns_of(a, f->values, a->length, key), dk_ceil_div(keys, DK_DEPTH), key > 0);
	}
	for (int64_t r = 0; r < queries; r++) {
		dk_inner()->scale(f->out + r * a->wide, a->head, 1 / f->sum[r]);
		dk_inner()->to_bf16(a->new_out + h->out + (query + r) * a->width, f->out + r * a->wide, a->head);
		a->new_lse[h->lse + query + r] = f->top[r] + logf(f->sum[r]);
	}
}

static void forward_span(void *arg, int64_t first, int64_t last)
{
	const struct attention *a = arg;
	const dk_bf16_set *set = a->q->set;
	struct forward f;

	char *memory = dk_mixed_alloc(a->q, carve_forward(a, NULL, &f));
	if (memory == NULL)
		return;
	carve_forward(a, memory, &f);
	if (set->begin != NULL)
		set->begin();
	for (int64_t i = first; i < last; i++) {
		const struct head h = locate(a, i);
		pack(a, f.keys, a->qkv + h.k, a->stride, false, true, a->length, a->head);
		pack(a, f.values, a->qkv + h.v, a->stride, true, true, a->head, a->length);
		for (int64_t query = 0; query < a->length; query += QUERIES)
			forward_queries(a, &h, &f, query);
	}
	if (set->end != NULL)
		set->end();
	free(memory);
}

void dk_mixed_attention_forward(dk_queue *queue, float *out, float *lse, const float *qkv,
                                int64_t batch, int64_t length, int64_t heads, int64_t width)
{
	struct attention a = prepare(queue, qkv, length, heads, width);

	a.new_out = dk_narrow(out);
	a.new_lse = lse;
	dk_parallel(batch * heads, 1, forward_span, &a);
}

/* ---- backward ----------------------------------------------------------------------- */

struct backward {
	uint16_t *keys, *values, *keys_across;    /* packed, of a head; keys by their columns, too */
	uint16_t *queries, *douts;                /* packed, of a block, by rows */
	uint16_t *queries_across, *douts_across;  /* and by columns */
	uint16_t *left;                           /* packed: probabilities, or their gradients */
	uint16_t *probabilities, *dscores;        /* [QUERIES, KEYS]: rounded */
	float *score, *dprob;                     /* [QUERIES, SCORE] */
	float *dq, *dk, *dv;                      /* [QUERIES, wide], [length, wide] */
	float *dout_row, *out_row;                /* [head] */
	float mean[QUERIES];
};

static size_t carve_backward(const struct attention *a, char *memory, struct backward *b)
{
	const size_t row = (size_t)a->wide * sizeof(float);
	const size_t rows = (size_t)dk_strips(a->length) * DK_STRIP;
	struct memory m = {memory, 0};

	b->keys = carve_packed(&m, a->length, a->head);
	b->values = carve_packed(&m, a->length, a->head);
	b->keys_across = carve_packed(&m, a->head, a->length);
	b->queries = carve_packed(&m, QUERIES, a->head);
	b->douts = carve_packed(&m, QUERIES, a->head);
	b->queries_across = carve_packed(&m, a->head, QUERIES);
	b->douts_across = carve_packed(&m, a->head, QUERIES);
	b->left = carve_packed(&m, KEYS, KEYS);
	b->probabilities = carve(&m, QUERIES * KEYS * sizeof(uint16_t));
	b->dscores = carve(&m, QUERIES * KEYS * sizeof(uint16_t));
	b->score = carve(&m, QUERIES * SCORE * sizeof(float));
	b->dprob = carve(&m, QUERIES * SCORE * sizeof(float));
	b->dq = carve(&m, QUERIES * row);
	b->dk = carve(&m, rows * row);
	b->dv = carve(&m, rows * row);
	b->dout_row = carve(&m, row);
	b->out_row = carve(&m, row);
	return m.used;
}

/* score -> probabilities, dprob -> gradient of q k^T, both rounded */
static void backward_rows(const struct attention *a, const struct head *h, struct backward *b,
                          int64_t query, int64_t queries, int64_t key, int64_t keys)
{
	const struct dk_inner *inner = dk_inner();

	for (int64_t r = 0; r < queries; r++) {
		const int64_t seen = dk_smaller(query + r - key + 1, keys);
		float *score = b->score + r * SCORE, *dprob = b->dprob + r * SCORE;
		memset(score + seen, 0, (size_t)(keys - seen) * sizeof(float));
		memset(dprob + seen, 0, (size_t)(keys - seen) * sizeof(float));
		inner->exp_row(score, seen, a->scale, a->lse[h->lse + query + r]);
		inner->softmax_grad(dprob, score, seen, b->mean[r], a->scale);
		inner->to_bf16(b->probabilities + r * KEYS, score, keys);
		inner->to_bf16(b->dscores + r * KEYS, dprob, keys);
	}
}

/* to [keys, wide] += rows [queries, keys]^T by `right`, a block's, packed by columns */
static void add_to_keys(const struct attention *a, struct backward *b, float *to, const uint16_t *rows,
                        const uint16_t *right, int64_t queries, int64_t keys)
{
	pack(a, b->left, rows, KEYS, true, false, keys, queries);
	dk_multiply(a->q->set, to, a->wide, rows_of(b->left, queries, 0, keys),
	            columns_of(a, right, queries, 0), dk_ceil_div(queries, DK_DEPTH), true);
}

static void backward_block(const struct attention *a, const struct head *h, struct backward *b,
                           int64_t query, int64_t queries, int64_t key, int64_t keys)
{
	dots(a, b->score, b->queries, queries, b->keys, key, keys);
	dots(a, b->dprob, b->douts, queries, b->values, key, keys);
	backward_rows(a, h, b, query, queries, key, keys);
	add_to_keys(a, b, b->dv + key * a->wide, b->probabilities, b->douts_across, queries, keys);
	add_to_keys(a, b, b->dk + key * a->wide, b->dscores, b->queries_across, queries, keys);
	pack(a, b->left, b->dscores, KEYS, false, false, queries, keys);
	dk_multiply(a->q->set, b->dq, a->wide, rows_of(b->left, keys, 0, queries),
	            columns_of(a, b->keys_across, a->length, key), dk_ceil_div(keys, DK_DEPTH), key > 0);
}

static void backward_queries(const struct attention *a, const struct head *h, struct backward *b,
                             int64_t query)
{
	const int64_t queries = dk_smaller(QUERIES, a->length - query), last = query + queries;
	const uint16_t *q = a->qkv + h->q + query * a->stride, *dout = a->dout + h->out + query * a->width;
	const uint16_t *out = a->out + h->out + query * a->width;

	pack(a, b->queries, q, a->stride, false, false, queries, a->head);
	pack(a, b->queries_across, q, a->stride, true, true, a->head, queries);
	pack(a, b->douts, dout, a->width, false, false, queries, a->head);
	pack(a, b->douts_across, dout, a->width, true, true, a->head, queries);
	for (int64_t r = 0; r < queries; r++) {
		dk_inner()->from_bf16(b->dout_row, dout + r * a->width, a->head);
		dk_inner()->from_bf16(b->out_row, out + r * a->width, a->head);
		b->mean[r] = dk_inner()->dot(b->dout_row, b->out_row, a->head);
	}
	for (int64_t key = 0; key < last; key += KEYS)
		backward_block(a, h, b, query, queries, key, dk_smaller(KEYS, last - key));
	for (int64_t r = 0; r < queries; r++)
		dk_inner()->to_bf16(a->dqkv + h->q + (query + r) * a->stride, b->dq + r * a->wide, a->head);
}

static void backward_head(const struct attention *a, const struct head *h, struct backward *b)
{
	const size_t rows = (size_t)dk_strips(a->length) * DK_STRIP;

	pack(a, b->keys, a->qkv + h->k, a->stride, false, true, a->length, a->head);
	pack(a, b->values, a->qkv + h->v, a->stride, false, true, a->length, a->head);
	pack(a, b->keys_across, a->qkv + h->k, a->stride, true, true, a->head, a->length);
	memset(b->dk, 0, rows * (size_t)a->wide * sizeof(float));
	memset(b->dv, 0, rows * (size_t)a->wide * sizeof(float));
	for (int64_t query = 0; query < a->length; query += QUERIES)
		backward_queries(a, h, b, query);
	for (int64_t r = 0; r < a->length; r++) {
		dk_inner()->to_bf16(a->dqkv + h->k + r * a->stride, b->dk + r * a->wide, a->head);
		dk_inner()->to_bf16(a->dqkv + h->v + r * a->stride, b->dv + r * a->wide, a->head);
	}
}

static void backward_span(void *arg, int64_t first, int64_t last)
{
	const struct attention *a = arg;
	const dk_bf16_set *set = a->q->set;
	struct backward b;

	char *memory = dk_mixed_alloc(a->q, carve_backward(a, NULL, &b));
	if (memory == NULL)
		return;
	carve_backward(a, memory, &b);
	if (set->begin != NULL)
		set->begin();
	for (int64_t i = first; i < last; i++) {
		const struct head h = locate(a, i);
		backward_head(a, &h, &b);
	}
	if (set->end != NULL)
		set->end();
	free(memory);
}

void dk_mixed_attention_backward(dk_queue *queue, float *dqkv, const float *dout, const float *qkv,
                                 const float *out, const float *lse, int64_t batch, int64_t length,
                                 int64_t heads, int64_t width)
{
	struct attention a = prepare(queue, qkv, length, heads, width);

	a.out = dk_narrow_const(out);
	a.lse = lse;
	a.dqkv = dk_narrow(dqkv);
	a.dout = dk_narrow_const(dout);
	dk_parallel(batch * heads, 1, backward_span, &a);
}
