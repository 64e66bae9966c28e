/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 4 */
/* reduce: what a model refuses, and what ends a step on all ranks. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/agree.h"
#include "reduce/model_state.h"
#include "tests/support/context_ranks.h"
#include "tests/support/device_checks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "tests/support/three_params.h"

/* Refused on this rank alone, or since only one rank has it. */
static int odd_memory_body(ddp_context *context, void *user)
{
	static float own[512] __attribute__((aligned(64)));
	ddp_model_options options = plain;
	ddp_model_settings settings;
	ddp_model *model;

	options.grads_memory = own + 1;
	CHECK_FAILS(ddp_model_settings_make(&options, &settings), DDP_ERR_INVALID, "grads_memory is 0x");
	options = plain;
	options.params_memory = rank_of(context) == 1 ? own : NULL;
	CHECK_FAILS(ddp_model_create(context, three, 3, &options, &model), DDP_ERR_MISMATCH, "params_memory");
	for (int apart = 0; apart <= 16; apart += 16) {
		options.params_memory = own + apart;
		options.grads_memory = own + 16 - apart;
		CHECK(ddp_model_create(context, three, 3, &options, &model) == DDP_ERR_INVALID);
		CHECK(strstr(ddp_last_error(), "params_memory (") != NULL);
		CHECK_SAYS("overlap");
	}
	options.params_memory = options.grads_memory = own;
	CHECK(ddp_model_create(context, three, 3, &options, &model) == DDP_ERR_INVALID);
	CHECK(ddp_model_bytes(three, 0, &(size_t){ 0 }, &(size_t){ 0 }) == DDP_ERR_INVALID);
	CHECK(ddp_model_bytes(three, 3, NULL, NULL) == DDP_ERR_INVALID);
	return 0;
}

TEST_RUNS(memory_that_cannot_be_used_is_refused, assert_int_equal(run_ranks(2, odd_memory_body, NULL), 0));

/* Every rank says the same. */
static bool says_alike(ddp_context *context, const char *part)
{
	char first[1024] = "", own[1024];
	const bool said = test_says(part);

	snprintf(own, sizeof(own), "%s", ddp_last_error());
	snprintf(first, sizeof(first), "%s", own);
	const bool told = ddp_last_error_is_told();
	CHECK_OK(ddp_broadcast(ddp_world(context), first, sizeof(first), DDP_U8, 0));
	/* One tells the user. */
	return said && strcmp(first, own) == 0 && told == (rank_of(context) != 0);
}

/* ---- who is wrong ------------------------------------------------------------------------------ */

enum { VOTERS = 6 };

static const struct vote {
	double values[VOTERS];
	ddp_outlier wanted;
	const char *odd, *usual;
} votes[] = {
	{ { 8, 8, 8, 8, 8, 8 }, { 6, 0, 6, -1, 0 }, NULL, NULL },
	{ { 8, 8, 8, 8, 8, 9 }, { 6, 0, 5, 5, 1 }, "rank 5", "the 5 others" },
	{ { 9, 8, 8, 8, 8, 8 }, { 6, 1, 5, 0, 1 }, "rank 0", "the 5 others" },
	{ { 8, 9, 8, 9, 8, 8 }, { 6, 0, 4, 1, 2 }, "2 ranks (the first is rank 1)", "the 4 others" },
	{ { 9, 7, 8, 8, 8, 8 }, { 6, 2, 4, 0, 1 }, "rank 0", "4 others (the first is rank 2)" },
	{ { 8, 9, 8, 9, 8, 9 }, { 6, 0, 3, 1, 3 }, "3 ranks (the first is rank 1)", "the 3 others" },
	{ { 1, 2, 3, 4, 5, 6 }, { 6, 0, 1, 1, 1 }, "rank 1", "rank 0" },
};

static bool same_value(const void *values, int a, int b)
{
	const double *of = values;

	return of[a] == of[b];
}

