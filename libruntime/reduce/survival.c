/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/survival.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "reduce/buddy.h"
#include "reduce/model_state.h"
#include "watch/page.h"
#include "watch/watch.h"

static size_t buffer_bytes(const ddp_model *model)
{
	return (size_t)(model->layout.all - model->layout.buffers) * sizeof(float);
}

static ddp_status check_supported(const ddp_model *model)
{
	const ddp_strategy *strategy = model->strategy;

	if (model->context->renewal.possible && model->comm != model->context->world)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "srun starts ranks again (restart=), and these join all ranks, but "
		                "the model has the option comm");
	if (model->context->renewal.possible && ddp_comm_models(model->comm) > 1)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "srun starts ranks again (restart=), and one model can go on with these, but "
		                "the program trains several on all ranks");
	if (model->context->renewal.barred)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "srun starts ranks again (restart=), and cannot tell these where "
		                "the others meet, because the program gives ddp_init() a store, a wire-up or a job of its own");
	if (strategy->survives)
		return DDP_OK;
	if (strategy->spreads && !model->settings.options.buddy)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "each rank keeps the only copy of its part of the optimizer's state "
		                "(option shard), which is lost with the rank: the model option buddy (or DDP_BUDDY=1) keeps a "
		                "second one on another rank");
	if (strategy->spreads)
		return DDP_OK;
	return ddp_fail(DDP_ERR_UNSUPPORTED, "each rank keeps state of its own (%s), which is lost with the rank", strategy->name);
}

/* A newcomer will have its copies when it has joined the others. */
static bool may_go_back(const ddp_model *model)
{
	return model->buddy != NULL || (model->context->renewal.possible && model->settings.options.buddy);
}

static size_t missed_bytes(const ddp_model *model)
{
	return may_go_back(model) ? (size_t)model->layout.count * sizeof(*model->uses.missed) : 0;
}

static bool make_moment(const ddp_model *model, ddp_moment *made)
{
	const size_t buffers = buffer_bytes(model), missed = missed_bytes(model);
	void *memory = NULL;

	if (buffers > 0 && ddp_place_alloc(&model->place, buffers, &memory) != DDP_OK)
		return false;
	made->buffers = memory;
	if (missed > 0)
		made->missed = malloc(missed);
	return missed == 0 || made->missed != NULL;
}

ddp_status ddp_survival_make(ddp_model *model)
{
	const int moments = may_go_back(model) ? 2 : 1;
	ddp_survival *made = calloc(1, sizeof(*made));

	model->survival = made;
	if (made == NULL || !make_moment(model, &made->now) || (moments == 2 && !make_moment(model, &made->before)))
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a copy of the buffers and of what each step notes (%zu bytes)",
		                sizeof(*made) + (size_t)moments * (buffer_bytes(model) + missed_bytes(model)));
	return DDP_OK;
}

static ddp_status begin_copies(ddp_model *model)
{
	const uint64_t start_ns = ddp_now_ns();
	size_t sent, kept;

	ddp_status status = ddp_buddy_renew(model);
	const double seconds = ddp_seconds_since(start_ns);
	ddp_buddy_bytes(model, &sent, &kept);
	double most[2] = { (double)sent / (1 << 20), (double)kept / (1 << 20) };
	if (status == DDP_OK)
		status = ddp_all_reduce(model->comm, most, most, 2, DDP_F64, DDP_MAX);
	if (status != DDP_OK || ddp_comm_rank(model->comm) != 0)
		return status;
	if (ddp_buddy_shares(model))
		ddp_log(DDP_LOG_INFO, "each rank's shard of the optimizer's state lies in memory that all ranks share, as they are "
		        "on one node: a rank takes up to %.1f MiB of memory more for what an update changes", most[1]);
	else
		ddp_log(DDP_LOG_INFO, "each rank's shard of the optimizer's state has a buddy copy on %s: a rank sends up to %.1f MiB "
		        "after each step, the first time in %.3f s, and takes up to %.1f MiB of memory for this",
		        ddp_comm_nodes(model->comm) > 1 ? "another node" : "another rank of the same node, as there is no other",
		        most[0], seconds, most[1]);
	return DDP_OK;
}

ddp_status ddp_survival_open(ddp_model *model)
{
	ddp_status status = check_supported(model);

	if (status != DDP_OK)
		return status;
	if (model->strategy->keep_undo != NULL)
		status = model->strategy->keep_undo(model);
	if (status == DDP_OK)
		status = ddp_comm_agree(model->comm, ddp_survival_make(model), "keep what a step changes");
	if (status == DDP_OK && model->buddy != NULL)
		status = begin_copies(model);
	if (status != DDP_OK) {
		ddp_buddy_close(model);
		ddp_survival_close(model);
		return status;
	}
	model->survival->of_writer = ddp_comm_world_rank(model->comm, 0) == 0;
	ddp_survival_end_step(model);
	ddp_page_survives(ddp_watch_page(model->context->watch), true);
	return DDP_OK;
}

