/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/scenario.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "device/device.h"
#include "reduce/model_state.h"
#include "tests/device/fake_gpu.h"

/* Where the model is. */
typedef struct place {
	ddp_device *device;       /* the fake GPU; NULL: the host */
	ddp_device_queue *stream;
	float *rows;              /* there, and behind them their indices */
} place;

static const place on_host;
static place on_device; /* of this rank */
static const place *where = &on_host;

void scenario_use_device(bool there)
{
	where = there ? &on_device : &on_host;
}

void scenario_copy(void *to, const void *from, size_t bytes)
{
	if (where->device == NULL) {
		memcpy(to, from, bytes);
		return;
	}
	CHECK_OK(ddp_device_copy(where->device, where->stream, to, from, bytes));
	CHECK_OK(ddp_device_queue_sync(where->device, where->stream));
}

size_t scenario_bytes(const ddp_model *model, int p)
{
	return (size_t)ddp_model_param_count(model, p) * sizeof(float);
}

/* Of a loss that is multiplied by its scale. On a device no hook does the rest. */
static void add_gradients(const scenario *s, ddp_model *model, int rank, int step, int batch)
{
	static float values[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		if (scenario_adds(s, rank, step, batch, p)) {
			const float twice = s->hooked[p] && where->device != NULL ? 2 : 1;
			const float factor = twice * (float)ddp_model_loss_scale(model);
			scenario_copy(values, ddp_model_param_grad(model, p), scenario_bytes(model, p));
			for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
				values[i] += factor * scenario_gradient(s, rank, step, batch, p, i);
			scenario_copy(ddp_model_param_grad(model, p), values, scenario_bytes(model, p));
		}
		if (s->early[p] && scenario_adds(s, rank, step, batch, p) && batch < s->accumulate - 1)
			CHECK_OK(ddp_model_grad_ready(model, p)); /* sync is off */
	}
}

static void write_buffers(const scenario *s, ddp_model *model, int rank, int step)
{
	static float values[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		if (!scenario_is_buffer(s, p))
			continue;
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			values[i] = scenario_buffer(s, rank, step, i);
		scenario_copy(ddp_model_param_data(model, p), values, scenario_bytes(model, p));
	}
}

static void add_the_rows(const scenario *s, ddp_model *model, int rank, int step, int p)
{
	static float values[ELEMENTS_MAX];
	int32_t index[ROWS_MAX];
	int count = !scenario_is_used(s, rank, step, p) ? 0 : scenario_rows(s, rank, step, p, index);

	if (count == 0)
		return;
	int64_t width = ddp_model_param_count(model, p) / s->params[p].shape[0];
	for (int64_t i = 0; i < count * width; i++)
		values[i] = (float)ddp_model_loss_scale(model) * scenario_gradient(s, rank, step, 7, p, i);
	if (where->device == NULL) {
		CHECK_OK(ddp_model_grad_rows(model, p, index, values, count));
		return;
	}
	int32_t *index_there = (int32_t *)(void *)(where->rows + ROWS_MAX * width);
	scenario_copy(where->rows, values, (size_t)(count * width) * sizeof(float));
	scenario_copy(index_there, index, (size_t)count * sizeof(*index));
	CHECK_OK(ddp_model_grad_rows(model, p, index_there, where->rows, count));
}

/* In an order of its own on each rank; what is not used may be announced or not. */
static void announce(const scenario *s, ddp_model *model, int rank, int step)
{
	unsigned int seed = scenario_mix(s->seed, (unsigned)(rank * 64 + step));
	int order[PARAMS_MAX];

	for (int p = 0; p < s->count; p++) {
		int at = scenario_draw(&seed, 0, p);
		order[p] = order[at];
		order[at] = p;
	}
	for (int i = 0; i < s->count; i++) {
		int p = order[i];
		if (!scenario_is_trained(s, p))
			continue;
		const bool late = s->accumulate == 1 || !s->early[p];
		const int how = scenario_draw(&seed, 0, 2);
		if (scenario_is_used(s, rank, step, p) && late)
			CHECK_OK(ddp_model_grad_ready(model, p));
		else if (how == 0)
			CHECK_OK(ddp_model_grad_unused(model, p));
		else if (how == 1 && s->options.unused == DDP_UNUSED_ZERO)
			CHECK_OK(ddp_model_grad_ready(model, p));
		add_the_rows(s, model, rank, step, p);
	}
}

