/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* reduce: what takes part in a step: tensors that are trained, frozen, buffers or unused, and
   ranks that have not finished. Their values in random models are test_engine's matter. */
#include <math.h>
#include <stdint.h>

#include "reduce/model_state.h"
#include "reduce/tensors.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { COUNT = 40 };

static void fill(float *data, float value)
{
	for (int i = 0; i < COUNT; i++)
		data[i] = value;
}

static bool is_all(const float *data, float value)
{
	for (int i = 0; i < COUNT; i++) {
		if (data[i] != value)
			return false;
	}
	return true;
}

/* ---- kinds ------------------------------------------------------------------------- */

enum { FROZEN, TRAINED, LOCAL, MEAN, BROADCAST, KINDS };

static const ddp_param kinds[KINDS] = {
	[FROZEN] = { .name = "frozen", .ndim = 1, .shape = { COUNT }, .kind = DDP_PARAM_FROZEN },
	[TRAINED] = { .name = "trained", .ndim = 1, .shape = { COUNT } },
	[LOCAL] = { .name = "local", .ndim = 1, .shape = { COUNT }, .kind = DDP_BUFFER_LOCAL },
	[MEAN] = { .name = "mean", .ndim = 1, .shape = { COUNT }, .kind = DDP_BUFFER_MEAN },
	[BROADCAST] = { .name = "sent", .ndim = 1, .shape = { COUNT }, .kind = DDP_BUFFER_BROADCAST },
};

static void expect_kinds(ddp_model *model, float local)
{
	CHECK(is_all(ddp_model_param_data(model, FROZEN), 7));
	CHECK(is_all(ddp_model_param_data(model, LOCAL), local));
	CHECK(is_all(ddp_model_param_data(model, MEAN), (float)(1 + ddp_comm_size(model->context->world))));
	CHECK(is_all(ddp_model_param_data(model, BROADCAST), 2));
}

static int kinds_body(ddp_context *context, void *user)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .shard = *(const ddp_shard *)user };
	const int rank = ddp_get_job(context)->rank;
	ddp_tensors tensors;
	ddp_model *model;
	int64_t step;

	CHECK_OK(ddp_model_create(context, kinds, KINDS, &options, &model));
	/* 48 numbers with the gap behind them: all others have no gradient, and no state. */
	CHECK(model->layout.elements == 48 && model->layout.all == KINDS * (int64_t)48);
	CHECK(ddp_model_param_grad(model, TRAINED) != NULL && ddp_model_param_grad(model, FROZEN) == NULL &&
	      ddp_model_param_grad(model, MEAN) == NULL);
	CHECK_OK(ddp_model_tensors(model, true, &tensors));
	CHECK(tensors.count == KINDS + 2 + 1); /* AdamW's numbers are of one */
	ddp_tensors_free(&tensors);
	for (int p = 0; p < KINDS; p++)
		fill(ddp_model_param_data(model, p), rank == 0 ? 7 : (float)p);
	CHECK_OK(ddp_model_broadcast_params(model));
	for (int p = 0; p < KINDS; p++)
		CHECK(is_all(ddp_model_param_data(model, p), 7));

	fill(ddp_model_param_grad(model, TRAINED), 1);
	for (int p = LOCAL; p <= BROADCAST; p++)
		fill(ddp_model_param_data(model, p), (float)(2 + 2 * rank));
	CHECK(ddp_model_grad_ready(model, FROZEN) == DDP_ERR_INVALID && test_says("\"frozen\" is frozen"));
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	expect_kinds(model, (float)(2 + 2 * rank));
	CHECK(ddp_model_param_data(model, TRAINED)[0] < 7);

	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	for (int p = 0; p < KINDS; p++)
		fill(ddp_model_param_data(model, p), -1);
	CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
	expect_kinds(model, 2);
	ddp_model_free(model);
	return 0;
}

