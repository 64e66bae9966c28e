/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/mixed.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/numbers.h"

/* ---- memory ------------------------------------------------------------------------- */

static void keep_failure(dk_mixed *q, const char *why)
{
	const char *none = NULL;

	atomic_compare_exchange_strong(&q->failure, &none, why);
}

void *dk_mixed_alloc(dk_mixed *q, size_t bytes)
{
	enum { ALIGN = 64 };

	void *memory = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
	if (memory == NULL)
		keep_failure(q, "the kernels ran out of memory for operands in 16 bits");
	return memory;
}

void *dk_mixed_scratch(dk_mixed *q, int which, size_t bytes)
{
	if (bytes <= q->bytes[which])
		return q->memory[which];
	free(q->memory[which]);
	q->bytes[which] = 0;
	q->memory[which] = dk_mixed_alloc(q, bytes);
	if (q->memory[which] != NULL)
		q->bytes[which] = bytes;
	return q->memory[which];
}

/* ---- products ----------------------------------------------------------------------- */

/* A thread computes so much of c at a time, so that the parts of a and b that it needs stay in the second cache. */
enum { ROWS = 128, COLUMNS = 256, LDC = COLUMNS + 16 };

/* The result goes here. */
struct result {
	uint16_t *narrow; /* or NULL: `wide` */
	float *wide;
	int64_t ld;
	const uint16_t *bias, *residual; /* or NULL */
	float beta;                      /* of what was there; of `wide` 0 or 1 */
};

struct product {
	const dk_bf16_set *set;
	const dk_side *a, *b;
	const uint16_t *packed_a; /* NULL: a is used where it lies */
	const uint16_t *packed_b;
	const struct result *to;
};

struct packing {
	const dk_bf16_set *set;
	const dk_side *side;
	uint16_t *packed;
};

static void pack_span(void *arg, int64_t first, int64_t last)
{
	const struct packing *p = arg;

	dk_pack(p->set, p->packed, p->side, first, last);
}

void dk_mixed_pack(dk_mixed *q, uint16_t *packed, const dk_side *side)
{
	dk_parallel(dk_strips(side->rows), 2, pack_span,
	            &(struct packing){.set = q->set, .side = side, .packed = packed});
}

static void finish_f32(const struct result *to, const float *c, int64_t ldc, int64_t row, int64_t rows,
                       int64_t column, int64_t columns)
{
	for (int64_t r = 0; r < rows; r++, c += ldc) {
		float *out = to->wide + (row + r) * to->ld + column;
		if (to->beta != 0)
			dk_inner()->add(out, out, c, columns);
		else
			memcpy(out, c, (size_t)columns * sizeof(*c));
	}
}

static void finish_bf16(const struct result *to, const float *c, int64_t ldc, int64_t row, int64_t rows,
                        int64_t column, int64_t columns)
{
	float bias[COLUMNS], sum[COLUMNS], before[COLUMNS];

	if (to->bias != NULL)
		dk_inner()->from_bf16(bias, to->bias + column, columns);
	for (int64_t r = 0; r < rows; r++, c += ldc) {
		const int64_t at = (row + r) * to->ld + column;
		const float *out = c;
		if (to->bias != NULL) {
			dk_inner()->add(sum, out, bias, columns);
			out = sum;
		}
		if (to->residual != NULL || to->beta != 0) {
			dk_inner()->from_bf16(before, (to->residual != NULL ? to->residual : to->narrow) + at, columns);
			if (to->residual == NULL)
				dk_inner()->scale(before, columns, to->beta);
			dk_inner()->add(sum, out, before, columns);
			out = sum;
		}
		dk_inner()->to_bf16(to->narrow + at, out, columns);
	}
}

/* Block by block, each of which is finished in the first cache. */
static void product_in_place(const struct product *p, int64_t row, int64_t column, dk_strip_range a,
                             dk_strip_range b, int64_t tiles)
{
	_Alignas(64) float c[DK_BLOCK * DK_BLOCK], bias[COLUMNS];
	const struct result *to = p->to;
	const uint16_t *before = to->residual != NULL ? to->residual : to->beta != 0 ? to->narrow : NULL;
	const float beta = to->residual != NULL ? 1 : to->beta;

	if (to->bias != NULL)
		dk_inner()->from_bf16(bias, to->bias + column, b.count * DK_STRIP);
	for (int64_t j = 0; j < b.count; j += 2) {
		const dk_strip_range right = {b.first + j * b.next, 2, b.next, b.tile, b.row};
		for (int64_t i = 0; i < a.count; i += 2) {
			const dk_strip_range left = {a.first + i * a.next, 2, a.next, a.tile, a.row};
			const int64_t at = (row + i * DK_STRIP) * to->ld + column + j * DK_STRIP;
			for (int64_t r = 0; r < DK_BLOCK; r++) {
				__builtin_prefetch(to->narrow + at + r * to->ld, 1);
				if (to->residual != NULL)
					__builtin_prefetch(to->residual + at + r * to->ld);
			}
			dk_multiply(p->set, c, DK_BLOCK, left, right, tiles, false);
			p->set->narrow(to->narrow + at, to->ld, c, to->bias != NULL ? bias + j * DK_STRIP : NULL,
			               before != NULL ? before + at : NULL, beta);
		}
	}
}

