/* SPDX-License-Identifier: Apache-2.0 */
/* grads: what a step's gradients are, and when they are final, as the program tells. */

#include <stdlib.h>

#include "base/error.h"
#include "kernels.h"
#include "reduce/model_state.h"

/* Nothing is added to it after ddp_model_grad_ready(). */
static bool is_final(const ddp_slot *slot)
{
	return slot->sparse_rows == 0 || slot->rows_travel;
}

/* A parameter without a gradient on this rank counts as 0, whatever its memory holds. */
static ddp_status clear_gradient(ddp_model *model, int slot)
{
	const ddp_slot *cleared = &model->layout.slots[slot];

	return ddp_arena_clear(&model->grads_memory, cleared->offset, cleared->offset + cleared->count);
}

static void inspect(ddp_model *model, int slot)
{
	const ddp_slot *inspected = &model->layout.slots[slot];

	if (model->place.device != NULL)
		ddp_on_device_complete(model, slot);
	else if (inspected->offset < model->layout.dense)
		ddp_magnitude_note(&model->magnitude, inspected, dk_largest(model->grads + inspected->offset, inspected->count));
}

static ddp_status call_hook(const ddp_model *model, int slot)
{
	const ddp_slot_hook *hook = &model->hooks[slot];
	const ddp_slot *of = &model->layout.slots[slot];

	if (hook->call == NULL)
		return DDP_OK;
	ddp_fail(DDP_OK, "it gave no reason");
	ddp_status status = hook->call(hook->user, of->param, model->grads + of->offset, of->count);
	if (status == DDP_OK)
		return DDP_OK;
	return ddp_fail_context(status, "the gradient hook of \"%s\" failed on rank %d with %s", of->name,
	                        model->context->job.rank, ddp_status_name(status));
}

/* This rank adds nothing to it any more in this step. */
static ddp_status complete(ddp_model *model, int slot)
{
	ddp_status status = model->hooks != NULL ? call_hook(model, slot) : DDP_OK;

	if (status == DDP_OK)
		inspect(model, slot);
	return status;
}

ddp_status ddp_grads_look_at_rest(ddp_model *model)
{
	/* If the buckets travel, an absent gradient is cleared with its bucket. */
	const bool travels = model->reducer.communicates && model->strategy->start != NULL;
	ddp_status status = DDP_OK;

	for (int i = 0; i < model->layout.trained && status == DDP_OK; i++) {
		const int param = model->layout.slots[i].param;
		const bool unused = ddp_uses_counts(&model->uses) && !model->uses.used[param];
		if (unused && (!model->reducer.ready.announced[i] || (ddp_uses_lacks(&model->uses, param) && !travels)))
			status = clear_gradient(model, i);
		if (status != DDP_OK)
			break;
		if (!model->reducer.ready.announced[i] && !unused && !model->joined)
			status = complete(model, i);
		else if (model->reducer.ready.announced[i] && !is_final(&model->layout.slots[i]))
			inspect(model, i);
	}
	return status;
}

/* Which slot a call about a gradient means. */
static ddp_status find_slot(const ddp_model *model, int param, int *slot)
{
	ddp_status status = ddp_model_check(model);

	if (status != DDP_OK)
		return status;
	if (param < 0 || param >= model->layout.count)
		return ddp_fail(DDP_ERR_INVALID, "no parameter has index %d; there are %d", param, model->layout.count);
	if (model->reduced)
		return ddp_model_not_updated(model);
	*slot = model->layout.slot_of[param];
	return *slot < model->layout.trained ? DDP_OK
		: ddp_fail(DDP_ERR_INVALID, "\"%s\" is frozen or a buffer, and has no gradient", model->layout.slots[*slot].name);
}

/* This rank adds nothing to the parameter's gradient any more; it has one, or, unless `used`, only rows added before.
   */
