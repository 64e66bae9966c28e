/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* A model in the memory of the fake GPU: it comes to the bits of one in the
   host's memory, and nothing in its backward pass waits. The device refuses work that no
   event orders, and nobody else can touch its memory; so a wait that is missing
   between gradients and checkpoint makes a test of these fail, or one that tests/support/check-waits
   names beside it: `make check-waits` takes each out once. */
#include <math.h>
#include <semaphore.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "comm/request.h"
#include "tests/support/folder.h"
#include "tests/support/model_side.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { PARAMS = 5, STEPS = 3, ROWS = 4 };

static const ddp_options on_test = { DDP_OPTIONS_FIELDS, .device = "cuda" };

/* Several pieces and buckets; rows come to the second, and the fourth is a number. */
static const ddp_param params[PARAMS] = {
	{ .name = "a", .ndim = 1, .shape = { 37 }, .no_decay = true },
	{ .name = "rows", .ndim = 2, .shape = { 60, 20 }, .sparse_rows = ROWS },
	{ .name = "b", .ndim = 2, .shape = { 60, 700 } },
	{ .name = "number" },
	{ .name = "c", .ndim = 1, .shape = { 2500 } },
};

/* ---- a model here or there ----------------------------------------------------------------- */

static void make(model_side *s, ddp_context *context, const ddp_model_options *options, bool there)
{
	side_open(s, context, there);
	if (there)
		CHECK_OK(ddp_device_alloc(context->device, ROWS * 24 * sizeof(float), &s->own));
	side_make(s, params, PARAMS, options, (float)side_rank(s));
	CHECK((ddp_model_device_loss(s->model) != NULL) == there);
	CHECK_OK(ddp_model_broadcast_params(s->model));
}

/* The model's work may still be in the memory of rows. */
static void unmake(model_side *s)
{
	ddp_device *device = s->context->device;
	void *rows = s->own;

	ddp_model_free(s->model);
	s->model = NULL;
	if (rows != NULL)
		CHECK_OK(ddp_device_free(device, rows));
	side_close(s);
}

static void set_gradient(model_side *s, int step, int p)
{
	side_draw(s, step, p, 1);
	side_copy_gradient(s, p);
}

/* On the host rows may travel by themselves, and be added in another order; so the rank of
   this step alone has some, and they are added to gradients of 0. */
static void add_rows(model_side *s, int step, int p)
{
	static int32_t index[ROWS]; /* each side's step ends before the other one's begins */
	const int64_t width = params[p].shape[1];
	float *values = s->host, *there = s->own;

	if (step % ddp_comm_size(ddp_world(s->context)) != side_rank(s))
		return;
	for (int i = 0; i < ROWS; i++)
		index[i] = (step * 7 + i * 3) % (int)params[p].shape[0];
	for (int64_t i = 0; i < ROWS * width; i++)
		values[i] = (float)i - 30;
	if (s->stream == NULL) {
		CHECK_OK(ddp_model_grad_rows(s->model, p, index, values, ROWS));
		return;
	}
	side_copy(s, there, values, (size_t)(ROWS * width) * sizeof(float));
	side_copy(s, there + ROWS * width, index, sizeof(index));
	CHECK_OK(ddp_model_grad_rows(s->model, p, (const int32_t *)(const void *)(there + ROWS * width), there, ROWS));
}

static void backward(model_side *s, int step)
{
	for (int p = PARAMS - 1; p >= 0; p--) {
		if (params[p].sparse_rows == 0)
			set_gradient(s, step, p);
		CHECK_OK(ddp_model_grad_ready(s->model, p));
	}
	add_rows(s, step, 1);
}

/* A loss that is the program's, and one that is in the device's memory. */
static void train_step(model_side *s, int step, bool halves, ddp_step_stats *stats)
{
	const double loss = 2;

	backward(s, step);
	if (s->stream != NULL)
		side_copy(s, ddp_model_device_loss(s->model), &loss, sizeof(loss));
	if (halves) {
		CHECK_OK(ddp_model_reduce_grads(s->model, 3, s->stream == NULL ? 3 : 1, stats));
		CHECK_OK(ddp_model_update_params(s->model, stats));
	} else {
		CHECK_OK(ddp_model_step(s->model, 3, s->stream == NULL ? 3 : 1, stats));
	}
}

