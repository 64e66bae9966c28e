/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* Ways of training a model in the memory of the fake GPU, each beside the same
   in the host's memory: parameters, gradients and norms have the same bits after each step. */
#include <math.h>
#include <semaphore.h>
#include <stdint.h>

#include "tests/support/model_side.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { RANKS = 2, PARAMS = 3 };

static const ddp_options on_test = { DDP_OPTIONS_FIELDS, .device = "cuda" };

static const ddp_param params[PARAMS] = {
	{ .name = "a", .ndim = 1, .shape = { 37 } },
	{ .name = "b", .ndim = 2, .shape = { 60, 70 } },
	{ .name = "c", .ndim = 1, .shape = { 2500 } },
};

/* Several buckets. */
static const ddp_model_options plain = {
	DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .bucket_mb = 0.01, .weight_decay = 0.1,
};

static void run_plain(rank_body body)
{
	ddp_model_options options = plain;

	assert_int_equal(run_ranks_with(RANKS, &on_test, body, &options), 0);
}

/* ---- both ---------------------------------------------------------------------------------- */

static float factor = 1; /* of gradients */

static const char *strategy_of(const ddp_model_options *options)
{
	if (options->hook.start != NULL)
		return "hook";
	if (options->compress != DDP_COMPRESS_NONE)
		return "all_reduce in 16 bits";
	return options->shard == DDP_SHARD_STATE ? "scatter" : "all_reduce";
}

static void make(model_side *s, const ddp_model_options *options)
{
	side_make(s, params, PARAMS, options, 0);
	check_strategy(s->model, strategy_of(options));
}

static void make_both(model_side *here, model_side *there, ddp_context *context, const ddp_model_options *options)
{
	side_open(here, context, false);
	side_open(there, context, true);
	make(here, options);
	make(there, options);
}

static void close_both(model_side *here, model_side *there)
{
	side_close(there);
	side_close(here);
}

/* Of the scaled loss, all of them announced; one of them is `bad` on rank 1. */
static void backward(model_side *s, int step, float bad)
{
	for (int p = PARAMS - 1; p >= 0; p--) {
		side_draw(s, step, p, factor * (float)ddp_model_loss_scale(s->model));
		if (p == 1 && side_rank(s) == 1)
			s->host[5] += bad;
		side_copy_gradient(s, p);
		CHECK_OK(ddp_model_grad_ready(s->model, p));
	}
}

double __real_ddp_spans_union(ddp_span *spans, size_t count);
double __wrap_ddp_spans_union(ddp_span *spans, size_t count);

static size_t spans_of_step; /* of the last step: operations of which it has told the time */

double __wrap_ddp_spans_union(ddp_span *spans, size_t count)
{
	spans_of_step = count;
	return __real_ddp_spans_union(spans, count);
}

static void train_step(model_side *s, int step, float bad, bool halves, ddp_step_stats *stats)
{
	backward(s, step, bad);
	if (halves) {
		CHECK_OK(ddp_model_reduce_grads(s->model, 3, 3, stats));
		CHECK_OK(ddp_model_update_params(s->model, stats));
	} else {
		CHECK_OK(ddp_model_step(s->model, 3, 3, stats));
	}
}

/* The same step on both sides. */
static void step_both(model_side *here, model_side *there, int step, float bad, bool halves)
{
	ddp_step_stats stats[2];

	train_step(here, step, bad, halves, &stats[0]);
	const size_t spans_here = spans_of_step;
	train_step(there, step, bad, halves, &stats[1]);
	CHECK(spans_of_step == spans_here && spans_here > (bad == 0 ? 0 : (size_t)there->model->plan.count));
	CHECK(stats[0].skipped == (bad != 0) && stats[1].skipped == (bad != 0));
	CHECK(bad != 0 || fabs(stats[0].grad_norm / stats[1].grad_norm - 1) < 1e-12);
	CHECK(ddp_model_loss_scale(here->model) == ddp_model_loss_scale(there->model));
	sides_same(here, there);
}

/* ---- a scaled loss -------------------------------------------------------------------------- */

/* Steps that overflow are skipped, and leave no trace in the next ones. */
static int scale_body(ddp_context *context, void *user)
{
	static model_side here, there;

	make_both(&here, &there, context, user);
	for (int step = 1; step <= 4; step++) {
		step_both(&here, &there, step, 0, step % 2 == 0);
		step_both(&here, &there, step + 10, step < 3 ? INFINITY : 0, step % 2 == 0);
	}
	CHECK(ddp_model_loss_scale(there.model) == 0x1p19); /* halved twice, doubled once */
	close_both(&here, &there);
	return 0;
}

