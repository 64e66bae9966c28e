/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/product.h"

#include "cpu/numbers.h"

#ifndef HAVE_AVX512_KERNELS
bool dk_product(const dk_gemm_args *args)
{
	(void)args;
	return false;
}
#else
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The threads together pack a part of b, of at most B_MAX floats. Then each one packs blocks of its own rows
   of a, which stay in the second cache while all panels of b pass. */
enum {
	DEPTH = 512,                          /* at most, of a tile and of a panel */
	BLOCK_ROWS = 19 * DK_TILE_ROWS,
	BLOCK_FLOATS = BLOCK_ROWS * DEPTH,
	B_MAX = 1 << 22,
	SLACK = DK_PANEL,
	TILES_MIN = 4, PANELS_MIN = 2,        /* of a thread */
	LEAST_SIDE = 32, LEAST_VOLUME = 1 << 20
};

struct product {
	const dk_gemm_args *g;
	int64_t first, depth;     /* of k, what is multiplied now */
	int64_t column, columns;  /* the same of n */
	int64_t down, along;      /* c is cut into so many parts each way */
	float *b;                 /* for each DEPTH of the depth all its panels */
	float *a;                 /* for each part of c its block */
	int64_t block_floats;
};

/* ---- memory that is kept from one product to the next ---------------------------------- */

struct memory {
	int64_t floats;
	float *x;
};

enum { KEPT = 128 };
static _Atomic(struct memory *) kept[KEPT];

static void drop(struct memory *m)
{
	if (m != NULL)
		free(m->x);
	free(m);
}

static struct memory *make(int64_t floats)
{
	enum { HUGE = 2 << 20, LINE = 64 };
	const size_t bytes = (size_t)dk_round_up(floats * (int64_t)sizeof(float), HUGE);
	struct memory *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	m->floats = (int64_t)(bytes / sizeof(float));
	m->x = aligned_alloc(HUGE, bytes);
	if (m->x != NULL) {
		madvise(m->x, bytes, MADV_HUGEPAGE);
		return m;
	}
	drop(m);
	return NULL;
}

static struct memory *take(int64_t floats)
{
	for (int i = 0; i < KEPT; i++) {
		struct memory *m = atomic_load(&kept[i]) != NULL ? atomic_exchange(&kept[i], NULL) : NULL;
		if (m != NULL && m->floats >= floats)
			return m;
		drop(m);
	}
	return make(floats);
}

static void give(struct memory *m)
{
	for (int i = 0; i < KEPT; i++) {
		struct memory *none = NULL;
		if (atomic_compare_exchange_strong(&kept[i], &none, m))
			return;
	}
	drop(m);
}

/* ---- packing ------------------------------------------------------------------------- */

/* The depth is cut into equal steps. */
static int64_t depth_step(int64_t depth)
{
	enum { EVEN = 16 };

	return depth > 0 ? dk_round_up(dk_ceil_div(depth, dk_ceil_div(depth, DEPTH)), EVEN) : DEPTH;
}

/* Where panel `panel` begins of the step of the depth that begins at k, and is `deep`. */
static float *panel_at(const struct product *p, int64_t k, int64_t deep, int64_t panel)
{
	return p->b + k * dk_round_up(p->columns, DK_PANEL) + panel * deep * DK_PANEL;
}

static void pack_b(void *arg, int64_t first, int64_t last)
{
	const struct product *p = arg;
	const dk_gemm_args *g = p->g;
	const int64_t step = depth_step(p->depth), line = p->column + first * DK_PANEL;

	for (int64_t k = 0; k < p->depth; k += step) {
		const int64_t deep = dk_smaller(step, p->depth - k), at = p->first + k;
		dk_pack_panels_avx512(panel_at(p, k, deep, first), &(dk_lines){
			.from = g->b + (g->transpose_b ? line * g->ldb + at : at * g->ldb + line), .ld = g->ldb,
			.across = !g->transpose_b, .depth = deep,
			.count = dk_smaller(p->columns, last * DK_PANEL) - first * DK_PANEL});
	}
}

static void pack_a(const struct product *p, float *to, int64_t row, int64_t rows, int64_t k, int64_t deep)
{
	const dk_gemm_args *g = p->g;
	const int64_t at = p->first + k;

	dk_pack_tiles_avx512(to, &(dk_lines){
		.from = g->a + (g->transpose_a ? at * g->lda + row : row * g->lda + at), .ld = g->lda,
		.across = g->transpose_a, .depth = deep, .count = rows});
}

/* ---- multiplying --------------------------------------------------------------------- */

