/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* kernels: the inner loops of each instruction set that the processor has, against those of the plain set. dk_inner()
   chooses only the best set, so other tests run no other one. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/bf16.h"
#include "cpu/inner.h"
#include "kernels.h"
#include "tests/support/kernel_sets.h"
#include "tests/support/test.h"

enum { LENGTHS = 132, WIDTHS = 40, ROWS = 7, DEPTHS = 3 };

/* Exactly so many, so that a sanitizer sees who reads or writes beyond them. */
static float *numbers(int64_t n)
{
	float *x = malloc((size_t)n * sizeof(*x) + (n == 0));

	if (x == NULL)
		abort();
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
	return x;
}

/* The results of one function after the other. */
typedef struct results {
	float *x;
	int64_t count, room;
} results;

static void keep(results *r, const float *x, int64_t n)
{
	if (r->count + n > r->room) {
		r->room = 2 * (r->count + n);
		r->x = realloc(r->x, (size_t)r->room * sizeof(*r->x));
		if (r->x == NULL)
			abort();
	}
	if (n > 0)
		memcpy(r->x + r->count, x, (size_t)n * sizeof(*x));
	r->count += n;
}

/* ---- runs of n numbers ---------------------------------------------------------------------- */

static void run_elements(const struct dk_inner *inner, int64_t n, results *r)
{
	const dk_dropping dropping = { .threshold = 0x40000000u, .scale = 1.25f, .seed = 9, .counter = 7 };
	float *a = numbers(n), *b = numbers(n), *out = numbers(n);
	uint16_t *narrow = malloc((size_t)n * sizeof(*narrow) + (n == 0));

	if (narrow == NULL)
		abort();
	inner->add(out, a, b, n);
	keep(r, out, n);
	inner->gelu(out, a, n);
	keep(r, out, n);
	inner->gelu_grad(out, b, n);
	keep(r, out, n);
	inner->relu(out, a, n);
	keep(r, out, n);
	inner->relu_grad(out, b, n);
	keep(r, out, n);
	inner->scale(out, n, 0.3f);
	inner->softmax_grad(out, a, n, 0.1f, 0.2f);
	keep(r, out, n);
	inner->dropout(out, a, 0, n, &dropping);
	keep(r, out, n);
	inner->to_bf16(narrow, a, n);
	inner->scale_bf16(narrow, n, 0.7f);
	inner->from_bf16(out, narrow, n);
	keep(r, out, n);
	if (n > 0) {
		float sum, dot = inner->dot(a, b, n), top = inner->highest(a, n);
		keep(r, &dot, 1);
		keep(r, &top, 1);
		top = inner->softmax_row(a, n, &sum);
		keep(r, &top, 1);
		keep(r, &sum, 1);
		keep(r, a, n);
	}
	free(a);
	free(b);
	free(out);
	free(narrow);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static void run_layers(const struct dk_inner *inner, int64_t width, results *r)
{
	const int64_t n = ROWS * width;
	float *in = numbers(n), *dout = numbers(n), *out = numbers(n), *gain = numbers(width), *bias = numbers(width);
	float *mean = numbers(ROWS), *rstd = numbers(ROWS), *sums = numbers(width), *more = numbers(width);

	inner->layernorm(out, mean, rstd, in, gain, bias, ROWS, width);
	keep(r, out, n);
	for (int i = 0; i < ROWS; i++) /* of few numbers it may be large, and errors with it */
		rstd[i] = 0.5f;
	inner->layernorm_input(out, dout, in, mean, rstd, gain, ROWS, width);
	keep(r, out, n);
	inner->layernorm_params(sums, more, dout, in, mean, rstd, ROWS, width, 0, width);
	inner->column_sums(sums, in, ROWS, width, 0, width);
	keep(r, sums, width);
	keep(r, more, width);
	inner->bias_rows(out, dout, bias, ROWS, width);
	keep(r, out, n);
	inner->moments(sums, more, in, ROWS, width);
	keep(r, more, width);
	inner->norm_rows(out, in, sums, gain, bias, ROWS, width, true);
	keep(r, out, n);
	inner->norm_sums(sums, more, dout, in, bias, gain, NULL, ROWS, width);
	keep(r, sums, width);
	keep(r, more, width);
	inner->norm_input(out, dout, in, bias, sums, more, gain, NULL, ROWS, width);
	keep(r, out, n);
	float *const all[] = { in, dout, out, gain, bias, mean, rstd, sums, more };
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
}

static void run_pools(const struct dk_inner *inner, int64_t channels, results *r)
{
	const dk_window w = { .batch = 2, .height = 7, .width = 6, .channels = channels, .size = 3, .stride = 2, .padding = 1 };
	const int64_t ins = w.batch * w.height * w.width * channels;
	const int64_t outs = w.batch * dk_window_places(&w, w.height) * dk_window_places(&w, w.width) * channels;
	float *in = numbers(ins), *din = numbers(ins), *out = numbers(outs), *which = numbers(outs);

	inner->max_pool(out, (int32_t *)which, in, &w, 0, w.batch);
	keep(r, out, outs);
	inner->max_pool_grad(din, out, (int32_t *)which, &w, 0, w.batch);
	inner->average_pool(out, in, &w, 0, w.batch);
	keep(r, out, outs);
	inner->average_pool_grad(din, out, &w, 0, w.batch);
	keep(r, din, ins);
	free(in);
	free(din);
	free(out);
	free(which);
}

static void run_tiles(const struct dk_inner *inner, int64_t depth, results *r)
{
	enum { LDC = DK_STRIP + 3 };
	const int64_t n = depth * DK_TILE, places = (DK_STRIP - 1) * LDC + DK_STRIP;
	float *wide = numbers(n), *c = numbers(places);
	uint16_t *a = malloc((size_t)n * sizeof(*a)), *b = malloc((size_t)n * sizeof(*b));

	if (a == NULL || b == NULL)
		abort();
	inner->to_bf16(a, wide, n);
	inner->scale(wide, n, -0.7f);
	inner->to_bf16(b, wide, n);
	inner->bf16_tile(c, LDC, a, b, depth, true);
	keep(r, c, places);
	inner->bf16_tile(c, LDC, b, a, depth, false);
	keep(r, c, places);
	free(wide);
	free(c);
	free(a);
	free(b);
}

/* ---- what is asked -------------------------------------------------------------------------- */

typedef void run_fn(const struct dk_inner *inner, int64_t n, results *r);

static results results_of(const struct dk_inner *inner, run_fn *run, int64_t n)
{
	results r = { .x = NULL };

	srand(7);
	run(inner, n, &r);
	return r;
}

static void compare(run_fn *run, int64_t least, int64_t most)
{
	if (test_inner_at(0) == NULL)
		skip();
	for (int64_t n = least; n <= most; n++) {
		const results plain = results_of(&dk_inner_base, run, n);
		for (int s = 0; test_inner_at(s) != NULL; s++) {
			const results r = results_of(test_inner_at(s), run, n);
			assert_true(r.count == plain.count);
			for (int64_t i = 0; i < r.count; i++) {
				const double wanted = plain.x[i];
				if (!(fabs(r.x[i] - wanted) <= 2e-4 * (fabs(wanted) + 1)))
					fail_msg("set %d, %lld numbers: number %lld is %g, not %g", s, (long long)n, (long long)i,
					         (double)r.x[i], wanted);
			}
			free(r.x);
		}
		free(plain.x);
	}
}

TEST_RUNS(sets_agree_on_elements, compare(run_elements, 0, LENGTHS));

TEST_RUNS(sets_agree_on_layers, compare(run_layers, 3, WIDTHS));

TEST_RUNS(sets_agree_on_pools, compare(run_pools, 1, WIDTHS));

TEST_RUNS(sets_agree_on_tiles, compare(run_tiles, 1, DEPTHS));
