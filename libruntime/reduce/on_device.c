/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <stdlib.h>

#include "base/error.h"
#include "device/device.h"
#include "kernels.h"

/* NULL of nothing. */
static ddp_status allocate(const ddp_model *model, int64_t elements, float **memory)
{
	void *made = NULL;
	ddp_status status = DDP_OK;

	if (elements > 0)
		status = ddp_place_alloc(&model->place, (size_t)elements * sizeof(**memory), &made);
	*memory = made;
	return status;
}

/* The optimizer may have all of it. */
static ddp_status lend_state(ddp_model *model)
{
	ddp_optim *optim = &model->optim;
	ddp_status status = DDP_OK;
	float *memory;

	for (int i = 0; i < optim->state_count && status == DDP_OK; i++) {
		if (optim->state[i] != NULL)
			continue;
		status = allocate(model, optim->state_elements[i], &memory);
		ddp_optim_lend(optim, i, memory);
	}
	if (status == DDP_OK && optim->work == NULL) {
		status = allocate(model, optim->work_elements, &memory);
		ddp_optim_lend_work(optim, memory);
	}
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "the optimizer's state");
}

/* Bytes for the loss, and for the largest magnitudes of so many gradients. */
static size_t step_bytes(int gradients)
{
	return sizeof(double) + (size_t)gradients * sizeof(float);
}

static ddp_status no_memory(void)
{
	return ddp_fail(DDP_ERR_NOMEM, "no memory for the results of a step");
}

static ddp_status make_results(ddp_model *model)
{
	const int gradients = model->layout.trained;
	void *memory;

	ddp_results *made = calloc(1, sizeof(*made));
	model->results = made;
	if (made == NULL)
		return no_memory();
	made->loss_here = malloc(step_bytes(gradients));
	made->slots = calloc((size_t)gradients, sizeof(*made->slots));
	made->arrays = calloc((size_t)gradients, sizeof(*made->arrays));
	if (made->loss_here == NULL || made->slots == NULL || made->arrays == NULL)
		return no_memory();
	made->largest_here = (float *)(made->loss_here + 1);
	ddp_status status = ddp_place_alloc(&model->place, step_bytes(gradients), &memory);
	if (status != DDP_OK)
		return ddp_fail_context(status, "the results of a step");
	made->loss = memory;
	made->largest = (float *)(made->loss + 1);
	model->timeline = ddp_timeline_open(&model->place, model->context->watch);
	return DDP_OK;
}

ddp_status ddp_on_device_open(ddp_model *model, bool lends)
{
	const ddp_status status = model->results == NULL ? make_results(model) : DDP_OK;

	return status == DDP_OK && lends ? lend_state(model) : status;
}

void ddp_on_device_close(ddp_model *model)
{
	ddp_results *results = model->results;

	if (model->place.device == NULL)
		return;
	for (int i = 0; i < model->optim.state_count && !model->strategy->spreads; i++)
		ddp_place_free(&model->place, model->optim.state[i]);
	ddp_place_free(&model->place, model->optim.work);
	if (results == NULL)
		return;
	ddp_place_free(&model->place, results->loss);
	free(results->loss_here);
	free(results->slots);
	free(results->arrays);
	free(results);
	model->results = NULL;
}

void ddp_on_device_complete(ddp_model *model, int slot)
{
	const ddp_slot *complete = &model->layout.slots[slot];
	ddp_results *results = model->results;

	results->slots[results->complete] = complete;
	results->arrays[results->complete++] = (dk_array){ model->grads + complete->offset, complete->count };
}

void ddp_on_device_look(ddp_model *model)
{
	ddp_results *results = model->results;

	if (results == NULL || results->looked_at == results->complete)
		return;
	dk_queue *before = dk_use(model->place.kernels);
	dk_largest_at(results->largest + results->looked_at, results->arrays + results->looked_at,
	              results->complete - results->looked_at);
	dk_use(before);
	results->looked_at = results->complete;
}

ddp_status ddp_on_device_forget(ddp_model *model)
{
	ddp_results *results = model->results;

	if (results == NULL)
		return DDP_OK;
	results->complete = results->looked_at = 0;
	return ddp_device_fill(model->place.device, model->place.stream, results->loss, 0, sizeof(*results->loss));
}

ddp_status ddp_on_device_fetch(ddp_model *model, double *loss)
{
	const ddp_results *results = model->results;
	ddp_status status = ddp_place_read(&model->place, results->loss_here, results->loss,
	                                   step_bytes(results->complete));
	if (status != DDP_OK)
		return status;
	*loss = *results->loss_here;
	for (int i = 0; i < results->complete; i++)
		ddp_magnitude_note(&model->magnitude, results->slots[i], results->largest_here[i]);
	return ddp_on_device_forget(model);
}
