/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/product.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cpu/numbers.h"

/* ---- memory to work in ------------------------------------------------------------ */

static void drop(dk_scratch *s)
{
	if (s != NULL)
		free(s->x);
	free(s);
}

static dk_scratch *make(int64_t floats)
{
	enum { HUGE_PAGE = 2 << 20 };
	const size_t bytes = (size_t)dk_round_up(floats * (int64_t)sizeof(float), HUGE_PAGE);
	dk_scratch *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->floats = (int64_t)(bytes / sizeof(float));
	s->x = aligned_alloc(HUGE_PAGE, bytes);
	if (s->x != NULL) {
		madvise(s->x, bytes, MADV_HUGEPAGE);
		return s;
	}
	drop(s);
	return NULL;
}

dk_scratch *dk_scratch_take(dk_scratch_pool *pool, int64_t floats)
{
	for (int i = 0; i < DK_SCRATCH_KEPT; i++) {
		dk_scratch *s = atomic_load(&pool->kept[i]) != NULL ? atomic_exchange(&pool->kept[i], NULL) : NULL;
		if (s != NULL && s->floats >= floats)
			return s;
		drop(s);
	}
	return make(floats);
}

void dk_scratch_give(dk_scratch_pool *pool, dk_scratch *scratch)
{
	for (int i = 0; i < DK_SCRATCH_KEPT; i++) {
		dk_scratch *none = NULL;
		if (atomic_compare_exchange_strong(&pool->kept[i], &none, scratch))
			return;
	}
	drop(scratch);
}

/* ---- products ---------------------------------------------------------------------- */

#ifndef HAVE_AVX512_KERNELS
bool dk_has_panels(void)
{
	return false;
}

bool dk_product(const dk_product_args *args)
{
	(void)args;
	return false;
}

void dk_pack_panels(float *panels, const dk_lines *lines)
{
	(void)panels;
	(void)lines;
}

void dk_product_by_panels(const dk_gemm_args *g, const float *panels, int64_t step, float *tiles)
{
	(void)g;
	(void)panels;
	(void)step;
	(void)tiles;
}
#else
/* The threads together pack a part of b, of at most B_MAX floats. Then each one packs blocks of its own rows
   of a, which stay in the second cache while all panels of b pass. A thread that is done with its own rows takes
   some of another one's: cores are not equally fast at each moment. */
enum {
	DEPTH = 512,                          /* at most, of a tile and of a panel */
	BLOCK_ROWS = 19 * DK_TILE_ROWS,
	BLOCK_FLOATS = BLOCK_ROWS * DEPTH,
	B_MAX = 1 << 22,
	SLACK = DK_PANEL,
	TILES_MIN = 4, PANELS_MIN = 2,        /* of a thread */
	TILES_LAST = 6,                       /* of a block of a thread's own, while so many are left: all panels pass each anew */
	TILES_TAKEN = 4,                      /* of another thread's, at once */
	GROUP = 16,                           /* panels, of which done() gets a part */
	NEAR_FLOATS = 1 << 17,                /* of a wide part, that are in the second cache still when done() gets it */
	LEAST_SIDE = 32, LEAST_VOLUME = 1 << 20
};

/* Tiles of a part of c that nobody multiplies yet: the first one's number in the upper half, the end in the lower. */
struct share {
	_Alignas(64) _Atomic uint64_t rest;
};

struct product {
	const dk_gemm_args *g;
	const dk_product_args *all;
	int64_t first, depth;     /* of k, what is multiplied now */
	int64_t column, columns;  /* the same of n */
	int64_t down, along;      /* c is cut into so many parts each way */
	float *b;                 /* for each DEPTH of the depth all its panels */
	float *a;                 /* for each part of c its block */
	int64_t block_floats;
	struct share *shares;     /* one for each part of c */
};

static dk_scratch_pool scratches;

/* ---- packing ------------------------------------------------------------------------- */

/* The depth is cut into equal steps. */
static int64_t depth_step(int64_t depth)
{
	enum { EVEN = 16 };

	return depth > 0 ? dk_round_up(dk_ceil_div(depth, dk_ceil_div(depth, DEPTH)), EVEN) : DEPTH;
}

/* Returns where panel `panel` begins in the step of the depth that begins at k and is `deep`. */
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
			.count = dk_smaller(p->columns, last * DK_PANEL) - first * DK_PANEL,
			.sums = p->all->sums != NULL ? p->all->sums + line : NULL});
	}
}

static void pack_a(const struct product *p, float *to, int64_t row, int64_t rows, int64_t k, int64_t deep)
{
	const dk_gemm_args *g = p->g;
	const float *factors = p->all->factors;
	const int64_t at = p->first + k;

	dk_pack_tiles_avx512(to, &(dk_lines){
		.from = g->a + (g->transpose_a ? at * g->lda + row : row * g->lda + at), .ld = g->lda,
		.across = g->transpose_a, .depth = deep, .count = rows,
		.factors = factors != NULL ? factors + (g->transpose_a ? at : row) : NULL});
}

