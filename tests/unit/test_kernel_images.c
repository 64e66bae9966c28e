/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan bare */
/* runs: unit asan; as: test_kernel_images_device */
/* runs: asan; as: test_kernel_images_cuda */
/* kernels for images, which are of f32: each against a plain version in double precision, at odd
   sizes, and one thread against three, or one order of threads against another; in each place that
   the program is linked with. Gradients of what is linear are compared with plain loops, others
   with differences. */
#include <math.h>
#include <string.h>

#include "tests/support/kernel_layer.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

/* Products of TF32 are as good as this. */
static double tolerated(double tolerance)
{
	return place.type == DK_TF32 ? 3e-2 : tolerance;
}

static float *numbers(int64_t n)
{
	float *x = floats(n);

	for (int64_t i = 0; i < n; i++)
		x[i] = (float)uniform();
	return x;
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
SLOW static int64_t seen_at(const dk_window *w, int64_t spot, int64_t k)
{
	const int64_t down = dk_window_places(w, w->height), across = dk_window_places(w, w->width);
	const int64_t y = spot / across % down * w->stride - w->padding + k / w->size;
	const int64_t x = spot % across * w->stride - w->padding + k % w->size;

	if (y < 0 || y >= w->height || x < 0 || x >= w->width)
		return -1;
	return ((spot / (down * across) * w->height + y) * w->width + x) * w->channels;
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

struct gradients {
	float *out, *dweight, *dbias, *din;
};

/* With so many threads, or so much memory for panels. */
static void run_convolution(const struct convolution *c, const float *in, const float *weight, const float *bias,
                            const float *dout, struct gradients *g, int threads, int64_t scratch)
{
	const dk_window *w = &c->w;
	const int64_t outs = places(w) * c->outputs, weights = c->outputs * w->size * w->size * w->channels;

	dk_set_threads(threads);
	place.shuffle((uint64_t)threads);
	if (place.leave_scratch != NULL)
		place.leave_scratch(&place, scratch);
	dk_use(place.queue);
	const size_t work_size = dk_convolution_work(w, c->outputs);
	dk_use(NULL);
	assert_true(place.leave_scratch == NULL || work_size == 0); /* CUDA's kernels take none */
	float *work = bytes_there(work_size * sizeof(float));
	fill(g->out, outs, 1e30f);
	fill(g->din, in_size(w), 1e30f);
	fill(g->dweight, weights, 0.5f);
	fill(g->dbias, c->outputs, 0.5f);
	float *in_there = give(in, in_size(w)), *weight_there = give(weight, weights), *bias_there = give(bias, c->outputs);
	float *dout_there = give(dout, outs), *out = give(g->out, outs), *din = give(g->din, in_size(w));
	float *dweight = give(g->dweight, weights), *dbias = give(g->dbias, c->outputs);
	dk_use(place.queue);
	dk_convolution_forward(out, work, in_there, weight_there, c->bias ? bias_there : NULL, w, c->outputs);
	dk_convolution_backward_params(dweight, c->bias ? dbias : NULL, work, dout_there, in_there, w, c->outputs);
	dk_convolution_backward_input(din, work, dout_there, weight_there, w, c->outputs);
	assert_null(dk_failure());
	dk_use(NULL);
	if (place.leave_scratch != NULL)
		place.leave_scratch(&place, 0);
	take(g->out, out, outs);
	take(g->din, din, in_size(w));
	take(g->dweight, dweight, weights);
	take(g->dbias, dbias, c->outputs);
}

static void check_convolution(const struct convolution *c)
{
	const dk_window *w = &c->w;
	const int64_t outs = places(w) * c->outputs, weights = c->outputs * w->size * w->size * w->channels;
	random_state = 7;
	float *in = numbers(in_size(w)), *weight = numbers(weights), *bias = numbers(c->outputs), *dout = numbers(outs);
	struct gradients g = {floats(outs), floats(weights), floats(c->outputs), floats(in_size(w))};
	struct plain p = {doubles(outs), doubles(weights), doubles(c->outputs), doubles(in_size(w))};

	convolve(c, in, weight, bias, dout, &p);
	for (int round = 0; round < 2; round++) {
		/* The second time, panels of few places, which begin and end amid images. */
		const int64_t row = w->size * w->size * w->channels, few = 5 * row > 2 * c->outputs ? 5 * row : 2 * c->outputs;
		run_convolution(c, in, weight, bias, dout, &g, round == 0 ? 1 : MANY_THREADS, round == 0 ? 0 : few);
		near("out", w, g.out, p.out, outs, tolerated(3e-5));
		near("weight's gradient", w, g.dweight, p.dweight, weights, tolerated(2e-4));
		near("input's gradient", w, g.din, p.din, in_size(w), tolerated(3e-5));
		if (c->bias)
			near("bias' gradient", w, g.dbias, p.dbias, c->outputs, 2e-4);
	}
}

static void try_convolutions(void)
{
	const struct convolution cases[] = {
		{{1, 1, 1, 1, 1, 1, 0}, 1, true},  {{3, 5, 4, 2, 1, 1, 0}, 7, false}, {{2, 7, 5, 3, 1, 2, 0}, 4, true},
		{{2, 6, 7, 1, 3, 1, 0}, 5, true},  {{3, 9, 8, 4, 3, 1, 1}, 6, false}, {{2, 9, 7, 5, 3, 2, 1}, 3, true},
		{{2, 11, 12, 3, 5, 1, 0}, 6, true}, {{1, 5, 5, 2, 5, 1, 4}, 3, false}, {{1, 8, 8, 2, 5, 3, 2}, 3, true},
		{{2, 3, 3, 40, 3, 1, 1}, 17, true}, /* a window's line of more than 64 numbers */
		{{9, 20, 20, 3, 5, 1, 2}, 2, false}, /* more than one panel */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (fits(in_size(&cases[i].w)))
			check_convolution(&cases[i]);
}

TEST_RUNS(convolutions, in_each_place_of_f32(try_convolutions));

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
	float *out[] = {floats(outs), floats(outs)}, *din[] = {floats(ins), floats(ins)};
	double *wanted[] = {doubles(outs), doubles(ins), doubles(outs), doubles(ins)};

	for (int64_t i = 0; i < ins; i++) /* many are equal: of those the first is chosen */
		in[i] = roundf(in[i] * 3);
	pool_plainly(w, in, dout, wanted[0], wanted[1], wanted[2], wanted[3]);
	for (int average = 0; average < 2; average++) {
		fill(out[average], outs, 1e30f);
		fill(din[average], ins, 1e30f);
	}
	float *in_there = give(in, ins), *dout_there = give(dout, outs), *out_there = give(out[0], outs);
	float *din_there = give(din[0], ins), *mean_there = give(out[1], outs), *dmean_there = give(din[1], ins);
	int32_t *which = bytes_there((size_t)outs * sizeof(*which));
	dk_use(place.queue);
	dk_max_pool_forward(out_there, which, in_there, w);
	dk_max_pool_backward(din_there, dout_there, which, w);
	dk_average_pool_forward(mean_there, in_there, w);
	dk_average_pool_backward(dmean_there, dout_there, w);
	assert_null(dk_failure());
	dk_use(NULL);
	take(out[0], out_there, outs);
	take(din[0], din_there, ins);
	take(out[1], mean_there, outs);
	take(din[1], dmean_there, ins);
	near("maximum", w, out[0], wanted[0], outs, 0);
	near("maximum's gradient", w, din[0], wanted[1], ins, 1e-6);
	near("mean", w, out[1], wanted[2], outs, 1e-6);
	near("mean's gradient", w, din[1], wanted[3], ins, 1e-6);
}

static void try_pooling(void)
{
	for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
		if (!fits(in_size(&pools[i])))
			continue;
		check_pool(&pools[i], 1);
		if (place.queue == NULL)
			check_pool(&pools[i], MANY_THREADS);
	}
}

TEST_RUNS(pooling, in_each_place_of_f32(try_pooling));

static void try_a_number_that_is_none(void)
{
	const dk_window w = {.batch = 1, .height = 2, .width = 2, .channels = 1, .size = 2, .stride = 1};
	const float in[] = {3, NAN, 5, 4}, dout = 2;
	float out = 0, din[4] = {9, 9, 9, 9};
	int32_t which = -1;
	float *in_there = give(in, 4), *dout_there = give(&dout, 1), *out_there = give(&out, 1), *din_there = give(din, 4);
	int32_t *which_there = give(&which, 1);

	dk_use(place.queue);
	dk_max_pool_forward(out_there, which_there, in_there, &w);
	dk_max_pool_backward(din_there, dout_there, which_there, &w);
	dk_use(NULL);
	take(&out, out_there, 1);
	take(din, din_there, 4);
	take(&which, which_there, 1);
	assert_true(isnan(out) && which == 1);
	assert_true(din[0] == 0 && din[1] == 2 && din[2] == 0 && din[3] == 0);
}

TEST_RUNS(a_number_that_is_none_is_the_largest, in_each_place_of_f32(try_a_number_that_is_none));

/* ---- batch normalisation: a rows, b channels ------------------------------------------------ */

static int64_t norm_size(const shape *s, int input)
{
	return input <= 0 ? s->a * s->b : s->b;
}

SLOW static void norm_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t c = 0; c < s->b; c++) {
		double mean = 0, variance = 0;
		for (int64_t r = 0; r < s->a; r++)
			mean += in[0][r * s->b + c] / (double)s->a;
		for (int64_t r = 0; r < s->a; r++)
			variance += (in[0][r * s->b + c] - mean) * (in[0][r * s->b + c] - mean) / (double)s->a;
		for (int64_t r = 0; r < s->a; r++)
			out[r * s->b + c] = (in[0][r * s->b + c] - mean) / sqrt(variance + 1e-5) * in[1][c] + in[2][c];
	}
}

