/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* reduce: buckets that travel in 16 bits, or as the program's own hook has them; and gradients that its functions
   change before they are reduced. */
#include <math.h>
#include <stdint.h>

#include "base/error.h"
#include "reduce/compare.h"
#include "reduce/model_state.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { COUNT = 3000, RANKS = 3 };

static const ddp_param one = { .name = "w", .ndim = 1, .shape = { COUNT } };

/* Several buckets; the parameter becomes minus the sum of gradients. */
static const ddp_model_options plain = {
	DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 1, .bucket_mb = 4096.0 / (1 << 20),
};

/* From 2^-6 to 1, of either sign. */
static float value(int rank, int i)
{
	unsigned int x = (unsigned int)(rank * COUNT + i + 1) * 0x9e3779b1u;

	x = (x ^ x >> 15) * 0x2c1b3c6du;
	x ^= x >> 13;
	return ldexpf(0.5f + (float)(x >> 9) / (1 << 24), -(int)(x % 6)) * (x & 64 ? 1 : -1);
}

static ddp_model *make_of(ddp_context *context, const ddp_param *params, int count, const ddp_model_options *options)
{
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, count, options, &model));
	check_strategy(model, options->hook.start != NULL ? "hook" : "all_reduce in 16 bits");
	return model;
}

static ddp_model *make(ddp_context *context, const ddp_model_options *options)
{
	return make_of(context, &one, 1, options);
}

/* A step with gradients of `factor` times value(); how many sums are not those of f32, and
   whether all are within `bits` of the sum of magnitudes and of the sum itself. */
static int step_and_compare(ddp_context *context, ddp_model *model, float factor, int bits)
{
	float *grad = ddp_model_param_grad(model, 0);
	int ranks = ddp_comm_size(context->world), rounded = 0;

	for (int i = 0; i < COUNT; i++)
		grad[i] = factor * value(ddp_comm_rank(context->world), i);
	CHECK_OK(ddp_model_grad_ready(model, 0));
	CHECK_OK(ddp_model_reduce_grads(model, 1, 0, NULL));
	for (int i = 0; i < COUNT; i++) {
		double exact = 0, magnitudes = 0;
		float single = 0;
		for (int r = 0; r < ranks; r++) {
			volatile float own = factor * value(r, i); /* rounded before it is added */
			exact += own;
			magnitudes += fabs((double)own);
			single += own;
		}
		CHECK(fabs(grad[i] - exact) <= ldexp(magnitudes + fabs((double)grad[i]), -bits));
		rounded += grad[i] != single;
	}
	CHECK_OK(ddp_model_update_params(model, NULL));
	CHECK_OK(ddp_model_compare(model)); /* all ranks have the same bits */
	return rounded;
}

/* Steps whose gradients are `factor` times value(): sums are exact to so many bits, and by f32 if these are 23. */
static const struct narrow {
	ddp_compression compress;
	struct { float factor; int bits; } steps[5];
} narrow[] = {
	/* 8 bits: half a unit in the last place is at most 2^-8. It does not know overflow. */
	{ DDP_COMPRESS_BF16, { { 1, 8 }, { 1e30f, 8 } } },
	/* The first step goes by f32; then there are 11 bits, wherever the range is. What is beyond what the step before let
	   expect goes by f32 again. */
	{ DDP_COMPRESS_F16, { { 1e6f, 23 }, { 1e6f, 11 }, { 1e7f, 11 }, { 1e12f, 23 }, { 1e12f, 11 } } },
	/* Without a limit, the scale would be beyond f32. */
	{ DDP_COMPRESS_F16, { { 1e-36f, 23 }, { 1e-36f, 11 } } },
};

static int narrow_body(ddp_context *context, void *user)
{
	const struct narrow *n = user;
	ddp_model_options options = plain;

	options.compress = n->compress;
	ddp_model *model = make(context, &options);
	for (int i = 0; i < 5 && n->steps[i].bits > 0; i++) {
		const int rounded = step_and_compare(context, model, n->steps[i].factor, n->steps[i].bits);
		CHECK(n->steps[i].bits == 23 ? rounded == 0 : rounded > COUNT / 2);
	}
	ddp_model_free(model);
	return 0;
}

