/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* optim: each optimizer's parameters beside those of its paper's formulas, tensor by tensor; schedules. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "optim/optim.h"
#include "optim/rule.h"
#include "tests/support/optimizer_cases.h"
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

enum { ELEMENTS_MAX = 64 };

/* A model in memory of its own. */
typedef struct fixture {
	ddp_layout layout;
	ddp_optim optim;
	float params[ELEMENTS_MAX], grads[ELEMENTS_MAX];
} fixture;

static void set_up(fixture *f, const ddp_param *list, const ddp_model_options *options)
{
	memset(f, 0, sizeof(*f));
	assert_int_equal(ddp_layout_make(list, TENSORS, &f->layout), DDP_OK);
	assert_true(f->layout.elements <= ELEMENTS_MAX);
	assert_int_equal(ddp_optim_make(options, &f->layout, false, &f->optim), DDP_OK);
	for (int t = 0; t < TENSORS; t++) {
		const ddp_slot *slot = &f->layout.slots[t];
		for (int i = 0; i < slot->count; i++)
			f->params[slot->offset + i] = first_of(t, i);
	}
}

static void tear_down(fixture *f)
{
	ddp_optim_free(&f->optim);
	ddp_layout_free(&f->layout);
}

static void set_grads(fixture *f, int64_t step)
{
	for (int t = 0; t < TENSORS; t++) {
		const ddp_slot *slot = &f->layout.slots[t];
		for (int i = 0; i < slot->count; i++)
			f->grads[slot->offset + i] = gradient_of(t, i, step);
	}
}

/* In ranges of `range` elements, from the last to the first, as buckets come. */
static void step_once(fixture *f, const ddp_update *update, int64_t range)
{
	const int64_t elements = f->layout.elements;
	double wanted = 0, squares = 0;

	set_grads(f, update->step);
	for (int64_t i = 0; i < elements; i++)
		wanted += (double)f->grads[i] * f->grads[i];
	for (int64_t end = elements; end > 0; end -= range) {
		const int64_t begin = end > range ? end - range : 0;
		squares += ddp_optim_apply(&f->optim, update, f->params + begin, f->grads + begin, begin, end, begin);
	}
	assert_true(fabs(squares - wanted) < 1e-9 * wanted);
	for (int64_t i = 0; i < elements; i++)
		assert_true(f->grads[i] == 0);
}

static void train(fixture *f, int64_t range)
{
	for (int64_t step = 1; step <= STEPS; step++)
		step_once(f, &(ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT, .step = step },
		          range);
}

TEST(each_optimizer_has_a_case)
{
	int optimizer = 0;

	for (; ddp_optimizer_name((ddp_optimizer)optimizer) != NULL; optimizer++) {
		if (recorded_of((ddp_optimizer)optimizer) == NULL)
			fail_msg("tests/support/optimizer_cases.h has no case of %s", ddp_optimizer_name((ddp_optimizer)optimizer));
	}
	assert_true(optimizer > DDP_MUON);
}

/* Of single elements, what is not there may only stand behind what is: a span has an address of each before. */
TEST(states_that_may_be_missing_are_the_last)
{
	static fixture f;

	for (int r = 0; r < RECORDED; r++) {
		for (int momentum = 0; momentum < 2; momentum++) {
			ddp_model_options options = recorded[r].options;
			options.momentum = momentum * 0.9;
			set_up(&f, params, &options);
			for (int i = 0; i < f.optim.state_count && !f.optim.rule->whole; i++) {
				if (f.optim.state_elements[i] == 0)
					fail_msg("%s has no %s, and has what comes behind it", f.optim.rule->name, f.optim.state_name[i]);
			}
			tear_down(&f);
		}
	}
}

/* What lies between tensors stays 0. */
static void expect_gaps(const fixture *f)
{
	for (int t = 0; t < TENSORS; t++) {
		const int64_t end = t + 1 < TENSORS ? f->layout.slots[t + 1].offset : f->layout.elements;
		for (int64_t e = f->layout.slots[t].offset + f->layout.slots[t].count; e < end; e++)
			assert_true(f->params[e] == 0);
	}
}