static int vote_body(ddp_context *context, void *user)
{
	const int rank = rank_of(context);
	char odd_ranks[DDP_OUTLIER_TEXT], usual_ranks[DDP_OUTLIER_TEXT];
	ddp_outlier found;
	double odd, usual;

	for (size_t i = 0; i < sizeof(votes) / sizeof(votes[0]); i++) {
		const struct vote *v = &votes[i];
		CHECK_OK(ddp_comm_outlier(ddp_world(context), v->values[rank], &found, &odd, &usual));
		CHECK(memcmp(&found, &v->wanted, sizeof(found)) == 0);
		CHECK(usual == v->values[found.usual] && odd == v->values[found.odd < 0 ? 0 : found.odd]);
		found = ddp_outlier_find(VOTERS, same_value, v->values);
		CHECK(memcmp(&found, &v->wanted, sizeof(found)) == 0);
		if (v->odd == NULL)
			continue;
		ddp_outlier_names(&found, odd_ranks, usual_ranks);
		CHECK(strcmp(odd_ranks, v->odd) == 0 && strcmp(usual_ranks, v->usual) == 0);
	}
	return 0;
}

TEST_RUNS(the_odd_rank_out_is_named, assert_int_equal(run_ranks(VOTERS, vote_body, NULL), 0));

