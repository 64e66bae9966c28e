/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution as a matrix product: what the window sees at a place is a row of a panel,
   and the panel times the weight gives the places' outputs. A panel has as many places as
   stay in the cache; with a window of 1 it is the image itself. Threads work on lines of
   places, each with a panel of its own. Where Winograd's convolution is faster, it does the work. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/numbers.h"
#include "cpu/winograd.h"

enum {
	PANEL_FLOATS = 1 << 17, /* half a MiB */
	PANEL_ROWS = 256        /* at least: each panel's product reads all of the weight */
};

struct convolution {
	const dk_window *w;
	int64_t outputs;
	int64_t down, across;     /* places */
	int64_t row;              /* numbers in a window */
	int64_t lines;            /* in a panel */
	int64_t pieces;           /* of the work, a thread's each */
	float *panels, *partial;  /* [pieces, lines, across, row], [pieces - 1, sums] */
	const float *in, *weight, *bias, *dout;
	float *out, *dweight, *dbias, *din;
};

static struct convolution describe(const dk_window *w, int64_t outputs, float *work)
{
	struct convolution c = {.w = w, .outputs = outputs, .pieces = dk_threads(),
		.down = dk_window_places(w, w->height), .across = dk_window_places(w, w->width),
		.row = w->size * w->size * w->channels, .panels = work};
	const int64_t rows = dk_larger(PANEL_ROWS, PANEL_FLOATS / c.row);

	c.lines = dk_smaller((rows + c.across - 1) / c.across, w->batch * c.down);
	c.partial = work != NULL ? work + c.pieces * c.lines * c.across * c.row : NULL;
	return c;
}

/* Numbers that a piece sums up by itself: the weight's gradient and the bias'. */
static int64_t sums(const struct convolution *c)
{
	return c->outputs * (c->row + 1);
}

size_t dk_cpu_convolution_work(const dk_window *w, int64_t outputs)
{
	const struct convolution c = describe(w, outputs, NULL);
	const dk_winograd_set *set = dk_winograd(w, outputs);
	const size_t panels = (size_t)(c.pieces * c.lines * c.across * c.row + (c.pieces - 1) * sums(&c)),
		planes = set != NULL ? dk_winograd_work(set, w, outputs) : 0;

	/* Fewer images may come, which Winograd's convolution is not for. */
	return panels > planes ? panels : planes;
}

static bool is_plain(const struct convolution *c)
{
	return c->w->size == 1 && c->w->stride == 1 && c->w->padding == 0;
}

/* The part of a window's line that lies in the image. */
struct overlap {
	int64_t skipped, count; /* columns of the window */
	int64_t first;          /* number of the image's line */
};

static struct overlap overlap_at(const struct convolution *c, int64_t column)
{
	const int64_t begin = column * c->w->stride - c->w->padding;
	struct overlap o = {.skipped = dk_smaller(dk_larger(0, -begin), c->w->size)};

	o.count = dk_larger(0, dk_smaller(c->w->size, c->w->width - begin) - o.skipped);
	o.first = (begin + o.skipped) * c->w->channels;
	return o;
}

/* The image's line that line `k` of the window sees from the places' line `line`, as an
   offset, or -1 if there is none. */
static int64_t line_seen(const struct convolution *c, int64_t line, int64_t k)
{
	const int64_t image = line / c->down;
	const int64_t y = line % c->down * c->w->stride - c->w->padding + k;

	if (y < 0 || y >= c->w->height)
		return -1;
	return (image * c->w->height + y) * c->w->width * c->w->channels;
}

/* Windows' lines are short: a call of memcpy() would take longer than they do. */
static inline void copy_few(float *to, const float *from, int64_t n)
{
	if (n > 64) {
		memcpy(to, from, (size_t)n * sizeof(float));
		return;
	}
	for (int64_t i = 0; i < n; i++)
		to[i] = from[i];
}

static inline void zero_few(float *to, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = 0;
}