/* A step in which all of this rank's gradients are `value`. */
static void step_to(ddp_model *model, float value, double sum)
{
	float *grad = ddp_model_param_grad(model, 0);

	for (int i = 0; i < COUNT; i++)
		grad[i] = value;
	CHECK_OK(ddp_model_reduce_grads(model, 1, 0, NULL));
	for (int i = 0; i < COUNT; i++)
		CHECK(fabs(grad[i] - sum) <= ldexp(sum, -22));
	CHECK_OK(ddp_model_update_params(model, NULL));
}

/* Sums that are in the range of 16 bits, but not those of what is rounded to 16 bits. */
static int edge_body(ddp_context *context, void *user)
{
	ddp_model_options options = plain;
	/* Multiples of 2^119, of which bf16 has the whole ones; 512 are too many. */
	const float parts[RANKS] = { 170.6f, 170.6f, 170.2f };

	options.compress = DDP_COMPRESS_F16;
	ddp_model *model = make(context, &options);
	step_to(model, 1, RANKS); /* the next step's scale is 1024 */
	const float part = 21834.25f / 1024; /* scaled, it is rounded to 21840 */
	step_to(model, part, RANKS * (double)part);
	ddp_model_free(model);

	options.compress = DDP_COMPRESS_BF16;
	model = make(context, &options);
	step_to(model, ldexpf(parts[ddp_comm_rank(context->world)], 119), ldexp(511.4, 119));
	ddp_model_free(model);
	return 0;
}

TEST(sums_of_16_bits_are_as_exact_as_they_can_be)
{
	for (size_t i = 0; i < sizeof(narrow) / sizeof(narrow[0]); i++)
		assert_int_equal(run_ranks(RANKS, narrow_body, (void *)(uintptr_t)&narrow[i]), 0);
}

TEST_RUNS(sums_at_the_edges_of_the_range_stay_finite, assert_int_equal(run_ranks(RANKS, edge_body, NULL), 0));

/* ---- the program's hook --------------------------------------------------------- */

enum { BUCKETS_MAX = 64 };

typedef struct hook {
	ddp_request *requests[BUCKETS_MAX];
	int started, finished, fails_at;
} hook;

static ddp_status start(void *user, const ddp_grad_bucket *bucket)
{
	hook *h = user;
	const ddp_operation operation = {
		.kind = DDP_ALL_REDUCE, .recv = bucket->grads, .count = (size_t)bucket->count,
		.type = DDP_F32, .op = DDP_SUM,
	};

	CHECK(bucket->index == h->started && bucket->buckets <= BUCKETS_MAX);
	if (h->fails_at == h->started)
		return ddp_fail(DDP_ERR_IO, "the hook does not want to");
	return ddp_issue(bucket->comm, &operation, &h->requests[h->started++]);
}

static ddp_status finish(void *user, const ddp_grad_bucket *bucket)
{
	hook *h = user;

	CHECK(bucket->index == h->finished && h->finished < h->started);
	return ddp_wait(h->requests[h->finished++]);
}

static int hook_body(ddp_context *context, void *user)
{
	hook h = { .fails_at = -1 };
	ddp_model_options options = plain;

	options.hook = (ddp_bucket_hook){ start, finish, &h };
	ddp_model *model = make(context, &options);
	const int buckets = model->plan.count;
	for (int step = 0; step < 2; step++) {
		h.started = h.finished = 0;
		CHECK(step_and_compare(context, model, 1, 23) == 0);
		CHECK(h.started == buckets && h.finished == buckets && buckets > 2);
	}
	/* What is not updated is waited for, too. */
	h.started = h.finished = 0;
	ddp_model_param_grad(model, 0)[7] = NAN;
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_NOT_FINITE);
	CHECK(h.started == buckets && h.finished == buckets);

	/* No rank may break the world while another is still in that step. */
	test_ranks_together();
	h.started = h.finished = 0;
	h.fails_at = ddp_comm_rank(context->world) == 1 ? 0 : -1;
	ddp_status status = ddp_model_step(model, 1, 0, NULL);
	CHECK(status == (h.fails_at == 0 ? DDP_ERR_IO : DDP_ERR_ABORTED));
	CHECK_SAYS("the hook does not want to");
	while (h.finished < h.started)
		ddp_wait(h.requests[h.finished++]);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(a_hook_gets_each_bucket_once_in_order, assert_int_equal(run_ranks(RANKS, hook_body, NULL), 0));

