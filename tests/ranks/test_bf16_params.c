/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* reduce: parameters in bf16 beside their f32 masters, by each way of updating. */
#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { VECTOR, MATRIX, GROUPED, FROZEN, BUFFER, PARAMS };
enum { RANKS = 2, STEPS = 2, MOST = 700 };

static const ddp_param_group group = { .learning_rate_factor = 3, .weight_decay = 0.2 };

static const ddp_param params[PARAMS] = {
	{ .name = "vector", .ndim = 1, .shape = { 45 } },
	{ .name = "matrix", .ndim = 2, .shape = { 7, MOST / 7 }, .no_decay = true },
	{ .name = "grouped", .ndim = 1, .shape = { 33 }, .group = &group },
	{ .name = "frozen", .ndim = 2, .shape = { 3, 11 }, .kind = DDP_PARAM_FROZEN },
	{ .name = "buffer", .ndim = 1, .shape = { 19 }, .kind = DDP_BUFFER_MEAN },
};

/* All bf16 are the masters' nearest. */
static bool all_are_rounded(ddp_model *model)
{
	uint16_t nearest[MOST];
	bool same = true;

	for (int p = 0; p < BUFFER; p++) {
		const int64_t count = ddp_model_param_count(model, p);
		dk_to_bf16(nearest, ddp_model_param_data(model, p), count);
		same = same && memcmp(nearest, ddp_model_param_bf16(model, p), (size_t)count * sizeof(*nearest)) == 0;
	}
	return same;
}

static void set_params(ddp_model *model, int rank)
{
	for (int p = 0; p < PARAMS; p++)
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			ddp_model_param_data(model, p)[i] = 0.1f * (float)(i + p + rank);
}

/* What may be unused is. */
static int train_step(ddp_model *model, const ddp_model_options *options, int rank)
{
	const bool skips = options->unused == DDP_UNUSED_SKIP;
	const float matrix = ddp_model_param_data(model, MATRIX)[MOST - 1];
	const float grouped = ddp_model_param_data(model, GROUPED)[7];

	for (int p = skips ? MATRIX : GROUPED; p >= 0; p--) {
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			ddp_model_param_grad(model, p)[i] += 1 + 0.37f * (float)((i + rank) % 5);
		CHECK_OK(ddp_model_grad_ready(model, p));
	}
	CHECK_OK(ddp_model_step(model, 1, 1, NULL));
	CHECK(ddp_model_param_data(model, MATRIX)[MOST - 1] != matrix);
	CHECK((ddp_model_param_data(model, GROUPED)[7] == grouped) == skips);
	return 0;
}

static int save_and_load(ddp_model *model, const ddp_model_options *options, int rank)
{
	int64_t step;

	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 1));
	CHECK(all_are_rounded(model));
	const float saved = ddp_model_param_data(model, VECTOR)[1], frozen = ddp_model_param_data(model, FROZEN)[1];
	CHECK(train_step(model, options, rank) == 0);
	set_params(model, 5);
	CHECK_OK(ddp_model_broadcast_params(model));
	CHECK(all_are_rounded(model));
	CHECK(ddp_model_param_data(model, VECTOR)[1] != saved && ddp_model_param_data(model, FROZEN)[1] != frozen);
	CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
	CHECK(step == STEPS);
	CHECK(ddp_model_param_data(model, VECTOR)[1] == saved && ddp_model_param_data(model, FROZEN)[1] == frozen);
	CHECK(all_are_rounded(model));
	return 0;
}

static int train_body(ddp_context *context, void *user)
{
	const ddp_model_options *options = user;
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, PARAMS, options, &model));
	CHECK(((uintptr_t)ddp_model_param_bf16(model, MATRIX) % 32) == 0);
	CHECK(ddp_model_param_bf16(model, BUFFER) == NULL && ddp_model_param_bf16(model, PARAMS) == NULL);
	set_params(model, rank);
	CHECK_OK(ddp_model_broadcast_params(model));
	CHECK(all_are_rounded(model));
	for (int i = 0; i < STEPS; i++) {
		CHECK(train_step(model, options, rank) == 0);
		CHECK(all_are_rounded(model));
	}
	CHECK(save_and_load(model, options, rank) == 0);
	CHECK(train_step(model, options, rank) == 0);
	CHECK(all_are_rounded(model));
	ddp_model_free(model);
	return 0;
}

