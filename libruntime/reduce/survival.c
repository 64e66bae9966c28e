/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/survival.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "reduce/model_state.h"
#include "reduce/step.h"
#include "watch/page.h"
#include "watch/watch.h"

/* 64 MiB. Each broadcast has a deadline of its own. */
enum { AT_ONCE = 1 << 24 };

static size_t buffer_bytes(const ddp_model *model)
{
	return (size_t)(model->layout.all - model->layout.buffers) * sizeof(float);
}

static ddp_status check_supported(const ddp_model *model)
{
	const ddp_strategy *strategy = model->strategy;

	if (model->place.device != NULL)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "the model is in a device's memory, for which this is not done yet");
	if (strategy->survives)
		return DDP_OK;
	if (strategy->spreads)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "each rank keeps the only copy of its part of the optimizer's state "
		                "(option shard), which is lost with the rank");
	return ddp_fail(DDP_ERR_UNSUPPORTED, "each rank keeps state of its own (%s), which is lost with the rank", strategy->name);
}

static ddp_status make(ddp_model *model)
{
	const size_t bytes = buffer_bytes(model);
	ddp_survival *made = calloc(1, sizeof(*made));

	model->survival = made;
	if (made != NULL && bytes > 0)
		made->buffers = malloc(bytes);
	if (made == NULL || (bytes > 0 && made->buffers == NULL))
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a copy of the buffers (%zu bytes)", bytes);
	return DDP_OK;
}

ddp_status ddp_survival_open(ddp_model *model)
{
	ddp_status status = check_supported(model);

	if (status != DDP_OK)
		return status;
	status = ddp_comm_agree(model->comm, make(model), "keep what a step changes");
	if (status == DDP_OK && model->strategy->keep_undo != NULL)
		status = model->strategy->keep_undo(model);
	if (status != DDP_OK) {
		ddp_survival_close(model);
		return status;
	}
	ddp_survival_end_step(model);
	ddp_page_survives(ddp_watch_page(model->context->watch), true);
	return DDP_OK;
}

void ddp_survival_close(ddp_model *model)
{
	if (model->survival == NULL)
		return;
	ddp_page_survives(ddp_watch_page(model->context->watch), false);
	if (model->survival->owns_comm && ddp_comm_free(model->comm) != DDP_OK)
		ddp_log(DDP_LOG_INFO, "%s", ddp_last_error());
	free(model->survival->buffers);
	free(model->survival->user_state);
	free(model->survival);
	model->survival = NULL;
}

ddp_status ddp_survival_begin_update(ddp_model *model)
{
	if (model->survival == NULL)
		return DDP_OK;
	ddp_status status = ddp_model_wait(model, 0, model->plan.count);
	model->survival->updating = status == DDP_OK && model->strategy->undo == NULL;
	return status;
}

void ddp_survival_end_update(ddp_model *model)
{
	if (model->survival != NULL)
		model->survival->updating = false;
}

void ddp_survival_end_step(ddp_model *model)
{
	if (model->survival == NULL)
		return;
	model->survival->stats = model->stats;
	if (model->survival->buffers != NULL)
		memcpy(model->survival->buffers, model->params + model->layout.buffers, buffer_bytes(model));
}

void ddp_survival_note(ddp_model *model, int64_t epoch, int64_t samples)
{
	ddp_survival *survival = model->survival;
	void *copy = model->user_bytes > 0 ? realloc(survival->user_state, model->user_bytes) : NULL;

	if (copy != NULL) {
		memcpy(copy, model->user_state, model->user_bytes);
		survival->user_state = copy;
	}
	survival->user_bytes = copy != NULL ? model->user_bytes : 0;
	survival->attempts = ddp_survival_attempts(model);
	survival->epoch = epoch;
	survival->samples = samples;
}

int64_t ddp_survival_attempts(const ddp_model *model)
{
	return model->steps + model->scaler.skipped;
}