/* A block of a by panels [first, last). While a panel is used, the next one is fetched. */
static void multiply_block(const struct product *p, const float *a, int64_t row, int64_t rows, int64_t k,
                           int64_t deep, int64_t first, int64_t last)
{
	enum { LINE = 16 };
	const int64_t tiles = dk_ceil_div(rows, DK_TILE_ROWS), lines = dk_ceil_div(deep * DK_PANEL / LINE, tiles);
	const dk_gemm_args *g = p->g;

	for (int64_t j = first; j < last; j++) {
		const int64_t column = j * DK_PANEL;
		const float *b = panel_at(p, k, deep, j);
		dk_piece piece = {.b = b, .depth = deep, .ldc = g->ldc, .columns = p->columns - column,
			.beta = p->first + k > 0 ? 1 : g->beta, .next_lines = j + 1 < last ? lines : 0};
		for (int64_t i = 0; i < tiles; i++) {
			const int64_t at = i * DK_TILE_ROWS;
			piece.a = a + at * deep;
			piece.c = g->c + (row + at) * g->ldc + p->column + column;
			piece.rows = dk_smaller(DK_TILE_ROWS, rows - at);
			piece.next = b + deep * DK_PANEL + i * lines * LINE;
			dk_multiply_avx512(&piece);
		}
	}
}

static void multiply_part(const struct product *p, int64_t part)
{
	const int64_t down = part % p->down, along = part / p->down, step = depth_step(p->depth);
	const int64_t row = p->g->m * down / p->down, end = p->g->m * (down + 1) / p->down;
	const int64_t panels = dk_ceil_div(p->columns, DK_PANEL);
	const int64_t first = panels * along / p->along, last = panels * (along + 1) / p->along;
	const int64_t at_once = dk_round_up(dk_ceil_div(end - row, dk_ceil_div(end - row, BLOCK_ROWS)), DK_TILE_ROWS);
	float *a = p->a + part * p->block_floats;

	for (int64_t r = row; r < end; r += at_once) {
		const int64_t rows = dk_smaller(at_once, end - r);
		for (int64_t k = 0; k < p->depth; k += step) {
			const int64_t deep = dk_smaller(step, p->depth - k);
			pack_a(p, a, r, rows, k, deep);
			multiply_block(p, a, r, rows, k, deep, first, last);
		}
	}
}

static void multiply_span(void *arg, int64_t first, int64_t last)
{
	for (int64_t i = first; i < last; i++)
		multiply_part(arg, i);
}

/* Rows are cut first: whoever cuts columns packs a twice. */
static void cut(struct product *p, int64_t threads)
{
	const int64_t tiles = dk_ceil_div(p->g->m, DK_TILE_ROWS), panels = dk_ceil_div(p->columns, DK_PANEL);

	p->down = threads;
	while (p->down > 1 && (threads % p->down != 0 || tiles / p->down < TILES_MIN))
		p->down--;
	p->along = threads / p->down;
	while (p->along > 1 && panels / p->along < PANELS_MIN)
		p->along--;
}

static int64_t block_floats(const dk_gemm_args *g)
{
	return dk_smaller(dk_round_up(g->m, DK_TILE_ROWS), BLOCK_ROWS) * dk_smaller(dk_round_up(g->k, DK_PANEL), DEPTH) + SLACK;
}

/* Parts of b follow one another, if b is large. */
static void run(struct product *p, int64_t columns, int64_t depth)
{
	const dk_gemm_args *g = p->g;

	for (p->column = 0; p->column < g->n; p->column += columns) {
		p->columns = dk_smaller(columns, g->n - p->column);
		for (p->first = 0; p->first < g->k; p->first += depth) {
			p->depth = dk_smaller(depth, g->k - p->first);
			dk_parallel(dk_ceil_div(p->columns, DK_PANEL), 1, pack_b, p);
			dk_parallel(p->down * p->along, 1, multiply_span, p);
		}
	}
}

/* Small ones, of one thread, need no memory. */
static bool run_small(struct product *p, int64_t b_floats)
{
	enum { STACK = 40 << 10 };
	_Alignas(64) float packed[STACK];

	if (p->down * p->along > 1 || b_floats + p->block_floats > STACK)
		return false;
	p->b = packed;
	p->a = packed + b_floats;
	run(p, p->g->n, p->g->k);
	return true;
}

static bool run_large(struct product *p, int64_t b_floats, int64_t columns, int64_t depth)
{
	struct memory *m = take(b_floats + p->down * p->along * p->block_floats);

	if (m == NULL)
		return false;
	p->b = m->x;
	p->a = m->x + b_floats;
	run(p, columns, depth);
	give(m);
	return true;
}

static bool worth(const dk_gemm_args *g)
{
	return g->m >= LEAST_SIDE && g->n >= LEAST_SIDE && g->k >= LEAST_SIDE &&
		(double)g->m * (double)g->n * (double)g->k >= LEAST_VOLUME && __builtin_cpu_supports("avx512f");
}

bool dk_product(const dk_gemm_args *args)
{
	if (!worth(args))
		return false;
	const int64_t depth = dk_smaller(args->k, B_MAX / DK_PANEL / 16);
	const int64_t columns = dk_smaller(args->n, B_MAX / depth / DK_PANEL * DK_PANEL);
	struct product p = {.g = args, .columns = columns, .block_floats = block_floats(args)};
	const int64_t b_floats = dk_round_up(columns, DK_PANEL) * depth + SLACK;

	cut(&p, dk_threads());
	return run_small(&p, b_floats) || run_large(&p, b_floats, columns, depth);
}
#endif