/* Work, and mean and inverse deviation behind it. */
static size_t norm_kept(const shape *s)
{
	return dk_batch_norm_work(s->a, s->b) + (size_t)(2 * s->b);
}

static void norm_forward(const shape *s, const layer_memory *m)
{
	float *mean = m->kept + dk_batch_norm_work(s->a, s->b);

	dk_batch_norm_forward(m->out, mean, mean + s->b, NULL, NULL, 0, m->kept, m->in[0], m->in[1], m->in[2], s->a,
	                      s->b);
}

static void norm_backward(const shape *s, const layer_memory *m)
{
	const float *mean = m->kept + dk_batch_norm_work(s->a, s->b);

	dk_batch_norm_backward(m->din[0], m->din[1], m->din[2], m->kept, m->dout, m->in[0], mean, mean + s->b, m->in[1],
	                       s->a, s->b);
}

static const shape norms[] = {
	{2, 1, 0, 0, NULL}, {5, 19, 0, 0, NULL},
	{109, 33, 0, 0, NULL},  /* several chunks on a device, the last one shorter */
	{1700, 32, 0, 0, NULL}, /* the same on the host */
	{70, 300, 0, 0, NULL},  /* more channels than are evaluated at once */
};

TEST(batch_norm)
{
	/* Inputs are far from zero, beside their spread. */
	const layer l = {.name = "batch norm", .inputs = 3, .adds = {false, true, true}, .spread = 1, .centre = 3,
		.size = norm_size, .naive = norm_naive, .forward = norm_forward, .backward = norm_backward,
		.kept = norm_kept, .f32_only = true};

	CHECK(l, norms);
}

