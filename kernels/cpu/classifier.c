/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax cross-entropy over a large vocabulary. Logits come in tiles of TILE
   words by ROWS rows; each tile is turned into exponentials, relative to its
   own rows' maxima, while it is in the cache. So memory sees them twice: when
   forward leaves them, and when backward fetches a tile, turns it into
   gradients and multiplies it at once. */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/product.h"

enum { TILE = 1024, ROWS = 1024 };

struct classifier {
	float *exponentials; /* tile after tile, each [rows, its words] */
	float *tops;         /* [tiles, rows]; then the factor to probabilities */
	float *sums;         /* [tiles, rows] */
	float *picked;       /* [rows]: the targets' logits */
	const float *in, *weight;
	const int32_t *targets;
	int64_t rows, width, vocab, tiles;
	/* backward: */
	float *din, *dweight;
	int64_t tile;        /* the present one */
	bool scaled;         /* its exponentials have become the gradient of logits */
};

static struct classifier carve(float *work, const float *in, const float *weight,
                               const int32_t *targets, int64_t rows, int64_t width,
                               int64_t vocab)
{
	struct classifier c = {.exponentials = work, .in = in, .weight = weight,
		.targets = targets, .rows = rows, .width = width, .vocab = vocab,
		.tiles = (vocab + TILE - 1) / TILE};

	c.tops = c.exponentials + rows * vocab;
	c.sums = c.tops + c.tiles * rows;
	c.picked = c.sums + c.tiles * rows;
	return c;
}

size_t dk_classifier_work(int64_t rows, int64_t vocab)
{
	int64_t tiles = (vocab + TILE - 1) / TILE;

	return (size_t)(rows * vocab + 2 * tiles * rows + rows);
}

static int64_t tile_words(const struct classifier *c, int64_t tile)
{
	int64_t rest = c->vocab - tile * TILE;

	return rest < TILE ? rest : TILE;
}

static float *tile_rows(const struct classifier *c, int64_t tile, int64_t row)
{
	return c->exponentials + tile * TILE * c->rows + row * tile_words(c, tile);
}

/* Logits of rows from `row` on of one tile, which one thread computes. */
struct block {
	struct classifier *c;
	int64_t tile, row;
};

/* A row is complete with its last columns. */
static void logits_part(void *user, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
	const struct block *b = user;
	const struct classifier *c = b->c;
	const int64_t words = tile_words(c, b->tile), first = b->row + row;
	float *logits = tile_rows(c, b->tile, first);

	if (column + columns < words)
		return;
	for (int64_t r = first; r < first + rows; r++, logits += words) {
		int64_t target = c->targets[r] - b->tile * TILE;
		if (target >= 0 && target < words)
			c->picked[r] = logits[target];
		float *sum = c->sums + b->tile * c->rows + r;
		c->tops[b->tile * c->rows + r] = dk_inner()->softmax_row(logits, words, sum);
	}
}

static void forward_block(struct classifier *c, int64_t tile, int64_t first, int64_t last)
{
	const int64_t words = tile_words(c, tile);

	dk_cpu_product(&(dk_product_args){.gemm = {.transpose_b = true, .m = last - first, .n = words,
		.k = c->width, .a = c->in + first * c->width, .lda = c->width,
		.b = c->weight + tile * TILE * c->width, .ldb = c->width, .c = tile_rows(c, tile, first),
		.ldc = words}, .done = logits_part, .wide_parts = true, .user = &(struct block){c, tile, first}});
}

static void forward_span(void *arg, int64_t first, int64_t last)
{
	struct classifier *c = arg;
	int64_t blocks = (c->rows + ROWS - 1) / ROWS;

	for (int64_t i = first; i < last; i++) {
		int64_t row = i % blocks * ROWS;
		int64_t end = row + ROWS < c->rows ? row + ROWS : c->rows;
		forward_block(c, i / blocks, row, end);
	}
}

/* The row's log-sum-exp; leaves in tops [tiles, rows] what makes its tiles probabilities. */
double dk_join_tiles(float *tops, const float *sums, int64_t tiles, int64_t rows, int64_t row)
{
	float top = tops[row];
	double sum = 0;

	for (int64_t t = 1; t < tiles; t++)
		top = fmaxf(top, tops[t * rows + row]);
	for (int64_t t = 0; t < tiles; t++)
		sum += sums[t * rows + row] * exp(tops[t * rows + row] - top);
	for (int64_t t = 0; t < tiles; t++) {
		float *factor = tops + t * rows + row;
		*factor = (float)(exp(*factor - top) / sum);
	}
	return top + log(sum);
}

