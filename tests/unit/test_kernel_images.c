/*
 * kernels for images: each against a plain version in double precision, at odd sizes, and
 * one thread against three. Gradients of what is linear are compared with plain loops,
 * others with differences.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels.h"
#include "tests/support/kernel_values.h"

/* The plain versions would take most of the time. */
#define SLOW __attribute__((no_sanitize("address", "thread", "undefined")))

static float *numbers(int64_t n)
{
	float *x = make((size_t)n, sizeof(float));

	for (int64_t i = 0; i < n; i++)
		x[i] = (float)uniform();
	return x;
}

static float *copy_of(const float *x, int64_t n)
{
	float *copy = make((size_t)n, sizeof(float));

	memcpy(copy, x, (size_t)n * sizeof(float));
	return copy;
}

static void near(const char *what, const dk_window *w, const float *got, const double *wanted, int64_t n,
                 double tolerance)
{
	for (int64_t i = 0; i < n; i++)
		if (!(fabs(got[i] - wanted[i]) <= tolerance * (fabs(wanted[i]) + 1)))
			fail_msg("%s of %ld x %ld x %ld x %ld, window %ld, %ld, %ld: [%ld] is %.8g, plainly %.8g",
			         what, (long)w->batch, (long)w->height, (long)w->width, (long)w->channels,
			         (long)w->size, (long)w->stride, (long)w->padding, (long)i, got[i], wanted[i]);
}

static int64_t in_size(const dk_window *w)
{
	return w->batch * w->height * w->width * w->channels;
}

static int64_t places(const dk_window *w)
{
	return w->batch * dk_window_places(w, w->height) * dk_window_places(w, w->width);
}

/* Where number k of the window at a place lies in the images, or -1: outside. */
SLOW static int64_t seen_at(const dk_window *w, int64_t place, int64_t k)
{
	const int64_t down = dk_window_places(w, w->height), across = dk_window_places(w, w->width);
	const int64_t y = place / across % down * w->stride - w->padding + k / w->size;
	const int64_t x = place % across * w->stride - w->padding + k % w->size;

	if (y < 0 || y >= w->height || x < 0 || x >= w->width)
		return -1;
	return ((place / (down * across) * w->height + y) * w->width + x) * w->channels;
}

/* ---- convolution -------------------------------------------------------------------------- */

struct convolution {
	dk_window w;
	int64_t outputs;
	bool bias;
};

/* All that a convolution gives; each gradient to be added to starts as 0.5. */
struct plain {
	double *out, *dweight, *dbias, *din;
};

SLOW static void convolve(const struct convolution *c, const float *in, const float *weight, const float *bias,
                          const float *dout, struct plain *p)
{
	const dk_window *w = &c->w;
	const int64_t area = w->size * w->size, row = area * w->channels;

	for (int64_t i = 0; i < c->outputs * row; i++)
		p->dweight[i] = 0.5;
	for (int64_t o = 0; o < c->outputs; o++)
		p->dbias[o] = 0.5;
	for (int64_t i = 0; i < places(w) * c->outputs; i++) {
		const int64_t o = i % c->outputs;
		double sum = c->bias ? bias[o] : 0;
		p->dbias[o] += dout[i];
		for (int64_t k = 0; k < area; k++) {
			const int64_t at = seen_at(w, i / c->outputs, k);
			for (int64_t n = 0; n < w->channels && at >= 0; n++) {
				const int64_t v = o * row + k * w->channels + n;
				sum += (double)in[at + n] * weight[v];
				p->dweight[v] += (double)dout[i] * in[at + n];
				p->din[at + n] += (double)dout[i] * weight[v];
			}
		}
		p->out[i] = sum;
	}
}

static void fill(float *x, int64_t n, float value)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = value;
}

