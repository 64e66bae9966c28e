/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cases: those of test_kernel_layers.c that are about attention. */
#include <math.h>
#include <string.h>

#include "tests/support/kernel_layer.h"
#include "tests/support/kernel_values.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

/* ---- attention: a batch, b length, c heads, d width --------------------------------------- */

static int64_t attention_size(const shape *s, int input)
{
	return s->a * s->b * s->d * (input < 0 ? 1 : 3);
}

static void attention_row(const shape *s, const double *qkv, int64_t row, int64_t head,
                          double *out)
{
	int64_t size = s->d / s->c, first = row / s->b * s->b;
	const double *q = qkv + row * 3 * s->d + head * size;
	double total = 0, *result = out + row * s->d + head * size;

	memset(result, 0, (size_t)size * sizeof(double));
	for (int64_t key = first; key <= row; key++) {
		const double *k = qkv + key * 3 * s->d + s->d + head * size, *v = k + s->d;
		double score = 0;
		for (int64_t i = 0; i < size; i++)
			score += q[i] * k[i];
		double weight = exp(score / sqrt((double)size));
		total += weight;
		for (int64_t i = 0; i < size; i++)
			result[i] += weight * v[i];
	}
	for (int64_t i = 0; i < size; i++)
		result[i] /= total;
}

SLOW static void attention_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t row = 0; row < s->a * s->b; row++)
		for (int64_t head = 0; head < s->c; head++)
			attention_row(s, in[0], row, head, out);
}

static size_t attention_kept(const shape *s)
{
	return (size_t)(s->a * s->b * s->c);
}

static void attention_forward(const shape *s, const layer_memory *m)
{
	dk_attention_forward(m->out, m->kept, m->in[0], s->a, s->b, s->c, s->d);
}

static void attention_backward(const shape *s, const layer_memory *m)
{
	dk_attention_backward(m->din[0], m->dout, m->in[0], m->out, m->kept, s->a, s->b, s->c, s->d);
}

TEST(attention_layer)
{
	const layer l = {.name = "attention", .inputs = 1, .spread = 2, .size = attention_size,
		.naive = attention_naive, .forward = attention_forward, .backward = attention_backward,
		.kept = attention_kept};
	const shape shapes[] = {{1, 1, 1, 1, NULL}, {2, 3, 1, 5, NULL}, {1, 63, 3, 51, NULL},
		{2, 65, 2, 128, NULL}, {1, 256, 1, 8, NULL}, {1, 331, 2, 14, NULL}, {3, 40, 1, 256, NULL},
		{1, 40, 1, 17, NULL}, {1, 18, 1, 97, NULL}, {1, 7, 1, 256, NULL},
		{1, 65, 1, 32, NULL}, {2, 18, 2, 64, NULL}, {1, 15, 1, 128, NULL}};

	CHECK(l, shapes);
}

/* With scratch for at least two samples of the batch, and fewer than all. */
static void backward_in_little_scratch(const shape *s, const layer_memory *m)
{
	if (place.leave_scratch != NULL)
		place.leave_scratch(&place, 4 * (int64_t)attention_kept(s) / s->a + 1);
	attention_backward(s, m);
	if (place.leave_scratch != NULL)
		place.leave_scratch(&place, 0);
}

TEST(a_batch_may_be_larger_than_scratch)
{
	const layer l = {.name = "attention", .inputs = 1, .spread = 2, .size = attention_size,
		.naive = attention_naive, .forward = attention_forward, .backward = backward_in_little_scratch,
		.kept = attention_kept};
	const shape shapes[] = {{5, 3, 2, 6, NULL}, {5, 3, 2, 64, NULL}};

	CHECK(l, shapes);
}

/* ---- over several tiles of rows: each number beside the formulas ---------------------------- */

/* What the formulas read and give. */
typedef struct formulas {
	double *qkv, *out, *lse, *dout, *dqkv;
} formulas;