static int mismatch_body(ddp_context *context, void *user)
{
	ddp_model *model = NULL;
	ddp_param list[3];
	ddp_model_options options = plain;
	bool odd = rank_of(context) == 1;

	memcpy(list, three, sizeof(list));
	CHECK(ddp_model_create(context, list, odd ? 2 : 3, &plain, &model) == DDP_ERR_MISMATCH);
	CHECK(says_alike(context, "the number of parameters is 2 on rank 1, and 3 on the 2 others"));

	if (odd)
		list[1].name = "beta";
	CHECK(ddp_model_create(context, list, 3, &plain, &model) == DDP_ERR_MISMATCH);
	CHECK(says_alike(context, "parameter 1 is \"beta\" [3] on rank 1, and \"b\" [3] on the 2 others;"));
	list[1].name = "b";
	list[2].shape[0] = odd ? C / 2 : 2;
	list[2].shape[1] = odd ? 2 : C / 2;
	CHECK(ddp_model_create(context, list, 3, &plain, &model) == DDP_ERR_MISMATCH);
	CHECK(says_alike(context, "parameter 2 is \"c\" [100, 2] on rank 1, and \"c\" [2, 100] on the 2 others;"));
	memcpy(list, three, sizeof(list));
	const ddp_param_group group = { .learning_rate_factor = 0.5 };
	list[0].kind = odd ? DDP_PARAM_FROZEN : DDP_PARAM_TRAINED;
	CHECK(ddp_model_create(context, list, 3, &plain, &model) == DDP_ERR_MISMATCH);
	CHECK(says_alike(context, "frozen on rank 1, and \"a\""));
	list[0].kind = DDP_PARAM_TRAINED;
	list[0].group = odd ? &group : NULL;
	list[0].no_decay = !odd;
	CHECK(ddp_model_create(context, list, 3, &plain, &model) == DDP_ERR_MISMATCH);
	CHECK(says_alike(context, ", in a group (factor 0.5, decay 0) on rank 1, and \"a\"") &&
	      test_says(", without decay on the 2 others"));

	options.weight_decay = odd ? 0.1 : 0.2;
	CHECK(ddp_model_create(context, three, 3, &options, &model) == DDP_ERR_MISMATCH);
	CHECK(says_alike(context, "weight_decay is 0.10000000000000001 on rank 1, and 0.20000000000000001 on the 2 others"));
	options = plain;
	options.shard = odd ? DDP_SHARD_STATE : DDP_SHARD_NONE;
	CHECK(ddp_model_create(context, three, 3, &options, &model) == DDP_ERR_MISMATCH);
	CHECK(says_alike(context, "different models: shard is 2 on rank 1, and 1 on the 2 others"));

	if (odd)
		fesetround(FE_UPWARD);
	CHECK(ddp_model_create(context, three, 3, &plain, &model) == DDP_ERR_MISMATCH);
	fesetround(FE_TONEAREST);
	CHECK(test_says("different models: the processor's rounding mode (fegetround()) is ") &&
	      test_says(" on rank 1, and 0 on the 2 others"));
#ifdef __x86_64__
	const unsigned int mode = __builtin_ia32_stmxcsr();
	if (odd)
		__builtin_ia32_ldmxcsr(mode | 0x8000);
	CHECK(ddp_model_create(context, three, 3, &plain, &model) == DDP_ERR_MISMATCH);
	__builtin_ia32_ldmxcsr(mode);
	CHECK(says_alike(context, "different models: whether the processor flushes tiny numbers to zero is 1 on rank 1, and 0 on the 2 others"));
#endif

	/* A rank with a wrong argument gets its own error, the others one too. */
	list[0].ndim = odd ? -1 : 1;
	CHECK(ddp_model_create(context, list, 3, &plain, &model) ==
	       (odd ? DDP_ERR_INVALID : DDP_ERR_MISMATCH));
	CHECK_SAYS(odd ? "\"a\": ndim is -1" : "rank 1 could not make its model");
	CHECK(ddp_last_error_is_told() == !odd);
	CHECK(model == NULL);

	/* The communicator is as good as before. */
	CHECK_OK(ddp_model_create(context, three, 3, &plain, &model));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(different_models_are_named_on_all_ranks, assert_int_equal(run_ranks(3, mismatch_body, NULL), 0));

/* What rank 1 does wrong at ddp_model_step(), and what all ranks are told. */
static const struct bad_step {
	double weight, odd_weight, odd_rate;
	ddp_status status;
	const char *part;
} bad_steps[] = {
	{ 0, 0, 1, DDP_ERR_INVALID, "step 1: step 1: no rank had a sample" },
	{ 1, NAN, 1, DDP_ERR_INVALID, "rank 1 gave a weight or a learning rate that is negative or not finite (weight nan, learning rate 1)" },
	{ 1, -1, 1, DDP_ERR_INVALID, "rank 1 gave a weight or a learning rate that is negative or not finite (weight -1, learning rate 1)" },
	{ 1, 1, INFINITY, DDP_ERR_INVALID, "rank 1 gave a weight or a learning rate that is negative or not finite (weight 1, learning rate inf)" },
	{ 1, 1, 0.5, DDP_ERR_MISMATCH, "ranks have different learning rates (0.5 on rank 1, 1 on " },
};

/* Ends a step by ddp_model_reduce_grads() or ddp_model_step(), in which one rank makes a mistake. */
static void bad_step(ddp_context *context, ddp_model *model, const struct bad_step *test, bool halves)
{
	const bool odd = rank_of(context) == 1;

	add_grads(model, 1);
	for (int p = 2; p >= 0 && halves; p--)
		CHECK_OK(ddp_model_grad_ready(model, p));
	ddp_model_set_learning_rate(model, odd ? test->odd_rate : 1);
	const double weight = odd ? test->odd_weight : test->weight;
	CHECK_FAILS((halves ? ddp_model_reduce_grads : ddp_model_step)(model, weight, 0, NULL), test->status, test->part);
	CHECK(all_grads_are_zero(model));
	CHECK_OK(ddp_model_check_whole(model));
	ddp_model_set_learning_rate(model, 1);
}

static void bad_steps_of(ddp_context *context, const test_way *way, const struct bad_step *test)
{
	const float before[] = { 0, 0, 0 }, then[] = { -1, -2, -3 };
	const ddp_model_options options = plain_by(way);
	ddp_step_stats stats;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	for (int halves = 0; halves <= 1; halves++) {
		bad_step(context, model, test, halves);
		CHECK(all_params_are(model, before));
		CHECK(ddp_model_step_count(model) == 0);
	}
	/* The world is whole, and the step comes again. */
	add_grads(model, 1);
	CHECK_OK(ddp_model_step(model, 1, 1, &stats));
	CHECK(stats.step == 1 && stats.weight == size_of(context));
	CHECK(all_params_are(model, then));
	ddp_model_free(model);
}

static int bad_step_body(ddp_context *context, void *way)
{
	for (size_t i = 0; i < COUNT(bad_steps); i++)
		bad_steps_of(context, way, &bad_steps[i]);
	return 0;
}

TEST(wrong_weights_and_rates_end_the_step_on_all_ranks_and_it_comes_again)
{
	run_ways_on(NULL, 2, bad_step_body);
	run_ways_on(two_nodes, 4, bad_step_body);
}

/* What one rank's step holds that is not finite, and what all ranks are told. */
static const struct poison {
	int param;       /* whose gradient it is; -1: none's */
	float gradient;
	double loss;
	bool announced, everywhere;
	const char *part;
} poisons[] = {
	{ 1, NAN, 1, true, false, "step 2: the gradient of \"b\" is not finite on rank" },
	{ 0, -INFINITY, 1, true, false, "the gradient of \"a\" is not finite on rank" },
	{ 2, NAN, 1, false, false, "the gradient of \"c\" is not finite on rank" },
	{ 2, NAN, 1, true, true, "the gradient of \"c\" is not finite on rank 0" },
	{ -1, 0, NAN, true, false, "the loss is not finite on rank" },
	{ -1, 0, INFINITY, true, true, "the loss is not finite on rank 0" },
	{ 1, 3e38f, 1, true, true, "up to" },
};

static void poisoned_step(ddp_context *context, ddp_model *model, const struct poison *test)
{
	const float before[] = { -1, -2, -3 };
	int rank = rank_of(context), last = size_of(context) - 1;
	bool odd = test->everywhere || rank == last;
	char name[24];

	add_grads(model, 1);
	if (odd && test->param >= 0)
		ddp_model_param_grad(model, test->param)[1] = test->gradient;
	for (int p = 2; p >= 0 && test->announced; p--)
		CHECK_OK(ddp_model_grad_ready(model, p));
	CHECK_FAILS(ddp_model_step(model, 1, odd ? test->loss : 1, NULL), DDP_ERR_NOT_FINITE, test->part);
	snprintf(name, sizeof(name), "on rank %d", test->everywhere ? 0 : last);
	CHECK(test_says(name) || test->gradient == 3e38f);
	CHECK(all_params_are(model, before));
	CHECK(all_grads_are_zero(model));
	CHECK(ddp_model_step_count(model) == 1);
	CHECK_OK(ddp_model_check_whole(model));
}

static void poison(ddp_context *context, const test_way *way, const struct poison *test)
{
	/* The momentum is that of the step before, not of the one that is left out. */
	const float first[] = { -1, -2, -3 }, then[] = { -2.5f, -5, -7.5f };
	ddp_model_options options = plain_by(way);
	ddp_step_stats stats;
	ddp_model *model;

	options.clip_norm = (test - poisons) % 2 == 0 ? 1e6 : 0;
	options.momentum = 0.5;
	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	CHECK((model->strategy == &ddp_hybrid_strategy) == (options.shard == DDP_SHARD_AUTO));
	add_grads(model, 1);
	CHECK_OK(ddp_model_step(model, 1, 1, &stats));
	CHECK(all_params_are(model, first));
	/* One rank's gradients alone cannot overflow. */
	bool overflows = test->gradient != 3e38f || size_of(context) > 1;
	if (overflows)
		poisoned_step(context, model, test);
	/* The world is whole, and the step comes again. */
	add_grads(model, 1);
	for (int p = 2; p >= 0; p--)
		CHECK_OK(ddp_model_grad_ready(model, p));
	CHECK_OK(ddp_model_step(model, 1, 1, &stats));
	CHECK(stats.step == 2 && stats.loss == 1);
	CHECK(all_params_are(model, then));
	ddp_model_free(model);
}

static int poison_body(ddp_context *context, void *way)
{
	for (size_t i = 0; i < COUNT(poisons); i++)
		poison(context, way, &poisons[i]);
	return 0;
}

TEST(what_is_not_finite_updates_nothing_and_is_named)
{
	run_each_way(3, poison_body);
	run_ways_on(two_nodes, 4, poison_body);
}

/* ddp_model_broadcast_params() was forgotten, and one rank begins with another value. */
static int odd_start_body(ddp_context *context, void *user)
{
	const float start[] = { 0, 0, 0 }, then[] = { -1, -2, -3 };
	const ddp_model_options options = plain_by(user);
	int rank = rank_of(context), last = size_of(context) - 1;
	char name[64];
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	if (rank == last)
		ddp_model_param_data(model, 1)[2] = 1e-6f;
	for (int i = 0; i < 2; i++) {
		add_grads(model, 1);
		for (int p = 2; p >= 0; p--)
			CHECK_OK(ddp_model_grad_ready(model, p));
		CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_MISMATCH);
		snprintf(name, sizeof(name), last > 1 ? "rank %d has other parameters than the %d others"
		                                      : "rank %d has other parameters than rank 0", last, last);
		CHECK(test_says(name) && test_says("ddp_model_broadcast_params()"));
	}
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_MISMATCH);
	CHECK_OK(ddp_model_broadcast_params(model));
	CHECK(all_params_are(model, start));
	add_grads(model, 1);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(all_params_are(model, then));
	ddp_model_free(model);
	return 0;
}

