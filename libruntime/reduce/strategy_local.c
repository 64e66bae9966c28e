/* SPDX-License-Identifier: Apache-2.0 */
/* local: post-local SGD (Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use
   Local SGD", ICLR 2020). Up to a step, gradients are all-reduced; from then on each rank
   trains by itself, with its own gradients and weights, and every so many steps all
   parameters are averaged. In between, the consensus is all that travels.

   The optimizer's state is each rank's own, as in PyTorch. For a checkpoint parameters
   and state are averaged, on the ranks that go on, too: they and a run that is resumed
   from it have the same bits. */
#include <stdio.h>

#include "base/error.h"
#include "reduce/model_state.h"
#include "reduce/strategy_all_reduce.h"

enum { AVERAGE_ELEMENTS = 1 << 24 }; /* 64 MiB: a deadline for each */

/* The step under way. */
static bool is_local(const ddp_model *model)
{
	return model->steps >= model->settings.options.local_sgd.start;
}

static ddp_status start(ddp_model *model, int k)
{
	return is_local(model) ? DDP_OK : ddp_all_reduce_strategy.start(model, k);
}

/* Nothing is under way in a local step. */
static ddp_status wait(ddp_model *model, int k)
{
	return ddp_all_reduce_strategy.wait(model, k);
}

static ddp_status reduce(ddp_model *model, double *squares)
{
	if (!is_local(model))
		return ddp_all_reduce_finish(model, squares);
	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	ddp_squares_begin(model, true);
	ddp_squares_add(model, model->grads, model->layout.elements);
	return ddp_squares_end(model, squares);
}

/* All ranks get the same bits. */
static ddp_status average(ddp_model *model, const char *name, float *values, int64_t count)
{
	ddp_status status = DDP_OK;

	for (int64_t at = 0; at < count && status == DDP_OK; at += AVERAGE_ELEMENTS) {
		const int64_t left = count - at;
		const ddp_operation operation = {
			.kind = DDP_ALL_REDUCE, .recv = values + at, .type = DDP_F32, .op = DDP_AVG,
			.count = (size_t)(left < AVERAGE_ELEMENTS ? left : AVERAGE_ELEMENTS),
			.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
		};
		status = ddp_reducer_run(&model->reducer, name, &operation);
	}
	return status;
}

static ddp_status average_params(ddp_model *model)
{
	model->partly_updated = true;
	ddp_status status = average(model, "parameters", model->params, model->layout.elements);
	if (status != DDP_OK)
		return status;
	ddp_model_round(model, 0, model->layout.elements);
	model->partly_updated = false;
	return DDP_OK;
}

/* Parameters that are the same already are not averaged again, because the mean of n equal numbers is rounded. */
static ddp_status average_apart(ddp_model *model)
{
	if (model->averaged == model->steps)
		return DDP_OK;
	ddp_status status = average_params(model);
	if (status == DDP_OK)
		model->averaged = model->steps;
	return status;
}

static ddp_status update(ddp_model *model, const ddp_update *update, bool reduced, double *squares)
{
	const ddp_local_sgd_options *sgd = &model->settings.options.local_sgd;
	const bool apart = is_local(model), averages = apart && (update->step - sgd->start) % sgd->steps == 0;

	model->averaged = model->settled = apart ? 0 : update->step;
	ddp_status status = ddp_all_reduce_update(model, update, reduced, squares);
	if (status != DDP_OK || !averages)
		return status;
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	status = average_params(model);
	if (status == DDP_OK)
		model->averaged = update->step;
	return status;
}

static ddp_status settle(ddp_model *model)
{
	ddp_status status = average_apart(model);

	if (model->settled == model->steps || status != DDP_OK)
		return status;
	model->partly_updated = true;
	for (int i = 0; i < model->optim.state_count && status == DDP_OK; i++)
		status = average(model, model->optim.state_name[i], model->optim.state[i],
		                 model->optim.state_elements[i]);
	if (status == DDP_OK) {
		model->partly_updated = false;
		model->settled = model->steps;
	}
	return status;
}

const ddp_strategy ddp_local_strategy = {
	.name = "local SGD", .shard = DDP_SHARD_NONE,
	.start = start, .wait = wait, .is_local = is_local,
	.reduce = reduce, .update = update, .average = average_apart, .settle = settle,
};
