/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan; takes: 3 */
/* reduce: a model on several ranks, with the real communicator. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/shm/memory.h"
#include "reduce/model_state.h"
#include "reduce/tensors.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "tests/support/three_params.h"

/* Rank r contributes weight r + 1, gradients (r + 1) * 10, and a loss of 1. */
static int uneven_body(ddp_context *context, void *user)
{
	ddp_model *model;
	ddp_step_stats stats;
	const ddp_model_options options = plain_by(user);
	int rank = rank_of(context), size = size_of(context);
	double weights = size * (size + 1) / 2.0;

	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	CHECK(model->plan.count > 6);
	for (int step = 1; step <= 3; step++) {
		const float wanted[] = { -10.0f * step, -20.0f * step, -30.0f * step };

		add_grads(model, (float)(rank + 1) * 10);
		for (int p = 2; p >= 0; p--)
			CHECK_OK(ddp_model_grad_ready(model, p));
		CHECK_OK(ddp_model_step(model, rank + 1, 1, &stats));
		CHECK(all_params_are(model, wanted));
		CHECK(all_grads_are_zero(model));
		CHECK(stats.step == step);
		CHECK(stats.weight == weights);
		CHECK(fabs(stats.loss - size / weights) < 1e-12);
		CHECK(fabs(stats.grad_norm - 10 * sqrt(A + 4.0 * B + 9.0 * C)) < 1e-4);
		CHECK(stats.learning_rate == 1);
	}
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(mean_is_exact_over_uneven_weights, run_each_way(4, uneven_body));

static int announcements_body(ddp_context *context, void *user)
{
	ddp_model *model;
	int rank = rank_of(context);
	const float first[] = { -3, -6, -9 }, second[] = { -4.5f, -9, -13.5f };
	const ddp_model_options options = plain_by(user);

	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	CHECK(ddp_model_grad_ready(model, 3) == DDP_ERR_INVALID);
	CHECK(ddp_model_grad_ready(model, -1) == DDP_ERR_INVALID);
	CHECK(test_says("no parameter has index -1; there are 3"));

	/* Three micro-batches without sync do not travel; the fourth does, in
	   another order on each rank, and rank 1 announces only a part. */
	CHECK_OK(ddp_model_set_sync(model, false));
	for (int i = 0; i < 3; i++) {
		add_grads(model, 1);
		for (int p = 0; p < 3; p++)
			CHECK_OK(ddp_model_grad_ready(model, p));
		CHECK(!ddp_reducer_busy(&model->reducer));
	}
	CHECK_OK(ddp_model_set_sync(model, true));
	add_grads(model, 3);
	CHECK_OK(ddp_model_grad_ready(model, 1));
	CHECK_FAILS(ddp_model_grad_ready(model, 1), DDP_ERR_STATE, "\"b\" was announced twice");
	CHECK_FAILS(ddp_model_set_sync(model, false), DDP_ERR_STATE, "announced already");
	if (rank == 0) {
		CHECK_OK(ddp_model_grad_ready(model, 2));
		CHECK_OK(ddp_model_grad_ready(model, 0));
	}
	CHECK_OK(ddp_model_step(model, 2, 0, NULL));
	CHECK(all_params_are(model, first));

	/* Sync is on again, and nothing announced yet; a rank without samples. */
	if (rank == 1)
		add_grads(model, 3);
	CHECK_OK(ddp_model_grad_ready(model, 1));
	CHECK_OK(ddp_model_step(model, rank == 1 ? 2 : 0, 0, NULL));
	CHECK(all_params_are(model, second));
	ddp_model_free(model);
	return 0;
}

TEST(gradients_pile_up_without_sync_and_need_no_announcement)
{
	run_ways_on(NULL, 2, announcements_body);
	run_ways_on(two_nodes, 4, announcements_body);
}

/* Looks into a buffer that is being reduced, as no program should. */
__attribute__((no_sanitize("thread"))) static float peek(const volatile float *element)
{
	return *element;
}

static int overlap_body(ddp_context *context, void *user)
{
	ddp_model *model;
	uint64_t start_ns = ddp_now_ns();

	CHECK_OK(ddp_model_create(context, three, 3, &plain, &model));
	add_grads(model, 1);
	CHECK_OK(ddp_model_grad_ready(model, 2));
	CHECK(model->reducer.requests[0] != NULL);
	/* The sum appears although this thread makes no call: backward goes on. */
	const float *last = &ddp_model_param_grad(model, 2)[C - 1];
	const float sum = 3.0f * (float)size_of(context);
	while (peek(last) != sum && ddp_seconds_since(start_ns) < 60)
		;
	CHECK(peek(last) == sum);
	CHECK_OK(ddp_model_grad_ready(model, 1));
	CHECK_OK(ddp_model_grad_ready(model, 0));
	ddp_step_stats stats;
	ddp_summary summary;
	memset(&stats, 0xff, sizeof(stats));
	memset(&summary, 0xff, sizeof(summary));
	CHECK_OK(ddp_model_step(model, 1, 0, &stats));
	ddp_model_summary(model, &summary);
	for (size_t i = 0; i < sizeof(stats.reserved) / sizeof(stats.reserved[0]); i++)
		CHECK(stats.reserved[i] == 0);
	for (size_t i = 0; i < sizeof(summary.reserved) / sizeof(summary.reserved[0]); i++)
		CHECK(summary.reserved[i] == 0);
	CHECK(summary.steps == 1);
	CHECK(summary.communication_seconds > 0);
	CHECK(summary.overlap_ratio >= 0 && summary.overlap_ratio <= 1);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(buckets_are_reduced_before_backward_ends, assert_int_equal(run_ranks(2, overlap_body, NULL), 0));

static int clip_body(ddp_context *context, void *user)
{
	ddp_model *model;
	ddp_step_stats stats;
	ddp_model_options options = plain_by(user);
	double norm = sqrt(A + 4.0 * B + 9.0 * C);

	options.clip_norm = 2;
	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	add_grads(model, 1);
	CHECK_OK(ddp_model_step(model, 1, 0, &stats));
	CHECK(fabs(stats.grad_norm - norm) < 1e-9 * norm);
	const float clipped = (float)(-2 / (norm + 1e-6));
	const float wanted[] = { clipped, 2 * clipped, 3 * clipped };
	CHECK(all_params_are(model, wanted));
	CHECK(all_grads_are_zero(model));

	/* A short gradient is left alone. */
	add_grads(model, 1e-3f);
	CHECK_OK(ddp_model_step(model, 1, 0, &stats));
	const float second[] = { clipped - 1e-3f, 2 * clipped - 2e-3f, 3 * clipped - 3e-3f };
	CHECK(all_params_are(model, second));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(long_gradients_are_clipped_to_the_global_norm, run_each_way(4, clip_body));

/* ---- a step in two halves ---------------------------------------------------------- */

/* Numbers whose sums and squares are rounded, others on each rank and in each step. */
static void add_odd_grads(ddp_model *model, int rank, int step)
{
	for (int p = 0; p < 3; p++) {
		const int64_t count = ddp_model_param_count(model, p);
		float *grad = ddp_model_param_grad(model, p);

		for (int64_t i = 0; i < count; i++)
			grad[i] += sinf((float)(i + 7 * p + 31 * rank + 101 * step));
	}
}

static void expect_same_params(ddp_model *model, ddp_model *other)
{
	for (int p = 0; p < 3; p++)
		CHECK(memcmp(ddp_model_param_data(model, p), ddp_model_param_data(other, p),
		             (size_t)ddp_model_param_count(model, p) * sizeof(float)) == 0);
}

static int halves_body(ddp_context *context, void *user)
{
	const test_way *way = user;
	ddp_model_options options = plain_by(way);
	int rank = rank_of(context);
	ddp_step_stats stats, first, second;
	ddp_model *whole, *halves;

	options.optimizer = DDP_ADAMW;
	options.clip_norm = (way - ways + size_of(context)) % 2 == 0 ? 0.5 : 0;
	CHECK_OK(ddp_model_create(context, three, 3, &options, &whole));
	CHECK_OK(ddp_model_create(context, three, 3, &options, &halves));
	for (int step = 1; step <= 3; step++) {
		add_odd_grads(whole, rank, step);
		CHECK_OK(ddp_model_step(whole, rank + 1, step, &stats));
		add_odd_grads(halves, rank, step);
		for (int p = 2; p >= 0 && step > 1; p--)
			CHECK_OK(ddp_model_grad_ready(halves, p));
		CHECK_OK(ddp_model_reduce_grads(halves, rank + 1, step, &first));
		/* The rate is that of the first half. */
		ddp_model_set_learning_rate(halves, 17);
		CHECK_OK(ddp_model_update_params(halves, &second));
		ddp_model_set_learning_rate(halves, options.learning_rate);
		expect_same_params(whole, halves);
		CHECK(all_grads_are_zero(halves));
		CHECK(first.step == step && second.step == step && first.loss == stats.loss);
		CHECK(first.weight == stats.weight && first.learning_rate == options.learning_rate);
		CHECK(fabs(first.grad_norm - stats.grad_norm) < 1e-12 * stats.grad_norm);
		CHECK(second.grad_norm == first.grad_norm && second.seconds > 0);
	}
	ddp_model_free(whole);
	ddp_model_free(halves);
	return 0;
}

TEST_RUNS(two_halves_are_a_step, run_each_way(3, halves_body));

static void expect_between_halves(ddp_model *model)
{
	CHECK_FAILS(ddp_model_step(model, 1, 0, NULL), DDP_ERR_STATE, "are reduced: call ddp_model_update_params()");
	CHECK(ddp_model_reduce_grads(model, 1, 0, NULL) == DDP_ERR_STATE);
	CHECK(ddp_model_grad_ready(model, 0) == DDP_ERR_STATE);
}

static int forget_body(ddp_context *context, void *user)
{
	const ddp_model_options options = plain_by(user);
	const float start[] = { 0, 0, 0 }, then[] = { -1, -2, -3 };
	int size = size_of(context);
	bool replicated = options.shard == DDP_SHARD_NONE || size == 1;
	ddp_step_stats stats;
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, three, 3, &options, &model));
	CHECK_FAILS(ddp_model_update_params(model, NULL), DDP_ERR_STATE, "call ddp_model_reduce_grads() first");

	/* What has piled up is forgotten on this rank; what is announced cannot be. */
	add_grads(model, 100);
	CHECK_OK(ddp_model_zero_grads(model));
	CHECK(all_grads_are_zero(model));
	add_grads(model, 1);
	CHECK_OK(ddp_model_grad_ready(model, 2));
	CHECK_FAILS(ddp_model_zero_grads(model), DDP_ERR_STATE, "forget them after ddp_model_reduce_grads()");

	/* A step that does not count. */
	CHECK_OK(ddp_model_reduce_grads(model, 1, 1, &stats));
	CHECK(stats.step == 1 && stats.loss == 1 && stats.grad_norm > 0);
	expect_between_halves(model);
	if (replicated)
		CHECK(ddp_model_param_grad(model, 1)[0] == 2.0f * (float)size);
	CHECK_OK(ddp_model_zero_grads(model));
	CHECK(all_grads_are_zero(model) && all_params_are(model, start));
	CHECK(ddp_model_step_count(model) == 0);

	/* One whose gradients are changed in between, where each rank has them all. */
	add_grads(model, replicated ? 2 : 1);
	CHECK_OK(ddp_model_reduce_grads(model, 1, 0, NULL));
	for (int p = 0; p < 3 && replicated; p++) {
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			ddp_model_param_grad(model, p)[i] /= 2;
	}
	CHECK_OK(ddp_model_update_params(model, &stats));
	CHECK(stats.step == 1 && all_params_are(model, then) && all_grads_are_zero(model));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(reduced_gradients_can_be_looked_at_changed_and_forgotten, run_each_way(4, forget_body));

/* The same steps in the library's memory and in the program's, which holds anything before. */
static int own_memory_body(ddp_context *context, void *user)
{
	ddp_model_options options = plain_by(user);
	ddp_model *models[2];
	size_t bytes[2];
	char *own[2];

	CHECK_OK(ddp_model_create(context, three, 3, &options, &models[0]));
	CHECK_OK(ddp_model_bytes(three, 3, &bytes[0], &bytes[1]));
	for (int i = 0; i < 2; i++) {
		CHECK(bytes[i] % 64 == 0 && (own[i] = aligned_alloc(64, bytes[i])) != NULL);
		memset(own[i], 0xff, bytes[i]);
	}
	options.params_memory = (float *)(void *)own[0];
	options.grads_memory = (float *)(void *)own[1];
	CHECK_OK(ddp_model_create(context, three, 3, &options, &models[1]));
	CHECK(models[1]->strategy != &ddp_node_strategy);
	CHECK(models[1]->strategy->spreads == (options.shard > DDP_SHARD_NONE && size_of(context) > 1));
	for (int step = 0; step < 2; step++) {
		for (int m = 0; m < 2; m++) {
			add_grads(models[m], (float)(1 + rank_of(context)));
			CHECK_OK(ddp_model_step(models[m], 1, 0, NULL));
		}
	}
	for (int p = 0; p < 3; p++) {
		const size_t count = (size_t)ddp_model_param_count(models[1], p) * sizeof(float);
		const char *data = (const char *)ddp_model_param_data(models[1], p);
		const char *grad = (const char *)ddp_model_param_grad(models[1], p);
		CHECK(data >= own[0] && data + count <= own[0] + bytes[0]);
		CHECK(grad >= own[1] && grad + count <= own[1] + bytes[1]);
		CHECK(memcmp(data, ddp_model_param_data(models[0], p), count) == 0);
		CHECK(*(const float *)(const void *)data < 0);
	}
	for (int m = 0; m < 2; m++)
		ddp_model_free(models[m]);
	for (int i = 0; i < 2; i++)
		free(own[i]);
	return 0;
}

TEST_RUNS(a_model_trains_in_memory_of_the_program, run_each_way(2, own_memory_body));

static int drift_body(ddp_context *context, void *user)
{
	ddp_model *model;
	int rank = rank_of(context);
	const float start[] = { 7, 7, 7 };
	const float wanted[] = { 7.0f - 1.0f * (float)rank, 7.0f - 2.0f * (float)rank,
	                         7.0f - 3.0f * (float)rank };
	ddp_step_stats stats;

	test_measure("no-communication");
	CHECK_OK(ddp_model_create(context, three, 3, &plain, &model));
	for (int p = 0; p < 3 && rank == 0; p++) {
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			ddp_model_param_data(model, p)[i] = 7;
	}
	CHECK_OK(ddp_model_broadcast_params(model));
	CHECK(all_params_are(model, start));
	add_grads(model, 2.0f * (float)rank);
	CHECK_OK(ddp_model_grad_ready(model, 2));
	CHECK_OK(ddp_model_step(model, 2, 6, &stats));
	CHECK(all_params_are(model, wanted));
	CHECK(stats.weight == 2 && stats.loss == 3 && stats.communication_seconds == 0);
	/* Each rank sees its own error only, so each tells it. */
	CHECK(ddp_model_step(model, -1, 6, &stats) == DDP_ERR_INVALID && !ddp_last_error_is_told());
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(ranks_drift_apart_without_communication, assert_int_equal(run_ranks(2, drift_body, NULL), 0));

static size_t longest_broadcast;

ddp_status __real_ddp_broadcast(ddp_comm *comm, void *buffer, size_t count, ddp_type type, int root);
ddp_status __wrap_ddp_broadcast(ddp_comm *comm, void *buffer, size_t count, ddp_type type, int root);

ddp_status __wrap_ddp_broadcast(ddp_comm *comm, void *buffer, size_t count, ddp_type type, int root)
{
	longest_broadcast = count > longest_broadcast ? count : longest_broadcast;
	return __real_ddp_broadcast(comm, buffer, count, type, root);
}

/* A deadline is one for what a slow network can carry by then. */
static int large_broadcast_body(ddp_context *context, void *user)
{
	const ddp_param large = { .name = "w", .ndim = 1, .shape = { (1 << 24) + 5 } };
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, &large, 1, &options, &model));
	float *data = ddp_model_param_data(model, 0);
	for (int k = 0; k <= 4 && rank_of(context) == 0; k++)
		data[k << 22] = (float)k + 1;
	CHECK_OK(ddp_model_broadcast_params(model));
	for (int k = 0; k <= 4; k++)
		CHECK(data[k << 22] == (float)k + 1);
	CHECK(longest_broadcast > 1 << 20 && longest_broadcast <= 1 << 24);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(large_models_are_broadcast_in_chunks, assert_int_equal(run_ranks(2, large_broadcast_body, NULL), 0));

static int copies_left = -1; /* so many further calls find addresses; negative: all do */

ddp_status __real_ddp_memory_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies);
ddp_status __wrap_ddp_memory_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies);

