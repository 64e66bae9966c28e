/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/level.h"

#include "comm/agree.h"
#include "reduce/model_state.h"
#include "reduce/step.h"
#include "reduce/survival.h"

/* 64 MiB. Each broadcast has a deadline of its own. */
enum { AT_ONCE = 1 << 24 };

static ddp_status send(const ddp_place *place, ddp_comm *left, float *values, int64_t count, int root)
{
	ddp_operation operation = { .kind = DDP_BROADCAST, .type = DDP_F32, .root = root, .memory = ddp_place_memory(place),
	                            .stream = place->stream };
	ddp_status status = DDP_OK;

	for (int64_t at = 0; at < count && status == DDP_OK; at += AT_ONCE) {
		operation.recv = values + at;
		operation.count = (size_t)(count - at < AT_ONCE ? count - at : AT_ONCE);
		status = ddp_run(left, &operation);
	}
	return status;
}

/* Sends what a step leaves, except what goes with every rank's own samples. */
static ddp_status send_step(ddp_model *model, ddp_comm *left, int root)
{
	const ddp_layout *layout = &model->layout;
	const ddp_place *place = &model->place, host = { 0 };

	ddp_status status = send(place, left, model->params, layout->elements, root);
	if (status == DDP_OK)
		status = send(place, left, model->params + layout->mean, layout->all - layout->mean, root);
	for (int i = 0; i < model->optim.state_count && status == DDP_OK; i++)
		status = send(place, left, model->optim.state[i], model->optim.state_elements[i], root);
	return status == DDP_OK ? send(&host, left, model->uses.missed, layout->count, root) : status;
}

static bool lags(const ddp_survivor *rank, const ddp_survivor *root)
{
	return rank->steps < root->steps || rank->whole == 0;
}

/* Gets the step of rank `root`, if a rank lacks it. */
static ddp_status copy_step(ddp_model *model, ddp_comm *left, const ddp_survivor *all, int root)
{
	const bool own = lags(&all[ddp_comm_rank(left)], &all[root]);
	ddp_step_stats stats = model->survival->now.stats;
	bool any = false;

	for (int r = 0; r < ddp_comm_size(left); r++)
		any = any || lags(&all[r], &all[root]);
	if (!any)
		return DDP_OK;
	model->survival->updating = own;
	ddp_status status = send_step(model, left, root);
	if (status == DDP_OK)
		status = ddp_broadcast(left, &stats, sizeof(stats), DDP_U8, root);
	if (status != DDP_OK || !own)
		return status;
	model->survival->updating = false;
	if (model->steps < all[root].steps)
		ddp_step_take(model, &stats);
	return DDP_OK;
}

/* All ranks get the loss scale and the largest gradient of rank `root`, because the next step depends on these. A
   rank that missed the step's end ends the step: all updates are complete, and `root` knows the norm. */
static ddp_status end_alike(ddp_model *model, ddp_comm *left, int root, int64_t steps)
{
	struct { ddp_scaler scaler; double largest, grad_norm; } sent = { model->scaler, model->largest, model->survival->now.stats.grad_norm };

	ddp_status status = ddp_broadcast(left, &sent, sizeof(sent), DDP_U8, root);
	if (status != DDP_OK)
		return status;
	if (model->steps < steps) {
		model->stats.grad_norm = sent.grad_norm;
		ddp_step_count(model);
	}
	model->scaler = sent.scaler;
	model->largest = sent.largest;
	return DDP_OK;
}

ddp_status ddp_level_with(ddp_model *model, ddp_comm *left, const ddp_survivor *all, int root, const bool *dead)
{
	const int64_t steps = all[root].steps;
	const bool ended = all[ddp_comm_rank(left)].steps == steps;

	ddp_status status = ddp_comm_agree(left, ended ? ddp_survival_restore(model) : DDP_OK,
	                                   "put back its buffers and the program's state");
	if (status == DDP_OK && model->strategy->undo == NULL)
		status = copy_step(model, left, all, root);
	else if (status == DDP_OK)
		model->strategy->undo(model, steps + 1, dead);
	return status == DDP_OK ? end_alike(model, left, root, steps) : status;
}

ddp_status ddp_level_resume(ddp_model *model, bool learned, bool clears)
{
	if (model->strategy->discard != NULL)
		model->strategy->discard(model);
	ddp_rows_discard(&model->rows);
	/* A device may fail on this rank alone. */
	ddp_status status = clears ? ddp_arena_clear(&model->grads_memory, 0, model->layout.elements) : DDP_OK;
	if (status == DDP_OK)
		status = ddp_on_device_forget(model);
	if (model->place.device != NULL)
		status = ddp_comm_agree(model->comm, status, "clear its memory");
	if (status != DDP_OK)
		return status;
	/* If a rank has missed what was learned, the next step is learned from. */
	model->uses.learned = model->uses.learned && learned;
	ddp_step_reset(model);
	model->failed = model->partly_updated = model->refused = false;
	/* The next step compares all ranks' parameters. */
	model->compared = -1;
	model->steps_alike = 0;
	if (model->was_rounded)
		ddp_model_round_all(model);
	ddp_watch_begin_step(model->context->watch, model->steps + 1, model->plan.count);
	ddp_watch_go_on(model->context->watch);
	return DDP_OK;
}