TEST_WITH(only_what_is_trained_costs_gradients_and_state, folder_make, folder_remove)
{
	for (ddp_shard shard = DDP_SHARD_AUTO; shard <= DDP_SHARD_GRADIENTS; shard++) {
		assert_int_equal(run_ranks(2, kinds_body, &shard), 0);
		assert_int_equal(run_ranks_on(two_nodes, 4, kinds_body, &shard), 0);
	}
}

static int wrong_body(ddp_context *context, void *user)
{
	ddp_param_group group = { .learning_rate_factor = 1, .weight_decay = -1 };
	ddp_param params[2] = { kinds[FROZEN], kinds[LOCAL] };
	ddp_model *model;

	CHECK_FAILS(ddp_model_create(context, params, 2, NULL, &model), DDP_ERR_INVALID,
	            "none of the model's 2 tensors is trained");
	params[0].kind = DDP_PARAM_TRAINED;
	params[0].group = &group;
	CHECK_FAILS(ddp_model_create(context, params, 2, NULL, &model), DDP_ERR_INVALID,
	            "\"frozen\": its group's weight_decay is -1");
	group = (ddp_param_group){ .learning_rate_factor = ddp_get_job(context)->rank };
	CHECK_FAILS(ddp_model_create(context, params, 2, NULL, &model), DDP_ERR_MISMATCH, "parameter 0 is \"frozen\"");
	params[0].group = NULL;
	params[1].kind = ddp_get_job(context)->rank == 0 ? DDP_BUFFER_MEAN : DDP_BUFFER_LOCAL;
	CHECK(ddp_model_create(context, params, 2, NULL, &model) == DDP_ERR_MISMATCH);
	CHECK(test_says("parameter 1 is \"local\"") && test_says("the same kinds and groups"));
	params[1] = kinds[LOCAL];
	params[1].sparse_rows = 1;
	CHECK_FAILS(ddp_model_create(context, params, 2, NULL, &model), DDP_ERR_INVALID, "\"local\" is not trained");
	return 0;
}

TEST_RUNS(kinds_and_groups_are_checked_and_the_same_on_all_ranks, assert_int_equal(run_ranks(2, wrong_body, NULL), 0));

/* ---- buffers that are not finite ------------------------------------------------------- */

/* Forward writes to all buffers; a NaN among them stays one in running statistics. */
static void forward(ddp_model *model, float value, bool poisons)
{
	for (int p = LOCAL; p <= BROADCAST; p++) {
		fill(ddp_model_param_data(model, p), value);
		if (poisons)
			ddp_model_param_data(model, p)[COUNT / 2] = NAN;
	}
}

static int poisoned_body(ddp_context *context, void *user)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD };
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;
	int64_t step;

	CHECK_OK(ddp_model_create(context, kinds, KINDS, &options, &model));
	forward(model, (float)rank, rank == 0);
	CHECK(ddp_model_step(model, 1, rank == 0 ? NAN : 0, NULL) == DDP_ERR_NOT_FINITE);
	CHECK(isnan(ddp_model_param_data(model, MEAN)[COUNT / 2]) == (rank == 0)); /* nothing was exchanged */

	/* Rank 0's do not count, and it gets the others'. */
	forward(model, (float)(2 * rank), rank == 0);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(is_all(ddp_model_param_data(model, MEAN), 3) && is_all(ddp_model_param_data(model, BROADCAST), 2));
	CHECK(isnan(ddp_model_param_data(model, LOCAL)[COUNT / 2]) == (rank == 0));

	/* Neither do those of a rank that has finished. */
	forward(model, (float)rank, rank == 1);
	if (rank == 0)
		CHECK_OK(ddp_model_join(model, NULL));
	else
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(is_all(ddp_model_param_data(model, MEAN), 2) && is_all(ddp_model_param_data(model, BROADCAST), 2));

	/* If that is so on all ranks, it is what they have; and parameters can be saved. */
	forward(model, (float)rank, true);
	fill(ddp_model_param_data(model, FROZEN), -INFINITY); /* a mask, say */
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(isnan(ddp_model_param_data(model, MEAN)[COUNT / 2]) && ddp_model_param_data(model, MEAN)[0] == 1);
	CHECK(isnan(ddp_model_param_data(model, BROADCAST)[COUNT / 2]) && ddp_model_param_data(model, BROADCAST)[0] == 0);
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	fill(ddp_model_param_data(model, FROZEN), 0);
	CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
	CHECK(step == 3 && is_all(ddp_model_param_data(model, FROZEN), -INFINITY));
	ddp_model_param_data(model, TRAINED)[1] = NAN;
	CHECK(ddp_checkpoint_save(model, NULL, test_folder, 0) == DDP_ERR_NOT_FINITE);
	ddp_model_free(model);
	return 0;
}

