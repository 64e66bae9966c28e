/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* reduce: each optimizer trains on several ranks, in each way of reducing, to the bits of
   one that has all gradients; and its checkpoints go on in another world. Gradients are
   whole numbers, so sums are exact. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "reduce/compare.h"
#include "reduce/model_state.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { PARAMS = 6, STEPS = 5, SAVED = 3, UNUSED = 1 };

static const ddp_param params[PARAMS] = {
	{ .name = "embedding", .ndim = 2, .shape = { 40, 6 }, .sparse_rows = 2, .rows_only = true },
	{ .name = "wide", .ndim = 2, .shape = { 20, 30 } },
	{ .name = "bias", .ndim = 1, .shape = { 30 }, .no_decay = true },
	{ .name = "tall", .ndim = 2, .shape = { 25, 20 } },
	{ .name = "cube", .ndim = 3, .shape = { 4, 5, 3 } },
	{ .name = "square", .ndim = 2, .shape = { 18, 18 } },
};

/* Buckets of 256 bytes cut all of the tensors. */
static ddp_model_options options_of(ddp_optimizer optimizer)
{
	return (ddp_model_options){
		DDP_MODEL_OPTIONS_FIELDS, .optimizer = optimizer, .learning_rate = 0.05, .weight_decay = 0.1,
		.bucket_mb = 256.0 / (1 << 20), .first_bucket_mb = 256.0 / (1 << 20), .unused = DDP_UNUSED_SKIP,
	};
}

static float gradient(int rank, int step, int p, int i)
{
	const unsigned int x = (unsigned)((rank * 64 + step) * 8 + p) * 0x9e3779b1u + (unsigned)i * 0x85ebca6bu;

	return (float)((int)((x ^ x >> 15) * 0x2c1b3c6du >> 20) % 16 - 8);
}

static bool is_unused(int step, int p)
{
	return p == UNUSED && step == 2;
}

static float first_value(int p, int i)
{
	return (float)((p * 31 + i * 17) % 41 - 20) / 32;
}

/* ---- one that has all gradients ---------------------------------------------------------- */

typedef struct reference {
	ddp_layout layout;
	ddp_optim optim;
	float *params, *grads;
	float missed[PARAMS];
} reference;

static void begin(reference *x, const ddp_model *model)
{
	*x = (reference){ 0 };
	CHECK_OK(ddp_layout_make(params, PARAMS, &x->layout));
	CHECK_OK(ddp_optim_make(&model->settings.options, &x->layout, false, &x->optim));
	x->params = calloc((size_t)x->layout.elements, sizeof(float));
	x->grads = calloc((size_t)x->layout.elements, sizeof(float));
	CHECK(x->params != NULL && x->grads != NULL);
	for (int p = 0; p < PARAMS; p++) {
		const ddp_slot *slot = &x->layout.slots[x->layout.slot_of[p]];
		for (int i = 0; i < slot->count; i++)
			x->params[slot->offset + i] = first_value(p, i);
	}
}

static void end(reference *x)
{
	ddp_optim_free(&x->optim);
	ddp_layout_free(&x->layout);
	free(x->params);
	free(x->grads);
}

static bool has_row(int rank, int step, int row)
{
	return row == (rank * 7 + step) % 40 || row == (rank * 7 + step) % 40 / 2;
}

static void reference_step(reference *x, int ranks, int step, double clip_norm)
{
	bool unused[PARAMS] = { false };
	double squares = 0;

	for (int p = 0; p < PARAMS; p++) {
		const ddp_slot *slot = &x->layout.slots[x->layout.slot_of[p]];
		for (int i = 0; i < slot->count; i++) {
			float sum = 0;
			for (int r = 0; r < ranks; r++)
				sum += is_unused(step, p) || (p == 0 && !has_row(r, step, i / 6)) ? 0 : gradient(r, step, p, i);
			x->grads[slot->offset + i] = sum;
			squares += (double)sum * sum;
		}
		unused[p] = is_unused(step, p);
	}
	const double clip = clip_norm > 0 ? ddp_clip_factor(clip_norm, sqrt(squares) / ranks) : 1;
	const ddp_update update = { .learning_rate = 0.05, .grad_scale = 1.0 / ranks * clip, .step = step,
	                            .unused = unused, .missed = x->missed };
	ddp_optim_apply(&x->optim, &update, x->params, x->grads, 0, x->layout.elements, 0);
	for (int p = 0; p < PARAMS; p++)
		x->missed[p] += unused[p];
}