static int freed_body(ddp_context *context, void *user)
{
	const ddp_param two[] = { one, { .name = "v", .ndim = 1, .shape = { COUNT } } };
	hook h = { .fails_at = -1 };
	ddp_model_options options = plain;

	options.hook = (ddp_bucket_hook){ start, finish, &h };
	ddp_model *model = make_of(context, two, 2, &options);
	test_ranks_together(); /* rank 0 ends what another is in, then */
	if (ddp_comm_rank(context->world) == 0) {
		CHECK_OK(ddp_model_grad_ready(model, 1));
		CHECK(h.started > 0);
	}
	ddp_model_free(model);
	CHECK(h.finished == h.started);
	test_ranks_together(); /* nobody asks before it is ended */
	CHECK(ddp_barrier(context->world) == DDP_ERR_ABORTED);
	return 0;
}

TEST_RUNS(a_model_freed_in_a_step_finishes_what_hooks_have_started,
          assert_int_equal(run_ranks(RANKS, freed_body, NULL), 0));

static ddp_status do_nothing(void *user, const ddp_grad_bucket *bucket)
{
	return DDP_OK;
}

static ddp_status fail_silently(void *user, const ddp_grad_bucket *bucket)
{
	return ddp_comm_rank(bucket->comm) == 1 ? DDP_ERR_IO : DDP_OK;
}

static int silent_body(ddp_context *context, void *user)
{
	const bool *fails_at_start = user;
	ddp_model_options options = plain;

	options.hook.start = *fails_at_start ? fail_silently : do_nothing;
	options.hook.finish = *fails_at_start ? do_nothing : fail_silently;
	ddp_model *model = make(context, &options);
	test_ranks_together(); /* rank 1 ends what another is in, then */
	ddp_fail(DDP_ERR_STATE, "an older error");
	ddp_status status = ddp_model_step(model, 1, 0, NULL);
	if (ddp_comm_rank(context->world) == 1)
		CHECK(status == DDP_ERR_IO && test_says("gave no reason") && !test_says("an older error"));
	CHECK(ddp_barrier(context->world) == DDP_ERR_ABORTED);
	ddp_model_free(model);
	return 0;
}

TEST(a_hook_that_gives_no_reason_is_not_blamed_for_an_older_error)
{
	bool fails_at_start[] = { true, false };

	for (int i = 0; i < 2; i++)
		assert_int_equal(run_ranks(RANKS, silent_body, &fails_at_start[i]), 0);
}

/* ---- gradients that the program's own functions change ------------------------------------- */

enum { ELEMENTS = 300, LARGEST = 3 };
enum { FIRST, SECOND, PLAIN, PARAMS };

static const ddp_param params[PARAMS] = {
	[FIRST] = { .name = "first", .ndim = 1, .shape = { ELEMENTS } },
	[SECOND] = { .name = "second", .ndim = 1, .shape = { ELEMENTS } },
	[PLAIN] = { .name = "plain", .ndim = 1, .shape = { ELEMENTS } },
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

	CHECK(count == ELEMENTS && param != PLAIN);
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
		for (int i = 0; i < ELEMENTS; i++)
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
	for (int i = 0; i < ELEMENTS; i++)
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
	CHECK(ddp_model_set_grad_hook(model, 0, clip, NULL) == DDP_ERR_UNSUPPORTED &&
	      test_says("\"rows\", which has sparse_rows"));
	ddp_model_free(model);
	CHECK_OK(ddp_model_create(context, frozen, 2, &sums, &model));
	CHECK(ddp_model_set_grad_hook(model, 1, clip, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_model_set_grad_hook(model, 2, clip, NULL) == DDP_ERR_INVALID);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(hooks_that_cannot_be_are_refused, assert_int_equal(run_ranks(1, refused_body, NULL), 0));