TEST_WITH(buffers_that_are_not_finite_on_a_rank_reach_no_other, folder_make, folder_remove)
{
	assert_int_equal(run_ranks(3, poisoned_body, NULL), 0);
	assert_int_equal(run_ranks_on(two_nodes, 3, poisoned_body, NULL), 0);
}

/* ---- what is unused ----------------------------------------------------------------- */

static const ddp_param three[] = {
	{ .name = "a", .ndim = 1, .shape = { COUNT } },
	{ .name = "b", .ndim = 1, .shape = { COUNT } },
	{ .name = "c", .ndim = 1, .shape = { COUNT } },
};

/* Each parameter has a bucket of its own; decay and momentum move what has no gradient. */
static ddp_model_options by(ddp_unused unused)
{
	return (ddp_model_options){
		DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 0.5,
		.weight_decay = 0.5, .momentum = 0.5, .shard = DDP_SHARD_NONE, .unused = unused,
		.bucket_mb = 192.0 / (1 << 20), .first_bucket_mb = 192.0 / (1 << 20),
	};
}

static ddp_model *make(ddp_context *context, const ddp_model_options *options)
{
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, three, 3, options, &model));
	for (int p = 0; p < 3; p++)
		fill(ddp_model_param_data(model, p), 1);
	return model;
}

static void use(ddp_model *model, int param)
{
	fill(ddp_model_param_grad(model, param), 1);
	CHECK_OK(ddp_model_grad_ready(model, param));
}

/* What one step makes of 1 without a gradient. */
static const float decayed = 1 - 0.5f * 0.5f;

static int unused_body(ddp_context *context, void *user)
{
	const ddp_model_options zero = by(DDP_UNUSED_ZERO), skip = by(DDP_UNUSED_SKIP);

	ddp_model *model = make(context, &zero);
	use(model, 0);
	use(model, 1);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(is_all(ddp_model_param_data(model, 2), decayed));
	ddp_model_free(model);

	model = make(context, &skip);
	use(model, 1);
	fill(ddp_model_param_grad(model, 2), 9); /* it is not announced, and does not count */
	CHECK(model->reducer.ready.next == 0); /* c's bucket is the first */
	CHECK_OK(ddp_model_grad_unused(model, 2));
	CHECK(model->reducer.ready.next == (ddp_comm_size(context->world) > 1 ? 2 : 0));
	CHECK(ddp_model_grad_unused(model, 2) == DDP_ERR_STATE);
	use(model, 0);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(is_all(ddp_model_param_data(model, 1), ddp_model_param_data(model, 0)[0]));
	CHECK(is_all(ddp_model_param_data(model, 2), 1) && is_all(ddp_model_param_grad(model, 2), 0));
	ddp_model_free(model);
	return 0;
}

TEST(what_no_rank_uses_stays_and_holds_nothing_up)
{
	for (int ranks = 1; ranks <= 2; ranks++)
		assert_int_equal(run_ranks(ranks, unused_body, NULL), 0);
}