/* What running statistics become in one pass, and what they give, in place. */
static void check_running(int64_t rows, int64_t channels)
{
	const dk_window shown = {.batch = rows, .height = 1, .width = 1, .channels = channels};
	const int64_t n = rows * channels;
	random_state = 13;
	float *in = numbers(n), *gain = numbers(channels), *bias = numbers(channels);
	float *mean = floats(channels), *variance = floats(channels);
	double *wanted = doubles(n);

	for (int64_t i = 0; i < n; i++)
		in[i] += 3;
	fill(variance, channels, 1);
	float *in_there = give(in, n), *gain_there = give(gain, channels), *bias_there = give(bias, channels);
	float *mean_there = give(mean, channels), *variance_there = give(variance, channels);
	float *work = bytes_there(dk_batch_norm_work(rows, channels) * sizeof(float));
	float *kept = give(mean, channels), *kept_too = give(mean, channels), *out = give(in, n);
	dk_use(place.queue);
	dk_batch_norm_forward(out, kept, kept_too, mean_there, variance_there, 0.1, work, in_there, gain_there,
	                      bias_there, rows, channels);
	dk_batch_norm_eval(in_there, in_there, gain_there, bias_there, mean_there, variance_there, rows, channels);
	assert_null(dk_failure());
	dk_use(NULL);
	take(mean, mean_there, channels);
	take(variance, variance_there, channels);
	for (int64_t c = 0; c < channels; c++) {
		double sum = 0, squares = 0;
		for (int64_t r = 0; r < rows; r++)
			sum += in[r * channels + c];
		for (int64_t r = 0; r < rows; r++)
			squares += pow(in[r * channels + c] - sum / (double)rows, 2);
		assert_true(fabs(mean[c] - 0.1 * sum / (double)rows) < 1e-6);
		assert_true(fabs(variance[c] - 0.9 - 0.1 * squares / (double)(rows - 1)) < 1e-6);
		for (int64_t r = 0; r < rows; r++)
			wanted[r * channels + c] = (in[r * channels + c] - (double)mean[c]) / sqrt(variance[c] + 1e-5) *
			                           gain[c] + bias[c];
	}
	take(in, in_there, n);
	near("norm by running statistics", &shown, in, wanted, n, 1e-5);
}