static void check_convolution(const struct convolution *c, int threads)
{
	const dk_window *w = &c->w;
	const int64_t outs = places(w) * c->outputs, weights = c->outputs * w->size * w->size * w->channels;
	random_state = 7;
	dk_set_threads(threads);
	float *in = numbers(in_size(w)), *weight = numbers(weights), *bias = numbers(c->outputs), *dout = numbers(outs);
	float *work = make(dk_convolution_work(w, c->outputs), sizeof(float));
	float *out = make((size_t)outs, sizeof(float)), *din = make((size_t)in_size(w), sizeof(float));
	float *dweight = make((size_t)weights, sizeof(float)), *dbias = make((size_t)c->outputs, sizeof(float));
	struct plain p = {make((size_t)outs, sizeof(double)), make((size_t)weights, sizeof(double)),
		make((size_t)c->outputs, sizeof(double)), make((size_t)in_size(w), sizeof(double))};

	convolve(c, in, weight, bias, dout, &p);
	fill(out, outs, 1e30f);
	fill(din, in_size(w), 1e30f);
	fill(dweight, weights, 0.5f);
	fill(dbias, c->outputs, 0.5f);
	dk_convolution_forward(out, work, in, weight, c->bias ? bias : NULL, w, c->outputs);
	dk_convolution_backward_params(dweight, c->bias ? dbias : NULL, work, dout, in, w, c->outputs);
	dk_convolution_backward_input(din, work, dout, weight, w, c->outputs);
	assert_null(dk_failure());
	near("out", w, out, p.out, outs, 3e-5);
	near("weight's gradient", w, dweight, p.dweight, weights, 2e-4);
	near("input's gradient", w, din, p.din, in_size(w), 3e-5);
	if (c->bias)
		near("bias' gradient", w, dbias, p.dbias, c->outputs, 2e-4);

	void *all[] = {in, weight, bias, dout, work, out, din, dweight, dbias, p.out, p.dweight, p.dbias, p.din};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
}

static void convolutions(void **state)
{
	const struct convolution cases[] = {
		{{1, 1, 1, 1, 1, 1, 0}, 1, true},  {{3, 5, 4, 2, 1, 1, 0}, 7, false}, {{2, 7, 5, 3, 1, 2, 0}, 4, true},
		{{2, 6, 7, 1, 3, 1, 0}, 5, true},  {{3, 9, 8, 4, 3, 1, 1}, 6, false}, {{2, 9, 7, 5, 3, 2, 1}, 3, true},
		{{2, 11, 12, 3, 5, 1, 0}, 6, true}, {{1, 5, 5, 2, 5, 1, 4}, 3, false}, {{1, 8, 8, 2, 5, 3, 2}, 3, true},
		{{2, 3, 3, 40, 3, 1, 1}, 17, true}, /* a window's line of more than 64 numbers */
		{{9, 20, 20, 3, 5, 1, 2}, 2, false}, /* more than one panel */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		check_convolution(&cases[i], 1);
		check_convolution(&cases[i], MANY_THREADS);
	}
}

/* ---- pooling -------------------------------------------------------------------------------- */

static const dk_window pools[] = {
	{1, 1, 1, 1, 1, 1, 0}, {3, 6, 8, 5, 2, 2, 0}, {2, 7, 7, 19, 3, 2, 1}, {2, 5, 6, 8, 3, 1, 1}, {40, 4, 4, 33, 4, 1, 0},
};

SLOW static void pool_plainly(const dk_window *w, const float *in, const float *dout, double *largest, double *dlargest,
                              double *average, double *daverage)
{
	const int64_t area = w->size * w->size;

	for (int64_t i = 0; i < places(w) * w->channels; i++) {
		const int64_t channel = i % w->channels;
		int64_t chosen = -1;
		average[i] = 0;
		for (int64_t k = 0; k < area; k++) {
			const int64_t at = seen_at(w, i / w->channels, k);
			if (at < 0)
				continue;
			average[i] += in[at + channel] / (double)area;
			daverage[at + channel] += dout[i] / (double)area;
			if (chosen < 0 || in[at + channel] > in[chosen])
				chosen = at + channel;
		}
		largest[i] = in[chosen];
		dlargest[chosen] += dout[i];
	}
}

