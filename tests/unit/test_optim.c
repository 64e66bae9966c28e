/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* optim: ranges of the arenas are updated as PyTorch would, tensor by tensor. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "optim/optim.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

#ifdef __clang__
/* LLVM's OpenMP keeps the tables of threads that it outgrew. */
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
	return "leak:libomp.so\n";
}
#endif

enum { A = 5, B = 3, STEPS = 5, ELEMENTS = 32, B_OFFSET = 16 };

/* Powers of two, so that scaling is exact. */
static const double WEIGHT = 4;

static const ddp_param params[] = {
	{ .name = "a", .ndim = 1, .shape = { A } },
	{ .name = "b", .ndim = 1, .shape = { B }, .no_decay = true },
};

/* What PyTorch 1.13 computes: float32, 5 steps, weight decay 0.1 on a only. */
static const struct recorded {
	ddp_model_options options;
	double learning_rate;
	float a[A], b[B];
} recorded[] = {
	{ { .optimizer = DDP_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1 },
	  0.01,
	  { -0.646952748f, -0.107211083f, 0.404056787f, -0.48831436f, -0.0140347518f },
	  { -0.769336581f, -0.61085403f, -0.477716476f } },
	{ { .optimizer = DDP_SGD, .momentum = 0.9, .weight_decay = 0.1 },
	  0.05,
	  { -0.689897835f, -0.0415293463f, 0.498257488f, -0.370052129f, -0.00988037046f },
	  { -0.802496254f, -0.557737827f, -0.432011545f } },
	{ { .optimizer = DDP_SGD, .weight_decay = 0.1 },
	  0.05,
	  { -0.659173369f, -0.122402355f, 0.415082097f, -0.459919721f, 0.006403137f },
	  { -0.759375036f, -0.584375024f, -0.481250018f } },
};

static void set_params(float *arena)
{
	memset(arena, 0, ELEMENTS * sizeof(*arena));
	for (int i = 0; i < A; i++)
		arena[i] = (float)((i * 37) % 11 - 5) / 8;
	for (int i = 0; i < B; i++)
		arena[B_OFFSET + i] = (float)((i * 53) % 13 - 6) / 8;
}

static double set_grads(float *arena, int step)
{
	double squares = 0;

	for (int i = 0; i < A; i++)
		arena[i] = (float)WEIGHT * (float)((i * 29 + step * 17) % 23 - 11) / 16;
	for (int i = 0; i < B; i++)
		arena[B_OFFSET + i] =
			(float)WEIGHT * (float)(((i + 100) * 29 + step * 17) % 23 - 11) / 16;
	for (int i = 0; i < ELEMENTS; i++)
		squares += (double)arena[i] * arena[i];
	return squares;
}

static void assert_near(const float *got, const float *wanted, int count)
{
	for (int i = 0; i < count; i++)
		assert_true(fabsf(got[i] - wanted[i]) <= 2e-7f + 1e-6f * fabsf(wanted[i]));
}

/* Trains for STEPS in ranges of `range` elements and leaves the parameters. */
static void train(const struct recorded *record, int64_t range, float *param)
{
	float grad[ELEMENTS] = { 0 };
	ddp_layout layout;
	ddp_optim optim;

	assert_int_equal(ddp_layout_make(params, 2, &layout), DDP_OK);
	assert_int_equal(ddp_optim_make(&record->options, &layout, false, &optim), DDP_OK);
	set_params(param);
	for (int step = 1; step <= STEPS; step++) {
		const ddp_update update = { .learning_rate = record->learning_rate,
		                            .grad_scale = 1 / WEIGHT, .step = step };
		double wanted = set_grads(grad, step), squares = 0;

		for (int64_t begin = 0; begin < ELEMENTS; begin += range)
			squares += ddp_optim_apply(&optim, &update, param + begin, grad + begin, begin,
			                           begin + range, begin);
		assert_true(fabs(squares - wanted) < 1e-9 * wanted);
		for (int i = 0; i < ELEMENTS; i++)
			assert_true(grad[i] == 0);
	}
	ddp_optim_free(&optim);
	ddp_layout_free(&layout);
}