TEST(parameters_are_those_of_the_formulas)
{
	static fixture f;

	for (int r = 0; r < RECORDED; r++) {
		set_up(&f, params, &recorded[r].options);
		train(&f, ELEMENTS_MAX);
		for (int t = 0; t < TENSORS; t++) {
			const ddp_slot *slot = &f.layout.slots[t];
			for (int i = 0; i < slot->count; i++) {
				const double got = f.params[slot->offset + i], wanted = recorded[r].wanted[t][i];
				if (fabs(got - wanted) > 2e-6)
					fail_msg("%s, %s[%d] is %.8f, not %.8f", ddp_optimizer_name(recorded[r].options.optimizer),
					         slot->name, i, got, wanted);
			}
		}
		expect_gaps(&f);
		tear_down(&f);
	}
}

TEST(buckets_give_the_same_bits_as_the_whole)
{
	static fixture whole, cut;

	for (int r = 0; r < RECORDED; r++) {
		set_up(&whole, params, &recorded[r].options);
		set_up(&cut, params, &recorded[r].options);
		train(&whole, ELEMENTS_MAX);
		train(&cut, 4);
		assert_memory_equal(whole.params, cut.params, sizeof(whole.params));
		tear_down(&whole);
		tear_down(&cut);
	}
}

TEST(parameters_in_bf16_are_the_rounded_ones)
{
	uint16_t rounded[ELEMENTS_MAX], wanted[ELEMENTS_MAX];
	static fixture f;

	for (int r = 0; r < RECORDED; r++) {
		memset(rounded, 0, sizeof(rounded));
		set_up(&f, params, &recorded[r].options);
		f.optim.rounded = rounded;
		train(&f, 4);
		dk_to_bf16(wanted, f.params, f.layout.elements);
		assert_memory_equal(rounded, wanted, (size_t)f.layout.elements * sizeof(*rounded));
		tear_down(&f);
	}
}

/* Its parameters, state and count of steps stay: a step without it is as none. */
TEST(unused_tensors_stay_as_they_are)
{
	const bool none[TENSORS] = { true, true, true, true };
	const float missed[TENSORS] = { 1, 1, 1, 1 };
	static fixture f;

	for (int r = 0; r < RECORDED; r++) {
		static fixture plain;
		ddp_update update = { .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT };

		set_up(&plain, params, &recorded[r].options);
		train(&plain, ELEMENTS_MAX);
		set_up(&f, params, &recorded[r].options);
		for (int64_t i = 1; i <= STEPS; i++) {
			update.step = i;
			step_once(&f, &update, 4);
			if (i > 1)
				continue;
			update.unused = none;
			step_once(&f, &update, 4);
			update.unused = NULL;
		}
		assert_memory_equal(plain.params, f.params, sizeof(f.params));
		/* Of a step more, one is missed. */
		update = (ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT, .step = STEPS + 1 };
		step_once(&plain, &update, 4);
		set_grads(&f, STEPS + 1);
		update.step++;
		update.missed = missed;
		ddp_optim_apply(&f.optim, &update, f.params, f.grads, 0, f.layout.elements, 0);
		assert_memory_equal(plain.params, f.params, sizeof(f.params));
		tear_down(&f);
		tear_down(&plain);
	}
}