static void free_moment(const ddp_model *model, ddp_moment *freed)
{
	ddp_place_free(&model->place, freed->buffers);
	free(freed->missed);
	free(freed->user_state);
}

void ddp_survival_close(ddp_model *model)
{
	if (model->survival == NULL)
		return;
	ddp_page_survives(ddp_watch_page(model->context->watch), false);
	if (model->survival->owns_comm && ddp_comm_free(model->comm) != DDP_OK)
		ddp_log(DDP_LOG_INFO, "%s", ddp_last_error());
	free_moment(model, &model->survival->now);
	free_moment(model, &model->survival->before);
	free(model->survival);
	model->survival = NULL;
}

ddp_status ddp_survival_begin_update(ddp_model *model)
{
	if (model->survival == NULL)
		return DDP_OK;
	ddp_status status = ddp_model_wait(model, 0, model->plan.count);
	if (status == DDP_OK)
		status = ddp_model_end_buckets(model);
	model->survival->updating = status == DDP_OK && model->strategy->undo == NULL;
	return status;
}

void ddp_survival_end_update(ddp_model *model)
{
	if (model->survival != NULL)
		model->survival->updating = false;
}

void ddp_survival_keep_buffers(ddp_model *model)
{
	/* A device that fails here fails in the next step, too. */
	if (model->survival != NULL && model->survival->now.buffers != NULL)
		(void)ddp_place_copy(&model->place, model->survival->now.buffers, model->params + model->layout.buffers,
		                     buffer_bytes(model));
}

/* Numbers that a step leaves. */
static void note_numbers(const ddp_model *model, ddp_moment *now)
{
	now->steps = model->steps;
	now->scaler = model->scaler;
	now->largest = model->largest;
	now->weight_sum = model->weight_sum;
	now->summary = model->summary;
	if (now->missed != NULL)
		memcpy(now->missed, model->uses.missed, (size_t)model->layout.count * sizeof(*now->missed));
}

static void swap_moments(ddp_survival *survival)
{
	const ddp_moment now = survival->now;

	survival->now = survival->before;
	survival->before = now;
}

void ddp_survival_end_step(ddp_model *model)
{
	ddp_survival *survival = model->survival;

	if (survival == NULL)
		return;
	if (model->buddy != NULL && survival->now.steps != model->steps) {
		swap_moments(survival);
		/* The loop has not been here. If the step is done again, an older moment counts as many attempts. */
		survival->now.attempts = -1;
	}
	survival->now.stats = model->stats;
	note_numbers(model, &survival->now);
	ddp_survival_keep_buffers(model);
	ddp_buddy_send(model);
}

void ddp_survival_go_back(ddp_model *model, int64_t steps)
{
	ddp_survival *survival = model->survival;

	if (model->steps <= steps)
		return;
	swap_moments(survival);
	model->steps = model->averaged = model->settled = steps;
	model->stats = survival->now.stats;
	model->scaler = survival->now.scaler;
	model->largest = survival->now.largest;
	model->weight_sum = survival->now.weight_sum;
	model->summary = survival->now.summary;
	if (survival->now.missed != NULL)
		memcpy(model->uses.missed, survival->now.missed, (size_t)model->layout.count * sizeof(*model->uses.missed));
}

void ddp_survival_note(ddp_model *model, int64_t epoch, int64_t samples)
{
	ddp_moment *now = &model->survival->now;
	void *copy = model->user_bytes > 0 ? realloc(now->user_state, model->user_bytes) : NULL;

	if (copy != NULL) {
		memcpy(copy, model->user_state, model->user_bytes);
		now->user_state = copy;
	}
	now->user_lost = copy == NULL && model->user_bytes > 0;
	now->user_bytes = copy != NULL ? model->user_bytes : 0;
	now->attempts = ddp_survival_attempts(model);
	now->epoch = epoch;
	now->samples = samples;
	note_numbers(model, now);
}

int64_t ddp_survival_attempts(const ddp_model *model)
{
	return model->steps + model->scaler.skipped;
}

ddp_status ddp_survival_restore(ddp_model *model)
{
	const ddp_moment *now = &model->survival->now;
	ddp_status status = DDP_OK;

	if (now->user_lost)
		return ddp_fail(DDP_ERR_NOMEM, "there was no memory for a copy of the program's state");
	if (now->buffers != NULL)
		status = ddp_place_copy(&model->place, model->params + model->layout.buffers, now->buffers, buffer_bytes(model));
	return status == DDP_OK ? ddp_model_set_user_state(model, now->user_state, now->user_bytes) : status;
}
