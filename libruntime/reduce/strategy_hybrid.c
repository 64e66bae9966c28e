/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid: see strategy_node.h. The order in which gradients are summed, and the pieces in
   which squares are, are those of all_reduce, and so are the parameters' bits. */
#include "base/error.h"
#include "reduce/model_state.h"
#include "reduce/strategy_all_reduce.h"
#include "reduce/strategy_node.h"

static ddp_status start(ddp_model *model, int k)
{
	return ddp_all_reduce_strategy.start(model, k);
}

static ddp_status wait(ddp_model *model, int k)
{
	return ddp_all_reduce_strategy.wait(model, k);
}

static ddp_status reduce(ddp_model *model, double *squares)
{
	return ddp_all_reduce_finish_by(model, ddp_node_strategy_world(model), squares);
}

/* The sums that others of the node update by. */
static ddp_status clear_others(ddp_model *model, const ddp_unit *unit)
{
	int64_t begin, end;

	ddp_unit_slice(&model->units, unit, model->units.rank, &begin, &end);
	ddp_status status = ddp_arena_clear(&model->grads_memory, unit->begin, begin);
	return status == DDP_OK ? ddp_arena_clear(&model->grads_memory, end, unit->end) : status;
}

static ddp_status update_units(ddp_model *model, const ddp_update *update, int first, int end,
                               double *squares)
{
	ddp_status status = DDP_OK;

	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	*squares += ddp_node_strategy_update(model, update, first, end);
	for (int u = first; u < end && status == DDP_OK; u++)
		status = clear_others(model, &model->units.list[u]);
	return status;
}

/* Each bucket while those behind it are still under way. */
static ddp_status update_by_bucket(ddp_model *model, const ddp_update *update, bool reduced,
                                   double *squares)
{
	const int dense = ddp_unit_at(&model->units, model->layout.dense);
	ddp_status status = DDP_OK;

	*squares = 0;
	for (int k = 0; k < model->plan.count && status == DDP_OK; k++) {
		const ddp_bucket *bucket = &model->plan.buckets[k];

		if (!reduced && k >= model->reducer.hold)
			ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
		status = ddp_model_wait(model, k, k + 1);
		if (status == DDP_OK)
			status = update_units(model, update, ddp_unit_at(&model->units, bucket->begin),
			                      ddp_unit_at(&model->units, bucket->end), squares);
	}
	/* Parameters that travel by rows alone are complete. */
	return status == DDP_OK ? update_units(model, update, dense, model->units.count, squares) : status;
}

static ddp_status update(ddp_model *model, const ddp_update *update, bool reduced, double *squares)
{
	double updated;

	ddp_status status = ddp_node_strategy_begin(model, update->step);
	if (status != DDP_OK)
		return status;
	model->partly_updated = true;
	status = update_by_bucket(model, update, reduced, &updated);
	if (status != DDP_OK)
		return status;
	/* Every node has all squares. */
	if (ddp_comm_node(model->comm) > 0)
		updated = 0;
	return ddp_node_strategy_end(model, reduced, updated, squares);
}

const ddp_strategy ddp_hybrid_strategy = {
	.name = "hybrid", .shard = DDP_SHARD_STATE, .spreads = true, .moves_rows = true, .recuts = true,
	.per_node = true,
	.prepare = ddp_node_strategy_prepare, .open = ddp_node_strategy_open,
	.close = ddp_node_strategy_close, .start = start, .wait = wait,
	.add_rows = ddp_all_reduce_add_rows, .reduce = reduce, .update = update,
	.survives = true, .keep_undo = ddp_node_strategy_keep_undo, .undo = ddp_node_strategy_undo,
	.read = ddp_node_strategy_read, .check = ddp_node_strategy_check,
	.set_steps = ddp_node_strategy_set_steps,
};