static void check_pool(const dk_window *w, int threads)
{
	const int64_t outs = places(w) * w->channels, ins = in_size(w);
	random_state = 11;
	dk_set_threads(threads);
	float *in = numbers(ins), *dout = numbers(outs);
	float *out = make((size_t)outs, sizeof(float)), *din = make((size_t)ins, sizeof(float));
	int32_t *which = make((size_t)outs, sizeof(int32_t));
	double *wanted[] = {make((size_t)outs, sizeof(double)), make((size_t)ins, sizeof(double)),
		make((size_t)outs, sizeof(double)), make((size_t)ins, sizeof(double))};

	for (int64_t i = 0; i < ins; i++) /* many are equal: of those the first is chosen */
		in[i] = roundf(in[i] * 3);
	pool_plainly(w, in, dout, wanted[0], wanted[1], wanted[2], wanted[3]);
	fill(out, outs, 1e30f);
	fill(din, ins, 1e30f);
	dk_max_pool_forward(out, which, in, w);
	dk_max_pool_backward(din, dout, which, w);
	near("maximum", w, out, wanted[0], outs, 0);
	near("maximum's gradient", w, din, wanted[1], ins, 1e-6);
	fill(out, outs, 1e30f);
	fill(din, ins, 1e30f);
	dk_average_pool_forward(out, in, w);
	dk_average_pool_backward(din, dout, w);
	near("mean", w, out, wanted[2], outs, 1e-6);
	near("mean's gradient", w, din, wanted[3], ins, 1e-6);
	for (int i = 0; i < 4; i++)
		free(wanted[i]);
	free(in);
	free(dout);
	free(out);
	free(din);
	free(which);
}

static void pooling(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
		check_pool(&pools[i], 1);
		check_pool(&pools[i], MANY_THREADS);
	}
}

static void a_number_that_is_none_is_the_largest(void **state)
{
	const dk_window w = {.batch = 1, .height = 2, .width = 2, .channels = 1, .size = 2, .stride = 1};
	const float in[] = {3, NAN, 5, 4}, dout = 2;
	float out, din[4];
	int32_t which;

	(void)state;
	dk_max_pool_forward(&out, &which, in, &w);
	assert_true(isnan(out) && which == 1);
	dk_max_pool_backward(din, &dout, &which, &w);
	assert_true(din[0] == 0 && din[1] == 2 && din[2] == 0 && din[3] == 0);
}

/* ---- batch normalisation ------------------------------------------------------------------- */

/* The sum of dout times the output, and the output. */
SLOW static double normalise(const double *in, const double *gain, const double *bias, const float *dout, double *out,
                             int64_t rows, int64_t channels)
{
	double sum = 0;

	for (int64_t c = 0; c < channels; c++) {
		double mean = 0, variance = 0;
		for (int64_t r = 0; r < rows; r++)
			mean += in[r * channels + c] / (double)rows;
		for (int64_t r = 0; r < rows; r++)
			variance += (in[r * channels + c] - mean) * (in[r * channels + c] - mean) / (double)rows;
		for (int64_t r = 0; r < rows; r++) {
			const int64_t i = r * channels + c;
			out[i] = (in[i] - mean) / sqrt(variance + 1e-5) * gain[c] + bias[c];
			sum += out[i] * dout[i];
		}
	}
	return sum;
}

static double *wide(const float *x, int64_t n)
{
	double *y = make((size_t)n, sizeof(double));

	for (int64_t i = 0; i < n; i++)
		y[i] = x[i];
	return y;
}

struct norm {
	float *out, *din, *mean, *rstd, *running_mean, *running_variance, *dgain, *dbias;
};

static struct norm run_norm(const float *in, const float *gain, const float *bias, const float *dout, int64_t rows,
                            int64_t channels, int threads)
{
	const size_t n = (size_t)(rows * channels), c = (size_t)channels, size = sizeof(float);
	struct norm r = {make(n, size), make(n, size), make(c, size), make(c, size), make(c, size), make(c, size),
		make(c, size), make(c, size)};
	float *work = make(dk_batch_norm_work(rows, channels), size);

	dk_set_threads(threads);
	fill(r.running_variance, channels, 1);
	fill(r.dgain, channels, 0.5f);
	fill(r.dbias, channels, 0.5f);
	dk_batch_norm_forward(r.out, r.mean, r.rstd, r.running_mean, r.running_variance, 0.1, work, in, gain, bias, rows,
	                      channels);
	dk_batch_norm_backward(r.din, r.dgain, r.dbias, work, dout, in, r.mean, r.rstd, gain, rows, channels);
	free(work);
	return r;
}

static void free_norm(struct norm *r)
{
	float *all[] = {r->out, r->din, r->mean, r->rstd, r->running_mean, r->running_variance, r->dgain, r->dbias};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
}