TEST(a_scaled_loss_is_skipped_and_grows_as_on_the_host)
{
	ddp_model_options options = plain;

	options.loss_scaling.kind = DDP_SCALING_DYNAMIC;
	options.loss_scaling.initial = 0x1p20;
	options.loss_scaling.interval = 4;
	assert_int_equal(run_ranks_with(RANKS, &on_test, scale_body, &options), 0);
	options.optimizer = DDP_MUON; /* new parameters travel, too */
	assert_int_equal(run_ranks_with(RANKS, &on_test, scale_body, &options), 0);
}

/* ---- gradient hooks -------------------------------------------------------------------------- */

typedef struct scaling {
	model_side *of;
	float factor;
	int calls;
} scaling;

static ddp_status scale_gradient(void *user, int param, float *grad, int64_t count)
{
	scaling *s = user;
	dk_queue *before = dk_use(s->of->kernels);

	CHECK(grad == ddp_model_param_grad(s->of->model, param) && count == ddp_model_param_count(s->of->model, param));
	dk_scale(grad, count, s->factor);
	dk_use(before);
	s->calls++;
	return DDP_OK;
}

static void hold_queue(void *argument)
{
	sem_wait(argument);
}

/* Hooks are called while the queue stands still. */
static void announce_to_a_queue_that_is_held(model_side *s, const scaling *hook)
{
	const int before = hook->calls;
	sem_t go;

	CHECK(sem_init(&go, 0, 0) == 0);
	CHECK_OK(ddp_device_launch(s->context->device, s->stream, hold_queue, &go));
	for (int p = PARAMS - 1; p >= 0; p--)
		CHECK_OK(ddp_model_grad_ready(s->model, p));
	CHECK(hook->calls == before + PARAMS);
	CHECK(sem_post(&go) == 0);
	CHECK_OK(ddp_model_step(s->model, 1, 1, NULL));
	sem_destroy(&go);
}

static int hooks_body(ddp_context *context, void *user)
{
	static model_side here, there;
	scaling hooks[2] = { { &here, 0.3f, 0 }, { &there, 0.3f, 0 } };

	make_both(&here, &there, context, user);
	for (int p = 0; p < PARAMS; p++) {
		CHECK_OK(ddp_model_set_grad_hook(here.model, p, scale_gradient, &hooks[0]));
		CHECK_OK(ddp_model_set_grad_hook(there.model, p, scale_gradient, &hooks[1]));
	}
	for (int step = 1; step <= 2; step++)
		step_both(&here, &there, step, 0, step == 2);
	CHECK(hooks[0].calls == 2 * PARAMS && hooks[1].calls == 2 * PARAMS);
	announce_to_a_queue_that_is_held(&there, &hooks[1]);
	/* What a hook leaves is what is looked at. */
	hooks[1].factor = side_rank(&there) == 1 ? INFINITY : 1;
	backward(&there, 3, 0);
	CHECK_FAILS(ddp_model_step(there.model, 1, 1, NULL), DDP_ERR_NOT_FINITE, "is not finite on rank 1");
	close_both(&here, &there);
	return 0;
}

TEST(gradient_hooks_work_on_the_queue)
{
	ddp_model_options options = plain;

	options.clip_norm = 0.5;
	assert_int_equal(run_ranks_with(RANKS, &on_test, hooks_body, &options), 0);
}

/* ---- a gradient that is not finite in one step, and unused in the next ---------------------------- */

/* All gradients are ones; that of "b" is `value`, or unused if it is 0. */
static ddp_status step_with(model_side *s, float value)
{
	for (int p = PARAMS - 1; p >= 0; p--) {
		const int64_t count = ddp_model_param_count(s->model, p);
		if (p == 1 && value == 0) {
			CHECK_OK(ddp_model_grad_unused(s->model, p));
			continue;
		}
		for (int64_t i = 0; i < count; i++)
			s->host[i] = p == 1 ? value : 1;
		side_copy_gradient(s, p);
		CHECK_OK(ddp_model_grad_ready(s->model, p));
	}
	return ddp_model_step(s->model, 1, 1, NULL);
}

static int unused_body(ddp_context *context, void *user)
{
	static model_side sides[2]; /* here and there */

	for (int there = 0; there < 2; there++) {
		model_side *s = &sides[there];
		side_open(s, context, there == 1);
		make(s, user);
		CHECK(step_with(s, INFINITY) == DDP_ERR_NOT_FINITE);
		for (int step = 0; step < 3; step++)
			CHECK_OK(step_with(s, 0));
		if (((const ddp_model_options *)user)->unused == DDP_UNUSED_SKIP)
			CHECK_OK(step_with(s, 1));
		side_close(s);
	}
	return 0;
}

