/* SPDX-License-Identifier: Apache-2.0 */
/* Winograd's convolution in blocks of tiles, which stay in the cache between planes and products. */
#include "cpu/winograd.h"

#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/numbers.h"

enum {
	PAD = 16,                   /* numbers between rows, and planes, that would else share lines of the cache */
	SEEN_FLOATS = 1 << 18,      /* of a block that is multiplied at once: a MiB */
	LEAST_TILES = 48, MOST_TILES = 126, /* in it: each block's products read all weights */
	PARAMS_TILES = 128,         /* the same of the weight's gradient, whose products read and write all of that */
	WORTHWHILE_TILES = 16       /* with fewer, bringing weights into planes would take longer than is saved */
};

/* Images [.., height, width, depth], and places [.., down, across, columns]; of the gradient of
   the input, these are what the convolution gives and what it takes. */
struct winograd {
	const dk_winograd_set *set;
	int64_t height, width, depth, padding;
	int64_t down, across, columns;
	int64_t tiles_down, tiles_across, tiles; /* of an image; of all */
	int64_t most;                /* tiles in a block */
	int64_t pieces;              /* of the work, a thread's each */
	int64_t weight_plane, seen_row, seen_plane, sums_row, sums_plane;
	float *weights, *blocks, *nothing; /* in planes; [pieces] blocks; zeros, as many as a row */
	int64_t block;               /* numbers of one */
	const float *in, *weight, *bias, *dout;
	float *out, *dweight, *dbias;
	int64_t first, count;        /* tiles at hand */
};

/* ---- which there are ---------------------------------------------------------------------- */

const dk_winograd_set *dk_winograd_set_at(int index)
{
	const dk_winograd_set *sets[3] = {NULL};
	int count = 0;

	(void)count;
#ifdef HAVE_AVX512_KERNELS
	if (__builtin_cpu_supports("avx512f"))
		sets[count++] = &dk_winograd_avx512;
#endif
#ifdef HAVE_AVX2_KERNELS
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		sets[count++] = &dk_winograd_avx2;
#endif
	return sets[index];
}

static int64_t tiles_along(const dk_window *w, int64_t length)
{
	return (dk_window_places(w, length) + DK_TILE_SIDE - 1) / DK_TILE_SIDE;
}

const dk_winograd_set *dk_winograd(const dk_window *w, int64_t outputs)
{
	const dk_winograd_set *set = dk_winograd_set_at(0);

	if (set == NULL || w->size != 3 || w->stride != 1 || w->channels % set->across != 0 || outputs % set->across != 0)
		return NULL;
	return w->batch * tiles_along(w, w->height) * tiles_along(w, w->width) >= WORTHWHILE_TILES ? set : NULL;
}

/* ---- where things lie --------------------------------------------------------------------- */

static struct winograd describe(const dk_winograd_set *set, const dk_window *w, int64_t outputs)
{
	struct winograd g = {.set = set, .height = w->height, .width = w->width, .depth = w->channels,
		.padding = w->padding, .down = dk_window_places(w, w->height), .across = dk_window_places(w, w->width),
		.columns = outputs, .tiles_down = tiles_along(w, w->height), .tiles_across = tiles_along(w, w->width),
		.pieces = dk_threads()};

	g.tiles = w->batch * g.tiles_down * g.tiles_across;
	g.most = dk_smaller(MOST_TILES, dk_larger(LEAST_TILES, SEEN_FLOATS / DK_PLANES / g.depth / 6 * 6));
	g.weight_plane = g.depth * g.columns + PAD;
	g.seen_row = g.depth + PAD;
	g.seen_plane = g.most * g.seen_row + PAD;
	g.sums_row = set->across;
	g.sums_plane = g.most * g.sums_row + PAD;
	g.block = DK_PLANES * (g.seen_plane + g.sums_plane) + set->across;
	return g;
}

/* The convolution of the input's gradient sees the places' gradients from where the window reaches them. */
static struct winograd describe_input(const dk_winograd_set *set, const dk_window *w, int64_t outputs)
{
	const dk_window turned = {.batch = w->batch, .height = dk_window_places(w, w->height),
		.width = dk_window_places(w, w->width), .channels = outputs, .size = 3, .stride = 1,
		.padding = 2 - w->padding};

	return describe(set, &turned, w->channels);
}

/* Here a block has PARAMS_TILES of both sides, images' panel by panel, and all threads work on it. */
static struct winograd describe_params(const dk_winograd_set *set, const dk_window *w, int64_t outputs)
{
	struct winograd g = describe(set, w, outputs);

	g.most = dk_smaller(PARAMS_TILES, g.tiles);
	g.pieces = 1;
	g.seen_plane = g.most * g.depth + PAD;
	g.sums_row = g.columns + PAD;
	g.sums_plane = g.most * g.sums_row + PAD;
	g.block = DK_PLANES * (g.seen_plane + g.sums_plane);
	return g;
}

static int64_t nothing_of(const struct winograd *g)
{
	return dk_larger(g->depth, g->columns);
}

static size_t work_of(const struct winograd *g)
{
	return (size_t)(DK_PLANES * g->weight_plane + nothing_of(g) + g->pieces * g->block);
}