/* The step's communication was in the step. */
static void expect_times(const model_side *s, const ddp_step_stats *stats)
{
	const bool alone = ddp_comm_size(ddp_world(s->context)) == 1;

	CHECK(alone || stats->communication_seconds > 0);
	CHECK(stats->communication_seconds <= stats->seconds);
}

/* ---- tests --------------------------------------------------------------------------------- */

static int compare(ddp_context *context, void *user)
{
	const ddp_model_options *options = user;
	ddp_step_stats stats[2];
	static model_side here, there;

	make(&here, context, options, false);
	make(&there, context, options, true);
	sides_same(&here, &there);
	for (int step = 1; step <= STEPS; step++) {
		train_step(&here, step, step == 2, &stats[0]);
		train_step(&there, step, step == 2, &stats[1]);
		CHECK(stats[0].loss == stats[1].loss && stats[0].loss == 1);
		expect_times(&here, &stats[0]);
		expect_times(&there, &stats[1]);
		CHECK(stats[0].grad_norm > 0 && fabs(stats[0].grad_norm / stats[1].grad_norm - 1) < 1e-12);
		sides_same(&here, &there);
	}
	unmake(&there);
	unmake(&here);
	/* A model with requests under way would have taken the world with it. */
	CHECK_OK(ddp_barrier(ddp_world(context)));
	return 0;
}

TEST(trains_to_the_bits_of_the_host)
{
	static const struct {
		int ranks;
		ddp_model_options options;
	} cases[] = {
		{ 1, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .bucket_mb = 0.02, .weight_decay = 0.1 } },
		{ 3, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .optimizer = DDP_SGD, .momentum = 0.9, .clip_norm = 0.5,
		       .bucket_mb = 0.05, .bf16_params = true } }, /* after backward */
		{ 3, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE, .bucket_mb = 0.02, .weight_decay = 0.1, .bf16_params = true } },
		{ 2, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_GRADIENTS, .bucket_mb = 0.05, .clip_norm = 0.5, .late_gather = true } },
		{ 2, { DDP_MODEL_OPTIONS_FIELDS, .local_sgd.steps = 2, .bucket_mb = 0.05, .clip_norm = 0.5 } },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ddp_model_options options = cases[i].options;
		test_measure(i == 1 ? "no-overlap" : NULL);
		assert_int_equal(run_ranks_with(cases[i].ranks, &on_test, compare, &options), 0);
	}
	test_measure(NULL);
}

static void hold_queue(void *argument)
{
	sem_wait(argument);
}

/* The queue stands still until all of backward is enqueued. */
static int never_wait(ddp_context *context, void *user)
{
	static model_side s;
	sem_t go;

	make(&s, context, user, true);
	CHECK(sem_init(&go, 0, 0) == 0);
	CHECK_OK(ddp_device_launch(context->device, s.stream, hold_queue, &go));
	for (int p = PARAMS - 1; p >= 0; p--) {
		const size_t bytes = (size_t)ddp_model_param_count(s.model, p) * sizeof(float);
		CHECK_OK(ddp_device_fill(context->device, s.stream, ddp_model_param_grad(s.model, p), 0, bytes));
		CHECK_OK(ddp_model_grad_ready(s.model, p));
	}
	CHECK(sem_post(&go) == 0);
	CHECK_OK(ddp_model_step(s.model, 1, 1, NULL));
	sem_destroy(&go);
	unmake(&s);
	return 0;
}

TEST(nothing_in_backward_waits)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 0.02 };

	assert_int_equal(run_ranks_with(2, &on_test, never_wait, &options), 0);
	options.shard = DDP_SHARD_GRADIENTS;
	assert_int_equal(run_ranks_with(2, &on_test, never_wait, &options), 0);
	options.shard = DDP_SHARD_NONE;
	options.compress = DDP_COMPRESS_POWERSGD;
	assert_int_equal(run_ranks_with(2, &on_test, never_wait, &options), 0);
}

/* ---- what the host waits for ---- */

static ddp_model *looked_at; /* NULL: none */
static int reads, ends;      /* of it */