TEST(updates_are_those_of_pytorch)
{
	for (size_t i = 0; i < sizeof(recorded) / sizeof(recorded[0]); i++) {
		float param[ELEMENTS];

		train(&recorded[i], ELEMENTS, param);
		assert_near(param, recorded[i].a, A);
		assert_near(param + B_OFFSET, recorded[i].b, B);
	}
}

TEST(ranges_give_the_same_bits_as_the_whole)
{
	for (size_t i = 0; i < sizeof(recorded) / sizeof(recorded[0]); i++) {
		float whole[ELEMENTS], cut[ELEMENTS];

		train(&recorded[i], ELEMENTS, whole);
		train(&recorded[i], 4, cut);
		assert_memory_equal(whole, cut, sizeof(whole));
	}
}

TEST(gaps_between_tensors_stay_zero)
{
	float param[ELEMENTS];

	for (size_t i = 0; i < sizeof(recorded) / sizeof(recorded[0]); i++) {
		train(&recorded[i], ELEMENTS, param);
		for (int e = A; e < B_OFFSET; e++)
			assert_true(param[e] == 0);
		for (int e = B_OFFSET + B; e < ELEMENTS; e++)
			assert_true(param[e] == 0);
	}
}

/* More than one piece of the cache-sized loop, and decay switching within. */
TEST(large_arena_takes_decay_per_tensor)
{
	const ddp_param large[] = {
		{ .name = "w", .ndim = 2, .shape = { 300, 1000 } },
		{ .name = "bias", .ndim = 1, .shape = { 1000 }, .no_decay = true },
		{ .name = "w2", .ndim = 1, .shape = { 200000 } },
	};
	const ddp_model_options options = { .optimizer = DDP_SGD, .weight_decay = 0.5 };
	const ddp_update update = { .learning_rate = 0.5, .grad_scale = 1, .step = 1 };
	ddp_layout layout;
	ddp_optim optim;

	assert_int_equal(ddp_layout_make(large, 3, &layout), DDP_OK);
	assert_int_equal(ddp_optim_make(&options, &layout, false, &optim), DDP_OK);
	float *param = calloc((size_t)layout.elements, sizeof(*param));
	float *grad = calloc((size_t)layout.elements, sizeof(*grad));
	assert_non_null(param);
	assert_non_null(grad);
	for (int64_t e = 0; e < layout.elements; e++)
		param[e] = 1;
	ddp_optim_apply(&optim, &update, param, grad, 0, layout.elements, 0);
	for (int t = 0; t < 3; t++) {
		float wanted = large[t].no_decay ? 1 : 0.75f;
		for (int64_t e = 0; e < layout.slots[t].count; e++)
			assert_true(param[layout.slots[t].offset + e] == wanted);
	}
	free(param);
	free(grad);
	ddp_optim_free(&optim);
	ddp_layout_free(&layout);
}

TEST(plain_sgd_keeps_no_state)
{
	const ddp_model_options options = { .optimizer = DDP_SGD };
	ddp_layout layout;
	ddp_optim optim;

	assert_int_equal(ddp_layout_make(params, 2, &layout), DDP_OK);
	assert_int_equal(ddp_optim_make(&options, &layout, false, &optim), DDP_OK);
	assert_int_equal(optim.state_count, 0);
	ddp_optim_free(&optim);
	ddp_layout_free(&layout);
}