/* A gradient that the rank has, if it has one. */
static bool poison_gradient(const scenario *s, ddp_model *model, int rank, int step)
{
	for (int p = 0; p < s->count; p++) {
		if (scenario_adds(s, rank, step, 0, p)) {
			float *const middle = ddp_model_param_grad(model, p) + ddp_model_param_count(model, p) / 2;
			scenario_copy(middle, &(float){ NAN }, sizeof(float));
			return true;
		}
	}
	return false;
}

/* All micro-batches; what comes to the loss that the rank gives. */
static double backward(const scenario *s, ddp_model *model, int rank, int step, bool poisons)
{
	double loss = scenario_loss(s, rank, step);

	for (int b = 0; b < s->accumulate; b++) {
		CHECK_OK(ddp_model_set_sync(model, b == s->accumulate - 1));
		add_gradients(s, model, rank, step, b);
	}
	if (poisons && !poison_gradient(s, model, rank, step))
		loss = NAN;
	announce(s, model, rank, step);
	return loss;
}

/* `poisons`: this rank. */
static ddp_status try_step(const scenario *s, ddp_model *model, int rank, int step, bool poisons,
                           ddp_step_stats *stats)
{
	if (scenario_has_joined(s, rank, step))
		return ddp_model_join(model, stats);
	const double loss = backward(s, model, rank, step, poisons);
	if ((s->seed + (unsigned)step) % 2 == 0 || scenario_active_ranks(s, step) < s->ranks)
		return ddp_model_step(model, scenario_weight(s, rank, step), loss, stats);
	ddp_status status = ddp_model_reduce_grads(model, scenario_weight(s, rank, step), loss, NULL);
	return status == DDP_OK ? ddp_model_update_params(model, stats) : status;
}

void scenario_train(const scenario *s, ddp_model *model, int rank, int step, ddp_step_stats *stats)
{
	if (!scenario_has_joined(s, rank, step))
		write_buffers(s, model, rank, step);
	CHECK_OK(try_step(s, model, rank, step, false, stats));
}

void scenario_make_mistake(const scenario *s, ddp_model *model, int rank, int step, int mistake)
{
	enum { NAN_WEIGHT, NEGATIVE_WEIGHT, INFINITE_RATE, OTHER_RATE, NO_SAMPLE };
	const double rate = s->options.learning_rate;
	const bool odd = rank == s->last, halves = scenario_active_ranks(s, step) == s->ranks && step % 2 == 0;
	double weight = scenario_weight(s, rank, step);

	if (mistake == NO_SAMPLE && s->options.loss == DDP_LOSS_SUM)
		weight = 0;
	else if (mistake == INFINITE_RATE || (mistake == OTHER_RATE && s->ranks > 1))
		ddp_model_set_learning_rate(model, !odd ? rate : mistake == OTHER_RATE ? 2 * rate : INFINITY);
	else if (odd)
		weight = mistake == NAN_WEIGHT ? NAN : -1;
	const ddp_status wanted = mistake == OTHER_RATE && s->ranks > 1 ? DDP_ERR_MISMATCH : DDP_ERR_INVALID;
	if (scenario_has_joined(s, rank, step)) {
		CHECK(ddp_model_join(model, NULL) == wanted);
	} else {
		const double loss = backward(s, model, rank, step, false);
		CHECK((halves ? ddp_model_reduce_grads : ddp_model_step)(model, weight, loss, NULL) == wanted);
	}
	ddp_model_set_learning_rate(model, rate);
}

void scenario_train_poisoned(const scenario *s, ddp_model *model, int rank, int step)
{
	const double scale = ddp_model_loss_scale(model);
	ddp_step_stats stats;

	ddp_status status = try_step(s, model, rank, step, rank == s->last, &stats);
	if (model->settings.options.loss_scaling.kind == DDP_SCALING_DYNAMIC) {
		CHECK_OK(status);
		CHECK(stats.skipped && ddp_model_loss_scale(model) == scale / 2);
		return;
	}
	CHECK(status == DDP_ERR_NOT_FINITE && ddp_model_loss_scale(model) == scale);
}