static void product_block(const struct product *p, int64_t row, int64_t column)
{
	_Alignas(64) float c[ROWS * LDC];
	const int64_t rows = dk_smaller(ROWS, p->a->rows - row), columns = dk_smaller(COLUMNS, p->b->rows - column);
	const int64_t depth = p->a->depth, tiles = dk_ceil_div(depth, DK_DEPTH);
	const dk_strip_range a = p->packed_a == NULL
		? dk_range_in_place(p->a, row / DK_STRIP, dk_strips(rows))
		: dk_range(p->packed_a, depth, row / DK_STRIP, dk_strips(rows), 0);
	const dk_strip_range b = dk_range(p->packed_b, depth, column / DK_STRIP, dk_strips(columns), 0);
	const struct result *to = p->to;
	const bool in_place = p->set->in_place && rows % DK_BLOCK == 0 && columns % DK_BLOCK == 0;

	if (in_place && to->wide != NULL) {
		dk_multiply(p->set, to->wide + row * to->ld + column, to->ld, a, b, tiles, to->beta != 0);
	} else if (in_place) {
		product_in_place(p, row, column, a, b, tiles);
	} else {
		dk_multiply(p->set, c, LDC, a, b, tiles, false);
		if (to->wide != NULL)
			finish_f32(to, c, LDC, row, rows, column, columns);
		else
			finish_bf16(to, c, LDC, row, rows, column, columns);
	}
}

static void product_span(void *arg, int64_t first, int64_t last)
{
	const struct product *p = arg;
	const int64_t down = dk_ceil_div(p->a->rows, ROWS);

	if (p->set->begin != NULL)
		p->set->begin();
	for (int64_t i = first; i < last; i++)
		product_block(p, i % down * ROWS, i / down * COLUMNS);
	if (p->set->end != NULL)
		p->set->end();
}

static void product(dk_mixed *q, const dk_side *a, const dk_side *b, const struct result *to)
{
	const bool in_place = q->set->in_place && dk_lies_in_strips(a);
	const int64_t size_a = in_place ? 0 : dk_packed_size(a->rows, a->depth);
	const int64_t size_b = dk_packed_size(b->rows, b->depth);

	uint16_t *packed = dk_mixed_scratch(q, 0, (size_t)(size_a + size_b) * sizeof(*packed));
	if (packed == NULL)
		return;
	struct product p = {.set = q->set, .a = a, .b = b, .packed_a = in_place ? NULL : packed,
		.packed_b = packed + size_a, .to = to};
	if (!in_place)
		dk_mixed_pack(q, packed, a);
	dk_mixed_pack(q, packed + size_a, b);
	dk_parallel(dk_ceil_div(a->rows, ROWS) * dk_ceil_div(b->rows, COLUMNS), 1, product_span, &p);
}

void dk_mixed_product_f32(dk_mixed *q, const dk_side *a, const dk_side *b, float *out, bool adds)
{
	product(q, a, b, &(struct result){.wide = out, .ld = b->rows, .beta = adds});
}

void dk_mixed_gemm(dk_queue *queue, const dk_gemm_args *g)
{
	const dk_side a = {dk_narrow_const(g->a), g->lda, g->transpose_a, false, g->m, g->k};
	const dk_side b = {dk_narrow_const(g->b), g->ldb, !g->transpose_b, true, g->n, g->k};

	product(dk_mixed_of(queue), &a, &b,
	        &(struct result){.narrow = dk_narrow(g->c), .ld = g->ldc, .beta = g->beta});
}

void dk_mixed_linear_forward(dk_queue *queue, float *out, const float *in, const float *weight,
                             const float *bias, const float *residual, int64_t rows, int64_t inputs,
                             int64_t outputs)
{
	const dk_side a = {dk_narrow_const(in), inputs, false, false, rows, inputs};
	const dk_side b = {dk_narrow_const(weight), outputs, true, true, outputs, inputs};

	product(dk_mixed_of(queue), &a, &b,
	        &(struct result){.narrow = dk_narrow(out), .ld = outputs,
		.bias = dk_narrow_const(bias), .residual = dk_narrow_const(residual)});
}

void dk_mixed_linear_backward_input(dk_queue *queue, float *din, const float *dout, const float *weight,
                                    int64_t rows, int64_t inputs, int64_t outputs)
{
	const dk_side a = {dk_narrow_const(dout), outputs, false, false, rows, outputs};
	const dk_side b = {dk_narrow_const(weight), outputs, false, true, inputs, outputs};

	product(dk_mixed_of(queue), &a, &b,
	        &(struct result){.narrow = dk_narrow(din), .ld = inputs});
}
