/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* kernels: the inner loops of each instruction set that the processor has, against those of the plain set.
   dk_inner() chooses only the best set, so other tests run no other one.
   products of bf16: each set of instructions that this processor has gives what the same numbers give in double
   precision, at odd sizes and either orientation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/bf16.h"
#include "cpu/inner.h"
#include "cpu/mixed.h"
#include "kernels.h"
#include "tests/support/kernel_sets.h"
#include "tests/support/kernel_values.h"
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

/* ---- products of bf16 ----------------------------------------------------------- */

typedef struct matrix {
	float *wide;
	uint16_t *narrow;
} matrix;

static matrix make_matrix(int64_t n)
{
	matrix m = {make((size_t)n, sizeof(float)), make((size_t)n, sizeof(uint16_t))};

	for (int64_t i = 0; i < n; i++)
		m.wide[i] = (float)uniform();
	dk_to_bf16(m.narrow, m.wide, n);
	dk_from_bf16(m.wide, m.narrow, n);
	return m;
}

static uint16_t *pack(const dk_bf16_set *set, const dk_side *side)
{
	uint16_t *packed = aligned_alloc(64, (size_t)dk_packed_size(side->rows, side->depth) * sizeof(uint16_t));

	assert_non_null(packed);
	dk_pack(set, packed, side, 0, dk_strips(side->rows));
	return packed;
}

static double element(const matrix *m, const dk_side *side, int64_t row, int64_t k)
{
	return m->wide[side->across ? k * side->ld + row : row * side->ld + k];
}

static void check_product(const dk_bf16_set *set, int64_t rows, int64_t columns, int64_t depth, bool a_across,
                          bool b_across, bool adds)
{
	matrix a = make_matrix(rows * depth), b = make_matrix(columns * depth);
	const dk_side left = {a.narrow, a_across ? rows : depth, a_across, false, rows, depth};
	const dk_side right = {b.narrow, b_across ? columns : depth, b_across, true, columns, depth};
	const int64_t ldc = dk_strips(columns) * DK_STRIP;
	uint16_t *packed_a = pack(set, &left), *packed_b = pack(set, &right);
	float *c = make((size_t)(dk_strips(rows) * DK_STRIP * ldc), sizeof(float));

	c[0] = adds ? 2 : NAN;
	if (set->begin != NULL)
		set->begin();
	dk_multiply(set, c, ldc, dk_range(packed_a, depth, 0, dk_strips(rows), 0),
	            dk_range(packed_b, depth, 0, dk_strips(columns), 0), dk_ceil_div(depth, DK_DEPTH), adds);
	if (set->end != NULL)
		set->end();
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < columns; j++) {
			double want = adds && i == 0 && j == 0 ? 2 : 0, size = 1;
			for (int64_t k = 0; k < depth; k++) {
				const double term = element(&a, &left, i, k) * element(&b, &right, j, k);
				want += term;
				size += fabs(term);
			}
			/* Sums of f32, in any order. */
			if (!(fabs(c[i * ldc + j] - want) <= 1e-6 * size))
				fail_msg("%s %ld,%ld,%ld: c[%ld, %ld] is %.9g, not %.9g", set->name, (long)rows,
				         (long)columns, (long)depth, (long)i, (long)j, c[i * ldc + j], want);
		}
	}
	void *const used[] = {a.wide, a.narrow, b.wide, b.narrow, packed_a, packed_b, c};
	for (size_t i = 0; i < sizeof(used) / sizeof(used[0]); i++)
		free(used[i]);
}

TEST(products_are_those_of_double_precision)
{
	static const int64_t shapes[][3] = {{1, 1, 1}, {16, 16, 32}, {17, 33, 31}, {70, 5, 65}, {32, 32, 600}};
	const dk_bf16_set *set;

	for (int i = 0; (set = dk_bf16_set_at(i)) != NULL; i++) {
		print_message("%s\n", set->name);
		for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
			for (int way = 0; way < 8; way++)
				check_product(set, shapes[s][0], shapes[s][1], shapes[s][2], way & 1, way & 2, way & 4);
		}
	}
}

/* All ways of a product's result, of random operands, behind one another. */
static uint16_t *product_of(dk_mixed *q, const dk_bf16_set *set, int64_t rows, int64_t inputs, int64_t outputs,
                         size_t *bytes)
{
	const int64_t size = rows * outputs, params = inputs * outputs;
	dk_queue *const before = dk_use(&q->base);
	uint16_t *all = make((size_t)(3 * size + rows * inputs + 2 * (params + outputs)), sizeof(*all));
	uint16_t *plain = all, *added = plain + size, *scaled = added + size, *din = scaled + size;
	float *dweight = (float *)(void *)(din + rows * inputs), *dbias = dweight + params;
	matrix in = make_matrix(rows * inputs), weight = make_matrix(params), dout = make_matrix(size);
	matrix bias = make_matrix(outputs);

	q->set = set;
	for (int64_t i = 0; i < params; i++)
		dweight[i] = (float)i;
	bias.narrow[outputs / 2] = 0x7f81; /* a NaN */
	weight.narrow[0] = 0x7f80;         /* infinity */
	memcpy(added, dout.narrow, (size_t)size * sizeof(*added));
	memcpy(scaled, dout.narrow, (size_t)size * sizeof(*scaled));
	float *const x = (float *)(void *)in.narrow, *const w = (float *)(void *)weight.narrow;
	float *const d = (float *)(void *)dout.narrow, *const b = (float *)(void *)bias.narrow;
	dk_linear_forward((float *)(void *)plain, x, w, NULL, NULL, rows, inputs, outputs);
	dk_linear_forward((float *)(void *)added, x, w, b, (float *)(void *)added, rows, inputs, outputs);
	dk_gemm(&(dk_gemm_args){.m = rows, .n = outputs, .k = inputs, .a = x, .lda = inputs, .b = w,
		.ldb = outputs, .beta = 0.3f, .c = (float *)(void *)scaled, .ldc = outputs});
	dk_linear_backward_input((float *)(void *)din, d, w, rows, inputs, outputs);
	dk_linear_backward_params(dweight, dbias, d, x, rows, inputs, outputs);
	dk_use(before);
	const matrix used[] = {in, weight, dout, bias};
	for (size_t i = 0; i < sizeof(used) / sizeof(used[0]); i++) {
		free(used[i].wide);
		free(used[i].narrow);
	}
	*bytes = (size_t)(3 * size + rows * inputs + 2 * (params + outputs)) * sizeof(*all);
	return all;
}

TEST(what_is_not_packed_gives_the_same_bits)
{
	/* Whole blocks, and such with edges. */
	static const int64_t shapes[][3] = {{160, 96, 288}, {32, 512, 64}, {130, 64, 288}, {160, 65, 257}};
	dk_queue *queue = dk_open_mixed();
	const dk_bf16_set *set;

	assert_non_null(queue);
	for (int i = 0; (set = dk_bf16_set_at(i)) != NULL; i++) {
		dk_bf16_set packing = *set;
		packing.in_place = false;
		for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]) && set->in_place; s++) {
			size_t bytes;
			random_state = s + 1;
			uint16_t *here = product_of(dk_mixed_of(queue), set, shapes[s][0], shapes[s][1], shapes[s][2], &bytes);
			random_state = s + 1;
			uint16_t *packed = product_of(dk_mixed_of(queue), &packing, shapes[s][0], shapes[s][1],
			                           shapes[s][2], &bytes);
			assert_memory_equal(here, packed, bytes);
			free(here);
			free(packed);
		}
	}
	dk_close(queue);
}