/* panel [(last - first) * across, row] = what the window sees from these lines */
static void gather(const struct convolution *c, float *panel, int64_t first, int64_t last)
{
	const int64_t channels = c->w->channels, side = c->w->size * channels;

	for (int64_t line = first; line < last; line++)
		for (int64_t k = 0; k < c->w->size; k++) {
			const int64_t seen = line_seen(c, line, k);
			float *to = panel + (line - first) * c->across * c->row + k * side;
			for (int64_t column = 0; column < c->across; column++, to += c->row) {
				const struct overlap o = overlap_at(c, column);
				if (seen < 0) {
					zero_few(to, side);
					continue;
				}
				const int64_t left = o.skipped * channels, middle = o.count * channels;
				zero_few(to, left);
				copy_few(to + left, c->in + seen + o.first, middle);
				zero_few(to + left + middle, side - left - middle);
			}
		}
}

/* The other way round: adds a panel to what its windows saw. */
static void scatter(const struct convolution *c, const float *panel, int64_t first, int64_t last)
{
	const int64_t channels = c->w->channels, side = c->w->size * channels;

	for (int64_t line = first; line < last; line++)
		for (int64_t k = 0; k < c->w->size; k++) {
			const int64_t seen = line_seen(c, line, k);
			const float *from = panel + (line - first) * c->across * c->row + k * side;
			for (int64_t column = 0; column < c->across && seen >= 0; column++, from += c->row) {
				const struct overlap o = overlap_at(c, column);
				float *to = c->din + seen + o.first;
				dk_inner()->add(to, to, from + o.skipped * channels, o.count * channels);
			}
		}
}

/* The memory in which the window sees these lines: a piece's panel, or the image. */
static const float *seen_from(const struct convolution *c, int64_t piece, int64_t first, int64_t last)
{
	if (is_plain(c))
		return c->in + first * c->across * c->row;
	float *panel = c->panels + piece * c->lines * c->across * c->row;
	gather(c, panel, first, last);
	return panel;
}

/* ---- forward ---------------------------------------------------------------------- */

static void forward_lines(const struct convolution *c, int64_t piece, int64_t first, int64_t last)
{
	const int64_t rows = (last - first) * c->across;
	float *out = c->out + first * c->across * c->outputs;

	if (c->bias != NULL)
		dk_inner()->bias_rows(out, NULL, c->bias, rows, c->outputs);
	dk_cpu_gemm(&(dk_gemm_args){.transpose_b = true, .m = rows, .n = c->outputs, .k = c->row,
		.a = seen_from(c, piece, first, last), .lda = c->row, .b = c->weight, .ldb = c->row,
		.beta = c->bias != NULL, .c = out, .ldc = c->outputs});
}

/* ---- backward --------------------------------------------------------------------- */

/* The first piece adds to the gradients themselves, each other one to its own sums. */
static void params_lines(const struct convolution *c, int64_t piece, int64_t first, int64_t last)
{
	const int64_t rows = (last - first) * c->across;
	const float *dout = c->dout + first * c->across * c->outputs;
	float *dweight = c->dweight, *dbias = c->dbias;

	if (piece > 0) {
		dweight = c->partial + (piece - 1) * sums(c);
		dbias = c->dbias != NULL ? dweight + c->outputs * c->row : NULL;
	}
	if (dbias != NULL)
		dk_inner()->column_sums(dbias, dout, rows, c->outputs, 0, c->outputs);
	dk_cpu_gemm(&(dk_gemm_args){.transpose_a = true, .m = c->outputs, .n = c->row, .k = rows,
		.a = dout, .lda = c->outputs, .b = seen_from(c, piece, first, last), .ldb = c->row,
		.beta = 1, .c = dweight, .ldc = c->row});
}

static void input_lines(const struct convolution *c, int64_t piece, int64_t first, int64_t last)
{
	const bool plain = is_plain(c);
	float *panel = plain ? c->din + first * c->across * c->row
	                     : c->panels + piece * c->lines * c->across * c->row;

	dk_cpu_gemm(&(dk_gemm_args){.m = (last - first) * c->across, .n = c->row, .k = c->outputs,
		.a = c->dout + first * c->across * c->outputs, .lda = c->outputs, .b = c->weight,
		.ldb = c->row, .c = panel, .ldc = c->row});
	if (!plain)
		scatter(c, panel, first, last);
}

/* ---- in pieces ---------------------------------------------------------------------- */