static void expect(ddp_model *model, const reference *x)
{
	for (int p = 0; p < PARAMS; p++) {
		const ddp_slot *slot = &x->layout.slots[x->layout.slot_of[p]];
		CHECK(memcmp(ddp_model_param_data(model, p), x->params + slot->offset,
		             (size_t)slot->count * sizeof(float)) == 0);
	}
}

/* ---- the library ------------------------------------------------------------------------- */

static ddp_model *make(ddp_context *context, const ddp_model_options *options)
{
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, PARAMS, options, &model));
	for (int p = 0; p < PARAMS; p++)
		for (int i = 0; i < ddp_model_param_count(model, p); i++)
			ddp_model_param_data(model, p)[i] = first_value(p, i);
	return model;
}

static void train(ddp_context *context, ddp_model *model, int step)
{
	const int rank = ddp_get_job(context)->rank;

	for (int p = PARAMS - 1; p > 0; p--) {
		for (int i = 0; i < ddp_model_param_count(model, p) && !is_unused(step, p); i++)
			ddp_model_param_grad(model, p)[i] += gradient(rank, step, p, i);
		CHECK_OK(is_unused(step, p) ? ddp_model_grad_unused(model, p) : ddp_model_grad_ready(model, p));
	}
	CHECK_OK(ddp_model_grad_ready(model, 0));
	for (int32_t row = 0; row < 40; row++) {
		float values[6];
		for (int i = 0; i < 6; i++)
			values[i] = gradient(rank, step, 0, row * 6 + i);
		if (has_row(rank, step, row))
			CHECK_OK(ddp_model_grad_rows(model, 0, &row, values, 1));
	}
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
}

static void train_by(ddp_context *context, const ddp_model_options *options)
{
	ddp_model *model = make(context, options);
	reference x;

	begin(&x, model);
	for (int step = 1; step <= STEPS; step++) {
		reference_step(&x, ddp_get_job(context)->world_size, step, options->clip_norm);
		train(context, model, step);
		expect(model, &x);
	}
	end(&x);
	ddp_model_free(model);
}

static int every_way(ddp_context *context, void *user)
{
	for (int o = 0; ddp_optimizer_name((ddp_optimizer)o) != NULL; o++) {
		ddp_model_options options = options_of((ddp_optimizer)o);
		test_measure(NULL);
		train_by(context, &options);
		options.shard = DDP_SHARD_NONE;
		test_measure("no-overlap");
		options.clip_norm = 0.5;
		train_by(context, &options);
		options.compress = DDP_COMPRESS_BF16; /* of so small numbers, it is exact */
		train_by(context, &options);
	}
	return 0;
}

TEST_RUNS(ranks_have_the_bits_of_one, assert_int_equal(run_ranks(3, every_way, NULL), 0));