static void lay_out(struct winograd *g, float *work)
{
	g->weights = work;
	g->nothing = work + DK_PLANES * g->weight_plane;
	g->blocks = g->nothing + nothing_of(g);
	memset(g->nothing, 0, (size_t)nothing_of(g) * sizeof(float));
}

size_t dk_winograd_work(const dk_winograd_set *set, const dk_window *w, int64_t outputs)
{
	const struct winograd forward = describe(set, w, outputs), input = describe_input(set, w, outputs),
		params = describe_params(set, w, outputs);
	const size_t a = work_of(&forward), b = work_of(&input), c = work_of(&params), most = a > b ? a : b;

	return most > c ? most : c;
}

/* ---- tiles -------------------------------------------------------------------------------- */

/* A tile's first place. */
struct corner {
	int64_t image, y, x;
};

static struct corner corner_of(const struct winograd *g, int64_t tile)
{
	const int64_t line = tile / g->tiles_across;

	return (struct corner){.image = line / g->tiles_down, .y = line % g->tiles_down * DK_TILE_SIDE,
		.x = tile % g->tiles_across * DK_TILE_SIDE};
}

/* The numbers from `first` on of each place of the images that a tile sees; outside them, zeros. */
static void see_tile(const struct winograd *g, float *to, int64_t tile, int64_t first, int64_t n)
{
	const struct corner c = corner_of(g, tile);
	const float *from[DK_PLANES];

	for (int i = 0; i < DK_PLANES; i++) {
		const int64_t y = c.y + i / DK_SEEN - g->padding, x = c.x + i % DK_SEEN - g->padding;
		const bool inside = y >= 0 && y < g->height && x >= 0 && x < g->width;
		from[i] = inside ? g->in + ((c.image * g->height + y) * g->width + x) * g->depth + first : g->nothing;
	}
	g->set->see(to, g->seen_plane, from, n);
}

/* Writes where number `first` of each of a tile's places is, counted from the images' first number. -1: the place
   is outside. */
static void find_places(const struct winograd *g, int64_t at[DK_TILE_PLACES], int64_t tile, int64_t first)
{
	const struct corner c = corner_of(g, tile);

	for (int i = 0; i < DK_TILE_PLACES; i++) {
		const int64_t y = c.y + i / DK_TILE_SIDE, x = c.x + i % DK_TILE_SIDE;
		at[i] = y < g->down && x < g->across ? ((c.image * g->down + y) * g->across + x) * g->columns + first : -1;
	}
}

/* ---- forward, and the gradient of the input ----------------------------------------------- */

/* Weights [columns, 9, depth]: panels' columns are turned into rows, a few of the depth at a time. */
static void weigh_forward(void *arg, int64_t first, int64_t last)
{
	enum { FEW = 4, ACROSS_MOST = 64, AREA = 9 };
	const struct winograd *g = arg;
	const int64_t across = g->set->across;
	float few[AREA * FEW * ACROSS_MOST];

	for (int64_t panel = first; panel < last; panel++)
		for (int64_t k = 0; k < g->depth; k += FEW) {
			for (int s = 0; s < AREA; s++)
				g->set->transpose(few + s * FEW * across, across, g->weight + (panel * across * AREA + s) * g->depth + k,
				                  AREA * g->depth, FEW);
			g->set->weigh(g->weights + (panel * g->depth + k) * across, g->weight_plane, few, FEW * across,
			              FEW * across);
		}
}

/* Weights [depth, 9, columns], the window's last first. */
static void weigh_input(void *arg, int64_t first, int64_t last)
{
	const struct winograd *g = arg;
	const int64_t across = g->set->across;

	for (int64_t panel = first; panel < last; panel++)
		for (int64_t k = 0; k < g->depth; k++)
			g->set->weigh(g->weights + (panel * g->depth + k) * across, g->weight_plane,
			              g->weight + (k * 9 + 8) * g->columns + panel * across, -g->columns, across);
}

static void join_tiles(const struct winograd *g, const float *sums, float *outside, int64_t first, int64_t count,
                       int64_t column)
{
	const float *bias = g->bias != NULL ? g->bias + column : NULL;

	for (int64_t t = 0; t < count; t++) {
		int64_t at[DK_TILE_PLACES];
		float *to[DK_TILE_PLACES];
		find_places(g, at, first + t, column);
		for (int i = 0; i < DK_TILE_PLACES; i++)
			to[i] = at[i] >= 0 ? g->out + at[i] : outside;
		g->set->join(to, sums + t * g->sums_row, g->sums_plane, bias, g->set->across);
	}
}

static void convolve_block(const struct winograd *g, float *block, int64_t first, int64_t count)
{
	float *seen = block, *sums = seen + DK_PLANES * g->seen_plane, *outside = sums + DK_PLANES * g->sums_plane;
	const int64_t across = g->set->across;

	for (int64_t t = 0; t < count; t++)
		see_tile(g, seen + t * g->seen_row, first + t, 0, g->depth);
	for (int64_t column = 0; column < g->columns; column += across) {
		for (int64_t p = 0; p < DK_PLANES; p++)
			g->set->product(&(dk_winograd_product){.c = sums + p * g->sums_plane, .ldc = g->sums_row,
				.a = seen + p * g->seen_plane, .a_row = g->seen_row, .a_depth = 1,
				.b = g->weights + p * g->weight_plane + column * g->depth, .rows = count, .depth = g->depth});
		join_tiles(g, sums, outside, first, count, column);
	}
}

