/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan bare */
/* Convolutions by oneDNN, and by Winograd's products in each instruction set of this processor,
   against plain loops in double precision: odd shapes, other numbers of images and of threads by the
   same plans, and what each leaves to others. */
#include <math.h>

#include "cpu/convolution_onednn.h"
#include "cpu/winograd.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

/* The plain version would take most of the time. */
#define SLOW __attribute__((no_sanitize("address", "thread", "undefined")))

struct convolution {
	dk_window w;
	int64_t outputs;
	bool bias;
};

/* Images, places, weight, bias: in, then gradients, of which those of parameters start as 0.5. */
enum { IMAGES, PLACES, WEIGHT, BIAS, KINDS };

static int64_t across(const dk_window *w)
{
	return dk_window_places(w, w->width);
}

static int64_t count_of(const struct convolution *c, int kind)
{
	const dk_window *w = &c->w;

	switch (kind) {
	case IMAGES: return w->batch * w->height * w->width * w->channels;
	case PLACES: return w->batch * dk_window_places(w, w->height) * across(w) * c->outputs;
	case WEIGHT: return c->outputs * w->size * w->size * w->channels;
	default: return c->outputs;
	}
}

/* Adds to the gradients; out is set. */
SLOW static void convolve(const struct convolution *c, float *const in[KINDS], const float *dout, double *const got[KINDS])
{
	const dk_window *w = &c->w;
	const int64_t down = dk_window_places(w, w->height), outs = count_of(c, PLACES);

	for (int64_t i = 0; i < outs; i++) {
		const int64_t o = i % c->outputs, place = i / c->outputs;
		double sum = c->bias ? in[BIAS][o] : 0;
		got[BIAS][o] += dout[i];
		for (int64_t k = 0; k < w->size * w->size; k++) {
			const int64_t y = place / across(w) % down * w->stride - w->padding + k / w->size;
			const int64_t x = place % across(w) * w->stride - w->padding + k % w->size;
			if (y < 0 || y >= w->height || x < 0 || x >= w->width)
				continue;
			const int64_t at = ((place / (down * across(w)) * w->height + y) * w->width + x) * w->channels;
			const int64_t v = (o * w->size * w->size + k) * w->channels;
			for (int64_t n = 0; n < w->channels; n++) {
				sum += (double)in[IMAGES][at + n] * in[WEIGHT][v + n];
				got[WEIGHT][v + n] += (double)dout[i] * in[IMAGES][at + n];
				got[IMAGES][at + n] += (double)dout[i] * in[WEIGHT][v + n];
			}
		}
		got[PLACES][i] = sum;
	}
}

static void near(const char *what, const struct convolution *c, const float *got, const double *wanted, int64_t n,
                 double tolerance)
{
	const dk_window *w = &c->w;

	for (int64_t i = 0; i < n; i++)
		if (!(fabs(got[i] - wanted[i]) <= tolerance * (fabs(wanted[i]) + 1)))
			fail_msg("%s of %ld x %ld x %ld x %ld, window %ld, %ld, %ld: [%ld] is %.8g, plainly %.8g",
			         what, (long)w->batch, (long)w->height, (long)w->width, (long)w->channels,
			         (long)w->size, (long)w->stride, (long)w->padding, (long)i, got[i], wanted[i]);
}

/* Who is to compute. */
struct way {
	struct dk_onednn *onednn;
	const dk_winograd_set *winograd; /* unless it is NULL */
};

static void compute(const struct way *way, const struct convolution *c, float *const in[KINDS], float *const got[KINDS])
{
	const dk_window *w = &c->w;
	const float *bias = c->bias ? in[BIAS] : NULL;
	float *dbias = c->bias ? got[BIAS] : NULL;
	const dk_winograd_set *set = way->winograd;
	float *work = make(set != NULL ? dk_winograd_work(set, w, c->outputs) : dk_convolution_work(w, c->outputs), sizeof(float));

	if (set != NULL) {
		dk_winograd_forward(set, got[PLACES], work, in[IMAGES], in[WEIGHT], bias, w, c->outputs);
		dk_winograd_backward_params(set, got[WEIGHT], dbias, work, in[PLACES], in[IMAGES], w, c->outputs);
		dk_winograd_backward_input(set, got[IMAGES], work, in[PLACES], in[WEIGHT], w, c->outputs);
	} else {
		dk_onednn_forward(way->onednn, got[PLACES], work, in[IMAGES], in[WEIGHT], bias, w, c->outputs);
		dk_onednn_backward_params(way->onednn, got[WEIGHT], dbias, work, in[PLACES], in[IMAGES], w, c->outputs);
		dk_onednn_backward_input(way->onednn, got[IMAGES], work, in[PLACES], in[WEIGHT], w, c->outputs);
	}
	assert_null(dk_failure());
	free(work);
}

/* What a convolution takes, gives, and should give. */
struct values {
	float *in[KINDS], *got[KINDS];
	double *wanted[KINDS];
};

static struct values make_values(const struct convolution *c)
{
	struct values v;