/* Each rank by itself, without the others' help; then they have the mean. */
static int local_body(ddp_context *context, void *user)
{
	ddp_model_options options = options_of(DDP_MUON);

	options.local_sgd.steps = 4;
	ddp_model *model = make(context, &options);
	train(context, model, 1);
	CHECK(ddp_model_compare(model) == DDP_ERR_MISMATCH);
	for (int step = 2; step <= 4; step++)
		train(context, model, step);
	CHECK_OK(ddp_model_compare(model));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(ranks_train_apart, assert_int_equal(run_ranks(2, local_body, NULL), 0));

/* ---- checkpoints --------------------------------------------------------------------------- */

/* Returns the folder that has the checkpoints of an optimizer. */
static const char *folder_of(ddp_optimizer optimizer)
{
	static char path[TEST_FOLDER_BYTES + 32];

	snprintf(path, sizeof(path), "%s/%s", test_folder, ddp_optimizer_name(optimizer));
	return path;
}

static int save_body(ddp_context *context, void *user)
{
	for (int o = 0; ddp_optimizer_name((ddp_optimizer)o) != NULL; o++) {
		const ddp_model_options options = options_of((ddp_optimizer)o);
		ddp_model *model = make(context, &options);
		for (int step = 1; step <= SAVED; step++)
			train(context, model, step);
		CHECK_OK(ddp_checkpoint_save(model, NULL, folder_of(options.optimizer), 0));
		ddp_model_free(model);
	}
	return 0;
}

static void resume(ddp_context *context, ddp_optimizer optimizer)
{
	const ddp_model_options options = options_of(optimizer);
	ddp_model *model = make(context, &options);
	reference x;
	int64_t step;

	begin(&x, model);
	train(context, model, 1); /* what it has of state does not count */
	CHECK_OK(ddp_checkpoint_load(model, NULL, folder_of(optimizer), &step));
	CHECK(step == SAVED);
	for (int i = 1; i <= STEPS; i++) {
		reference_step(&x, i <= SAVED ? 3 : 2, i, 0);
		if (i > SAVED)
			train(context, model, i);
	}
	expect(model, &x);
	end(&x);
	ddp_model_free(model);
}

static int resume_body(ddp_context *context, void *user)
{
	for (int o = 0; ddp_optimizer_name((ddp_optimizer)o) != NULL; o++)
		resume(context, (ddp_optimizer)o);
	return 0;
}

TEST(checkpoints_go_on_in_another_world)
{
	assert_int_equal(run_ranks(3, save_body, NULL), 0);
	assert_int_equal(run_ranks(2, resume_body, NULL), 0);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static int refuse_body(ddp_context *context, void *user)
{
	ddp_model_options options = options_of(DDP_MUON);
	ddp_model *model;

	options.muon.match_rms = ddp_get_job(context)->rank == 1;
	CHECK_FAILS(ddp_model_create(context, params, PARAMS, &options, &model), DDP_ERR_MISMATCH, "muon.match_rms");
	return 0;
}

TEST_RUNS(ranks_must_give_them_alike, assert_int_equal(run_ranks(2, refuse_body, NULL), 0));

/* ---- on a device ---------------------------------------------------------------------------- */

static void put(const ddp_model *model, float *to, const float *from, int64_t count)
{
	if (model->place.device == NULL)
		memcpy(to, from, (size_t)count * sizeof(*to));
	else
		CHECK_OK(ddp_place_write(&model->place, to, from, (size_t)count * sizeof(*to)));
}

/* The same tensors, none of which has rows; on the host, or a device's queue. */
static ddp_model *make_dense(ddp_context *context, const ddp_model_options *given, ddp_device_queue *stream)
{
	ddp_model_options options = *given;
	ddp_param dense[PARAMS];
	float values[25 * 30];
	ddp_model *model;

	memcpy(dense, params, sizeof(dense));
	dense[0].sparse_rows = 0;
	dense[0].rows_only = false;
	options.memory = stream != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	options.stream = stream;
	CHECK_OK(ddp_model_create(context, dense, PARAMS, &options, &model));
	for (int p = 0; p < PARAMS; p++) {
		const int64_t count = ddp_model_param_count(model, p);
		for (int i = 0; i < count; i++)
			values[i] = first_value(p, i);
		put(model, ddp_model_param_data(model, p), values, count);
	}
	CHECK_OK(ddp_model_broadcast_params(model));
	return model;
}

ddp_status __real_ddp_issue(ddp_comm *comm, const ddp_operation *operation, ddp_request **request);
ddp_status __wrap_ddp_issue(ddp_comm *comm, const ddp_operation *operation, ddp_request **request);
ddp_status __real_ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns);
ddp_status __wrap_ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns);

/* Tensors of the step that one rank updates for all, and those that are under way to the others;
   -1: nobody looks. */
static int shared = -1, under_way;

ddp_status __wrap_ddp_issue(ddp_comm *comm, const ddp_operation *operation, ddp_request **request)
{
	under_way += operation->kind == DDP_BROADCAST;
	return __real_ddp_issue(comm, operation, request);
}

ddp_status __wrap_ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns)
{
	CHECK(shared < 0 || under_way == 0 || under_way == shared);
	return __real_ddp_wait_timed(request, start_ns, end_ns);
}

static void look_at_waits(const ddp_model *model, int step)
{
	shared = under_way = 0;
	for (int p = 0; p < PARAMS; p++)
		shared += !is_unused(step, p) && ddp_optim_owner(&model->optim, ddp_model_slot(model, p)) >= 0;
}

