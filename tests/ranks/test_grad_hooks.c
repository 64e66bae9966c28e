/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* reduce/grads: gradients that the program's own functions change before they are reduced. */
#include <math.h>
#include <stdint.h>

#include "reduce/model_state.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { COUNT = 300, RANKS = 3, LARGEST = 3 };
enum { FIRST, SECOND, PLAIN, PARAMS };

static const ddp_param params[PARAMS] = {
	[FIRST] = { .name = "first", .ndim = 1, .shape = { COUNT } },
	[SECOND] = { .name = "second", .ndim = 1, .shape = { COUNT } },
	[PLAIN] = { .name = "plain", .ndim = 1, .shape = { COUNT } },
};

/* The parameter becomes minus the sum of gradients; several buckets. */
static const ddp_model_options sums = {
	DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 1, .loss = DDP_LOSS_MEAN,
	.bucket_mb = 512.0 / (1 << 20), .first_bucket_mb = 512.0 / (1 << 20),
};

typedef struct calls {
	int count[PARAMS];
	float seen; /* the last call's, in all elements */
} calls;

static ddp_status clip(void *user, int param, float *grad, int64_t count)
{
	calls *c = user;

	CHECK(count == COUNT && param != PLAIN);
	c->count[param]++;
	c->seen = grad[0];
	for (int64_t i = 0; i < count; i++) {
		CHECK(grad[i] == c->seen);
		grad[i] = fminf(grad[i], LARGEST);
	}
	return DDP_OK;
}

/* Of a micro-batch; the sum of both is 2, 4 or 6. */
static void add_gradients(ddp_model *model, int rank)
{
	for (int p = 0; p < PARAMS; p++) {
		for (int i = 0; i < COUNT; i++)
			ddp_model_param_grad(model, p)[i] += (float)(1 + rank);
	}
}

static void hooked_step(ddp_model *model, int rank, calls *c)
{
	const float sum = (float)(2 + 2 * rank);

	*c = (calls){ 0 };
	CHECK_OK(ddp_model_set_sync(model, false));
	add_gradients(model, rank);
	CHECK_OK(ddp_model_grad_ready(model, FIRST));
	CHECK(c->count[FIRST] == 0); /* more is to come */
	CHECK_OK(ddp_model_set_sync(model, true));
	add_gradients(model, rank);
	CHECK_OK(ddp_model_grad_ready(model, PLAIN));
	CHECK_OK(ddp_model_grad_ready(model, FIRST));
	CHECK(c->count[FIRST] == 1 && c->seen == sum);
	CHECK(c->count[SECOND] == 0);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL)); /* completes the second, too */
	CHECK(c->count[FIRST] == 1 && c->count[SECOND] == 1 && c->seen == sum);
}

static void expect_param(ddp_model *model, int p, float value)
{
	for (int i = 0; i < COUNT; i++)
		CHECK(ddp_model_param_data(model, p)[i] == value);
}

static ddp_status sum_up(void *user, const ddp_grad_bucket *bucket)
{
	return ddp_all_reduce(bucket->comm, NULL, bucket->grads, (size_t)bucket->count, DDP_F32, DDP_SUM);
}

static ddp_status nothing_left(void *user, const ddp_grad_bucket *bucket)
{
	return DDP_OK;
}

static int every_way_body(ddp_context *context, void *user)
{
	const struct {
		ddp_shard shard;
		ddp_compression compress;
		ddp_bucket_hook hook;
		bool alone;
	} ways[] = {
		{ .shard = DDP_SHARD_NONE }, { .shard = DDP_SHARD_STATE }, { .shard = DDP_SHARD_GRADIENTS },
		{ .compress = DDP_COMPRESS_BF16 }, { .compress = DDP_COMPRESS_F16 },
		{ .hook = { sum_up, nothing_left, NULL } }, { .alone = true },
	};
	const int rank = ddp_comm_rank(context->world);
	ddp_model *model;
	calls c;

	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		ddp_model_options options = sums;
		options.shard = ways[w].shard;
		options.compress = ways[w].compress;
		options.hook = ways[w].hook;
		test_measure(ways[w].alone ? "no-communication" : NULL);
		CHECK_OK(ddp_model_create(context, params, PARAMS, &options, &model));
		CHECK_OK(ddp_model_set_grad_hook(model, FIRST, clip, &c));
		CHECK_OK(ddp_model_set_grad_hook(model, SECOND, clip, &c));
		hooked_step(model, rank, &c);
		/* 2, and 4 and 6 that are clipped to 3: on average */
		const float clipped = ways[w].alone ? fminf((float)(2 + 2 * rank), LARGEST) : 8.0f / 3;
		expect_param(model, FIRST, -clipped);
		expect_param(model, SECOND, -clipped);
		expect_param(model, PLAIN, ways[w].alone ? -(float)(2 + 2 * rank) : -4);
		ddp_model_free(model);
	}
	return 0;
}

