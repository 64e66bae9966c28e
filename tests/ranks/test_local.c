/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* reduce: local SGD beside a plain one, whose numbers are exact, and its checkpoints. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "reduce/compare.h"
#include "reduce/model_state.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { RANKS = 4, PARAMS = 2, COUNT = 500, LOCAL_STEPS = 3, LOCAL_START = 2, STEPS = 9 };

static const ddp_param params[PARAMS] = {
	{ .name = "a", .ndim = 1, .shape = { COUNT } },
	{ .name = "b", .ndim = 2, .shape = { COUNT / 10, 10 }, .sparse_rows = 2 },
};

/* Powers of two throughout, so that nothing is rounded. */
static const ddp_model_options options = {
	DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 0.5, .momentum = 0.5,
	.bucket_mb = 512.0 / (1 << 20), .local_sgd.steps = LOCAL_STEPS, .local_sgd.start = LOCAL_START,
};

static ddp_model *make_with(ddp_context *context, const ddp_model_options *with)
{
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, PARAMS, with, &model));
	check_strategy(model, "local SGD");
	return model;
}

static double weight_of(int rank, int step)
{
	if (step <= LOCAL_START)
		return step;
	return rank == 1 && step == 7 ? 0 : 1 << (rank + step) % 3;
}

static double all_weights(int step)
{
	double all = 0;

	for (int r = 0; r < RANKS; r++)
		all += weight_of(r, step);
	return all;
}

/* A whole number; a rank without samples has 0. */
static float gradient(int rank, int step, int p, int i)
{
	unsigned int x = (unsigned)((rank * 64 + step) * 8 + p) * 0x9e3779b1u + (unsigned)i * 0x85ebca6bu;

	x = (x ^ x >> 15) * 0x2c1b3c6du;
	return weight_of(rank, step) > 0 ? (float)((int)(x >> 16) % 16 - 8) : 0;
}

static void add_gradients(ddp_model *model, int rank, int step)
{
	const int32_t row = 3;

	for (int p = PARAMS - 1; p >= 0; p--) {
		float rest[10];
		for (int i = 0; i < COUNT; i++)
			ddp_model_param_grad(model, p)[i] = gradient(rank, step, p, i);
		/* One of the rows comes by itself. */
		memcpy(rest, ddp_model_param_grad(model, p) + row * 10, sizeof(rest));
		if (p == 1)
			memset(ddp_model_param_grad(model, p) + row * 10, 0, sizeof(rest));
		CHECK_OK(ddp_model_grad_ready(model, p));
		if (p == 1)
			CHECK_OK(ddp_model_grad_rows(model, p, &row, rest, 1));
	}
}

static void train(ddp_context *context, ddp_model *model, int step, ddp_step_stats *stats)
{
	const int rank = ddp_get_job(context)->rank;

	add_gradients(model, rank, step);
	for (int k = 0; k < model->reducer.request_count && step > LOCAL_START; k++)
		CHECK(model->reducer.requests[k] == NULL); /* nothing travels */
	if (step % 2 == 0) {
		CHECK_OK(ddp_model_step(model, weight_of(rank, step), rank, stats));
		return;
	}
	CHECK_OK(ddp_model_reduce_grads(model, weight_of(rank, step), rank, NULL));
	CHECK_OK(ddp_model_update_params(model, stats));
}

/* ---- a plain one ---------------------------------------------------------------------- */

typedef struct reference {
	double params[RANKS][PARAMS][COUNT], momentum[RANKS][PARAMS][COUNT];
} reference;

static void average(double (*values)[PARAMS][COUNT])
{
	for (int p = 0; p < PARAMS; p++)
		for (int i = 0; i < COUNT; i++) {
			double sum = 0;
			for (int r = 0; r < RANKS; r++)
				sum += values[r][p][i];
			for (int r = 0; r < RANKS; r++)
				values[r][p][i] = sum / RANKS;
		}
}

static double mean_gradient(int rank, int step, int p, int i)
{
	const double own = weight_of(rank, step);
	double sum = 0;

	if (step > LOCAL_START)
		return own > 0 ? gradient(rank, step, p, i) / own : 0;
	for (int r = 0; r < RANKS; r++)
		sum += gradient(r, step, p, i);
	return sum / all_weights(step);
}

/* Returns the norm of a rank's mean gradient. */
static double reference_step(reference *x, int step, int of_rank)
{
	double squares = 0;

	for (int r = 0; r < RANKS; r++)
		for (int p = 0; p < PARAMS; p++)
			for (int i = 0; i < COUNT; i++) {
				double mean = mean_gradient(r, step, p, i), *momentum = &x->momentum[r][p][i];
				*momentum = *momentum / 2 + mean;
				x->params[r][p][i] -= *momentum / 2;
				squares += r == of_rank ? mean * mean : 0;
			}
	if (step > LOCAL_START && (step - LOCAL_START) % LOCAL_STEPS == 0)
		average(x->params);
	return sqrt(squares);
}

static void expect(ddp_model *model, double (*wanted)[COUNT])
{
	for (int p = 0; p < PARAMS; p++)
		for (int i = 0; i < COUNT; i++)
			CHECK(ddp_model_param_data(model, p)[i] == wanted[p][i]);
}

