/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce: gradients are summed in buckets while backward runs, and each rank updates
   all parameters with the same bits. Where ranks do not communicate there is nothing to
   sum, and each updates its own. On a device nothing waits while backward is enqueued: a
   bucket's all-reduce begins when the program's queue has come to where the bucket was
   complete, and the update of a bucket, on that queue, waits for the all-reduce. Where one
   rank updates a tensor for all (optim/optim.h), its parameters follow by broadcast. */
#include <stdio.h>

#include "base/error.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "reduce/strategy_all_reduce.h"

static ddp_status start(ddp_model *model, int k)
{
	const ddp_bucket *bucket = &model->plan.buckets[k];
	const ddp_operation operation = {
		.kind = DDP_ALL_REDUCE, .recv = model->grads + bucket->begin,
		.count = (size_t)(bucket->end - bucket->begin), .type = DDP_F32, .op = DDP_SUM,
		.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
	};

	return ddp_reducer_issue(&model->reducer, k, &operation);
}

static ddp_status wait(ddp_model *model, int k)
{
	const ddp_bucket *bucket = &model->plan.buckets[k];
	char name[32];

	snprintf(name, sizeof(name), "bucket %d", k);
	return ddp_reducer_end(&model->reducer, k, name,
	                       (bucket->end - bucket->begin) * (int64_t)sizeof(float));
}

void ddp_all_reduce_add_rows(ddp_model *model, const ddp_slot *slot, const int32_t *rows,
                             const float *values, int64_t count)
{
	dk_add_rows(model->grads + slot->offset, rows, values, count, slot->count / slot->shape[0]);
}

/* All ranks get the same bits. Each rank sums the squares of what it owns, in pieces, and the sums are
   all-reduced. */
ddp_status ddp_all_reduce_finish_by(ddp_model *model, const ddp_units *units, double *squares)
{
	ddp_status status = ddp_model_wait(model, 0, model->plan.count);
	int64_t begin, end;

	if (status != DDP_OK)
		return status;
	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	ddp_squares_begin(model, true);
	for (int u = 0; u < units->count; u++) {
		ddp_unit_slice(units, &units->list[u], units->rank, &begin, &end);
		ddp_squares_add(model, model->grads + begin, end - begin);
	}
	status = ddp_squares_end(model, squares);
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	return status == DDP_OK ? ddp_reducer_meet(&model->reducer, "norm", squares, 1) : status;
}

ddp_status ddp_all_reduce_finish(ddp_model *model, double *squares)
{
	return ddp_all_reduce_finish_by(model, &model->units, squares);
}

static void apply(ddp_model *model, const ddp_update *update, int64_t begin, int64_t end)
{
	ddp_squares_update(model, update, model->params + begin, model->grads + begin, begin, end, begin);
}

/* Whether one rank has made the parameters of trained tensor t for all. */
static bool is_exchanged(const ddp_model *model, const ddp_update *update, int t)
{
	const ddp_slot *slot = &model->layout.slots[t];

	return !update->alone && ddp_optim_owner(&model->optim, slot) >= 0 &&
	       (update->unused == NULL || !update->unused[slot->param]);
}

/* Sends the parameters that one rank has made for all; on a device, when its queue has come here. */
static ddp_status send_params(ddp_model *model, const ddp_update *update)
{
	ddp_status status = DDP_OK;

	for (int t = 0; t < model->layout.trained && status == DDP_OK; t++) {
		const ddp_slot *slot = &model->layout.slots[t];
		const ddp_operation operation = {
			.kind = DDP_BROADCAST, .recv = model->params + slot->offset,
			.count = (size_t)slot->count, .type = DDP_F32,
			.root = ddp_optim_owner(&model->optim, slot),
			.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
		};

		if (is_exchanged(model, update, t))
			status = ddp_reducer_issue(&model->reducer, t, &operation);
	}
	return status;
}

/* Requests use the numbers of buckets, for which nobody waits any more. All are under way before the host or a
   device's queue waits for the first. */
static ddp_status exchange(ddp_model *model, const ddp_update *update)
{
	const char *failure = ddp_optim_failure(&model->optim);

	if (failure != NULL)
		return ddp_fail(DDP_ERR_NOMEM, "the kernels (of the optimizer, or before it): %s", failure);
	if (model->optim.owners == NULL)
		return DDP_OK;
	ddp_status status = send_params(model, update);
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	for (int t = 0; t < model->layout.trained && status == DDP_OK; t++) {
		const ddp_slot *slot = &model->layout.slots[t];
		if (!is_exchanged(model, update, t))
			continue;
		status = ddp_reducer_end(&model->reducer, t, slot->name, slot->count * (int64_t)sizeof(float));
		if (status == DDP_OK)
			ddp_optim_round(&model->optim, slot, model->params + slot->offset);
	}
	return status;
}

/* Each bucket while those behind it are still under way. */
static ddp_status update_by_bucket(ddp_model *model, const ddp_update *update)
{
	ddp_watch *watch = model->context->watch;

	for (int k = 0; k < model->plan.count; k++) {
		const ddp_bucket *bucket = &model->plan.buckets[k];

		if (model->reducer.communicates && k >= model->reducer.hold)
			ddp_watch_phase(watch, DDP_PHASE_WAIT);
		ddp_status status = ddp_model_wait(model, k, k + 1);
		if (status != DDP_OK)
			return status;
		ddp_watch_phase(watch, DDP_PHASE_OPTIMIZER);
		model->partly_updated = true;
		apply(model, update, bucket->begin, bucket->end);
	}
	/* Parameters that travel by rows alone are complete. */
	apply(model, update, model->layout.dense, model->layout.elements);
	return DDP_OK;
}

ddp_status ddp_all_reduce_update(ddp_model *model, const ddp_update *update, bool reduced,
                                 double *squares)
{
	ddp_status status = DDP_OK;

	ddp_squares_begin(model, !reduced);
	if (!reduced) {
		status = update_by_bucket(model, update);
	} else {
		ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
		model->partly_updated = true;
		apply(model, update, 0, model->layout.elements);
	}
	if (status == DDP_OK)
		status = exchange(model, update);
	if (status == DDP_OK)
		status = reduced ? ddp_model_end_buckets(model) : ddp_squares_end(model, squares);
	if (status == DDP_OK)
		model->partly_updated = false;
	return status;
}

const ddp_strategy ddp_all_reduce_strategy = {
	.name = "all_reduce", .shard = DDP_SHARD_NONE, .moves_rows = true, .recuts = true, .survives = true,
	.start = start, .wait = wait, .add_rows = ddp_all_reduce_add_rows,
	.reduce = ddp_all_reduce_finish, .update = ddp_all_reduce_update,
};