ddp_status __wrap_ddp_memory_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies)
{
	if (copies_left >= 0 && copies_left-- == 0)
		return ddp_fail(DDP_ERR_NOMEM, "no address");
	return __real_ddp_memory_copies(comm, memory, bytes, copies);
}

static int shared_pieces(ddp_context *context)
{
	int count = 0;

	for (const ddp_allocation *a = ddp_world(context)->roster->memory.list; a != NULL; a = a->next)
		count++;
	return count;
}

/* Each search for the addresses of other ranks' memory fails once. */
static int addresses_body(ddp_context *context, void *user)
{
	static const ddp_shard shards[] = { DDP_SHARD_STATE, DDP_SHARD_GRADIENTS };

	for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]); i++) {
		const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW, .shard = shards[i], .buddy = true };
		const int before = shared_pieces(context);
		int calls = 0;
		for (bool whole = false; !whole; calls++) {
			ddp_model *model = NULL;
			int64_t step;
			copies_left = calls;
			whole = ddp_model_create(context, three, 3, &options, &model) == DDP_OK &&
				ddp_survive(model, NULL, DDP_OK, &step) == DDP_OK;
			CHECK(whole || test_says("no address"));
			ddp_model_free(model);
			CHECK(shared_pieces(context) == before);
		}
		CHECK(calls > 3);
	}
	copies_left = -1;
	return 0;
}