void scenario_train_forgotten(const scenario *s, ddp_model *model, int rank, int step)
{
	CHECK_OK(ddp_model_set_sync(model, false));
	add_gradients(s, model, rank, step, 0);
	CHECK_OK(ddp_model_zero_grads(model));
	const double loss = backward(s, model, rank, step, false);
	CHECK_OK(ddp_model_reduce_grads(model, scenario_weight(s, rank, step), loss, NULL));
	CHECK_OK(ddp_model_zero_grads(model));
}

/* The program's own memory for parameters (0) or gradients (1). NaN: nobody may use what was
   there, or is behind. */
static float *own_memory(int which, size_t bytes)
{
	static float here[2][PARAMS_MAX * ELEMENTS_MAX] __attribute__((aligned(64)));
	void *memory;

	CHECK(bytes <= sizeof(here[which]));
	memset(here[which], 0xff, sizeof(here[which]));
	if (where->device == NULL)
		return here[which];
	CHECK_OK(ddp_device_alloc(where->device, bytes, &memory));
	CHECK_OK(ddp_device_fill(where->device, where->stream, memory, 0xff, bytes));
	return memory;
}

static ddp_status make_twice(void *user, int param, float *grad, int64_t count)
{
	(void)user;
	(void)param;
	for (int64_t i = 0; i < count; i++)
		grad[i] *= 2;
	return DDP_OK;
}

void scenario_model_free(ddp_model *model)
{
	float *const own[] = { model->settings.options.params_memory, model->settings.options.grads_memory };

	ddp_model_free(model);
	for (int i = 0; i < 2 && where->device != NULL; i++)
		CHECK_OK(ddp_device_free(where->device, own[i]));
}

ddp_model *scenario_model_make(ddp_context *context, const scenario *s, const ddp_model_options *options)
{
	static float values[ELEMENTS_MAX];
	ddp_model_options given = *options;
	size_t bytes[2];
	ddp_model *model;

	CHECK_OK(ddp_model_bytes(s->params, s->count, &bytes[0], &bytes[1]));
	CHECK(bytes[1] <= bytes[0]);
	given.memory = where->device != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	given.stream = where->stream;
	/* In the ranks' shared memory, the default is a way of its own. */
	given.params_memory = s->own_params && options->shard != DDP_SHARD_AUTO ? own_memory(0, bytes[0]) : NULL;
	given.grads_memory = s->own_grads && options->shard != DDP_SHARD_AUTO ? own_memory(1, bytes[1]) : NULL;
	CHECK_OK(ddp_model_create(context, s->params, s->count, &given, &model));
	for (int p = 0; p < s->count; p++) {
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			values[i] = (float)p + (float)i / 64;
		scenario_copy(ddp_model_param_data(model, p), values, scenario_bytes(model, p));
		if (s->hooked[p] && where->device == NULL)
			CHECK_OK(ddp_model_set_grad_hook(model, p, make_twice, NULL));
	}
	if (options->bf16_params)
		CHECK_OK(ddp_model_broadcast_params(model));
	return model;
}

/* Takes its time, but not long for each of the many pieces of work. */
void scenario_open_device(ddp_comm *comm, ddp_context *context)
{
	void *rows;

	test_fake_gpu()->delay_us = 20;
	CHECK_OK(ddp_device_open("cuda", &on_device.device));
	ddp_comm_use_device(comm, on_device.device);
	context->device = on_device.device;
	CHECK_OK(ddp_device_queue_create(on_device.device, DDP_DEVICE_NORMAL, &on_device.stream));
	CHECK_OK(ddp_device_alloc(on_device.device, (ELEMENTS_MAX + ROWS_MAX) * sizeof(float), &rows));
	on_device.rows = rows;
}

void scenario_close_device(void)
{
	CHECK_OK(ddp_device_free(on_device.device, on_device.rows));
	CHECK_OK(ddp_device_queue_free(on_device.device, on_device.stream));
}