TEST(what_was_not_finite_may_be_unused_then)
{
	static const ddp_unused ways[] = { DDP_UNUSED_SKIP, DDP_UNUSED_STATIC };

	for (int i = 0; i < 2; i++) {
		ddp_model_options options = plain;
		options.unused = ways[i];
		assert_int_equal(run_ranks_with(RANKS, &on_test, unused_body, &options), 0);
	}
}

/* ---- the program's own way of summing ---------------------------------------------------------- */

enum { BUCKETS_MAX = 16 };

typedef struct summing {
	model_side *of;
	ddp_request *requests[BUCKETS_MAX];
	int started, finished;
	int more; /* kernels that change nothing, but take the queue their time */
} summing;

static ddp_status start(void *user, const ddp_grad_bucket *bucket)
{
	summing *s = user;
	const ddp_operation operation = {
		.kind = DDP_ALL_REDUCE, .recv = bucket->grads, .count = (size_t)bucket->count,
		.type = DDP_F32, .op = DDP_SUM, .memory = bucket->memory, .stream = bucket->stream,
	};

	CHECK(bucket->stream == s->of->stream && bucket->index < BUCKETS_MAX);
	s->started++;
	return ddp_issue(bucket->comm, &operation, &s->requests[bucket->index]);
}

/* Sums are halved where they are. */
static ddp_status finish(void *user, const ddp_grad_bucket *bucket)
{
	summing *s = user;
	ddp_request *request = s->requests[bucket->index];
	ddp_status status = s->of->stream != NULL ? ddp_wait_on(request, bucket->stream) : ddp_wait(request);
	dk_queue *before = dk_use(s->of->kernels);

	CHECK(s->of->stream == NULL || ddp_watch_current_phase(s->of->context->watch) == DDP_PHASE_WAIT);
	dk_scale(bucket->grads, bucket->count, 0.5f);
	for (int i = 0; i < s->more; i++)
		dk_scale(bucket->grads, bucket->count, 1);
	dk_use(before);
	s->finished++;
	return status == DDP_OK && s->of->stream != NULL ? ddp_wait(request) : status;
}

static int summing_body(ddp_context *context, void *user)
{
	static model_side here, there;
	summing sums[2] = { { .of = &here }, { .of = &there } };
	ddp_model_options options = *(const ddp_model_options *)user;

	side_open(&here, context, false);
	side_open(&there, context, true);
	options.hook = (ddp_bucket_hook){ start, finish, &sums[0] };
	make(&here, &options);
	options.hook.user = &sums[1];
	make(&there, &options);
	const int buckets = there.model->plan.count;
	for (int step = 1; step <= 3; step++)
		step_both(&here, &there, step, 0, step == 2);
	CHECK(buckets > 2 && sums[1].started == 3 * buckets && sums[1].finished == 3 * buckets);
	/* Of a step that is not updated, too. */
	backward(&there, 4, NAN);
	CHECK(ddp_model_step(there.model, 1, 1, NULL) == DDP_ERR_NOT_FINITE);
	CHECK(sums[1].finished == 4 * buckets);
	side_close(&here);
	/* And of one that nobody ends, which breaks the world: nobody may still be in a collective. */
	CHECK_OK(ddp_barrier(ddp_world(context)));
	test_ranks_together();
	if (side_rank(&there) == 0) {
		backward(&there, 5, 0);
		CHECK(sums[1].started > 4 * buckets);
		sums[1].more = 30;
	}
	const bool breaks = side_rank(&there) == 0;
	side_close(&there);
	CHECK(sums[1].finished == sums[1].started);
	/* A rank that did not ask would hear of it in ddp_finalize(). */
	test_ranks_together();
	CHECK(breaks || ddp_barrier(ddp_world(context)) == DDP_ERR_ABORTED);
	side_all_freed(context);
	return 0;
}

TEST_RUNS(the_programs_own_sums_are_made_on_the_queue, run_plain(summing_body));

/* ---- 16 bits ----------------------------------------------------------------------------------- */

/* The last step's sums would overflow in 16 bits, and go by f32. */
static int narrow_body(ddp_context *context, void *user)
{
	static model_side here, there;

	make_both(&here, &there, context, user);
	for (int step = 1; step <= 4; step++) {
		factor = step < 4 ? 1 : 0x0.66p128f;
		step_both(&here, &there, step, 0, step == 2);
	}
	close_both(&here, &there);
	/* A model with requests under way would have taken the world with it. */
	CHECK_OK(ddp_barrier(ddp_world(context)));
	return 0;
}