typedef void lines_fn(const struct convolution *c, int64_t piece, int64_t first, int64_t last);

/* Lines first .. last - 1, a panel at a time. */
static void go_over(const struct convolution *c, int64_t piece, int64_t first, int64_t last, lines_fn *fn)
{
	for (int64_t line = first; line < last; line += c->lines)
		fn(c, piece, line, dk_smaller(line + c->lines, last));
}

static void forward_span(void *arg, int64_t first, int64_t last)
{
	const struct convolution *c = arg;
	const int64_t lines = c->w->batch * c->down;

	for (int64_t piece = first; piece < last; piece++)
		go_over(c, piece, lines * piece / c->pieces, lines * (piece + 1) / c->pieces, forward_lines);
}

static void params_span(void *arg, int64_t first, int64_t last)
{
	const struct convolution *c = arg;
	const int64_t lines = c->w->batch * c->down;

	for (int64_t piece = first; piece < last; piece++) {
		if (piece > 0)
			memset(c->partial + (piece - 1) * sums(c), 0, (size_t)sums(c) * sizeof(float));
		go_over(c, piece, lines * piece / c->pieces, lines * (piece + 1) / c->pieces, params_lines);
	}
}

/* Whole images: windows of one line and the next overlap. */
static void input_span(void *arg, int64_t first, int64_t last)
{
	const struct convolution *c = arg;
	const int64_t image = c->w->height * c->w->width * c->w->channels;

	for (int64_t piece = first; piece < last; piece++) {
		const int64_t begin = c->w->batch * piece / c->pieces, end = c->w->batch * (piece + 1) / c->pieces;
		if (!is_plain(c))
			memset(c->din + begin * image, 0, (size_t)((end - begin) * image) * sizeof(float));
		go_over(c, piece, begin * c->down, end * c->down, input_lines);
	}
}

static void sum_span(void *arg, int64_t first, int64_t last)
{
	const struct convolution *c = arg;
	const int64_t weights = c->outputs * c->row;

	for (int64_t piece = 1; piece < c->pieces; piece++) {
		const float *partial = c->partial + (piece - 1) * sums(c);
		dk_inner()->add(c->dweight + first, c->dweight + first, partial + first, last - first);
		if (c->dbias != NULL && first == 0)
			dk_inner()->add(c->dbias, c->dbias, partial + weights, c->outputs);
	}
}

void dk_cpu_convolution_forward(float *out, float *work, const float *in, const float *weight,
                                const float *bias, const dk_window *w, int64_t outputs)
{
	const dk_winograd_set *set = dk_winograd(w, outputs);

	if (set != NULL) {
		dk_winograd_forward(set, out, work, in, weight, bias, w, outputs);
		return;
	}
	struct convolution c = describe(w, outputs, work);
	c.out = out;
	c.in = in;
	c.weight = weight;
	c.bias = bias;
	dk_parallel(c.pieces, 1, forward_span, &c);
}

void dk_cpu_convolution_backward_params(float *dweight, float *dbias, float *work,
                                        const float *dout, const float *in,
                                        const dk_window *w, int64_t outputs)
{
	const dk_winograd_set *set = dk_winograd(w, outputs);

	if (set != NULL) {
		dk_winograd_backward_params(set, dweight, dbias, work, dout, in, w, outputs);
		return;
	}
	struct convolution c = describe(w, outputs, work);
	c.dweight = dweight;
	c.dbias = dbias;
	c.dout = dout;
	c.in = in;
	dk_parallel(c.pieces, 1, params_span, &c);
	if (c.pieces > 1)
		dk_parallel(c.outputs * c.row, 4096, sum_span, &c);
}

void dk_cpu_convolution_backward_input(float *din, float *work, const float *dout,
                                       const float *weight, const dk_window *w, int64_t outputs)
{
	const dk_winograd_set *set = dk_winograd(w, outputs);

	if (set != NULL) {
		dk_winograd_backward_input(set, din, work, dout, weight, w, outputs);
		return;
	}
	struct convolution c = describe(w, outputs, work);
	c.din = din;
	c.dout = dout;
	c.weight = weight;
	dk_parallel(c.pieces, 1, input_span, &c);
}