static bool in_phase(ddp_phase phase)
{
	return ddp_watch_current_phase(looked_at->context->watch) == phase;
}

ddp_status __real_ddp_place_read(const ddp_place *place, void *to, const void *from, size_t bytes);
ddp_status __wrap_ddp_place_read(const ddp_place *place, void *to, const void *from, size_t bytes);
ddp_status __real_ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns);
ddp_status __wrap_ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns);

ddp_status __wrap_ddp_place_read(const ddp_place *place, void *to, const void *from, size_t bytes)
{
	if (looked_at != NULL) {
		CHECK(in_phase(from == looked_at->results->loss ? DDP_PHASE_BACKWARD : DDP_PHASE_OPTIMIZER));
		reads++;
	}
	return __real_ddp_place_read(place, to, from, bytes);
}

ddp_status __wrap_ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns)
{
	if (looked_at != NULL) {
		CHECK(in_phase(DDP_PHASE_WAIT));
		ends++;
	}
	return __real_ddp_wait_timed(request, start_ns, end_ns);
}

/* While the queue goes through backward, and through updates, no communication is exposed. */
static int wait_in_phases(ddp_context *context, void *user)
{
	ddp_step_stats stats;
	static model_side s;

	make(&s, context, user, true);
	train_step(&s, 1, false, &stats); /* parameters are compared, too */
	for (int step = 2; step <= 3; step++) {
		backward(&s, step);
		reads = ends = 0;
		looked_at = s.model;
		if (step == 2)
			CHECK_OK(ddp_model_step(s.model, 1, 1, &stats));
		else
			CHECK_OK(ddp_model_reduce_grads(s.model, 1, 1, &stats));
		looked_at = NULL;
		CHECK(reads == 2 && ends == s.model->plan.count + 1 && ends > 2); /* and the totals */
	}
	unmake(&s);
	return 0;
}

TEST(the_hosts_waits_count_as_what_the_device_does_meanwhile)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 0.02 };

	assert_int_equal(run_ranks_with(2, &on_test, wait_in_phases, &options), 0);
}

/* One rank's gradient is not finite: all forget the step, and go on. */
static int refuse(ddp_context *context, void *user)
{
	ddp_step_stats stats[2];
	static model_side here, there;

	make(&here, context, user, false);
	make(&there, context, user, true);
	side_copy(&there, ddp_model_device_loss(there.model), &(double){ 7 }, sizeof(double));
	set_gradient(&there, 1, 0);
	CHECK_OK(ddp_model_zero_grads(there.model));
	backward(&there, 1);
	side_copy(&there, ddp_model_device_loss(there.model), &(double){ 5 }, sizeof(double));
	if (ddp_comm_rank(ddp_world(context)) == 1) {
		there.host[0] = NAN;
		side_copy(&there, ddp_model_param_grad(there.model, 1), there.host, sizeof(float));
	}
	CHECK_FAILS(ddp_model_step(there.model, 1, 1, NULL), DDP_ERR_NOT_FINITE, "\"rows\" is not finite on rank 1");
	train_step(&here, 1, false, &stats[0]);
	/* A loss that only ddp_model_zero_grads() has forgotten. */
	backward(&there, 2);
	side_copy(&there, ddp_model_device_loss(there.model), &(double){ 5 }, sizeof(double));
	CHECK_OK(ddp_model_reduce_grads(there.model, 3, 1, NULL));
	CHECK_OK(ddp_model_zero_grads(there.model));
	train_step(&there, 1, false, &stats[1]);
	CHECK(stats[1].loss == stats[0].loss);
	sides_same(&here, &there);
	unmake(&there);
	unmake(&here);
	return 0;
}

TEST(a_step_that_is_refused_leaves_no_trace)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 0.02, .clip_norm = 0.1 };

	for (options.shard = DDP_SHARD_NONE; options.shard <= DDP_SHARD_STATE; options.shard++)
		assert_int_equal(run_ranks_with(2, &on_test, refuse, &options), 0);
}

/* The step of a rank that has finished: what has piled up there is forgotten. */
static void join(model_side *s, int step, ddp_step_stats *stats)
{
	const double loss = 5;

	CHECK_OK(ddp_model_set_sync(s->model, false));
	set_gradient(s, step, 2);
	if (s->stream != NULL)
		side_copy(s, ddp_model_device_loss(s->model), &loss, sizeof(loss));
	CHECK_OK(ddp_model_join(s->model, stats));
}