/* Those of the owner are left to it; all that is kept is the same. */
TEST(a_shared_tensor_is_made_by_its_owner)
{
	const ddp_model_options *muon = &recorded_of(DDP_MUON)->options;
	static fixture ranks[2], alone;
	int owned[2] = { 0 };

	set_up(&alone, params, muon);
	train(&alone, ELEMENTS_MAX);
	for (int r = 0; r < 2; r++) {
		set_up(&ranks[r], params, muon);
		assert_int_equal(ddp_optim_share(&ranks[r].optim, 2, r), DDP_OK);
	}
	for (int64_t step = 1; step <= STEPS; step++) {
		for (int r = 0; r < 2; r++)
			step_once(&ranks[r], &(ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT,
			                                    .step = step }, 4);
		for (int t = 0; t < TENSORS; t++) {
			const ddp_slot *slot = &ranks[0].layout.slots[t];
			const int owner = ddp_optim_owner(&ranks[0].optim, slot);
			assert_int_equal(owner >= 0, slot->ndim == 2);
			assert_int_equal(owner, ddp_optim_owner(&ranks[1].optim, &ranks[1].layout.slots[t]));
			if (owner < 0)
				continue;
			owned[owner]++;
			/* What the other rank gets by a broadcast. */
			memcpy(ranks[1 - owner].params + slot->offset, ranks[owner].params + slot->offset,
			       (size_t)slot->count * sizeof(float));
		}
	}
	assert_true(owned[0] > 0 && owned[1] > 0);
	for (int r = 0; r < 2; r++) {
		assert_memory_equal(ranks[r].params, alone.params, sizeof(alone.params));
		for (int i = 0; i < alone.optim.state_count; i++)
			assert_memory_equal(ranks[r].optim.state[i], alone.optim.state[i],
			                    (size_t)alone.optim.state_elements[i] * sizeof(float));
		tear_down(&ranks[r]);
	}
	tear_down(&alone);
}

/* What is kept has shapes of its own, by which a checkpoint saves it. */
TEST(adafactor_keeps_rows_and_columns)
{
	static fixture f;

	set_up(&f, params, &recorded_of(DDP_ADAFACTOR)->options);
	const ddp_slot *a = &f.layout.slots[0], *tall = &f.layout.slots[2], *cube = &f.layout.slots[3];
	assert_int_equal(ddp_optim_kept(&f.optim, 0, a)->count, 0);
	assert_int_equal(ddp_optim_kept(&f.optim, 2, a)->count, 5);
	assert_int_equal(ddp_optim_kept(&f.optim, 0, tall)->shape[0], 4);
	assert_int_equal(ddp_optim_kept(&f.optim, 1, tall)->shape[0], 2);
	assert_int_equal(ddp_optim_kept(&f.optim, 2, tall)->count, 0);
	assert_int_equal(ddp_optim_kept(&f.optim, 0, cube)->ndim, 2);
	assert_int_equal(ddp_optim_kept(&f.optim, 1, cube)->count, 4);
	tear_down(&f);
}

TEST(muon_leaves_to_adamw_what_is_no_matrix_to_it)
{
	const ddp_param_group group = { .learning_rate_factor = 1, .weight_decay = 0.1, .adamw = true };
	ddp_param list[TENSORS];
	static fixture f, adamw;

	memcpy(list, params, sizeof(list));
	list[1].group = &group;
	list[2].sparse_rows = 2;
	ddp_model_options options = recorded_of(DDP_MUON)->options;
	set_up(&f, list, &options);
	options.optimizer = DDP_ADAMW;
	set_up(&adamw, list, &options);
	train(&f, 4);
	train(&adamw, ELEMENTS_MAX);
	assert_memory_equal(f.params, adamw.params, sizeof(f.params));
	tear_down(&f);
	tear_down(&adamw);
}

/* Neither of nothing, nor of what is 0, is there a step that is not a number. */
TEST(zeros_stay_numbers)
{
	static fixture f;

	for (int r = 0; r < RECORDED; r++) {
		set_up(&f, params, &recorded[r].options);
		memset(f.params, 0, sizeof(f.params));
		for (int64_t step = 1; step <= 2; step++)
			ddp_optim_apply(&f.optim, &(ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1, .step = step },
			                f.params, f.grads, 0, f.layout.elements, 0);
		for (int64_t i = 0; i < f.layout.elements; i++)
			assert_true(f.params[i] == 0);
		tear_down(&f);
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

	assert_int_equal(ddp_layout_make(params, TENSORS, &layout), DDP_OK);
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
		assert_int_equal(ddp_optim_make(&recorded_of(DDP_ADAMW)->options, &layout, false, &optim), DDP_OK);
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