double dk_cpu_classifier_forward(float *work, const float *in, const float *weight,
                                 const int32_t *targets, int64_t rows, int64_t width,
                                 int64_t vocab)
{
	struct classifier c = carve(work, in, weight, targets, rows, width, vocab);
	double loss = 0;

	dk_parallel(c.tiles * ((rows + ROWS - 1) / ROWS), 1, forward_span, &c);
	for (int64_t r = 0; r < rows; r++)
		loss += dk_join_tiles(c.tops, c.sums, c.tiles, c.rows, r) - c.picked[r];
	return loss;
}

void dk_cpu_classifier_loss(double *loss, float *work, const float *in, const float *weight,
                            const int32_t *targets, int64_t rows, int64_t width, int64_t vocab)
{
	*loss += dk_cpu_classifier_forward(work, in, weight, targets, rows, width, vocab);
}

/* Is the row's target a word of the present tile? */
static bool is_target(const struct classifier *c, int64_t row)
{
	const int64_t target = c->targets[row] - c->tile * TILE;

	return target >= 0 && target < tile_words(c, c->tile);
}

/* Exponentials -> gradient of the logits: factors make them probabilities, and a target's is 1 less. */
static void gradient_span(void *arg, int64_t first, int64_t last)
{
	struct classifier *c = arg;
	int64_t words = tile_words(c, c->tile);

	for (int64_t r = first; r < last; r++) {
		float *row = tile_rows(c, c->tile, r);
		dk_inner()->scale(row, words, c->tops[c->tile * c->rows + r]);
		if (is_target(c, r))
			row[c->targets[r] - c->tile * TILE] -= 1;
	}
}

/* The 1 less at a target takes its weights off din: rows first .. last - 1. */
static void take_weights(void *arg, int64_t first, int64_t last)
{
	const struct classifier *c = arg;

	for (int64_t r = first; r < last; r++)
		if (is_target(c, r))
			dk_inner()->mix(c->din + r * c->width, c->weight + c->targets[r] * c->width, 1, -1, c->width);
}

/* The same in dweight: columns first .. last - 1, since a word may be the target of many rows. */
static void take_inputs(void *arg, int64_t first, int64_t last)
{
	const struct classifier *c = arg;

	for (int64_t r = 0; r < c->rows; r++)
		if (is_target(c, r))
			dk_inner()->mix(c->dweight + c->targets[r] * c->width + first, c->in + r * c->width + first, 1, -1,
			                last - first);
}

/* Multiplies by the gradient of the present tile's logits. The products make it of exponentials while they pack
   them, if they can; otherwise it replaces them. */
static void multiply_gradient(struct classifier *c, const dk_gemm_args *g, int64_t n, int64_t grain, dk_span_fn take)
{
	if (!c->scaled && dk_product(&(dk_product_args){.gemm = *g, .factors = c->tops + c->tile * c->rows})) {
		dk_parallel(n, grain, take, c);
		return;
	}
	if (!c->scaled)
		dk_parallel(c->rows, 16, gradient_span, c);
	c->scaled = true;
	dk_cpu_gemm(g);
}

void dk_cpu_classifier_backward(float *din, float *dweight, float *work, const float *in,
                                const float *weight, const int32_t *targets, int64_t rows,
                                int64_t width, int64_t vocab)
{
	struct classifier c = carve(work, in, weight, targets, rows, width, vocab);

	c.din = din;
	c.dweight = dweight;
	for (c.tile = 0; c.tile < c.tiles; c.tile++) {
		const int64_t words = tile_words(&c, c.tile);
		const dk_gemm_args to_input = {.m = rows, .n = width, .k = words, .a = tile_rows(&c, c.tile, 0), .lda = words,
			.b = weight + c.tile * TILE * width, .ldb = width, .beta = c.tile > 0, .c = din, .ldc = width};
		const dk_gemm_args to_weight = {.transpose_a = true, .m = words, .n = width, .k = rows,
			.a = tile_rows(&c, c.tile, 0), .lda = words, .b = in, .ldb = width, .beta = 1,
			.c = dweight + c.tile * TILE * width, .ldc = width};
		c.scaled = false;
		multiply_gradient(&c, &to_input, rows, 64, take_weights);
		multiply_gradient(&c, &to_weight, width, 64, take_inputs);
	}
}