static double dot(const double *a, const double *b, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

static void add(double *to, const double *from, double factor, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += factor * from[i];
}

/* What one head of query `row` gives to lse, and to all gradients. */
SLOW static void row_formulas(const shape *s, const formulas *f, int64_t row, int64_t head)
{
	const int64_t size = s->d / s->c, first = row / s->b * s->b, n = row - first + 1, column = head * size;
	const double scale = 1 / sqrt((double)size), *query = f->qkv + row * 3 * s->d + column;
	const double *dout = f->dout + row * s->d + column;
	const double delta = dot(dout, f->out + row * s->d + column, size);
	double weights[512], sum = 0;

	assert_true(n <= (int64_t)(sizeof(weights) / sizeof(weights[0])));
	for (int64_t k = 0; k < n; k++)
		sum += weights[k] = exp(scale * dot(query, f->qkv + ((first + k) * 3 + 1) * s->d + column, size));
	f->lse[(row / s->b * s->c + head) * s->b + n - 1] = log(sum);
	for (int64_t k = 0; k < n; k++) {
		const int64_t key = ((first + k) * 3 + 1) * s->d + column, value = key + s->d;
		const double slope = scale * weights[k] / sum * (dot(dout, f->qkv + value, size) - delta);
		add(f->dqkv + row * 3 * s->d + column, f->qkv + key, slope, size);
		add(f->dqkv + key, query, slope, size);
		add(f->dqkv + value, dout, weights[k] / sum, size);
	}
}

/* Each is as near as a share of itself, and of the root mean square. */
static void check_near(const char *what, const shape *s, const float *got, const double *expected, int64_t n)
{
	const bool wide = type_bytes(place.type) == sizeof(float);
	const double share = wide ? 1e-5 : 0.01, bound = (wide ? 2e-5 : 0.04) * sqrt(dot(expected, expected, n) / (double)n);

	for (int64_t i = 0; i < n; i++)
		if (!(fabs(got[i] - expected[i]) <= bound + share * fabs(expected[i])))
			fail_msg("attention %ld,%ld,%ld,%ld: %s[%ld] is %.8g, by the formula %.8g", (long)s->a, (long)s->b,
			         (long)s->c, (long)s->d, what, (long)i, got[i], expected[i]);
}

static double *draw(float *narrow, int64_t n, double spread)
{
	double *wide = doubles(n);

	for (int64_t i = 0; i < n; i++)
		wide[i] = narrow[i] = rounded((float)(spread * uniform()));
	return wide;
}

static void check_formulas(const shape *s)
{
	const int64_t rows = s->a * s->b, n = rows * s->d, kept = rows * s->c;
	float *qkv = floats(3 * n), *dout = floats(n), *out = floats(n), *dqkv = floats(3 * n), *lse = floats(kept);

	random_state = 7;
	const formulas f = {.qkv = draw(qkv, 3 * n, 2), .dout = draw(dout, n, 1), .out = doubles(n),
		.lse = doubles(kept), .dqkv = doubles(3 * n)};
	attention_naive(s, &f.qkv, f.out);
	for (int64_t row = 0; row < rows; row++)
		for (int64_t head = 0; head < s->c; head++)
			row_formulas(s, &f, row, head);
	const layer_memory m = {.out = give(out, n), .kept = bytes_there((size_t)kept * sizeof(float)),
		.dout = give(dout, n), .in = {give(qkv, 3 * n)}, .din = {give(dqkv, 3 * n)}};
	dk_use(place.queue);
	attention_forward(s, &m);
	attention_backward(s, &m);
	assert_null(dk_failure());
	dk_use(NULL);
	take(out, m.out, n);
	take(dqkv, m.din[0], 3 * n);
	take_as(DK_F32, lse, m.kept, kept);
	check_near("out", s, out, f.out, n);
	check_near("lse", s, lse, f.lse, kept);
	check_near("gradient", s, dqkv, f.dqkv, 3 * n);
}

static void try_formulas(void)
{
	/* Heads that tensor cores take, and one that they do not; whole tiles, and a row more or less. */
	const shape shapes[] = {{1, 200, 2, 128, NULL}, {1, 255, 1, 32, NULL}, {2, 64, 1, 64, NULL},
		{1, 127, 1, 128, NULL}, {1, 129, 1, 64, NULL}, {1, 193, 1, 128, NULL}, {2, 70, 1, 24, NULL}};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		check_formulas(&shapes[i]);
}

TEST_RUNS(attention_over_several_tiles, in_each_place(try_formulas));