TEST(ranks_that_begin_apart_do_not_train)
{
	for (int ranks = 2; ranks <= 3; ranks++)
		run_ways_on(NULL, ranks, odd_start_body);
	for (int ranks = 3; ranks <= 4; ranks++)
		run_ways_on(two_nodes, ranks, odd_start_body);
}

static int told; /* that ranks see the same samples */

static void hear(void *user, ddp_log_level level, const char *message)
{
	told += level == DDP_LOG_WARN && strstr(message, "to train on the same samples") != NULL;
}

static void steps(ddp_model *model, int count, float gradient, double loss)
{
	for (int i = 0; i < count; i++) {
		add_grads(model, gradient);
		CHECK_OK(ddp_model_step(model, 1, loss, NULL));
	}
}

/* Of the same model, whose first step tells of parameters instead. */
static int same_samples_body(ddp_context *context, void *user)
{
	const ddp_model_options options = plain_by(user);
	const int rank = rank_of(context);
	ddp_model *model;

	ddp_set_log(hear, NULL, DDP_LOG_WARN);
	told = 0;
	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	steps(model, 12, 1, 2 + rank);
	steps(model, 12, 1 + (float)rank, 0);
	steps(model, 12, 0, 0); /* what gives nothing tells nothing */
	steps(model, 9, 1, 2);
	steps(model, 1, 1, 2 + rank);
	steps(model, 9, 1, 2);
	CHECK(told == 0);
	steps(model, 1, 1, 2);
	CHECK(told == (rank == 0 && size_of(context) > 1));
	steps(model, 30, 1, 2);
	CHECK(told <= 1);
	ddp_model_free(model);
	return 0;
}