static void expect_waits(const ddp_model *model)
{
	CHECK(under_way == shared && (shared >= 3) == (model->optim.owners != NULL));
	shared = -1;
}

static void train_dense(ddp_context *context, ddp_model *model, int step)
{
	const int rank = ddp_get_job(context)->rank;
	float values[25 * 30];
	ddp_step_stats stats;

	look_at_waits(model, step);
	for (int p = PARAMS - 1; p >= 0; p--) {
		const int64_t count = ddp_model_param_count(model, p);
		for (int i = 0; i < count; i++)
			values[i] = gradient(rank, step, p, i);
		if (!is_unused(step, p))
			put(model, ddp_model_param_grad(model, p), values, count);
		CHECK_OK(is_unused(step, p) ? ddp_model_grad_unused(model, p) : ddp_model_grad_ready(model, p));
	}
	if (step % 2 == 0) {
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	} else {
		CHECK_OK(ddp_model_reduce_grads(model, 1, 0, &stats));
		CHECK_OK(ddp_model_update_params(model, &stats));
	}
	expect_waits(model);
}

static void expect_equal(ddp_model *here, ddp_model *there)
{
	float values[25 * 30];

	for (int p = 0; p < PARAMS; p++) {
		const size_t bytes = (size_t)ddp_model_param_count(here, p) * sizeof(float);
		CHECK_OK(ddp_place_read(&there->place, values, ddp_model_param_data(there, p), bytes));
		CHECK(memcmp(values, ddp_model_param_data(here, p), bytes) == 0);
		CHECK_OK(ddp_place_read(&there->place, values, ddp_model_param_bf16(there, p), bytes / 2));
		CHECK(memcmp(values, ddp_model_param_bf16(here, p), bytes / 2) == 0);
		CHECK_OK(ddp_place_read(&there->place, values, ddp_model_param_grad(there, p), bytes));
		CHECK(memcmp(values, ddp_model_param_grad(here, p), bytes) == 0);
	}
}

static void train_both(ddp_context *context, const ddp_model_options *options)
{
	ddp_device_queue *stream;
	int64_t step;

	CHECK_OK(ddp_device_queue_create(context->device, DDP_DEVICE_NORMAL, &stream));
	ddp_model *here = make_dense(context, options, NULL), *there = make_dense(context, options, stream);
	for (int i = 1; i <= STEPS; i++) {
		train_dense(context, here, i);
		train_dense(context, there, i);
		expect_equal(here, there);
		if (i == SAVED)
			CHECK_OK(ddp_checkpoint_save(there, NULL, folder_of(options->optimizer), 0));
	}
	/* What is saved of one goes on there, and on the host. */
	ddp_model *again = make_dense(context, options, NULL);
	CHECK_OK(ddp_checkpoint_load(there, NULL, folder_of(options->optimizer), &step));
	CHECK_OK(ddp_checkpoint_load(again, NULL, folder_of(options->optimizer), &step));
	for (int i = SAVED + 1; i <= STEPS; i++) {
		train_dense(context, again, i);
		train_dense(context, there, i);
	}
	expect_equal(here, there);
	expect_equal(again, there);
	ddp_model_free(again);
	ddp_model_free(there);
	ddp_model_free(here);
	CHECK_OK(ddp_device_queue_free(context->device, stream));
}

static int device_body(ddp_context *context, void *user)
{
	for (int o = 0; ddp_optimizer_name((ddp_optimizer)o) != NULL; o++) {
		ddp_model_options options = options_of((ddp_optimizer)o);
		options.shard = DDP_SHARD_NONE;
		options.bf16_params = true;
		options.clip_norm = ddp_get_job(context)->world_size > 1 ? 0 : 0.5;
		train_both(context, &options);
	}
	return 0;
}

/* Of ranks that update tensors for each other, and of one. */
TEST(a_device_has_the_hosts_bits)
{
	const ddp_options on_test = { DDP_OPTIONS_FIELDS, .device = "cuda" };

	for (int ranks = 1; ranks < 3; ranks++) {
		assert_int_equal(folder_empty(NULL), 0);
		assert_int_equal(run_ranks_with(ranks, &on_test, device_body, NULL), 0);
	}
}

int main(void)
{
	test_trap_floats();
	return test_run(folder_make, folder_remove);
}