/* ---- multiplying --------------------------------------------------------------------- */

/* Panels [first, last) of c, and these rows, are complete. */
static void tell(const struct product *p, int64_t row, int64_t rows, int64_t first, int64_t last)
{
	const int64_t columns = dk_smaller(last * DK_PANEL, p->columns) - first * DK_PANEL;

	p->all->done(p->all->user, row, rows, p->column + first * DK_PANEL, columns);
}

/* A block of a by panels [first, last). While a panel is used, the next one is fetched. */
static void multiply_block(const struct product *p, const float *a, int64_t row, int64_t rows, int64_t k,
                           int64_t deep, int64_t first, int64_t last)
{
	enum { LINE = 16 };
	const int64_t tiles = dk_ceil_div(rows, DK_TILE_ROWS), lines = dk_ceil_div(deep * DK_PANEL / LINE, tiles);
	const dk_gemm_args *g = p->g;
	const bool begins = p->first + k == 0;
	const float *bias = begins ? p->all->bias : NULL, *residual = begins ? p->all->residual : NULL;
	const bool tells = p->all->done != NULL && p->first + k + deep == g->k;
	const int64_t at_once = p->all->wide_parts ? last - first : GROUP;

	for (int64_t j = first; j < last; j++) {
		const int64_t column = p->column + j * DK_PANEL;
		const float *b = panel_at(p, k, deep, j);
		dk_piece piece = {.b = b, .depth = deep, .ldc = g->ldc, .columns = p->column + p->columns - column,
			.beta = begins ? g->beta : 1, .bias = bias != NULL ? bias + column : NULL,
			.next_lines = j + 1 < last ? lines : 0};
		for (int64_t i = 0; i < tiles; i++) {
			const int64_t at = i * DK_TILE_ROWS, place = (row + at) * g->ldc + column;
			piece.a = a + at * deep;
			piece.c = g->c + place;
			piece.residual = residual != NULL ? residual + place : NULL;
			piece.rows = dk_smaller(DK_TILE_ROWS, rows - at);
			piece.next = b + deep * DK_PANEL + i * lines * LINE;
			dk_multiply_avx512(&piece);
		}
		if (tells && ((j + 1 - first) % at_once == 0 || j + 1 == last))
			tell(p, row, rows, j - (j - first) % at_once, j + 1);
	}
}

/* Tiles of a block: few enough that their part of c is near when it is complete. */
static int64_t tiles_at_once(const struct product *p, int64_t tiles, int64_t columns)
{
	const int64_t near = NEAR_FLOATS / dk_larger(columns, 1) / DK_TILE_ROWS, all = BLOCK_ROWS / DK_TILE_ROWS;
	const int64_t most = p->all->wide_parts ? dk_larger(TILES_MIN, dk_smaller(near, all)) : all;

	return dk_ceil_div(tiles, dk_ceil_div(tiles, most));
}

static uint64_t range(int64_t first, int64_t end)
{
	return (uint64_t)first << 32 | (uint64_t)end;
}

/* Takes some of the tiles: their own thread at most so many from the front, and others few from the end. False: there
   are none. */
static bool take_tiles(struct share *s, bool own, int64_t most, int64_t *first, int64_t *count)
{
	uint64_t rest = atomic_load_explicit(&s->rest, memory_order_relaxed);

	for (;;) {
		const int64_t begin = (int64_t)(rest >> 32), end = (int64_t)(rest & UINT32_MAX), left = end - begin;
		if (left <= 0)
			return false;
		*count = dk_smaller(left, own ? most : TILES_TAKEN);
		*first = own ? begin : end - *count;
		const uint64_t less = own ? range(begin + *count, end) : range(begin, end - *count);
		if (atomic_compare_exchange_weak_explicit(&s->rest, &rest, less, memory_order_relaxed, memory_order_relaxed))
			return true;
	}
}

/* These tiles of part `part`, by the thread whose block is `a`. */
static void multiply_tiles(const struct product *p, int64_t part, float *a, int64_t tile, int64_t tiles)
{
	const int64_t along = part / p->down, step = depth_step(p->depth);
	const int64_t panels = dk_ceil_div(p->columns, DK_PANEL);
	const int64_t first = panels * along / p->along, last = panels * (along + 1) / p->along;
	const int64_t row = tile * DK_TILE_ROWS, rows = dk_smaller(tiles * DK_TILE_ROWS, p->g->m - row);

	for (int64_t k = 0; k < p->depth; k += step) {
		const int64_t deep = dk_smaller(step, p->depth - k);
		pack_a(p, a, row, rows, k, deep);
		multiply_block(p, a, row, rows, k, deep, first, last);
	}
}