TEST_RUNS(memory_without_addresses_is_freed, assert_int_equal(run_ranks(2, addresses_body, NULL), 0));

TEST(default_buckets_are_a_32nd_of_the_model)
{
	static const struct { int64_t model_mb, bucket_mb; } cases[] = {
		{ 0, 1 }, { 31, 1 }, { 32, 1 }, { 64, 2 }, { 320, 10 }, { 800, 25 }, { 5000, 25 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(ddp_default_bucket_elements(cases[i].model_mb << 18),
		                 cases[i].bucket_mb << 18);
}

static int tensors_body(ddp_context *context, void *user)
{
	static const char *const names[] = {
		"a", "b", "c", "optimizer.m.a", "optimizer.m.b", "optimizer.m.c",
		"optimizer.v.a", "optimizer.v.b", "optimizer.v.c",
		"optimizer.missed_steps.a", "optimizer.missed_steps.b", "optimizer.missed_steps.c",
	};
	ddp_model *model;
	ddp_tensors tensors;

	CHECK_OK(ddp_model_create(context, three, 3, NULL, &model));
	CHECK(model->context == context);
	CHECK_OK(ddp_model_tensors(model, true, &tensors));
	CHECK(tensors.count == 12);
	for (int i = 0; i < 12; i++) {
		const ddp_tensor *tensor = &tensors.list[i];
		CHECK(strcmp(tensor->name, names[i]) == 0);
		CHECK(tensor->optional == (i >= 9));
		if (i >= 9)
			continue;
		CHECK(tensor->ndim == three[i % 3].ndim);
		CHECK(tensor->shape[0] == three[i % 3].shape[0]);
		CHECK((uintptr_t)tensor->data % sizeof(float) == 0);
	}
	CHECK(tensors.list[1].data == ddp_model_param_data(model, 1));
	CHECK((uintptr_t)ddp_model_param_data(model, 1) % 64 == 0);
	CHECK((uintptr_t)ddp_model_param_grad(model, 2) % 64 == 0);
	CHECK(ddp_model_param_data(model, 3) == NULL && ddp_model_param_grad(model, -1) == NULL);
	CHECK(ddp_model_param_count(model, 2) == C && ddp_model_param_count(model, 3) == 0);
	ddp_tensors_free(&tensors);

	ddp_model_set_step_count(model, 41);
	add_grads(model, 1);
	ddp_step_stats stats;
	CHECK_OK(ddp_model_step(model, 1, 0, &stats));
	CHECK(stats.step == 42 && ddp_model_step_count(model) == 42);

	model->partly_updated = true;
	CHECK(ddp_model_check_whole(model) == DDP_ERR_STATE);
	CHECK_FAILS(ddp_model_step(model, 1, 0, NULL), DDP_ERR_STATE, "load a checkpoint, whole");
	CHECK_FAILS(ddp_model_check_whole(model), DDP_ERR_STATE, "go back to the last checkpoint");
	ddp_model_free(model);
	ddp_model_free(NULL);
	return 0;
}

TEST_RUNS(checkpoint_sees_parameters_and_state_by_name, assert_int_equal(run_ranks(1, tensors_body, NULL), 0));
