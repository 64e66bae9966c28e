/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* reduce: gradients of a loss that is multiplied by a scale, and parameters in bf16. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "optim/scaler.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { RANKS = 2, A = 40, B = 300, ELEMENTS = A + B };

static const ddp_param params[] = {
	{ .name = "a", .ndim = 1, .shape = { A } },
	{ .name = "b", .ndim = 2, .shape = { 3, B / 3 } },
};

/* Adds a micro-batch's gradients of the scaled loss; all but `bad` are finite. */
static void add_grads(ddp_model *model, int rank, int step, float bad)
{
	const float scale = (float)ddp_model_loss_scale(model);

	for (int p = 0; p < 2; p++) {
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			ddp_model_param_grad(model, p)[i] += scale * sinf((float)(i + 7 * rank + 31 * step + p));
	}
	ddp_model_param_grad(model, 1)[5] += bad;
}

static ddp_status train_step(ddp_model *model, int rank, int step, float bad, ddp_step_stats *stats)
{
	add_grads(model, rank, step, bad);
	for (int p = 1; p >= 0; p--) {
		ddp_status status = ddp_model_grad_ready(model, p);
		if (status != DDP_OK)
			return status;
	}
	return ddp_model_step(model, rank + 1, 0.5, stats);
}

static void copy_params(ddp_model *model, float *copy)
{
	memcpy(copy, ddp_model_param_data(model, 0), A * sizeof(*copy));
	memcpy(copy + A, ddp_model_param_data(model, 1), B * sizeof(*copy));
}

/* ---- without an overflow ------------------------------------------------------------ */

static int train_by(ddp_context *context, const ddp_model_options *options, float *ended, double *norms)
{
	ddp_step_stats stats;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, 2, options, &model));
	CHECK(ddp_model_loss_scale(model) == (options->loss_scaling.kind == DDP_SCALING_NONE ? 1 : 0x1p20));
	for (int step = 1; step <= 3; step++) {
		CHECK_OK(train_step(model, ddp_get_job(context)->rank, step, 0, &stats));
		CHECK(!stats.skipped && stats.step == step);
		norms[step - 1] = stats.grad_norm;
	}
	copy_params(model, ended);
	ddp_model_free(model);
	return 0;
}

static int bits_body(ddp_context *context, void *user)
{
	static const ddp_model_options ways[] = {
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .clip_norm = 0.3 },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .optimizer = DDP_LAMB },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE, .optimizer = DDP_SGD, .momentum = 0.9 },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_GRADIENTS, .loss = DDP_LOSS_MEAN, .clip_norm = 0.3 },
		{ DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_BF16 },
		{ DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_F16 },
		{ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .local_sgd.steps = 2 },
		{ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_MUON },
		{ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAFACTOR },
	};
	float plain[ELEMENTS], scaled[ELEMENTS];
	double norms[2][3];

	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		ddp_model_options options = ways[w];
		options.bucket_mb = options.first_bucket_mb = 512.0 / (1 << 20);
		CHECK(train_by(context, &options, plain, norms[0]) == 0);
		options.loss_scaling.kind = w % 2 == 0 ? DDP_SCALING_DYNAMIC : DDP_SCALING_FIXED;
		options.loss_scaling.initial = 0x1p20;
		CHECK(train_by(context, &options, scaled, norms[1]) == 0);
		CHECK(memcmp(plain, scaled, sizeof(plain)) == 0);
		CHECK(memcmp(norms[0], norms[1], sizeof(norms[0])) == 0);
	}
	return 0;
}

TEST_RUNS(a_scale_changes_no_bit, assert_int_equal(run_ranks(RANKS, bits_body, NULL), 0));

/* ---- overflows ---------------------------------------------------------------------- */

/* A step whose gradient is `bad` on rank 1 is skipped on all. */
static int skip_step(ddp_context *context, ddp_model *model, float bad, bool halves)
{
	const int rank = ddp_get_job(context)->rank;
	const double scale = ddp_model_loss_scale(model);
	float before[ELEMENTS], after[ELEMENTS];
	ddp_step_stats stats;
	ddp_summary summary;

	ddp_model_summary(model, &summary);
	const int skipped = summary.skipped;
	const int64_t steps = summary.steps;
	copy_params(model, before);
	if (halves) {
		add_grads(model, rank, 9, rank == 1 ? bad : 0);
		CHECK_OK(ddp_model_reduce_grads(model, 1, 1, &stats));
		CHECK(stats.skipped && ddp_model_param_grad(model, 1)[5] == 0);
		CHECK(stats.step == steps && isnan(stats.loss));
		add_grads(model, rank, 9, 0); /* a regulariser's, of a program that looks at no stats */
		CHECK_OK(ddp_model_update_params(model, &stats));
		CHECK(ddp_model_param_grad(model, 1)[5] == 0);
	} else {
		CHECK_OK(train_step(model, rank, 9, rank == 1 ? bad : 0, &stats));
	}
	copy_params(model, after);
	CHECK(stats.skipped && isnan(stats.grad_norm) && isnan(stats.loss) && stats.step == steps);
	CHECK(stats.communication_seconds > 0);
	CHECK(memcmp(before, after, sizeof(before)) == 0);
	CHECK(ddp_model_loss_scale(model) == scale / 2);
	ddp_model_summary(model, &summary);
	CHECK(summary.skipped == skipped + 1 && summary.steps == steps);
	return 0;
}