/* The first tile of a part: parts beside one another have the same ones. */
static int64_t first_tile(const struct product *p, int64_t down)
{
	return dk_ceil_div(p->g->m, DK_TILE_ROWS) * down / p->down;
}

/* The thread multiplies its own tiles in blocks, of which the last ones are small if others may take them, and then
   others'. */
static void multiply_part(const struct product *p, int64_t part)
{
	const int64_t parts = p->down * p->along, down = part % p->down;
	const int64_t tiles = first_tile(p, down + 1) - first_tile(p, down);
	const int64_t at_once = tiles_at_once(p, dk_larger(tiles, 1), dk_ceil_div(p->columns, p->along));
	float *a = p->a + part * p->block_floats;
	int64_t first, count, most = at_once, left = tiles;

	while (take_tiles(&p->shares[part], true, most, &first, &count)) {
		multiply_tiles(p, part, a, first, count);
		left -= count;
		if (parts > 1)
			most = dk_smaller(at_once, dk_larger(dk_ceil_div(2 * left, 3), TILES_LAST));
	}
	for (int64_t i = 1; i < parts; i++) {
		const int64_t other = (part + i) % parts;
		while (take_tiles(&p->shares[other], false, 0, &first, &count))
			multiply_tiles(p, other, a, first, count);
	}
}

static void multiply_span(void *arg, int64_t first, int64_t last)
{
	for (int64_t i = first; i < last; i++)
		multiply_part(arg, i);
}

static void share_out(struct product *p)
{
	for (int64_t i = 0; i < p->down * p->along; i++)
		atomic_init(&p->shares[i].rest, range(first_tile(p, i % p->down), first_tile(p, i % p->down + 1)));
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
			share_out(p);
			dk_parallel(p->down * p->along, 1, multiply_span, p);
		}
	}
}

/* Small ones, of one thread, need no memory. */
static bool run_small(struct product *p, int64_t b_floats)
{
	enum { STACK = 40 << 10 };
	_Alignas(64) float packed[STACK];
	struct share share;

	if (p->down * p->along > 1 || b_floats + p->block_floats > STACK)
		return false;
	p->b = packed;
	p->a = packed + b_floats;
	p->shares = &share;
	run(p, p->g->n, p->g->k);
	return true;
}

static bool run_large(struct product *p, int64_t b_floats, int64_t columns, int64_t depth)
{
	const int64_t parts = p->down * p->along, shares_floats = parts * (int64_t)(sizeof(struct share) / sizeof(float));
	dk_scratch *s = dk_scratch_take(&scratches, shares_floats + b_floats + parts * p->block_floats);

	if (s == NULL)
		return false;
	p->shares = (struct share *)(void *)s->x;
	p->b = s->x + shares_floats;
	p->a = p->b + b_floats;
	run(p, columns, depth);
	dk_scratch_give(&scratches, s);
	return true;
}

bool dk_has_panels(void)
{
	return __builtin_cpu_supports("avx512f");
}

static bool worth(const dk_gemm_args *g)
{
	return g->m >= LEAST_SIDE && g->n >= LEAST_SIDE && g->k >= LEAST_SIDE &&
		(double)g->m * (double)g->n * (double)g->k >= LEAST_VOLUME && dk_has_panels();
}

bool dk_product(const dk_product_args *args)
{
	const dk_gemm_args *g = &args->gemm;

	if (!worth(g))
		return false;
	const int64_t depth = dk_smaller(g->k, B_MAX / DK_PANEL / 16);
	const int64_t columns = dk_smaller(g->n, B_MAX / depth / DK_PANEL * DK_PANEL);
	struct product p = {.g = g, .all = args, .columns = columns, .block_floats = block_floats(g)};
	const int64_t b_floats = dk_round_up(columns, DK_PANEL) * depth + SLACK;

	cut(&p, dk_threads());
	return run_small(&p, b_floats) || run_large(&p, b_floats, columns, depth);
}

/* ---- small products ------------------------------------------------------------------ */

void dk_pack_panels(float *panels, const dk_lines *lines)
{
	dk_pack_panels_avx512(panels, lines);
}

void dk_product_by_panels(const dk_gemm_args *g, const float *panels, int64_t step, float *tiles)
{
	dk_pack_tiles_avx512(tiles, &(dk_lines){.from = g->a, .ld = g->lda, .across = g->transpose_a, .depth = g->k,
		.count = g->m});
	for (int64_t column = 0; column < g->n; column += DK_PANEL, panels += step)
		for (int64_t row = 0; row < g->m; row += DK_TILE_ROWS)
			dk_multiply_avx512(&(dk_piece){.a = tiles + row * g->k, .b = panels, .depth = g->k,
				.c = g->c + row * g->ldc + column, .ldc = g->ldc, .rows = dk_smaller(DK_TILE_ROWS, g->m - row),
				.columns = g->n - column, .beta = g->beta});
}
#endif