TEST(ranks_that_train_on_the_same_samples_are_told)
{
	run_ways_on(NULL, 1, same_samples_body);
	run_ways_on(NULL, 3, same_samples_body);
	run_ways_on(two_nodes, 3, same_samples_body);
}

static ddp_status nothing(void *user, const ddp_grad_bucket *bucket)
{
	return DDP_OK;
}

TEST(options_have_defaults_and_are_checked)
{
	static struct { ddp_model_options options; const char *part; } bad[] = {
		{ { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = -2 }, "bucket_mb is -2" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .first_bucket_mb = NAN }, "first_bucket_mb is " },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = (ddp_optimizer)99 }, "optimizer is 99" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = (ddp_optimizer)99 }, "DDP_MUON" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .learning_rate = -1 }, "learning_rate is -1" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .beta1 = 1 }, "beta1 is 1" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .beta2 = -0.5 }, "beta2 is -0.5" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .epsilon = INFINITY }, "epsilon is inf" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .epsilon = 1e-50 }, "epsilon is 1e-50" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .epsilon = 1e-40 }, "epsilon is 1e-40" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .epsilon = -2 }, "epsilon is -2" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .weight_decay = -1 }, "weight_decay is -1" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .momentum = NAN }, "momentum is " },
		{ { DDP_MODEL_OPTIONS_FIELDS, .clip_norm = -2 }, "clip_norm is -2" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .shard = (ddp_shard)4 }, "shard is 4" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_LAMB, .shard = DDP_SHARD_STATE }, "LAMB updates whole tensors" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAM, .nesterov = true }, "nesterov is of DDP_SGD, not of Adam" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .nesterov = true }, "nesterov needs a momentum" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_MUON, .momentum = 1 },
		  "momentum is 1; it must be 0 or more, and below 1" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_MUON, .muon.iterations = 100 }, "muon.iterations is 100" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAFACTOR, .adafactor.clip = -1 }, "adafactor.clip is -1" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .compress = (ddp_compression)4 }, "compress is 4" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_F16, .shard = DDP_SHARD_STATE },
		  "compress needs all gradients" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .hook = { nothing, nothing, NULL }, .shard = DDP_SHARD_GRADIENTS },
		  "hook needs all gradients" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .local_sgd.steps = 2, .compress = DDP_COMPRESS_BF16 }, "without compress" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .local_sgd.steps = 2, .shard = DDP_SHARD_STATE }, "without shard" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .local_sgd.steps = 2, .hook = { nothing, nothing, NULL } }, "without hook" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .local_sgd.start = 2 }, "local_sgd.start needs local_sgd.steps" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .powersgd.rank = -1 }, "powersgd.rank is -1" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .hook = { nothing, NULL, NULL } }, "both start and finish" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .hook = { nothing, nothing, NULL }, .compress = DDP_COMPRESS_BF16 },
		  "give one of them" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.initial = 2 }, "loss_scaling.initial needs loss_scaling.kind" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.interval = 2 }, "loss_scaling.interval needs loss_scaling.kind" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_FIXED, .loss_scaling.initial = 3 },
		  "loss_scaling.initial is 3; it must be a power of two" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_FIXED, .loss_scaling.initial = 0.5 },
		  "loss_scaling.initial is 0.5" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_FIXED, .loss_scaling.initial = NAN },
		  "loss_scaling.initial is " },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_DYNAMIC, .loss_scaling.interval = -1 },
		  "loss_scaling.interval is -1" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = (ddp_scaling)3 }, "loss_scaling.kind is 3" },
		{ { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_DYNAMIC, .compress = DDP_COMPRESS_POWERSGD },
		  "DDP_COMPRESS_POWERSGD" },
	};
	const ddp_model_options small = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 0.5 };
	ddp_model_settings settings;

	unsetenv("DDP_BUCKET_MB");
	assert_int_equal(ddp_model_settings_make(NULL, &settings), DDP_OK);
	assert_int_equal(settings.bucket_elements, 0);
	assert_int_equal(settings.first_bucket_elements, 262144);
	assert_true(settings.options.learning_rate == 1e-3 && settings.options.beta2 == 0.999);
	assert_int_equal(ddp_model_settings_make(&small, &settings), DDP_OK);
	assert_int_equal(settings.bucket_elements, 131072);
	assert_int_equal(settings.first_bucket_elements, 131072);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		FAILS(ddp_model_settings_make(&bad[i].options, &settings), DDP_ERR_INVALID, bad[i].part);

	setenv("DDP_BUCKET_MB", "4.5", 1);
	assert_int_equal(ddp_model_settings_make(NULL, &settings), DDP_OK);
	assert_int_equal(settings.bucket_elements, 9 * 131072);
	static const char *const wrong[] = { "25MB", "-3", "0", "nan", " " };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		setenv("DDP_BUCKET_MB", wrong[i], 1);
		FAILS(ddp_model_settings_make(NULL, &settings), DDP_ERR_INVALID, "DDP_BUCKET_MB");
	}
	unsetenv("DDP_BUCKET_MB");
}

TEST(what_is_left_out_to_measure_is_no_option)
{
	ddp_model_settings settings;

	test_measure("");
	assert_int_equal(ddp_model_settings_make(&plain, &settings), DDP_OK);
	assert_false(settings.no_overlap || settings.no_communication);
	test_measure("no-overlap");
	assert_int_equal(ddp_model_settings_make(&plain, &settings), DDP_OK);
	assert_true(settings.no_overlap && !settings.no_communication);
	test_measure("no-communication");
	assert_int_equal(ddp_model_settings_make(&plain, &settings), DDP_OK);
	assert_true(settings.no_communication && !settings.no_overlap);
	test_measure("no_overlap");
	FAILS(ddp_model_settings_make(&plain, &settings), DDP_ERR_INVALID, "DDP_MEASURE is \"no_overlap\"");
	test_measure(NULL);
}