/* That went by without a trace: the next step is what it is without it. */
static int overflow_body(ddp_context *context, void *user)
{
	const ddp_model_options *given = user;
	const int rank = ddp_get_job(context)->rank;
	ddp_model_options options = *given;
	float plain[ELEMENTS], skipping[ELEMENTS];
	ddp_step_stats stats;
	ddp_model *model;
	double norm;

	CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
	CHECK_OK(train_step(model, rank, 1, 0, NULL));
	CHECK_OK(train_step(model, rank, 2, 0, &stats));
	copy_params(model, plain);
	norm = stats.grad_norm;
	ddp_model_free(model);
	options.loss_scaling.kind = DDP_SCALING_DYNAMIC;
	options.loss_scaling.initial = 8;
	CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
	CHECK(skip_step(context, model, INFINITY, false) == 0);
	CHECK_OK(train_step(model, rank, 1, 0, NULL));
	CHECK(skip_step(context, model, NAN, true) == 0);
	/* A sum that overflows. */
	CHECK(skip_step(context, model, 0x1.ffffp127f, false) == 0);
	CHECK(ddp_model_loss_scale(model) == 1);
	CHECK_FAILS(train_step(model, rank, 2, rank == 0 ? NAN : 0, &stats), DDP_ERR_NOT_FINITE,
	            "the gradient of \"b\" is not finite on rank 0");
	CHECK_OK(train_step(model, rank, 2, 0, &stats));
	CHECK(stats.step == 2 && stats.grad_norm == norm && !stats.skipped);
	copy_params(model, skipping);
	CHECK(memcmp(plain, skipping, sizeof(plain)) == 0);
	ddp_model_free(model);
	return 0;
}

TEST(a_step_that_overflows_is_skipped_on_all_ranks)
{
	static ddp_model_options ways[] = {
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_AUTO }, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE }, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_GRADIENTS }, { DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_BF16 },
	};

	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		assert_int_equal(run_ranks(RANKS, overflow_body, &ways[w]), 0);
		assert_int_equal(run_ranks_on(two_nodes, 4, overflow_body, &ways[w]), 0);
	}
}

static int fixed_body(ddp_context *context, void *user)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_FIXED,
	                                    .loss_scaling.initial = 1024, .loss_scaling.interval = 1 };
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
	CHECK(train_step(model, rank, 1, INFINITY, NULL) == DDP_ERR_NOT_FINITE);
	CHECK_OK(train_step(model, rank, 1, 0, NULL));
	CHECK(ddp_model_loss_scale(model) == 1024);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(a_fixed_scale_stays, assert_int_equal(run_ranks(RANKS, fixed_body, NULL), 0));

/* What ranks do differently is an error, also where gradients overflow. */
static int judged_body(ddp_context *context, void *user)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_DYNAMIC,
	                                    .unused = DDP_UNUSED_STATIC };
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
	CHECK_OK(ddp_model_grad_ready(model, 1));
	CHECK_OK(ddp_model_step(model, 1, 1, NULL));
	CHECK_FAILS(train_step(model, rank, 2, INFINITY, NULL), DDP_ERR_STATE, "the static graph has changed");
	if (rank == 0) {
		add_grads(model, rank, 2, INFINITY);
		CHECK_OK(ddp_model_grad_ready(model, 1));
		CHECK(ddp_model_reduce_grads(model, 1, 1, NULL) == DDP_ERR_STATE);
	} else {
		CHECK(ddp_model_join(model, NULL) == DDP_ERR_STATE);
	}
	CHECK_SAYS("ddp_model_join() takes part in ddp_model_step() only");
	CHECK(ddp_model_loss_scale(model) == 65536);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(a_step_that_overflows_is_judged, assert_int_equal(run_ranks(RANKS, judged_body, NULL), 0));

/* ---- checkpoints -------------------------------------------------------------------- */

/* Steps 1 .. 6, of which the scale grows behind every third; `stop`: a checkpoint after 4. */
static int grow(ddp_context *context, bool stop, float *ended)
{
	const ddp_model_options options = {
		DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_DYNAMIC, .loss_scaling.interval = 3,
	};
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;
	int64_t step;

	CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
	CHECK(skip_step(context, model, INFINITY, false) == 0);
	for (int s = 1; s <= 4; s++)
		CHECK_OK(train_step(model, rank, s, 0, NULL));
	CHECK(ddp_model_loss_scale(model) == 65536);
	if (stop) {
		CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
		ddp_model_free(model);
		CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
		CHECK(skip_step(context, model, INFINITY, false) == 0);
		CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
		CHECK(step == 4 && ddp_model_loss_scale(model) == 65536);
	}
	CHECK_OK(train_step(model, rank, 5, 0, NULL));
	CHECK(ddp_model_loss_scale(model) == 65536);
	CHECK_OK(train_step(model, rank, 6, 0, NULL));
	CHECK(ddp_model_loss_scale(model) == 131072);
	copy_params(model, ended);
	ddp_model_free(model);
	return 0;
}