static int finish_early(ddp_context *context, void *user)
{
	static model_side both[2]; /* the host's, and that of the device */
	ddp_step_stats stats[2];

	for (int i = 0; i < 2; i++)
		make(&both[i], context, user, i == 1);
	for (int step = 1; step <= STEPS; step++) {
		for (int i = 0; i < 2; i++) {
			if (ddp_comm_rank(ddp_world(context)) == 0)
				train_step(&both[i], step, false, &stats[i]);
			else
				join(&both[i], step, &stats[i]);
			CHECK(stats[i].active_ranks == 1 && stats[i].loss == 1);
		}
		sides_same(&both[0], &both[1]);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_OK(ddp_model_join(both[i].model, &stats[i]));
		CHECK(stats[i].active_ranks == 0 && stats[i].step == STEPS);
	}
	sides_same(&both[0], &both[1]);
	for (int i = 1; i >= 0; i--)
		unmake(&both[i]);
	return 0;
}

TEST(a_rank_that_has_finished_adds_nothing)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .bucket_mb = 0.02,
	                              .unused = DDP_UNUSED_SKIP };

	assert_int_equal(run_ranks_with(2, &on_test, finish_early, &options), 0);
}

/* Saved there, loaded here and there, trained on. */
static int save_and_load(ddp_context *context, void *user)
{
	ddp_step_stats stats;
	static model_side here, there, other;
	int64_t step;

	make(&there, context, user, true);
	train_step(&there, 1, false, &stats);
	CHECK_OK(ddp_checkpoint_save(there.model, NULL, test_folder, 0));
	train_step(&there, 2, false, &stats);
	make(&here, context, user, false);
	make(&other, context, user, true);
	CHECK_OK(ddp_checkpoint_load(here.model, NULL, test_folder, &step));
	CHECK_OK(ddp_checkpoint_load(other.model, NULL, test_folder, &step));
	CHECK(step == 1);
	sides_same(&here, &other);
	train_step(&here, 2, false, &stats);
	train_step(&other, 2, false, &stats);
	sides_same(&here, &other);
	sides_same(&here, &there);
	unmake(&other);
	unmake(&here);
	unmake(&there);
	return 0;
}

TEST_WITH(checkpoints_are_those_of_the_host, folder_make, folder_remove)
{
	static const ddp_model_options cases[] = {
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .bf16_params = true },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE, .bf16_params = true, .late_gather = true },
		{ DDP_MODEL_OPTIONS_FIELDS, .local_sgd.steps = 2 },
		/* Of "b" alone: rows, which travel by themselves on the host, are too small. */
		{ DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_POWERSGD, .powersgd.rank = 2, .powersgd.min_rate = 10 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ddp_model_options options = cases[i];
		options.bucket_mb = 0.03;
		assert_int_equal(run_ranks_with(2, &on_test, save_and_load, &options), 0);
	}
}

/* ---- buffers ---- */

enum { SEEN = 30 };

enum { WEIGHT, SENT, MEAN, TENSORS };

static const ddp_param with_buffers[TENSORS] = {
	[WEIGHT] = { .name = "weight", .ndim = 1, .shape = { 40 } },
	[SENT] = { .name = "sent", .ndim = 1, .shape = { SEEN }, .kind = DDP_BUFFER_BROADCAST },
	[MEAN] = { .name = "mean", .ndim = 1, .shape = { SEEN }, .kind = DDP_BUFFER_MEAN },
};

/* Rank 0's, or the mean; rank 1's alone where what rank 0's forward wrote is not finite. */
static void share_seen(model_side *s, int step, float (*got)[SEEN])
{
	const int rank = side_rank(s);

	for (int b = SENT; b <= MEAN; b++) {
		for (int i = 0; i < SEEN; i++)
			s->host[i] = (float)(100 * step + 10 * rank + b + i);
		if (step == 2 && rank == 0)
			s->host[3] = NAN;
		side_copy(s, ddp_model_param_data(s->model, b), s->host, sizeof(got[b]));
	}
	CHECK_OK(ddp_model_grad_ready(s->model, WEIGHT));
	CHECK_OK(ddp_model_step(s->model, 1, 1, NULL));
	for (int b = SENT; b <= MEAN; b++) {
		side_copy(s, got[b], ddp_model_param_data(s->model, b), sizeof(got[b]));
		for (int i = 0; i < SEEN; i++)
			CHECK(got[b][i] == (float)(100 * step + (step == 2 ? 10 : b == MEAN ? 5 : 0) + b + i));
	}
}