/* ---- the same step on all ranks ----------------------------------------------------------- */

static ddp_status send(ddp_comm *left, float *values, int64_t count, int root)
{
	ddp_status status = DDP_OK;

	for (int64_t at = 0; at < count && status == DDP_OK; at += AT_ONCE)
		status = ddp_broadcast(left, values + at, (size_t)(count - at < AT_ONCE ? count - at : AT_ONCE), DDP_F32, root);
	return status;
}

/* Sends what a step leaves, except what goes with every rank's own samples. */
static ddp_status send_step(ddp_model *model, ddp_comm *left, int root)
{
	const ddp_layout *layout = &model->layout;

	ddp_status status = send(left, model->params, layout->elements, root);
	if (status == DDP_OK)
		status = send(left, model->params + layout->mean, layout->all - layout->mean, root);
	for (int i = 0; i < model->optim.state_count && status == DDP_OK; i++)
		status = send(left, model->optim.state[i], model->optim.state_elements[i], root);
	return status == DDP_OK ? send(left, model->uses.missed, layout->count, root) : status;
}

static bool lags(const ddp_survivor *rank, const ddp_survivor *root)
{
	return rank->steps < root->steps || rank->whole == 0;
}

/* Gets the step of rank `root`, if a rank lacks it. */
static ddp_status copy_step(ddp_model *model, ddp_comm *left, const ddp_survivor *all, int root)
{
	const bool own = lags(&all[ddp_comm_rank(left)], &all[root]);
	ddp_step_stats stats = model->survival->stats;
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

/* The scale of the loss follows the steps that all have seen, and 16-bit buckets the largest gradient. */
static ddp_status copy_scale(ddp_model *model, ddp_comm *left, int root)
{
	struct { ddp_scaler scaler; double largest; } sent = { model->scaler, model->largest };

	ddp_status status = ddp_broadcast(left, &sent, sizeof(sent), DDP_U8, root);
	if (status != DDP_OK)
		return status;
	model->scaler = sent.scaler;
	model->largest = sent.largest;
	return DDP_OK;
}

/* As the last step has left it. */
static void restore(ddp_model *model)
{
	const ddp_survival *survival = model->survival;

	if (survival->buffers != NULL)
		memcpy(model->params + model->layout.buffers, survival->buffers, buffer_bytes(model));
	(void)ddp_model_set_user_state(model, survival->user_state, survival->user_bytes);
}

ddp_status ddp_survival_level(ddp_model *model, ddp_comm *left, const ddp_survivor *all, int root, const bool *dead)
{
	const int64_t steps = all[root].steps;
	ddp_status status = DDP_OK;

	if (all[ddp_comm_rank(left)].steps == steps)
		restore(model);
	if (model->strategy->undo == NULL)
		status = copy_step(model, left, all, root);
	else
		model->strategy->undo(model, steps + 1, dead);
	/* All updates of the step are complete, so this rank ends it, too. */
	if (status == DDP_OK && model->steps < steps)
		ddp_step_count(model);
	return status == DDP_OK ? copy_scale(model, left, root) : status;
}

ddp_status ddp_survival_resume(ddp_model *model, bool learned)
{
	if (model->strategy->discard != NULL)
		model->strategy->discard(model);
	ddp_rows_discard(&model->rows);
	ddp_status status = ddp_arena_clear(&model->grads_memory, 0, model->layout.elements);
	/* If a rank has missed what was learned, the next step is learned from. */
	model->uses.learned = model->uses.learned && learned;
	ddp_step_reset(model);
	model->failed = model->partly_updated = model->refused = false;
	/* The next step compares all ranks' parameters. */
	model->compared = false;
	model->steps_alike = 0;
	if (model->was_rounded)
		ddp_model_round_all(model);
	ddp_watch_begin_step(model->context->watch, model->steps + 1, model->plan.count);
	ddp_watch_go_on(model->context->watch);
	return status;
}