static int resume_body(ddp_context *context, void *user)
{
	float through[ELEMENTS], resumed[ELEMENTS];

	CHECK(grow(context, false, through) == 0);
	CHECK(grow(context, true, resumed) == 0);
	CHECK(memcmp(through, resumed, sizeof(through)) == 0);
	return 0;
}

/* From a model that does not scale. */
static int begin_body(ddp_context *context, void *user)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS };
	ddp_model *model;
	int64_t step;

	CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
	CHECK_OK(train_step(model, ddp_get_job(context)->rank, 1, 0, NULL));
	CHECK(ddp_model_loss_scale(model) == 1);
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	ddp_model_free(model);
	options.loss_scaling.kind = DDP_SCALING_DYNAMIC;
	CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
	CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
	CHECK(step == 1 && ddp_model_loss_scale(model) == 65536);
	ddp_model_free(model);
	return 0;
}

TEST(a_checkpoint_without_a_scale_leaves_the_first)
{
	assert_int_equal(folder_empty(NULL), 0);
	assert_int_equal(run_ranks(RANKS, begin_body, NULL), 0);
}

TEST_RUNS(checkpoints_hold_the_scale, assert_int_equal(run_ranks(RANKS, resume_body, NULL), 0));

/* ---- the scale by itself --------------------------------------------------------------- */

TEST(a_scale_stays_within_its_range)
{
	ddp_scaler scaler = { .kind = DDP_SCALING_DYNAMIC, .scale = 0x1p63, .interval = 1 };

	for (int i = 0; i < 3; i++)
		ddp_scaler_good(&scaler);
	assert_true(scaler.scale == 0x1p64);
	for (int i = 0; i < 64; i++)
		assert_true(ddp_scaler_overflow(&scaler));
	assert_true(scaler.scale == 1 && scaler.skipped == 64);
	assert_false(ddp_scaler_overflow(&scaler));
	ddp_scaler_resume(&scaler, NAN, NAN);
	ddp_scaler_resume(&scaler, 3, 0);
	assert_true(scaler.scale == 1);
	ddp_scaler_resume(&scaler, 4, 7); /* the interval was another */
	assert_true(scaler.scale == 4 && scaler.good == 0);
}

/* ---- parameters in bf16 beside their f32 masters, by each way of updating ------------------ */

enum { VECTOR, MATRIX, GROUPED, FROZEN, BUFFER, PARAMS };
enum { STEPS = 2, MOST = 700 };

static const ddp_param_group group = { .learning_rate_factor = 3, .weight_decay = 0.2 };

static const ddp_param bf16_params[PARAMS] = {
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
static int bf16_train_step(ddp_model *model, const ddp_model_options *options, int rank)
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
	CHECK(bf16_train_step(model, options, rank) == 0);
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

	CHECK_OK(ddp_model_create(context, bf16_params, PARAMS, options, &model));
	CHECK(((uintptr_t)ddp_model_param_bf16(model, MATRIX) % 32) == 0);
	CHECK(ddp_model_param_bf16(model, BUFFER) == NULL && ddp_model_param_bf16(model, PARAMS) == NULL);
	set_params(model, rank);
	CHECK_OK(ddp_model_broadcast_params(model));
	CHECK(all_are_rounded(model));
	for (int i = 0; i < STEPS; i++) {
		CHECK(bf16_train_step(model, options, rank) == 0);
		CHECK(all_are_rounded(model));
	}
	CHECK(save_and_load(model, options, rank) == 0);
	CHECK(bf16_train_step(model, options, rank) == 0);
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
static int bf16_train_by(ddp_context *context, dk_queue *queue, float *matrix)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_POWERSGD,
		.powersgd.rank = 1, .optimizer = DDP_MUON, .learning_rate = 0.03, .bf16_params = true };
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, bf16_params, PARAMS, &options, &model));
	set_params(model, 0);
	dk_queue *before = dk_use(queue);
	CHECK_OK(ddp_model_broadcast_params(model));
	for (int i = 0; i < STEPS; i++)
		CHECK(bf16_train_step(model, &options, rank) == 0);
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
	CHECK(bf16_train_by(context, NULL, without) == 0);
	CHECK(bf16_train_by(context, queue, with) == 0);
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

	ddp_status status = ddp_model_create(context, bf16_params, PARAMS, &options, &model);
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

	CHECK_OK(ddp_model_create(context, bf16_params, PARAMS, &options, &model));
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
	test_trap_floats();
	return test_run(folder_make, folder_remove);
}