static ddp_status announce(ddp_model *model, int param, bool used)
{
	int slot;
	ddp_status status = find_slot(model, param, &slot);

	if (status == DDP_OK && used)
		model->uses.used[param] = true;
	/* The bucket of an absent parameter may already be on its way: the step's end tells all ranks. */
	if (status != DDP_OK || !model->sync || ddp_uses_lacks(&model->uses, param))
		return status;
	if (model->reducer.ready.announced[slot])
		return ddp_reducer_announce(&model->reducer, slot); /* says what is wrong */
	const bool final = is_final(&model->layout.slots[slot]);
	if (!used && ddp_uses_counts(&model->uses) && !model->uses.used[param])
		status = clear_gradient(model, slot);
	else if (final)
		status = complete(model, slot);
	if (status == DDP_OK) {
		ddp_model_start_clock(model);
		if (final)
			ddp_replan_ready(model, slot);
		status = ddp_reducer_announce(&model->reducer, slot);
	}
	return status == DDP_OK ? DDP_OK : ddp_model_fail(model, status);
}

ddp_status ddp_model_grad_ready(ddp_model *model, int param)
{
	return announce(model, param, true);
}

ddp_status ddp_model_grad_unused(ddp_model *model, int param)
{
	return announce(model, param, false);
}

ddp_status ddp_model_set_grad_hook(ddp_model *model, int param, ddp_grad_hook_fn hook, void *user)
{
	int slot;

	ddp_status status = find_slot(model, param, &slot);
	if (status != DDP_OK)
		return status;
	const ddp_slot *of = &model->layout.slots[slot];
	if (of->sparse_rows > 0)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "a gradient hook for \"%s\", which has sparse_rows: its "
		                "gradient is never whole before it is reduced", of->name);
	if (model->hooks == NULL)
		model->hooks = calloc((size_t)model->layout.trained, sizeof(*model->hooks));
	if (model->hooks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for gradient hooks");
	model->hooks[slot] = (ddp_slot_hook){ hook, user };
	return DDP_OK;
}

static ddp_status no_rows(const ddp_slot *slot)
{
	return ddp_fail(DDP_ERR_INVALID,
	                "parameter \"%s\" was made without sparse_rows, so no rows can be added to "
	                "its gradient", slot->name);
}

static ddp_status check_rows(const ddp_slot *slot, const int32_t *index, int64_t count)
{
	if (slot->sparse_rows == 0)
		return no_rows(slot);
	if (count < 0)
		return ddp_fail(DDP_ERR_INVALID, "%lld rows for the gradient of \"%s\"",
		                (long long)count, slot->name);
	for (int64_t i = 0; i < count; i++) {
		if (index[i] < 0 || index[i] >= slot->shape[0])
			return ddp_fail(DDP_ERR_INVALID, "index %lld of rows for the gradient of \"%s\" is %d; "
			                "it has %lld rows", (long long)i, slot->name, (int)index[i],
			                (long long)slot->shape[0]);
	}
	return DDP_OK;
}

ddp_status ddp_model_grad_rows(ddp_model *model, int param, const int32_t *index, const float *values,
                         int64_t count)
{
	int number;

	ddp_status status = find_slot(model, param, &number);
	if (status != DDP_OK)
		return status;
	const ddp_slot *slot = &model->layout.slots[number];
	if (count > 0 && (index == NULL || values == NULL))
		return ddp_fail(DDP_ERR_INVALID, "ddp_model_grad_rows(): a NULL argument");
	if (model->place.device == NULL)
		status = check_rows(slot, index, count);
	else if (slot->sparse_rows == 0)
		status = no_rows(slot);
	if (status != DDP_OK || count <= 0)
		return status;
	model->uses.used[param] = true;
	if (slot->rows_travel) {
		status = ddp_rows_keep(&model->rows, slot, index, values, count);
		if (status == DDP_OK)
			ddp_magnitude_note(&model->magnitude, slot, dk_largest(values, count * (slot->count / slot->shape[0])));
		return status;
	}
	dk_queue *before = dk_use(model->place.kernels);
	dk_add_rows(model->grads + slot->offset, index, values, count, slot->count / slot->shape[0]);
	dk_use(before);
	return DDP_OK;
}