static void try_running_statistics(void)
{
	for (size_t i = 0; i < sizeof(norms) / sizeof(norms[0]); i++)
		if (fits(norms[i].a * norms[i].b))
			check_running(norms[i].a, norms[i].b);
}

TEST_RUNS(batch_norm_keeps_running_statistics, in_each_place_of_f32(try_running_statistics));

/* What a normalisation and ReLU leave: out, and the gradients of in, gain and bias, one behind the other. */
static void run_norm_relu(float *left, int64_t rows, int64_t channels, bool together, int threads)
{
	const int64_t n = rows * channels;
	random_state = 17;
	float *in = give(numbers(n), n), *gain = give(numbers(channels), channels), *bias = give(numbers(channels), channels);
	float *dout = give(numbers(n), n), *out = give(floats(n), n), *din = give(floats(n), n);
	float *mean = give(floats(channels), channels), *rstd = give(floats(channels), channels);
	float *dgain = give(floats(channels), channels), *dbias = give(floats(channels), channels);
	float *work = bytes_there(dk_batch_norm_work(rows, channels) * sizeof(float));

	dk_set_threads(threads);
	dk_use(place.queue);
	if (together) {
		dk_batch_norm_relu_forward(out, mean, rstd, NULL, NULL, 0, work, in, gain, bias, rows, channels);
		dk_batch_norm_relu_backward(din, dgain, dbias, work, dout, out, in, mean, rstd, gain, bias, rows, channels);
	} else {
		dk_batch_norm_forward(out, mean, rstd, NULL, NULL, 0, work, in, gain, bias, rows, channels);
		dk_relu_forward(out, out, n);
		dk_relu_backward(dout, out, n);
		dk_batch_norm_backward(din, dgain, dbias, work, dout, in, mean, rstd, gain, rows, channels);
	}
	assert_null(dk_failure());
	dk_use(NULL);
	take(left, out, n);
	take(left + n, din, n);
	take(left + 2 * n, dgain, channels);
	take(left + 2 * n + channels, dbias, channels);
}

static void try_norm_relu(void)
{
	for (size_t i = 0; i < sizeof(norms) / sizeof(norms[0]); i++) {
		const int64_t rows = norms[i].a, channels = norms[i].b, all = 2 * rows * channels + 2 * channels;
		if (!fits(rows * channels))
			continue;
		float *apart = floats(all), *together = floats(all);
		run_norm_relu(apart, rows, channels, false, 1);
		for (int round = 0; round < 2; round++) {
			run_norm_relu(together, rows, channels, true, round == 0 ? 1 : MANY_THREADS);
			assert_memory_equal(together, apart, (size_t)all * sizeof(float));
		}
	}
}