/* The gradient of x by differences, at some of its n numbers. */
static void check_slopes(const char *what, double *x, int64_t n, const float *got, float start, double *const in[],
                         const float *dout, double *out, int64_t rows, int64_t channels)
{
	const double h = 1e-4;

	for (int64_t i = n > 8 ? n % (n / 8) : 0; i < n; i += n > 8 ? n / 8 : 1) {
		const double here = x[i];
		x[i] = here + h;
		double slope = normalise(in[0], in[1], in[2], dout, out, rows, channels);
		x[i] = here - h;
		slope = (slope - normalise(in[0], in[1], in[2], dout, out, rows, channels)) / (2 * h);
		x[i] = here;
		if (!(fabs(got[i] - start - slope) <= 2e-4 * (fabs(slope) + 1)))
			fail_msg("%s of %ld x %ld: [%ld] is %.8g, by differences %.8g", what, (long)rows, (long)channels,
			         (long)i, got[i] - start, slope);
	}
}

static void check_norm(int64_t rows, int64_t channels)
{
	const dk_window shape = {.batch = rows, .height = 1, .width = 1, .channels = channels};
	const int64_t n = rows * channels;
	random_state = 13;
	float *in = numbers(n), *gain = numbers(channels), *bias = numbers(channels), *dout = numbers(n);
	for (int64_t i = 0; i < n; i++)
		in[i] += 3; /* far from zero, beside its spread */
	struct norm one = run_norm(in, gain, bias, dout, rows, channels, 1);
	struct norm many = run_norm(in, gain, bias, dout, rows, channels, MANY_THREADS);
	double *const inputs[] = {wide(in, n), wide(gain, channels), wide(bias, channels)};
	double *out = make((size_t)n, sizeof(double));

	normalise(inputs[0], inputs[1], inputs[2], dout, out, rows, channels);
	near("norm", &shape, one.out, out, n, 3e-5);
	check_slopes("input's gradient", inputs[0], n, one.din, 0, inputs, dout, out, rows, channels);
	check_slopes("gain's gradient", inputs[1], channels, one.dgain, 0.5f, inputs, dout, out, rows, channels);
	check_slopes("bias' gradient", inputs[2], channels, one.dbias, 0.5f, inputs, dout, out, rows, channels);
	assert_memory_equal(one.out, many.out, (size_t)n * sizeof(float));
	assert_memory_equal(one.din, many.din, (size_t)n * sizeof(float));
	assert_memory_equal(one.dgain, many.dgain, (size_t)channels * sizeof(float));
	for (int64_t c = 0; c < channels; c++) {
		double mean = 0, squares = 0;
		for (int64_t r = 0; r < rows; r++)
			mean += in[r * channels + c] / (double)rows;
		for (int64_t r = 0; r < rows; r++)
			squares += (in[r * channels + c] - mean) * (in[r * channels + c] - mean);
		assert_true(fabs(one.running_mean[c] - 0.1 * mean) < 1e-6);
		assert_true(fabs(one.running_variance[c] - 0.9 - 0.1 * squares / (double)(rows > 1 ? rows - 1 : 1)) < 1e-6);
		for (int64_t r = 0; r < rows; r++)
			out[r * channels + c] = (in[r * channels + c] - (double)one.running_mean[c]) /
			                        sqrt(one.running_variance[c] + 1e-5) * gain[c] + bias[c];
	}
	dk_batch_norm_eval(in, in, gain, bias, one.running_mean, one.running_variance, rows, channels);
	near("norm by running statistics", &shape, in, out, n, 1e-5);
	float *all[] = {in, gain, bias, dout};
	for (int i = 0; i < 4; i++)
		free(all[i]);
	for (int i = 0; i < 3; i++)
		free(inputs[i]);
	free(out);
	free_norm(&one);
	free_norm(&many);
}

static void batch_norm(void **state)
{
	(void)state;
	check_norm(2, 1);
	check_norm(5, 19);
	check_norm(1700, 32); /* several chunks, the last one shorter */
	check_norm(70, 300);  /* more channels than are evaluated at once */
}

/* ---- elements ---------------------------------------------------------------------------------- */