/* Rank 0 uses a and b, rank 1 a and c; then rank 1 uses b in place of c. */
static int static_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank;
	const ddp_model_options options = by(DDP_UNUSED_STATIC);
	ddp_model *model = make(context, &options);

	for (int step = 1; step <= 2; step++) {
		if (step > 1)
			CHECK(model->uses.learned);
		use(model, 1 + rank);
		/* Rank 0 has c's bucket complete before b's, as nobody waits for it. */
		CHECK(step == 1 || rank > 0 || model->reducer.ready.next == 2);
		use(model, 0);
		CHECK_OK(ddp_model_step(model, 2, 0, NULL));
	}
	const float a = ddp_model_param_data(model, 0)[0], b = ddp_model_param_data(model, 1)[0];
	use(model, 0);
	use(model, 1);
	CHECK_FAILS(ddp_model_step(model, 2, 0, NULL), DDP_ERR_STATE,
	            "the static graph has changed: rank 1 has a gradient of \"b\", which it had not used");
	CHECK(is_all(ddp_model_param_data(model, 0), a) && is_all(ddp_model_param_grad(model, 1), 0));
	use(model, 0);
	if (rank == 0)
		use(model, 1);
	CHECK_FAILS(ddp_model_step(model, 2, 0, NULL), DDP_ERR_STATE, "rank 1 has no gradient of \"c\", which it had used");
	use(model, 1 + rank);
	use(model, 0);
	CHECK_OK(ddp_model_step(model, 2, 0, NULL)); /* nothing is broken */
	CHECK(ddp_model_param_data(model, 1)[0] != b);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(a_static_graph_may_not_change, assert_int_equal(run_ranks(2, static_body, NULL), 0));

/* Nobody announces c; its bucket is the first to travel, where buckets do. */
static int static_memory_body(ddp_context *context, void *user)
{
	ddp_model_options options = by(DDP_UNUSED_STATIC);

	options.shard = *(const ddp_shard *)user;
	ddp_model *model = make(context, &options);
	for (int step = 1; step <= 2; step++) {
		ddp_step_stats stats;
		fill(ddp_model_param_grad(model, 2), step == 1 ? 9 : NAN);
		use(model, 1);
		use(model, 0);
		CHECK_OK(ddp_model_step(model, 1, 0, &stats));
		CHECK(fabs(stats.grad_norm - sqrt(2 * COUNT)) < 1e-5);
		CHECK(is_all(ddp_model_param_data(model, 2), 1) && is_all(ddp_model_param_grad(model, 2), 0));
	}
	ddp_model_free(model);
	return 0;
}

TEST(what_a_static_graph_leaves_out_counts_as_0_whatever_its_memory_holds)
{
	for (ddp_shard shard = DDP_SHARD_AUTO; shard <= DDP_SHARD_GRADIENTS; shard++) {
		for (int ranks = 1; ranks <= 2; ranks++)
			assert_int_equal(run_ranks(ranks, static_memory_body, &shard), 0);
		assert_int_equal(run_ranks_on(two_nodes, 3, static_memory_body, &shard), 0);
	}
}

/* In a file it is of a parameter's name, as all else is, not of its place in the program's list. */
static int order_body(ddp_context *context, void *user)
{
	static const int moved[] = { 1, 2, 0 };
	ddp_model_options options = by(DDP_UNUSED_SKIP);
	ddp_param params[3];
	ddp_model *other;
	int64_t step;

	options.optimizer = DDP_ADAMW;
	ddp_model *model = make(context, &options);
	for (int p = 0; p < 3; p++)
		params[moved[p]] = three[p];
	CHECK_OK(ddp_model_create(context, params, 3, &options, &other));
	for (int i = 1; i <= 3; i++) {
		use(model, 0);
		if (i == 2)
			use(model, 1);
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	}
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	CHECK_OK(ddp_checkpoint_load(other, NULL, test_folder, &step));
	for (int p = 0; p < 3; p++) {
		use(model, p);
		use(other, moved[p]);
	}
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK_OK(ddp_model_step(other, 1, 0, NULL));
	for (int p = 0; p < 3; p++)
		CHECK(is_all(ddp_model_param_data(other, moved[p]), ddp_model_param_data(model, p)[0]));
	ddp_model_free(model);
	ddp_model_free(other);
	return 0;
}

TEST_WITH(steps_that_a_parameter_missed_are_saved_by_its_name, folder_make, folder_remove)
{
	assert_int_equal(run_ranks(1, order_body, NULL), 0);
}

