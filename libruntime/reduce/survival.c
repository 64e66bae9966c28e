/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/survival.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
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

	if (model->place.device != NULL)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "the model is in a device's memory, for which this is not done yet");
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
	if (strategy->spreads)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "each rank keeps the only copy of its part of the optimizer's state "
		                "(option shard), which is lost with the rank");
	return ddp_fail(DDP_ERR_UNSUPPORTED, "each rank keeps state of its own (%s), which is lost with the rank", strategy->name);
}

ddp_status ddp_survival_make(ddp_model *model)
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
	status = ddp_comm_agree(model->comm, ddp_survival_make(model), "keep what a step changes");
	if (status == DDP_OK && model->strategy->keep_undo != NULL)
		status = model->strategy->keep_undo(model);
	if (status != DDP_OK) {
		ddp_survival_close(model);
		return status;
	}
	model->survival->of_writer = ddp_comm_world_rank(model->comm, 0) == 0;
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

void ddp_survival_keep_buffers(ddp_model *model)
{
	if (model->survival != NULL && model->survival->buffers != NULL)
		memcpy(model->survival->buffers, model->params + model->layout.buffers, buffer_bytes(model));
}

void ddp_survival_end_step(ddp_model *model)
{
	if (model->survival != NULL)
		model->survival->stats = model->stats;
	ddp_survival_keep_buffers(model);
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

void ddp_survival_restore(ddp_model *model)
{
	const ddp_survival *survival = model->survival;

	if (survival->buffers != NULL)
		memcpy(model->params + model->layout.buffers, survival->buffers, buffer_bytes(model));
	(void)ddp_model_set_user_state(model, survival->user_state, survival->user_bytes);
}