TEST(gradients_travel_in_16_bits_of_the_host)
{
	ddp_model_options options = plain;

	options.optimizer = DDP_SGD;
	for (options.compress = DDP_COMPRESS_BF16; options.compress <= DDP_COMPRESS_F16; options.compress++)
		assert_int_equal(run_ranks_with(RANKS, &on_test, narrow_body, &options), 0);
}

/* ---- shards ------------------------------------------------------------------------------------ */

ddp_status __real_ddp_place_alloc(const ddp_place *place, size_t bytes, void **memory);
ddp_status __wrap_ddp_place_alloc(const ddp_place *place, size_t bytes, void **memory);

static size_t most_at_once; /* bytes */

ddp_status __wrap_ddp_place_alloc(const ddp_place *place, size_t bytes, void **memory)
{
	most_at_once = bytes > most_at_once ? bytes : most_at_once;
	return __real_ddp_place_alloc(place, bytes, memory);
}

static int shards_body(ddp_context *context, void *user)
{
	ddp_model_options options = plain;
	static model_side there;
	size_t bytes[2]; /* of an array of the optimizer's: whole, and a shard */

	side_open(&there, context, true);
	for (int i = 0; i < 2; i++) {
		options.shard = i == 0 ? DDP_SHARD_NONE : DDP_SHARD_STATE;
		most_at_once = 0;
		make(&there, &options);
		bytes[i] = most_at_once;
		if (i == 0)
			ddp_model_free(there.model);
	}
	CHECK(bytes[0] == (size_t)there.model->layout.elements * sizeof(float));
	/* And at most 16 numbers, to which each bucket's slices are rounded. */
	CHECK(bytes[1] <= bytes[0] / (size_t)ddp_comm_size(ddp_world(context)) + (size_t)(there.model->units.count + 1) * 64);
	train_step(&there, 1, 0, false, NULL);
	CHECK(spans_of_step == 2 + 2 * (size_t)there.model->units.count); /* totals, norm; sums and parameters */
	side_close(&there);
	return 0;
}

TEST(the_optimizers_state_falls_with_the_number_of_ranks)
{
	for (int ranks = 2; ranks <= 4; ranks += 2)
		assert_int_equal(run_ranks_with(ranks, &on_test, shards_body, NULL), 0);
}

/* ---- memory of the program ------------------------------------------------------------------- */

static bool is_within(const float *at, int64_t count, const float *memory, size_t bytes)
{
	return at >= memory && at + count <= memory + bytes / sizeof(float);
}

/* It holds NaN before, and is freed while the queue is still in backward, if nobody waits. */
static int own_memory_body(ddp_context *context, void *user)
{
	ddp_model_options options = *(const ddp_model_options *)user;
	static model_side here, there;
	size_t bytes[2];
	void *own[2];

	side_open(&here, context, false);
	side_open(&there, context, true);
	CHECK_OK(ddp_model_bytes(params, PARAMS, &bytes[0], &bytes[1]));
	for (int i = 0; i < 2; i++) {
		CHECK_OK(ddp_device_alloc(context->device, bytes[i], &own[i]));
		CHECK_OK(ddp_device_fill(context->device, there.stream, own[i], 0xff, bytes[i]));
	}
	make(&here, &options);
	options.params_memory = own[0];
	options.grads_memory = own[1];
	make(&there, &options);
	for (int p = 0; p < PARAMS; p++) {
		const float *data = ddp_model_param_data(there.model, p), *grad = ddp_model_param_grad(there.model, p);
		const int64_t count = ddp_model_param_count(there.model, p);
		CHECK(is_within(data, count, own[0], bytes[0]));
		CHECK(is_within(grad, count, own[1], bytes[1]));
	}
	sides_same(&here, &there);
	for (int step = 1; step <= 2; step++)
		step_both(&here, &there, step, 0, step == 2);
	for (int p = 0; p < PARAMS; p++) {
		CHECK_OK(ddp_device_copy(context->device, there.stream, ddp_model_param_grad(there.model, p), there.host,
		                         (size_t)ddp_model_param_count(there.model, p) * sizeof(float)));
	}
	ddp_model_free(there.model);
	there.model = NULL;
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_device_free(context->device, own[i]));
	close_both(&here, &there);
	return 0;
}

TEST_RUNS(a_model_trains_in_memory_of_the_program, run_plain(own_memory_body));