	random_state = 7;
	for (int kind = 0; kind < KINDS; kind++) {
		const int64_t n = count_of(c, kind);
		v.in[kind] = make((size_t)n, sizeof(float));
		v.got[kind] = make((size_t)n, sizeof(float));
		v.wanted[kind] = make((size_t)n, sizeof(double));
		for (int64_t i = 0; i < n; i++) {
			v.in[kind][i] = (float)uniform(); /* of places, dout */
			v.got[kind][i] = kind < WEIGHT ? 1e30f : 0.5f;
			v.wanted[kind][i] = kind < WEIGHT ? 0 : 0.5;
		}
	}
	convolve(c, v.in, v.in[PLACES], v.wanted);
	return v;
}

static void free_values(struct values *v)
{
	for (int kind = 0; kind < KINDS; kind++) {
		free(v->in[kind]);
		free(v->got[kind]);
		free(v->wanted[kind]);
	}
}

static void check(const struct way *way, const struct convolution *c, int threads)
{
	struct values v = make_values(c);

	dk_set_threads(threads);
	compute(way, c, v.in, v.got);
	near("out", c, v.got[PLACES], v.wanted[PLACES], count_of(c, PLACES), 3e-5);
	near("weight's gradient", c, v.got[WEIGHT], v.wanted[WEIGHT], count_of(c, WEIGHT), 2e-4);
	near("input's gradient", c, v.got[IMAGES], v.wanted[IMAGES], count_of(c, IMAGES), 3e-5);
	if (c->bias)
		near("bias' gradient", c, v.got[BIAS], v.wanted[BIAS], c->outputs, 2e-4);
	free_values(&v);
}

TEST(convolutions)
{
	const struct convolution cases[] = {
		{{3, 9, 8, 16, 3, 1, 1}, 32, true}, {{3, 16, 16, 32, 1, 2, 0}, 16, false}, {{3, 10, 10, 16, 1, 1, 0}, 16, false},
		{{2, 30, 30, 3, 7, 2, 3}, 16, false}, {{3, 12, 11, 5, 3, 1, 1}, 7, true}, {{3, 16, 17, 16, 3, 2, 1}, 16, true},
		{{2, 7, 6, 16, 3, 1, 1}, 16, true}, /* too narrow for oneDNN */
	};
	const struct way way = {.onednn = *state};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct convolution fewer = cases[i];
		fewer.w.batch--;
		check(&way, &cases[i], 1);
		check(&way, &cases[i], MANY_THREADS);
		check(&way, &fewer, MANY_THREADS);
	}
}

TEST(winograd)
{
	const struct {
		dk_window w; /* of so many times as many channels, and outputs, as the set takes at least */
		int64_t outputs;
		bool bias;
	} cases[] = {
		{{2, 8, 6, 1, 3, 1, 1}, 2, true}, {{3, 5, 7, 2, 3, 1, 1}, 1, false}, {{1, 3, 3, 1, 3, 1, 0}, 1, true},
		{{2, 4, 5, 1, 3, 1, 2}, 1, false}, {{1, 1, 1, 1, 3, 1, 1}, 1, true},
		{{3, 17, 16, 1, 3, 1, 1}, 1, false}, /* more than one block of tiles, of which the last is smaller */
	};
	struct way way = {0};

	for (int set = 0; (way.winograd = dk_winograd_set_at(set)) != NULL; set++)
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			struct convolution c = {.w = cases[i].w, .outputs = cases[i].outputs * way.winograd->across, .bias = cases[i].bias};
			c.w.channels *= way.winograd->across;
			check(&way, &c, 1);
			check(&way, &c, MANY_THREADS);
		}
}

/* The root of the mean square of how far they are from what they should be. */
static double apart(const float *got, const double *wanted, int64_t n)
{
	double squares = 0;

	for (int64_t i = 0; i < n; i++)
		squares += (got[i] - wanted[i]) * (got[i] - wanted[i]);
	return sqrt(squares / (double)n);
}

/* Sums are cut, so that they are nearer than one chain of additions. */
TEST(winograd_is_more_exact_than_a_sum)
{
	const struct way way = {.winograd = dk_winograd_set_at(0)};

	if (way.winograd == NULL)
		skip();
	const struct convolution c = {.w = {2, 8, 8, 128, 3, 1, 1}, .outputs = 64};
	struct values v = make_values(&c);
	const int64_t outs = count_of(&c, PLACES), row = 9 * c.w.channels;
	compute(&way, &c, v.in, v.got);
	const double products = apart(v.got[PLACES], v.wanted[PLACES], outs);
	for (int64_t i = 0; i < outs; i++) {
		const int64_t o = i % c.outputs, place = i / c.outputs, y = place / 8 % 8, x = place % 8;
		float sum = 0;
		for (int64_t k = 0; k < row; k++) {
			const int64_t down = y + k / c.w.channels / 3 - 1, right = x + k / c.w.channels % 3 - 1;
			if (down >= 0 && down < 8 && right >= 0 && right < 8)
				sum += v.in[IMAGES][((place / 64 * 8 + down) * 8 + right) * c.w.channels + k % c.w.channels] *
				       v.in[WEIGHT][o * row + k];
		}
		v.got[PLACES][i] = sum;
	}
	const double plain = apart(v.got[PLACES], v.wanted[PLACES], outs);
	if (!(products <= plain / 2))
		fail_msg("%g from the exact sums, a plain sum in f32 %g", products, plain);
	free_values(&v);
}