TEST_RUNS(batch_norm_with_relu_has_the_same_bits, in_each_place_of_f32(try_norm_relu));

/* ---- elements ---------------------------------------------------------------------------------- */

static void try_relu(void)
{
	enum { MOST = 40007, FEWER = 1003 };
	const int64_t n = fits(MOST) ? MOST : FEWER;
	random_state = 17;
	float *x = numbers(n), *grad = numbers(n), *y = floats(n), *before = floats(n);

	dk_set_threads(MANY_THREADS);
	memcpy(before, grad, (size_t)n * sizeof(float));
	x[5] = 0;
	x[6] = NAN;
	float *x_there = give(x, n), *grad_there = give(grad, n), *y_there = give(y, n);
	dk_use(place.queue);
	dk_relu_forward(y_there, x_there, n);
	dk_relu_backward(grad_there, y_there, n);
	assert_null(dk_failure());
	dk_use(NULL);
	take(y, y_there, n);
	take(grad, grad_there, n);
	for (int64_t i = 0; i < n; i++) {
		if (i == 6)
			continue;
		assert_true(y[i] == (x[i] > 0 ? x[i] : 0) && grad[i] == (x[i] > 0 ? before[i] : 0));
	}
	assert_true(isnan(y[6]) && grad[6] == before[6]);
}

TEST_RUNS(relu, in_each_place_of_f32(try_relu));

static void try_cross_entropy(void)
{
	enum { ROWS = 5, CLASSES = 11 };
	const int32_t targets[ROWS] = {0, 10, 3, 3, 7};
	double wanted = 0, losses = 1;
	random_state = 23;
	float *logits = numbers(ROWS * CLASSES), grad[2][ROWS * CLASSES], *there[2];

	logits[4] = 90; /* its exponential is no float */
	for (int i = 0; i < 2; i++)
		there[i] = give(logits, ROWS * CLASSES);
	int32_t *targets_there = give(targets, ROWS);
	double *losses_there = give(&losses, sizeof(losses) / sizeof(float));
	dk_use(place.queue);
	const double loss = dk_cross_entropy(there[0], targets_there, ROWS, CLASSES);
	dk_cross_entropy_loss(losses_there, there[1], targets_there, ROWS, CLASSES);
	assert_null(dk_failure());
	dk_use(NULL);
	for (int i = 0; i < 2; i++)
		take(grad[i], there[i], ROWS * CLASSES);
	take(&losses, losses_there, sizeof(losses) / sizeof(float));
	for (int r = 0; r < ROWS; r++) {
		const float *row = logits + r * CLASSES;
		double total = 0;
		for (int i = 0; i < CLASSES; i++)
			total += exp(row[i]);
		wanted += log(total) - row[targets[r]];
		for (int i = 0; i < CLASSES; i++)
			assert_true(fabs(grad[0][r * CLASSES + i] - (exp(row[i]) / total - (i == targets[r]))) < 1e-6);
	}
	assert_true(fabs(loss - wanted) < 1e-4);
	assert_true(losses == 1 + loss);
	assert_memory_equal(grad[0], grad[1], sizeof(grad[0]));
}

TEST_RUNS(cross_entropy, in_each_place_of_f32(try_cross_entropy));

/* Of CUDA, which alone has queues of DK_BF16, and before those of DK_MIXED: the host's take f32. */
TEST(queues_of_bf16_say_that_images_are_f32)
{
	const char *why;
	int refused = 0;

	for (int round = 0; kernel_place_open(round, &place, &why); round++) {
		if (place.type == DK_BF16 || (place.type == DK_MIXED && refused > 0)) {
			float *x = place.alloc(sizeof(float));
			dk_use(place.queue);
			dk_relu_forward(x, x, 1);
			assert_non_null(dk_failure());
			assert_non_null(strstr(dk_failure(), "work in f32"));
			dk_use(NULL);
			place.free(x);
			refused++;
		}
		place.close(&place);
	}
	if (refused == 0)
		skip();
}