/* Numbers of a schedule of 10 steps of warm-up and 110 in all, from 1 to 0.2. */
TEST(schedules_warm_up_and_fall)
{
	static const struct { ddp_schedule_kind kind; int64_t step; double rate; } cases[] = {
		{ DDP_SCHEDULE_CONSTANT, 5, 0.5 },       { DDP_SCHEDULE_CONSTANT, 10, 1 },
		{ DDP_SCHEDULE_CONSTANT, 1000, 1 },      { DDP_SCHEDULE_LINEAR, 1, 0.1 },
		{ DDP_SCHEDULE_LINEAR, 10, 1 },          { DDP_SCHEDULE_LINEAR, 60, 0.6 },
		{ DDP_SCHEDULE_LINEAR, 85, 0.4 },        { DDP_SCHEDULE_LINEAR, 110, 0.2 },
		{ DDP_SCHEDULE_LINEAR, 111, 0.2 },       { DDP_SCHEDULE_COSINE, 5, 0.5 },
		{ DDP_SCHEDULE_COSINE, 60, 0.6 },        { DDP_SCHEDULE_COSINE, 35, 0.2 + 0.4 * (1 + 0.70710678118654752) },
		{ DDP_SCHEDULE_COSINE, 200, 0.2 },       { DDP_SCHEDULE_WSD, 0, 0 },
		{ DDP_SCHEDULE_WSD, 90, 1 },             { DDP_SCHEDULE_WSD, 95, 0.8 },
		{ DDP_SCHEDULE_WSD, 105, 0.4 },          { DDP_SCHEDULE_WSD, 110, 0.2 },
		{ DDP_SCHEDULE_INVERSE_ROOT, 9, 0.9 },   { DDP_SCHEDULE_INVERSE_ROOT, 10, 1 },
		{ DDP_SCHEDULE_INVERSE_ROOT, 40, 0.5 },  { DDP_SCHEDULE_INVERSE_ROOT, 1000, 0.2 },
	};
	ddp_schedule schedule = { DDP_SCHEDULE_FIELDS, .peak = 1, .floor = 0.2, .warmup = 10, .total = 110,
	                          .decay = 20 };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		schedule.kind = cases[i].kind;
		double rate = ddp_schedule_rate(&schedule, cases[i].step);
		if (fabs(rate - cases[i].rate) > 1e-12)
			fail_msg("kind %d, step %d: %g, not %g", (int)cases[i].kind, (int)cases[i].step, rate, cases[i].rate);
	}
	schedule.decay = DDP_AUTO; /* 11 steps */
	schedule.kind = DDP_SCHEDULE_WSD;
	assert_true(ddp_schedule_rate(&schedule, 99) == 1 && ddp_schedule_rate(&schedule, 100) < 1);
	schedule.warmup = 0;
	schedule.kind = DDP_SCHEDULE_INVERSE_ROOT;
	assert_true(ddp_schedule_rate(&schedule, 1) == 1 && ddp_schedule_rate(&schedule, 4) == 0.5);
}

TEST(wrong_schedules_are_named)
{
	static const struct { ddp_schedule schedule; const char *why; } cases[] = {
		{ { .peak = 1 }, "the size of a ddp_schedule is 0" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .kind = (ddp_schedule_kind)5 }, "5 is no ddp_schedule_kind" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .floor = 2 }, "peak is 1 and floor 2" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .kind = DDP_SCHEDULE_LINEAR }, "total 0 steps" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .warmup = -1 }, "warmup is -1" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .kind = DDP_SCHEDULE_WSD, .warmup = 60, .decay = 50, .total = 100 },
		  "a warmup of 60 and a decay of 50 steps are more than the total of 100" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .kind = DDP_SCHEDULE_WSD, .warmup = 60, .decay = INT64_MAX,
		    .total = INT64_MAX }, "a warmup of 60 and a decay of 9223372036854775807 steps are more" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .kind = DDP_SCHEDULE_LINEAR, .warmup = 100, .total = 100 },
		  "a warmup of 100 steps is not below the total of 100" },
		{ { DDP_SCHEDULE_FIELDS, .peak = 1, .kind = DDP_SCHEDULE_COSINE, .warmup = 101, .total = 100 },
		  "a warmup of 101 steps is not below the total of 100" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(ddp_schedule_check(&cases[i].schedule), DDP_ERR_INVALID);
		assert_non_null(strstr(ddp_last_error(), cases[i].why));
		assert_true(isnan(ddp_schedule_rate(&cases[i].schedule, 1)));
	}
}