TEST(they_are_the_masters_rounded_after_each_change)
{
	static const ddp_model_options ways[] = {
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE, .optimizer = DDP_SGD },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_GRADIENTS },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .optimizer = DDP_SGD, .local_sgd.steps = 3 },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16, .unused = DDP_UNUSED_SKIP },
		{ DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_POWERSGD, .powersgd.rank = 1, .optimizer = DDP_ADAFACTOR },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .optimizer = DDP_MUON },
	};

	for (int ranks = 1; ranks <= RANKS; ranks++) {
		for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
			ddp_model_options options = ways[i];
			options.learning_rate = 0.03;
			options.bf16_params = true;
			folder_empty(state);
			assert_int_equal(run_ranks(ranks, train_body, &options), 0);
		}
	}
}

/* Trains with the program's queue in use all the time. */
static int train_by(ddp_context *context, dk_queue *queue, float *matrix)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_POWERSGD,
		.powersgd.rank = 1, .optimizer = DDP_MUON, .learning_rate = 0.03, .bf16_params = true };
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, PARAMS, &options, &model));
	set_params(model, 0);
	dk_queue *before = dk_use(queue);
	CHECK_OK(ddp_model_broadcast_params(model));
	for (int i = 0; i < STEPS; i++)
		CHECK(train_step(model, &options, rank) == 0);
	dk_use(before);
	memcpy(matrix, ddp_model_param_data(model, MATRIX), MOST * sizeof(*matrix));
	ddp_model_free(model);
	return 0;
}

static int queue_body(ddp_context *context, void *user)
{
	float without[MOST], with[MOST];

	dk_queue *queue = dk_open_mixed();
	CHECK(queue != NULL);
	CHECK(train_by(context, NULL, without) == 0);
	CHECK(train_by(context, queue, with) == 0);
	CHECK(memcmp(with, without, sizeof(with)) == 0);
	dk_close(queue);
	return 0;
}

TEST_RUNS(gradients_are_f32_whatever_queue_the_program_uses, assert_int_equal(run_ranks(RANKS, queue_body, NULL), 0));

static int without_body(ddp_context *context, void *user)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS,
		.bf16_params = user != NULL && ddp_get_job(context)->rank == 1 };
	ddp_model *model;

	ddp_status status = ddp_model_create(context, params, PARAMS, &options, &model);
	if (user != NULL) {
		CHECK(status == DDP_ERR_MISMATCH && strstr(ddp_last_error(), "bf16_params") != NULL);
		return 0;
	}
	CHECK_OK(status);
	CHECK(ddp_model_param_bf16(model, 0) == NULL);
	ddp_model_free(model);
	return 0;
}

static int early_body(ddp_context *context, void *user)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .bf16_params = true };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, PARAMS, &options, &model));
	CHECK_FAILS(ddp_model_step(model, 1, 1, NULL), DDP_ERR_STATE, "call ddp_model_broadcast_params()");
	CHECK_OK(ddp_model_broadcast_params(model));
	CHECK_OK(ddp_model_step(model, 1, 1, NULL));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(no_step_is_made_of_parameters_that_were_not_rounded, assert_int_equal(run_ranks(RANKS, early_body, NULL), 0));

TEST_RUNS(without_the_option_there_are_none, assert_int_equal(run_ranks(1, without_body, NULL), 0));

TEST(ranks_must_give_it_alike)
{
	int one_differs = 1;

	assert_int_equal(run_ranks(RANKS, without_body, &one_differs), 0);
}

int main(void)
{
	return test_run(folder_make, folder_remove);
}
