/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels.h"

ddp_status ddp_model_check(const ddp_model *model)
{
	if (model == NULL)
		return ddp_fail(DDP_ERR_INVALID, "the model is NULL");
	if (ddp_comm_check_owner(model->comm, "a call of a model") != DDP_OK)
		return DDP_ERR_STATE;
	if (model->failed)
		return ddp_fail(DDP_ERR_STATE,
		                "step %lld of this model has failed; it can train no more",
		                (long long)model->steps + 1);
	if (model->partly_updated)
		return ddp_fail(DDP_ERR_STATE, "the parameters are changed only in part, by a load or an average "
		                "that failed: load a checkpoint, whole, before the next step");
	return DDP_OK;
}

ddp_status ddp_model_not_updated(const ddp_model *model)
{
	return ddp_fail(DDP_ERR_STATE, "the gradients of step %lld are reduced: call ddp_model_update_params() "
	                "or, to forget them on all ranks, ddp_model_zero_grads()", (long long)model->steps + 1);
}

ddp_status ddp_model_fail(ddp_model *model, ddp_status status)
{
	ddp_kept_error why;

	ddp_error_keep(&why, status);
	ddp_watch_error(model->context->watch, status);
	model->failed = true;
	/* Peers may be about to wait for this rank, so tell them in any case. */
	ddp_comm_abort(model->comm, why.text);
	ddp_reducer_abandon(&model->reducer, why.text);
	return ddp_error_return(&why);
}

const ddp_slot *ddp_model_slot(const ddp_model *model, int param)
{
	if (model == NULL || param < 0 || param >= model->layout.count)
		return NULL;
	return &model->layout.slots[model->layout.slot_of[param]];
}

void ddp_model_start_clock(ddp_model *model)
{
	if (model->step_start_ns != 0)
		return;
	model->step_start_ns = ddp_now_ns();
	for (int phase = 0; phase < DDP_PHASES; phase++)
		model->phase_seconds[phase] = ddp_watch_phase_seconds(model->context->watch, (ddp_phase)phase);
}

ddp_status ddp_model_wait(ddp_model *model, int first, int end)
{
	dk_queue *before = dk_use(model->place.kernels);
	ddp_status status = DDP_OK;

	for (int k = first; k < end && status == DDP_OK && model->strategy->wait != NULL; k++)
		status = model->strategy->wait(model, k);
	dk_use(before);
	return status;
}

ddp_status ddp_model_end_buckets(ddp_model *model)
{
	return ddp_reducer_end_passed(&model->reducer);
}

ddp_status ddp_model_arrive_in(ddp_model *model, int64_t begin, int64_t end)
{
	if (model->strategy->arrive == NULL)
		return DDP_OK;
	dk_queue *before = dk_use(model->place.kernels);
	ddp_status status = model->strategy->arrive(model, begin, end);
	dk_use(before);
	if (status != DDP_OK)
		model->partly_updated = true;
	return status;
}

void ddp_model_round(ddp_model *model, int64_t begin, int64_t end)
{
	const int64_t stop = end < model->layout.buffers ? end : model->layout.buffers;

	if (model->rounded == NULL || begin >= stop)
		return;
	dk_queue *before = dk_use(model->place.kernels);
	dk_to_bf16(model->rounded + begin, model->params + begin, stop - begin);
	dk_use(before);
	model->was_rounded = true;
}

ddp_status ddp_model_set_user_state(ddp_model *model, const void *state, size_t bytes)
{
	if (model == NULL || (state == NULL && bytes > 0))
		return ddp_fail_null("ddp_model_set_user_state", model == NULL ? "model" : "state");
	if (bytes > DDP_USER_STATE_MAX)
		return ddp_fail(DDP_ERR_INVALID, "ddp_model_set_user_state() takes at most %d bytes, not %zu",
		                DDP_USER_STATE_MAX, bytes);
	void *copy = malloc(bytes + 1);
	if (copy == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of the program's state", bytes);
	if (bytes > 0)
		memcpy(copy, state, bytes);
	free(model->user_state);
	model->user_state = copy;
	model->user_bytes = bytes;
	return DDP_OK;
}

const void *ddp_model_user_state(const ddp_model *model, size_t *bytes)
{
	const size_t held = model != NULL ? model->user_bytes : 0;

	if (bytes != NULL)
		*bytes = held;
	return held > 0 ? model->user_state : NULL;
}