/* The gradient of the weight, one place after the other. */
SLOW static void sum_gradient(const struct convolution *c, float *const in[KINDS], float *sums)
{
	const dk_window *w = &c->w;
	const int64_t places = w->batch * w->height * w->width;

	for (int64_t i = 0; i < places * c->outputs; i++) {
		const int64_t o = i % c->outputs, place = i / c->outputs, y = place / w->width % w->height, x = place % w->width;
		for (int64_t k = 0; k < 9; k++) {
			if (y + k / 3 < 1 || y + k / 3 > w->height || x + k % 3 < 1 || x + k % 3 > w->width)
				continue;
			const float *from = in[IMAGES] + (place + (k / 3 - 1) * w->width + k % 3 - 1) * w->channels;
			for (int64_t n = 0; n < w->channels; n++)
				sums[(o * 9 + k) * w->channels + n] += in[PLACES][i] * from[n];
		}
	}
}

TEST(winograd_sums_many_tiles_in_pieces)
{
	const struct way way = {.winograd = dk_winograd_set_at(0)};

	if (way.winograd == NULL)
		skip();
	const struct convolution c = {.w = {2, 32, 32, 64, 3, 1, 1}, .outputs = 64};
	struct values v = make_values(&c);
	const int64_t n = count_of(&c, WEIGHT);
	float *sums = make((size_t)n, sizeof(float));
	for (int64_t i = 0; i < n; i++)
		sums[i] = v.got[WEIGHT][i];
	sum_gradient(&c, v.in, sums);
	compute(&way, &c, v.in, v.got);
	const double products = apart(v.got[WEIGHT], v.wanted[WEIGHT], n), plain = apart(sums, v.wanted[WEIGHT], n);
	if (!(products <= plain / 2))
		fail_msg("%g from the exact sums, a plain sum in f32 %g", products, plain);
	free(sums);
	free_values(&v);
}

TEST(winograd_takes_what_networks_have)
{
	const dk_winograd_set *set = dk_winograd_set_at(0);
	const dk_window inner = {2, 8, 8, 64, 3, 1, 1}, moves = {2, 8, 8, 64, 3, 2, 1}, few = {1, 4, 4, 64, 3, 1, 1},
		first = {2, 32, 32, 3, 3, 1, 1};

	if (set == NULL)
		skip();
	assert_ptr_equal(dk_winograd(&inner, 64), set);
	assert_null(dk_winograd(&inner, 10));
	assert_null(dk_winograd(&moves, 64));
	assert_null(dk_winograd(&few, 64));
	assert_null(dk_winograd(&first, 64));
	for (enum dk_pass pass = DK_FORWARD; pass <= DK_BACKWARD_INPUT; pass++)
		assert_false(dk_onednn_takes(*state, pass, &inner, 64, false));
}

/* Otherwise the test above would be one of the kernels here. */
TEST(onednn_takes_what_networks_have)
{
#if defined(HAVE_ONEDNN_CONVOLUTION) && defined(__x86_64__)
	/* oneDNN has code for all passes from AVX2 on, as DNNL_MAX_CPU_ISA=AVX2 and =AVX tell. */
	if (!__builtin_cpu_supports("avx2"))
		skip();
	const dk_window first = {2, 32, 32, 3, 3, 1, 1}, inner = {2, 16, 16, 64, 3, 2, 1}, narrow = {8, 8, 4, 64, 1, 1, 0};

	assert_non_null(*state);
	for (enum dk_pass pass = DK_FORWARD; pass <= DK_BACKWARD_INPUT; pass++) {
		assert_true(dk_onednn_takes(*state, pass, &inner, 64, false));
		assert_false(dk_onednn_takes(*state, pass, &narrow, 64, false));
		assert_true(pass == DK_BACKWARD_INPUT || dk_onednn_takes(*state, pass, &first, 64, true));
	}
	dk_queue *queue = dk_open_mixed();
	assert_non_null(queue);
	dk_use(queue);
	assert_false(dk_onednn_takes(*state, DK_FORWARD, &inner, 64, false));
	dk_use(NULL);
	dk_close(queue);
#else
	skip();
#endif
}

/* The kernels here may: what oneDNN cannot make is no failure of training. */
TEST(what_onednn_refuses_is_no_failure)
{
	const dk_window lower_than_the_window = {2, 1, 16, 16, 3, 1, 0}; /* places down: -1, which oneDNN refuses */

	for (enum dk_pass pass = DK_FORWARD; pass <= DK_BACKWARD_INPUT; pass++)
		assert_false(dk_onednn_takes(*state, pass, &lower_than_the_window, 16, false));
	assert_null(dk_failure());
}

static int open_onednn(void **state)
{
	*state = dk_onednn_create();
	return 0;
}

static int close_onednn(void **state)
{
	dk_onednn_free(*state);
	return 0;
}

int main(void)
{
	return test_run(open_onednn, close_onednn);
}