TEST(updates_are_divided_among_ranks_and_micro_batches)
{
	int accumulate = -1;

	assert_int_equal(ddp_accumulation(524288, 4 * 1024, 8, &accumulate), DDP_OK);
	assert_int_equal(accumulate, 16);
	assert_int_equal(ddp_accumulation(10000, 1024, 3, &accumulate), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "an update of 10000 is no multiple of 3072, which is 1024 of a "
	                       "micro-batch on each of 3 ranks; give 9216"));
	assert_int_equal(ddp_accumulation(1000, 1024, 3, &accumulate), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "give 3072"));
	assert_null(strstr(ddp_last_error(), "tokens")); /* they may be samples */
	assert_int_equal(ddp_accumulation(0, 1024, 3, &accumulate), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "must be above 0"));
	assert_int_equal(ddp_accumulation(1000, 1024, 3, NULL), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "accumulate is NULL"));
	assert_int_equal(ddp_accumulation(INT64_MAX, INT64_MAX, 3, &accumulate), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "on each of 3 ranks are too many"));
	assert_int_equal(ddp_accumulation(INT64_MAX, 1, 1, &accumulate), DDP_ERR_INVALID);
	assert_int_equal(accumulate, 16);
	assert_true(ddp_linear_scaling(0.1, 8192, 256) == 3.2);
}

enum { THREADS = 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t seen[THREADS];
static int seen_count;

void __real_dk_update(float *param, float *grad, float *m, float *v, int64_t n,
                     const dk_update_args *args);
void __wrap_dk_update(float *param, float *grad, float *m, float *v, int64_t n,
                     const dk_update_args *args);

/* Notes which threads update. */
void __wrap_dk_update(float *param, float *grad, float *m, float *v, int64_t n,
                     const dk_update_args *args)
{
	int i = 0;

	pthread_mutex_lock(&lock);
	while (i < seen_count && !pthread_equal(seen[i], pthread_self()))
		i++;
	if (i == seen_count && seen_count < THREADS)
		seen[seen_count++] = pthread_self();
	pthread_mutex_unlock(&lock);
	__real_dk_update(param, grad, m, v, n, args);
}

TEST(all_threads_update_and_change_no_bit)
{
	enum { LARGE = 1000000 };
	const ddp_param large[] = { { .name = "a", .ndim = 1, .shape = { LARGE - 70000 } },
	                            { .name = "b", .ndim = 1, .shape = { 70000 }, .no_decay = true } };
	const ddp_update update = { .learning_rate = 0.01, .grad_scale = 1, .step = 1 };
	float *param[2], *grad[2];
	double squares[2];
	int before = dk_threads();
	ddp_layout layout;

	assert_int_equal(ddp_layout_make(large, 2, &layout), DDP_OK);
	for (int i = 0; i < 2; i++) {
		ddp_optim optim;
		assert_int_equal(ddp_optim_make(&recorded[0].options, &layout, false, &optim), DDP_OK);
		param[i] = calloc((size_t)layout.elements, sizeof(float));
		grad[i] = calloc((size_t)layout.elements, sizeof(float));
		assert_true(param[i] != NULL && grad[i] != NULL);
		for (int64_t k = 0; k < layout.elements; k++) {
			param[i][k] = (float)(k % 101) / 100;
			grad[i][k] = (float)(k % 97 - 48) / 50;
		}
		dk_set_threads(i == 0 ? 1 : THREADS);
		seen_count = 0;
		squares[i] = ddp_optim_apply(&optim, &update, param[i], grad[i], 0, layout.elements,
		                             0);
		ddp_optim_free(&optim);
	}
	/* None, where the kernels were built without threads; the sanitizer's build has one. */
#ifndef __SANITIZE_THREAD__
	assert_int_equal(seen_count, dk_threads());
#endif
	dk_set_threads(before);
	assert_memory_equal(param[0], param[1], (size_t)layout.elements * sizeof(float));
	assert_true(squares[0] == squares[1]);
	for (int i = 0; i < 2; i++) {
		free(param[i]);
		free(grad[i]);
	}
	ddp_layout_free(&layout);
}