TEST_RUNS(hooks_change_what_is_reduced_in_every_way, assert_int_equal(run_ranks(RANKS, every_way_body, NULL), 0));

/* Rank 1 has no gradient of the first parameter; rank 2 has finished. */
static int unused_body(ddp_context *context, void *user)
{
	const int rank = ddp_comm_rank(context->world);
	ddp_model_options options = sums;
	ddp_step_stats stats;
	ddp_model *model;
	calls c = { 0 };

	options.unused = DDP_UNUSED_SKIP;
	CHECK_OK(ddp_model_create(context, params, PARAMS, &options, &model));
	CHECK_OK(ddp_model_set_grad_hook(model, FIRST, clip, &c));
	CHECK_OK(ddp_model_set_grad_hook(model, SECOND, clip, &c));
	if (rank == 2) {
		CHECK_OK(ddp_model_join(model, NULL));
	} else {
		add_gradients(model, rank);
		CHECK_OK(rank == 1 ? ddp_model_grad_unused(model, FIRST) : ddp_model_grad_ready(model, FIRST));
		CHECK_OK(ddp_model_step(model, 1, 0, &stats));
	}
	CHECK(c.count[FIRST] == (rank == 0) && c.count[SECOND] == 0);
	expect_param(model, FIRST, -1.0f / RANKS);
	expect_param(model, SECOND, 0);

	/* None any more. */
	CHECK_OK(ddp_model_set_grad_hook(model, FIRST, NULL, NULL));
	add_gradients(model, rank);
	CHECK_OK(ddp_model_grad_ready(model, FIRST));
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK(c.count[FIRST] == (rank == 0));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(hooks_get_what_this_rank_uses, assert_int_equal(run_ranks(RANKS, unused_body, NULL), 0));

static ddp_status spoil(void *user, int param, float *grad, int64_t count)
{
	grad[count - 1] = NAN;
	return DDP_OK;
}

static ddp_status refuse(void *user, int param, float *grad, int64_t count)
{
	return *(const bool *)user ? DDP_ERR_IO : DDP_OK;
}

/* In ddp_model_grad_ready(), or at the step's end. */
static int failing_body(ddp_context *context, void *user)
{
	const bool *announces = user;
	bool refuses = ddp_comm_rank(context->world) == 1;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, PARAMS, &sums, &model));
	CHECK_OK(ddp_model_set_grad_hook(model, SECOND, refuses ? spoil : NULL, NULL));
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_NOT_FINITE && test_says("\"second\" is not finite on rank 1"));
	CHECK_OK(ddp_model_set_grad_hook(model, SECOND, refuse, &refuses));
	test_ranks_together(); /* all are through with that step */
	ddp_status status = *announces ? ddp_model_grad_ready(model, SECOND) : DDP_OK;
	if (status == DDP_OK)
		status = ddp_model_step(model, 1, 0, NULL);
	CHECK(status == (refuses ? DDP_ERR_IO : DDP_ERR_ABORTED));
	CHECK_SAYS("the gradient hook of \"second\" failed on rank 1 with DDP_ERR_IO: it gave no reason");
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_STATE);
	ddp_model_free(model);
	return 0;
}

TEST(a_hook_that_fails_ends_the_step_on_all_ranks)
{
	bool announces[] = { true, false };

	for (int i = 0; i < 2; i++)
		assert_int_equal(run_ranks(2, failing_body, &announces[i]), 0);
}

static int refused_body(ddp_context *context, void *user)
{
	const ddp_param rows = { .name = "rows", .ndim = 2, .shape = { 9, 4 }, .sparse_rows = 1 };
	const ddp_param frozen[] = { params[0], { .name = "f", .kind = DDP_PARAM_FROZEN } };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, &rows, 1, &sums, &model));
	CHECK(ddp_model_set_grad_hook(model, 0, clip, NULL) == DDP_ERR_UNSUPPORTED && test_says("\"rows\", which has sparse_rows"));
	ddp_model_free(model);
	CHECK_OK(ddp_model_create(context, frozen, 2, &sums, &model));
	CHECK(ddp_model_set_grad_hook(model, 1, clip, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_model_set_grad_hook(model, 2, clip, NULL) == DDP_ERR_INVALID);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(hooks_that_cannot_be_are_refused, assert_int_equal(run_ranks(1, refused_body, NULL), 0));