static void expect_refused(ddp_context *context, ddp_memory memory, float *grads, const char *why)
{
	ddp_model_options options = plain;
	ddp_model *model;

	options.memory = memory;
	options.grads_memory = grads;
	CHECK(ddp_model_create(context, params, PARAMS, &options, &model) == DDP_ERR_INVALID);
	CHECK(test_says("grads_memory") && test_says(why));
}

static int elsewhere_body(ddp_context *context, void *user)
{
	static float here[2 * SIDE_ELEMENTS] __attribute__((aligned(64)));
	size_t params_bytes, grads_bytes;
	void *there;

	CHECK_OK(ddp_model_bytes(params, PARAMS, &params_bytes, &grads_bytes));
	CHECK_OK(ddp_device_alloc(context->device, grads_bytes, &there));
	expect_refused(context, DDP_MEMORY_DEVICE, here, "not all memory of device cuda:0");
	expect_refused(context, DDP_MEMORY_DEVICE, (float *)there + 1, "multiple of 64 bytes");
	expect_refused(context, DDP_MEMORY_HOST, there, "is in the host's");
	CHECK_OK(ddp_device_free(context->device, there));
	return 0;
}

TEST_RUNS(memory_that_is_elsewhere_is_refused, assert_int_equal(run_ranks_with(1, &on_test, elsewhere_body, NULL), 0));

/* ---- how gradients are looked at, and the norm is summed ---- */

typedef struct calls {
	int64_t count, arrays; /* these in all */
} calls;

static calls looks, sums;

void __real_dk_largest_at(float *largest, const dk_array *arrays, int64_t count);
void __wrap_dk_largest_at(float *largest, const dk_array *arrays, int64_t count);
void __real_dk_squares_at(double *squares, const dk_array *arrays, int64_t count, int64_t piece);
void __wrap_dk_squares_at(double *squares, const dk_array *arrays, int64_t count, int64_t piece);

/* What the device runs is on no queue. */
static void note_call(calls *of, int64_t arrays)
{
	if (dk_in_use() == NULL)
		return;
	of->count++;
	of->arrays += arrays;
}

void __wrap_dk_largest_at(float *largest, const dk_array *arrays, int64_t count)
{
	note_call(&looks, count);
	__real_dk_largest_at(largest, arrays, count);
}

void __wrap_dk_squares_at(double *squares, const dk_array *arrays, int64_t count, int64_t piece)
{
	note_call(&sums, count);
	__real_dk_squares_at(squares, arrays, count, piece);
}

/* Three units of a piece each are behind one of less. */
static int work_at_once(ddp_context *context, void *user)
{
	enum { FIRST, UNITS = 4, STEP = 1 };
	static const ddp_param own[UNITS] = {
		[FIRST] = { .name = "first", .ndim = 1, .shape = { 48 } },
		{ .name = "a", .ndim = 1, .shape = { DDP_PIECE_ELEMENTS } },
		{ .name = "b", .ndim = 1, .shape = { DDP_PIECE_ELEMENTS } },
		{ .name = "c", .ndim = 1, .shape = { DDP_PIECE_ELEMENTS } },
	};
	static model_side s;
	ddp_step_stats stats;
	double squares = 0;

	side_open(&s, context, true);
	side_make(&s, own, UNITS, user, 0);
	check_strategy(s.model, "all_reduce");
	CHECK_OK(ddp_model_broadcast_params(s.model));
	CHECK(s.model->units.count == UNITS);
	for (int p = UNITS - 1; p >= 0; p--) {
		side_draw(&s, STEP, p, 1);
		side_copy_gradient(&s, p);
		CHECK_OK(ddp_model_grad_ready(s.model, p));
	}
	CHECK(looks.count == 0);
	CHECK_OK(ddp_model_step(s.model, 1, 1, &stats));
	CHECK(looks.count == 1 && looks.arrays == UNITS);
	CHECK(sums.count == 1 && sums.arrays == 2);
	for (int p = 0; p < UNITS; p++) {
		side_draw(&s, STEP, p, 1);
		squares += dk_sum_squares(s.host, ddp_model_param_count(s.model, p));
	}
	CHECK(stats.grad_norm == sqrt(squares));
	side_close(&s);
	return 0;
}

TEST(gradients_are_looked_at_and_summed_at_once)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .clip_norm = 1,
		.bucket_mb = DDP_PIECE_ELEMENTS * sizeof(float) / 1048576.0 };

	assert_int_equal(run_ranks_with(1, &on_test, work_at_once, &options), 0);
}