static void convolve_pieces(void *arg, int64_t first, int64_t last)
{
	const struct winograd *g = arg;

	for (int64_t piece = first; piece < last; piece++) {
		const int64_t end = g->tiles * (piece + 1) / g->pieces;
		for (int64_t tile = g->tiles * piece / g->pieces; tile < end; tile += g->most)
			convolve_block(g, g->blocks + piece * g->block, tile, dk_smaller(g->most, end - tile));
	}
}

static void convolve(struct winograd *g, float *work, void (*weigh)(void *arg, int64_t first, int64_t last))
{
	lay_out(g, work);
	dk_parallel(g->columns / g->set->across, 1, weigh, g);
	dk_parallel(g->pieces, 1, convolve_pieces, g);
}

void dk_winograd_forward(const dk_winograd_set *set, float *out, float *work, const float *in, const float *weight,
                         const float *bias, const dk_window *w, int64_t outputs)
{
	struct winograd g = describe(set, w, outputs);

	g.in = in;
	g.weight = weight;
	g.bias = bias;
	g.out = out;
	convolve(&g, work, weigh_forward);
}

void dk_winograd_backward_input(const dk_winograd_set *set, float *din, float *work, const float *dout,
                                const float *weight, const dk_window *w, int64_t outputs)
{
	struct winograd g = describe_input(set, w, outputs);

	g.in = dout;
	g.weight = weight;
	g.out = din;
	convolve(&g, work, weigh_input);
}

/* ---- the gradients of parameters ---------------------------------------------------------- */

static float *gradients_of(const struct winograd *g)
{
	return g->blocks + DK_PLANES * g->seen_plane;
}

/* Tiles first .. last - 1 of those at hand. */
static void look_at_tiles(void *arg, int64_t first, int64_t last)
{
	const struct winograd *g = arg;
	const int64_t across = g->set->across;

	for (int64_t t = first; t < last; t++) {
		const float *from[DK_TILE_PLACES];
		int64_t at[DK_TILE_PLACES];
		for (int64_t k = 0; k < g->depth; k += across)
			see_tile(g, g->blocks + k * g->most + t * across, g->first + t, k, across);
		find_places(g, at, g->first + t, 0);
		for (int i = 0; i < DK_TILE_PLACES; i++)
			from[i] = at[i] >= 0 ? g->dout + at[i] : g->nothing;
		g->set->spread(gradients_of(g) + t * g->sums_row, g->sums_plane, from, g->columns);
	}
}

/* An item is a panel of channels in a plane. */
static void multiply_tiles(void *arg, int64_t first, int64_t last)
{
	const struct winograd *g = arg;
	const int64_t across = g->set->across, panels = g->depth / across;

	for (int64_t item = first; item < last; item++) {
		const int64_t plane = item / panels, k = item % panels * across;
		g->set->product(&(dk_winograd_product){.c = g->weights + plane * g->weight_plane + k, .ldc = g->depth,
			.a = gradients_of(g) + plane * g->sums_plane, .a_row = 1, .a_depth = g->sums_row,
			.b = g->blocks + plane * g->seen_plane + k * g->most, .rows = g->columns, .depth = g->count,
			.adds = g->first > 0});
	}
}

static void add_gradients(void *arg, int64_t first, int64_t last)
{
	const struct winograd *g = arg;

	for (int64_t o = first; o < last; o++)
		g->set->unweigh(g->dweight + o * 9 * g->depth, g->depth, g->weights + o * g->depth, g->weight_plane, g->depth);
}

static void add_bias(void *arg, int64_t first, int64_t last)
{
	const struct winograd *g = arg;

	dk_inner()->column_sums(g->dbias, g->dout, g->tiles, g->columns, first, last);
}

void dk_winograd_backward_params(const dk_winograd_set *set, float *dweight, float *dbias, float *work,
                                 const float *dout, const float *in, const dk_window *w, int64_t outputs)
{
	struct winograd g = describe_params(set, w, outputs);
	const int64_t tiles = g.tiles;

	lay_out(&g, work);
	g.in = in;
	g.dout = dout;
	g.dweight = dweight;
	g.dbias = dbias;
	for (g.first = 0; g.first < tiles; g.first += g.count) {
		g.count = dk_smaller(g.most, tiles - g.first);
		dk_parallel(g.count, 4, look_at_tiles, &g);
		dk_parallel(DK_PLANES * (g.depth / set->across), 1, multiply_tiles, &g);
	}
	dk_parallel(outputs, 8, add_gradients, &g);
	if (dbias == NULL)
		return;
	g.tiles = w->batch * g.down * g.across; /* places */
	dk_parallel(outputs, set->across, add_bias, &g);
}