static int share_buffers(ddp_context *context, void *user)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .memory = DDP_MEMORY_DEVICE };
	float got[TENSORS][SEEN];
	static model_side s;
	int64_t step;

	side_open(&s, context, true);
	options.stream = s.stream;
	CHECK_OK(ddp_model_create(context, with_buffers, TENSORS, &options, &s.model));
	CHECK_OK(ddp_model_broadcast_params(s.model));
	share_seen(&s, 1, got);
	share_seen(&s, 2, got);
	CHECK_OK(ddp_checkpoint_save(s.model, NULL, test_folder, 0));
	ddp_model_free(s.model);
	options.memory = DDP_MEMORY_HOST;
	options.stream = NULL;
	CHECK_OK(ddp_model_create(context, with_buffers, TENSORS, &options, &s.model));
	CHECK_OK(ddp_checkpoint_load(s.model, NULL, test_folder, &step));
	for (int b = SENT; b <= MEAN; b++)
		CHECK(step == 2 && memcmp(got[b], ddp_model_param_data(s.model, b), sizeof(got[b])) == 0);
	side_close(&s);
	return 0;
}

TEST_WITH(buffers_are_made_alike_there, folder_make, folder_remove)
{
	assert_int_equal(run_ranks_with(2, &on_test, share_buffers, NULL), 0);
}

static void linger(void *argument)
{
	usleep(30000);
}

/* The queue still has all of backward to do when the model is freed. */
static int free_early(ddp_context *context, void *user)
{
	static model_side s;

	make(&s, context, user, true);
	CHECK_OK(ddp_device_launch(context->device, s.stream, linger, NULL));
	for (int p = PARAMS - 1; p >= 0; p--) {
		CHECK_OK(ddp_device_fill(context->device, s.stream, ddp_model_param_grad(s.model, p), 0, sizeof(float)));
		CHECK_OK(ddp_model_grad_ready(s.model, p));
	}
	unmake(&s);
	side_all_freed(context);
	return 0;
}

TEST(memory_is_freed_behind_its_work)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 0.02 };

	assert_int_equal(run_ranks_with(1, &on_test, free_early, &options), 0);
}

/* The queue has yet to write what rank 0 gives to the others. */
static int broadcast_early(ddp_context *context, void *user)
{
	enum { WRITTEN = 0x11, P = 2 };
	static model_side s;
	static unsigned char got[60 * 700 * sizeof(float)];

	make(&s, context, user, true);
	CHECK_OK(ddp_device_launch(context->device, s.stream, linger, NULL));
	CHECK_OK(ddp_device_fill(context->device, s.stream, ddp_model_param_data(s.model, P), WRITTEN + side_rank(&s), sizeof(got)));
	CHECK_OK(ddp_model_broadcast_params(s.model));
	side_copy(&s, got, ddp_model_param_data(s.model, P), sizeof(got));
	for (size_t i = 0; i < sizeof(got); i++)
		CHECK(got[i] == WRITTEN);
	unmake(&s);
	CHECK_OK(ddp_barrier(ddp_world(context)));
	return 0;
}

TEST(what_the_queue_has_yet_to_write_is_broadcast)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS };

	assert_int_equal(run_ranks_with(2, &on_test, broadcast_early, &options), 0);
}

static int unnamed(ddp_context *context, void *user)
{
	ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .memory = DDP_MEMORY_DEVICE };
	ddp_model *model = NULL;

	CHECK_FAILS(ddp_model_create(context, params, PARAMS, &options, &model), DDP_ERR_STATE, "name one in ddp_options");
	CHECK(model == NULL);
	return 0;
}

TEST_RUNS(a_device_has_to_be_named, assert_int_equal(run_ranks(1, unnamed, NULL), 0));