/* ---- ranks that have finished --------------------------------------------------------- */

/* Rank 0 has one step's samples, rank 1 two, rank 2 three. */
static int join_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank, ranks = ddp_get_job(context)->world_size;
	const ddp_loss loss = *(const ddp_loss *)user;
	const ddp_param params[] = { three[0], kinds[MEAN], kinds[BROADCAST] };
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD,
	                                    .learning_rate = 1, .loss = loss };
	ddp_step_stats stats;
	ddp_model *model;
	float wanted = 0;

	CHECK_OK(ddp_model_create(context, params, 3, &options, &model));
	for (int step = 1; step <= ranks; step++) {
		const int active = ranks - step + 1;
		if (rank >= step - 1) {
			fill(ddp_model_param_grad(model, 0), 6);
			fill(ddp_model_param_data(model, 1), (float)(rank + 1));
			fill(ddp_model_param_data(model, 2), (float)(rank + 1));
			CHECK_OK(ddp_model_step(model, 2, 4, &stats));
		} else {
			fill(ddp_model_param_grad(model, 0), 100); /* of a step that it does not end */
			CHECK_OK(ddp_model_join(model, &stats));
		}
		const int divisor = loss == DDP_LOSS_SUM ? 2 * active : loss == DDP_LOSS_MEAN ? ranks : active;
		wanted -= 6.0f * (float)active / (float)divisor;
		CHECK(is_all(ddp_model_param_data(model, 0), wanted) && is_all(ddp_model_param_grad(model, 0), 0));
		CHECK(stats.active_ranks == active && stats.step == step && stats.weight == 2 * active);
		CHECK(stats.loss == (loss == DDP_LOSS_SUM ? 2 : 4));
		/* Those of the ranks that are active: step .. ranks, as they count from 1. */
		CHECK(is_all(ddp_model_param_data(model, 1), (float)(step + ranks) / 2));
		CHECK(is_all(ddp_model_param_data(model, 2), (float)step));
	}
	CHECK_OK(ddp_model_join(model, &stats));
	CHECK(stats.active_ranks == 0 && stats.step == ranks && is_all(ddp_model_param_data(model, 0), wanted));

	if (rank == 0)
		CHECK(ddp_model_reduce_grads(model, 1, 0, NULL) == DDP_ERR_STATE);
	else
		CHECK(ddp_model_join(model, NULL) == DDP_ERR_STATE);
	CHECK_SAYS("takes part in ddp_model_step() only");
	CHECK_OK(ddp_model_grad_ready(model, 0));
	CHECK(ddp_model_join(model, NULL) == DDP_ERR_STATE && test_says("are announced"));
	CHECK(ddp_watch_current_phase(context->watch) == DDP_PHASE_IDLE); /* it waits for nobody */
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	ddp_model_free(model);
	return 0;
}

TEST(ranks_that_have_finished_join_the_others_steps)
{
	for (ddp_loss loss = DDP_LOSS_SUM; loss <= DDP_LOSS_MEAN_OF_ACTIVE; loss++) {
		assert_int_equal(run_ranks(3, join_body, &loss), 0);
		assert_int_equal(run_ranks_on(two_nodes, 3, join_body, &loss), 0);
	}
}

/* ---- options of which 0 is a value ----------------------------------------------------- */

static int zero_body(ddp_context *context, void *user)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .learning_rate = 0,
	                              .beta1 = 0, .beta2 = 0 };

	ddp_model *model = make(context, &options);
	fill(ddp_model_param_grad(model, 0), 3);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(is_all(ddp_model_param_data(model, 0), 1)); /* a learning rate of 0 */
	ddp_model_set_learning_rate(model, 0.5);
	fill(ddp_model_param_grad(model, 0), -5);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(is_all(ddp_model_param_data(model, 0), 1.5f)); /* what was before is forgotten */
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(zero_can_be_meant, assert_int_equal(run_ranks(1, zero_body, NULL), 0));