static int reference_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model = make_with(context, &options);
	static reference x;
	ddp_step_stats stats;

	for (int step = 1; step <= STEPS; step++) {
		const double norm = reference_step(&x, step, rank);
		/* A rank's wrong weight leaves all where they were. */
		add_gradients(model, rank, step + 1);
		CHECK(ddp_model_step(model, rank == 1 ? -1 : 1, 0, NULL) == DDP_ERR_INVALID);
		train(context, model, step, &stats);
		CHECK(fabs(stats.grad_norm - norm) <= 1e-6 * norm);
		CHECK(stats.weight == all_weights(step));
		expect(model, x.params[rank]);
	}
	/* They are apart now; a rank's bad step leaves all where they were. */
	ddp_model_param_grad(model, 0)[1] = 1;
	CHECK(ddp_model_step(model, 1, rank == 0 ? NAN : 0, NULL) == DDP_ERR_NOT_FINITE);
	expect(model, x.params[rank]);
	CHECK(ddp_model_compare(model) == DDP_ERR_MISMATCH);
	CHECK_OK(ddp_model_average_params(model));
	average(x.params);
	expect(model, x.params[rank]);
	CHECK_OK(ddp_model_compare(model));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(ranks_train_apart_and_are_averaged, assert_int_equal(run_ranks(RANKS, reference_body, NULL), 0));

/* ---- checkpoints ------------------------------------------------------------------------ */

static int resume_body(ddp_context *context, void *user)
{
	ddp_model_options adamw = options;
	int64_t step;

	adamw.optimizer = DDP_ADAMW;
	adamw.clip_norm = 0.1;
	ddp_model *straight = make_with(context, &adamw), *resumed = make_with(context, &adamw);
	for (int i = 1; i <= LOCAL_START + LOCAL_STEPS - 1; i++)
		train(context, straight, i, NULL);
	CHECK(ddp_model_compare(straight) == DDP_ERR_MISMATCH);
	CHECK_OK(ddp_checkpoint_save(straight, NULL, test_folder, 0));
	train(context, resumed, 1, NULL);
	CHECK_OK(ddp_checkpoint_load(resumed, NULL, test_folder, &step));
	CHECK(step == LOCAL_START + LOCAL_STEPS - 1);
	for (int i = (int)step + 1; i <= STEPS + 4; i++) {
		train(context, straight, i, NULL);
		train(context, resumed, i, NULL);
		for (int p = 0; p < PARAMS; p++)
			CHECK(memcmp(ddp_model_param_data(straight, p), ddp_model_param_data(resumed, p), COUNT * sizeof(float)) == 0);
	}
	ddp_model_free(straight);
	ddp_model_free(resumed);
	return 0;
}

TEST_WITH(checkpoints_are_of_averaged_ranks, folder_make, folder_remove)
{
	assert_int_equal(run_ranks(RANKS, resume_body, NULL), 0);
}

/* ---- a rank that dies while parameters are averaged ------------------------------------- */

enum { VICTIM = 1 };

static const char *deadly; /* the collective at which this rank dies; NULL: none */

ddp_status __real_ddp_reducer_run(ddp_reducer *reducer, const char *name, const ddp_operation *operation);
ddp_status __wrap_ddp_reducer_run(ddp_reducer *reducer, const char *name, const ddp_operation *operation);

ddp_status __wrap_ddp_reducer_run(ddp_reducer *reducer, const char *name, const ddp_operation *operation)
{
	if (deadly != NULL && strcmp(name, deadly) == 0)
		kill(getpid(), SIGKILL);
	return __real_ddp_reducer_run(reducer, name, operation);
}

typedef enum death { IN_A_STEP, BY_ITSELF, BEFORE_A_SAVE, AMID_THE_STATE } death;

static ddp_status average_until(ddp_context *context, ddp_model *model, death when)
{
	const int rank = ddp_get_job(context)->rank;

	if (rank == VICTIM)
		deadly = when == AMID_THE_STATE ? "momentum" : "parameters";
	switch (when) {
	case IN_A_STEP:
		add_gradients(model, rank, LOCAL_START + LOCAL_STEPS);
		return ddp_model_step(model, 1, 0, NULL);
	case BY_ITSELF: return ddp_model_average_params(model);
	case BEFORE_A_SAVE:
	case AMID_THE_STATE: break;
	}
	return ddp_checkpoint_save(model, NULL, test_folder, 0);
}

/* What the others have then is of no step: half of it may be averaged. */
static int death_body(ddp_comm *comm, void *argument)
{
	ddp_context context = { .world = comm, .timeout_ms = 60000 };

	context.job.rank = ddp_comm_rank(comm);
	context.job.world_size = ddp_comm_size(comm);
	CHECK_OK(ddp_watch_open(&context.job, &context.watch));
	ddp_model *model = make_with(&context, &options);
	for (int step = 1; step < LOCAL_START + LOCAL_STEPS; step++)
		train(&context, model, step, NULL);
	test_ranks_together(); /* one that is still in a step would miss the victim there */
	CHECK(average_until(&context, model, *(const death *)argument) == DDP_ERR_PEER);
	CHECK_FAILS(ddp_checkpoint_save(model, NULL, test_folder, 0), DDP_ERR_STATE, "go back to the last checkpoint");
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_STATE);
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

TEST_WITH(nobody_saves_what_is_averaged_in_part, folder_make, folder_remove)
{
	for (death when = IN_A_STEP; when <= AMID_THE_STATE; when++)
		RUN_WORLD(.ranks = 3, .body = death_body, .argument = &when, .expect_deaths = true);
}