static void relu_and_sum(void **state)
{
	enum { N = 40007 };
	random_state = 17;
	float *x = numbers(N), *grad = numbers(N), *y = make(N, sizeof(float)), *sum = make(N, sizeof(float));
	float *before = copy_of(grad, N);

	(void)state;
	dk_set_threads(MANY_THREADS);
	x[5] = 0;
	x[6] = NAN;
	dk_relu_forward(y, x, N);
	dk_relu_backward(grad, y, N);
	dk_add(sum, x, before, N);
	for (int i = 0; i < N; i++) {
		if (i == 6)
			continue;
		assert_true(y[i] == (x[i] > 0 ? x[i] : 0) && grad[i] == (x[i] > 0 ? before[i] : 0));
		assert_true(sum[i] == x[i] + before[i]);
	}
	assert_true(isnan(y[6]) && grad[6] == before[6]);
	free(x);
	free(grad);
	free(y);
	free(sum);
	free(before);
}

static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
	uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};

	for (int round = 0; round < 10; round++, k[0] += 0x9e3779b9u, k[1] += 0xbb67ae85u) {
		const uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
		c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k[0];
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k[1];
		c[3] = (uint32_t)a;
	}
	memcpy(out, c, sizeof(c));
}

/* The known answers that come with Random123. */
static void plain_philox_gives_the_known_answers(void **state)
{
	static const struct {
		uint32_t counter[4], key[2], answer[4];
	} known[] = {
		{{0}, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
		 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};

	(void)state;
	for (int i = 0; i < 2; i++) {
		uint32_t got[4];
		philox(known[i].counter, known[i].key, got);
		assert_memory_equal(got, known[i].answer, sizeof(got));
	}
}

static void dropout_is_by_philox(void **state)
{
	enum { N = 33003 };
	const uint64_t seed = 0x123456789abcdef0, counter = 0xfffffff8; /* carries into its upper half */
	random_state = 19;
	float *x = numbers(N), *y = make(N, sizeof(float)), one = 1, got;
	int dropped = 0;

	(void)state;
	dk_set_threads(MANY_THREADS);
	dk_dropout(y, x, N, 0.25, seed, counter);
	for (int i = 0; i < N; i++) {
		const uint64_t at = counter + (uint64_t)(i / 4);
		uint32_t words[4];
		philox((const uint32_t[]){(uint32_t)at, (uint32_t)(at >> 32), 0, 0},
		       (const uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)}, words);
		dropped += words[i % 4] < 0x40000000;
		assert_true(y[i] == (words[i % 4] < 0x40000000 ? 0 : x[i] * (1 / 0.75f)));
	}
	assert_true(abs(dropped - N / 4) < 500);
	/* The first number for seed and counter 0 is 0x6627e8d5: the border is exact. */
	dk_dropout(&got, &one, 1, 0x6627e8d5 * 0x1p-32, 0, 0);
	assert_true(got > 1);
	dk_dropout(&got, &one, 1, 0x6627e8d6 * 0x1p-32, 0, 0);
	assert_true(got == 0);
	free(x);
	free(y);
}

static void cross_entropy(void **state)
{
	enum { ROWS = 5, CLASSES = 11 };
	const int32_t targets[ROWS] = {0, 10, 3, 3, 7};
	random_state = 23;
	float *logits = numbers(ROWS * CLASSES), *grad = copy_of(logits, ROWS * CLASSES);
	double wanted = 0;

	(void)state;
	logits[4] = grad[4] = 90; /* its exponential is no float */
	const double loss = dk_cross_entropy(grad, targets, ROWS, CLASSES);
	for (int r = 0; r < ROWS; r++) {
		const float *row = logits + r * CLASSES;
		double total = 0;
		for (int i = 0; i < CLASSES; i++)
			total += exp(row[i]);
		wanted += log(total) - row[targets[r]];
		for (int i = 0; i < CLASSES; i++)
			assert_true(fabs(grad[r * CLASSES + i] - (exp(row[i]) / total - (i == targets[r]))) < 1e-6);
	}
	assert_true(fabs(loss - wanted) < 1e-4);
	free(logits);
	free(grad);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(convolutions),
		cmocka_unit_test(pooling),
		cmocka_unit_test(a_number_that_is_none_is_the_largest),
		cmocka_unit_test(batch_norm),
		cmocka_unit_test(relu_and_sum),
		cmocka_unit_test(plain_philox_gives_the_known_answers),
		cmocka_unit_test(dropout_is_by_philox),
		cmocka_unit_test(cross_entropy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
