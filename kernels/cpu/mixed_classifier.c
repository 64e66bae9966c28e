/* SPDX-License-Identifier: Apache-2.0 */
/* The classifier in bf16; see classifier.c. Logits are never rounded: a tile's, in f32,
   become exponentials, relative to its rows' maxima, and these are kept in bf16. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/mixed.h"

enum { TILE = 1024, ROWS = 128, LDC = TILE + 16 };

struct classifier {
	dk_mixed *q;
	uint16_t *exponentials; /* tile after tile, each [rows, its words] */
	float *tops;         /* [tiles, rows]; then the factor to probabilities */
	float *sums;         /* [tiles, rows] */
	float *picked;       /* [rows]: the targets' logits */
	const uint16_t *in, *weight, *packed;
	const int32_t *targets;
	int64_t rows, width, vocab, tiles;
	int64_t tile;        /* backward: the present one */
};

/* Carves the memory whose size dk_classifier_work() tells. Exponentials take half of it. */
static struct classifier carve(dk_queue *queue, float *work, const float *in, const float *weight,
                               const int32_t *targets, int64_t rows, int64_t width, int64_t vocab)
{
	struct classifier c = {.q = dk_mixed_of(queue), .exponentials = dk_narrow(work),
		.in = dk_narrow_const(in), .weight = dk_narrow_const(weight), .targets = targets,
		.rows = rows, .width = width, .vocab = vocab, .tiles = dk_ceil_div(vocab, TILE)};

	c.tops = work + (rows * vocab + 1) / 2;
	c.sums = c.tops + c.tiles * rows;
	c.picked = c.sums + c.tiles * rows;
	return c;
}

static int64_t tile_words(const struct classifier *c, int64_t tile)
{
	const int64_t rest = c->vocab - tile * TILE;

	return rest < TILE ? rest : TILE;
}

static uint16_t *tile_rows(const struct classifier *c, int64_t tile, int64_t row)
{
	return c->exponentials + tile * TILE * c->rows + row * tile_words(c, tile);
}

static void forward_rows(struct classifier *c, int64_t tile, int64_t row, int64_t rows, float *logits)
{
	const int64_t words = tile_words(c, tile);

	for (int64_t r = row; r < row + rows; r++, logits += LDC) {
		const int64_t target = c->targets[r] - tile * TILE;
		if (target >= 0 && target < words)
			c->picked[r] = logits[target];
		c->tops[tile * c->rows + r] = dk_inner()->softmax_row(logits, words, c->sums + tile * c->rows + r);
		dk_inner()->to_bf16(tile_rows(c, tile, r), logits, words);
	}
}

static void forward_span(void *arg, int64_t first, int64_t last)
{
	struct classifier *c = arg;
	const dk_bf16_set *set = c->q->set;
	const size_t packed_bytes = (size_t)dk_packed_size(TILE, c->width) * sizeof(uint16_t);

	float *logits = dk_mixed_alloc(c->q, ROWS * LDC * sizeof(*logits) + packed_bytes);
	if (logits == NULL)
		return;
	uint16_t *words = (uint16_t *)(void *)(logits + ROWS * LDC);
	if (set->begin != NULL)
		set->begin();
	for (int64_t tile = first; tile < last; tile++) {
		const int64_t strips = dk_strips(tile_words(c, tile));
		const dk_side side = {c->weight + tile * TILE * c->width, c->width, false, true,
			tile_words(c, tile), c->width};
		dk_pack(set, words, &side, 0, strips);
		for (int64_t row = 0; row < c->rows; row += ROWS) {
			const int64_t rows = c->rows - row < ROWS ? c->rows - row : ROWS;
			dk_multiply(set, logits, LDC, dk_range(c->packed, c->width, row / DK_STRIP, dk_strips(rows), 0),
			            dk_range(words, c->width, 0, strips, 0), dk_ceil_div(c->width, DK_DEPTH), false);
			forward_rows(c, tile, row, rows, logits);
		}
	}
	if (set->end != NULL)
		set->end();
	free(logits);
}

double dk_mixed_classifier_forward(dk_queue *queue, float *work, const float *in, const float *weight,
                                   const int32_t *targets, int64_t rows, int64_t width, int64_t vocab)
{
	struct classifier c = carve(queue, work, in, weight, targets, rows, width, vocab);
	const dk_side side = {c.in, width, false, false, rows, width};
	double loss = 0;

	uint16_t *packed = dk_mixed_scratch(c.q, 0, (size_t)dk_packed_size(rows, width) * sizeof(*packed));
	if (packed == NULL)
		return (double)NAN;
	dk_mixed_pack(c.q, packed, &side);
	c.packed = packed;
	dk_parallel(c.tiles, 1, forward_span, &c);
	for (int64_t r = 0; r < rows; r++)
		loss += dk_join_tiles(c.tops, c.sums, c.tiles, c.rows, r) - c.picked[r];
	return loss;
}

/* Exponentials -> gradient of the logits */
static void gradient_span(void *arg, int64_t first, int64_t last)
{
	struct classifier *c = arg;
	const int64_t words = tile_words(c, c->tile);

	for (int64_t r = first; r < last; r++) {
		uint16_t *row = tile_rows(c, c->tile, r);
		const int64_t target = c->targets[r] - c->tile * TILE;
		dk_inner()->scale_bf16(row, words, c->tops[c->tile * c->rows + r]);
		if (target >= 0 && target < words) {
			float x;
			dk_inner()->from_bf16(&x, row + target, 1);
			x -= 1;
			dk_inner()->to_bf16(row + target, &x, 1);
		}
	}
}

void dk_mixed_classifier_backward(dk_queue *queue, float *din, float *dweight, float *work,
                                  const float *in, const float *weight, const int32_t *targets,
                                  int64_t rows, int64_t width, int64_t vocab)
{
	struct classifier c = carve(queue, work, in, weight, targets, rows, width, vocab);

	float *sums = dk_mixed_scratch(c.q, 1, (size_t)(rows * width) * sizeof(*sums));
	if (sums == NULL)
		return;
	for (c.tile = 0; c.tile < c.tiles; c.tile++) {
		const int64_t words = tile_words(&c, c.tile);
		const uint16_t *grad = tile_rows(&c, c.tile, 0);
		const dk_side a = {grad, words, false, false, rows, words};
		const dk_side b = {c.weight + c.tile * TILE * width, width, true, true, width, words};
		const dk_side down = {grad, words, true, false, words, rows};
		const dk_side along = {c.in, width, true, true, width, rows};
		dk_parallel(rows, 16, gradient_span, &c);
		dk_mixed_product_f32(c.q, &a, &b, sums, c.tile > 0);
		dk_mixed_product_f32(c.q, &down, &along, dweight + c.tile * TILE * width, true);
	}
	dk_cpu_to_bf16(dk_narrow(din), sums, rows * width);
}
