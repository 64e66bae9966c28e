/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"
#include "reduce/buddy.h"
#include "reduce/compare.h"
#include "reduce/model_state.h"

/* Adds the tensor of parameter `param` (`state` -1), or of the optimizer's state `state` for it. */
static ddp_status add_tensor(ddp_model *model, int param, int state, float *arena,
                             ddp_tensors *tensors)
{
	const ddp_slot *slot = ddp_model_slot(model, param);
	const ddp_kept *kept = state >= 0 ? ddp_optim_kept(&model->optim, state, slot) : NULL;
	ddp_tensor *tensor = &tensors->list[tensors->count];

	if (kept != NULL && kept->count == 0)
		return DDP_OK;
	int n = state >= 0 ? asprintf(&tensor->name, "optimizer.%s.%s", model->optim.state_name[state],
	                              slot->name)
	                   : asprintf(&tensor->name, "%s", slot->name);

	if (n < 0) {
		tensor->name = NULL;
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the name of tensor \"%s\"", slot->name);
	}
	tensor->param = param;
	tensor->state = state;
	tensor->untrained = slot->kind != DDP_PARAM_TRAINED;
	tensor->ndim = kept != NULL ? kept->ndim : slot->ndim;
	tensor->shape = kept != NULL ? kept->shape : slot->shape;
	tensor->own = (state < 0 ? tensors->params : tensors->whole[state]) != NULL;
	tensor->data = arena != NULL ? arena + (kept != NULL ? kept->offset : slot->offset) : NULL;
	tensors->count++;
	return DDP_OK;
}

/* The steps that a parameter missed, if what is unused was to stay as it is. */
static ddp_status add_missed(ddp_model *model, int param, ddp_tensors *tensors)
{
	const ddp_slot *slot = ddp_model_slot(model, param);
	ddp_tensor *missed = &tensors->list[tensors->count++];

	*missed = (ddp_tensor){
		.param = param, .state = -1, .shape = slot->shape, /* a number: of no dimension */
		.data = &model->uses.missed[param], .optional = true,
	};
	if (asprintf(&missed->name, "optimizer.missed_steps.%s", slot->name) >= 0)
		return DDP_OK;
	missed->name = NULL;
	return ddp_fail(DDP_ERR_NOMEM, "no memory for a tensor's name");
}

static ddp_status make_whole(int64_t elements, float **arena)
{
	*arena = calloc((size_t)elements + 1, sizeof(**arena));
	return *arena != NULL ? DDP_OK
	                      : ddp_fail(DDP_ERR_NOMEM, "no memory for a copy of the whole model (%lld bytes)",
	                                 (long long)elements * (long long)sizeof(**arena));
}

/* The strategy's own, the list's last; `copied`: they are to lie on the host. */
static ddp_status add_extras(const ddp_model *model, bool copied, ddp_tensors *tensors)
{
	ddp_tensor *extras = tensors->list + tensors->count;
	int64_t elements = 0;

	if (tensors->extras == 0)
		return DDP_OK;
	tensors->count += tensors->extras;
	ddp_status status = model->strategy->fill_extras(model, extras);
	for (int i = 0; i < tensors->extras && status == DDP_OK; i++)
		elements += ddp_tensor_elements(&extras[i]);
	if (status == DDP_OK && copied)
		status = make_whole(elements, &tensors->own);
	if (status != DDP_OK || !copied)
		return status;
	float *next = tensors->own;
	for (int i = 0; i < tensors->extras; i++) {
		extras[i].own = true;
		extras[i].there = extras[i].data;
		extras[i].data = next;
		next += ddp_tensor_elements(&extras[i]);
	}
	return DDP_OK;
}

ddp_status ddp_model_tensors(ddp_model *model, bool whole, ddp_tensors *tensors)
{
	const bool copied = model->place.device != NULL && whole;
	const bool spread = model->strategy->spreads;
	const int extras = model->strategy->extra_count != NULL ? model->strategy->extra_count(model) : 0;
	const int most = model->layout.count * (2 + model->optim.state_count) + extras;
	ddp_status status = DDP_OK;

	*tensors = (ddp_tensors){ .list = calloc((size_t)most, sizeof(*tensors->list)), .extras = extras };
	if (tensors->list == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a list of %d tensors", most);
	if (copied)
		status = make_whole(model->layout.all, &tensors->params);
	for (int i = 0; i < model->optim.state_count && (spread || copied) && whole && status == DDP_OK; i++)
		status = make_whole(model->optim.state_elements[i], &tensors->whole[i]);
	for (int state = -1; state < model->optim.state_count; state++) {
		float *arena = state < 0        ? (copied ? tensors->params : model->params)
		             : spread || copied ? tensors->whole[state]
		                                : model->optim.state[state];
		for (int p = 0; p < model->layout.count && status == DDP_OK; p++) {
			if (state < 0 || ddp_model_slot(model, p)->kind == DDP_PARAM_TRAINED)
				status = add_tensor(model, p, state, arena, tensors);
		}
	}
	for (int p = 0; p < model->layout.count && status == DDP_OK; p++) {
		if (ddp_model_slot(model, p)->kind == DDP_PARAM_TRAINED)
			status = add_missed(model, p, tensors);
	}
	return status == DDP_OK ? add_extras(model, copied, tensors) : status;
}

void ddp_tensors_free(ddp_tensors *tensors)
{
	for (int i = 0; i < tensors->count; i++)
		free(tensors->list[i].name);
	free(tensors->list);
	free(tensors->params);
	free(tensors->own);
	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++)
		free(tensors->whole[i]);
	*tensors = (ddp_tensors){ 0 };
}

static ddp_status read_params(const ddp_model *model, const ddp_tensors *tensors)
{
	return ddp_place_read(&model->place, tensors->params, model->params,
	                      (size_t)model->layout.all * sizeof(float));
}

ddp_status ddp_model_gather(ddp_model *model, ddp_tensors *tensors)
{
	ddp_comm *comm = model->comm;
	/* A step that was saved is not taken back. */
	ddp_status status = ddp_buddy_settle(model);

	*tensors = (ddp_tensors){ 0 };
	if (status == DDP_OK && model->strategy->settle != NULL)
		status = model->strategy->settle(model);
	if (status == DDP_OK)
		status = ddp_model_compare(model);
	if (status != DDP_OK || model->strategy->gather == NULL)
		return status;
	if (ddp_comm_rank(comm) == 0)
		status = ddp_model_tensors(model, true, tensors);
	if (status == DDP_OK && tensors->params != NULL)
		status = read_params(model, tensors);
	status = ddp_comm_agree(comm, status, "gather the optimizer's state");
	for (int i = 0; i < model->optim.state_count && status == DDP_OK; i++)
		status = model->strategy->gather(model, i, tensors->whole[i]);
	return status;
}

static ddp_status read_device(const ddp_model *model, const ddp_tensors *tensors)
{
	ddp_status status = read_params(model, tensors);

	for (int i = 0; i < model->optim.state_count && status == DDP_OK; i++)
		status = ddp_place_read(&model->place, tensors->whole[i], model->optim.state[i],
		                        (size_t)model->optim.state_elements[i] * sizeof(float));
	for (int i = 0; i < tensors->count && status == DDP_OK; i++) {
		const ddp_tensor *tensor = &tensors->list[i];
		if (tensor->there != NULL)
			status = ddp_place_read(&model->place, tensor->data, tensor->there,
			                        (size_t)ddp_tensor_elements(tensor) * sizeof(float));
	}
	return status;
}

ddp_status ddp_model_collect(const ddp_model *model, const ddp_tensors *tensors)
{
	if (model->strategy->spreads && model->strategy->read == NULL)
		return ddp_fail(DDP_ERR_STATE, "the optimizer's state is spread over ranks that can no longer "
		                "be reached; go back to the last checkpoint");
	if (tensors->params != NULL)
		return read_device(model, tensors);
	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++) {
		if (tensors->whole[i] != NULL)
			model->strategy->read(model, i, 0, model->layout.elements, tensors->whole[i]);
	}
	return DDP_OK;
}

ddp_status ddp_model_store(ddp_model *model, const ddp_tensors *tensors, int i, int64_t first,
                           const float *values, int64_t count)
{
	const ddp_tensor *tensor = &tensors->list[i];
	ddp_status status = DDP_OK;

	if (tensor->optional)
		memcpy(tensor->data + first, values, (size_t)count * sizeof(*values));
	else if (i < tensors->count - tensors->extras && tensor->state >= 0 && model->strategy->spreads)
		status = ddp_units_store(&model->units, &model->place, model->optim.state[tensor->state],
		                         ddp_model_slot(model, tensor->param)->offset + first, values, count);
	else
		status = ddp_place_write(&model->place, tensor->data + first, values,
		                         (size_t)count * sizeof(*values));
	if (i < model->layout.count && status == DDP_OK) {
		const int64_t begin = ddp_model_slot(model, i)->offset + first;
		ddp_model_round(model, begin, begin + count);
	}
	return status;
}

static void leave_out_extras(ddp_tensors *tensors)
{
	for (; tensors->extras > 0; tensors->extras--)
		free(tensors->list[--tensors->count].name);
}

ddp_status ddp_model_list(ddp_model *model, bool alone, ddp_tensors *tensors)
{
	if (tensors->list != NULL)
		return DDP_OK;
	ddp_status status = ddp_model_tensors(model, true, tensors);
	if (status != DDP_OK)
		return status;
	/* A strategy's tensors are of all ranks; a rank that is alone knows its own part only. */
	if (alone)
		leave_out_extras(tensors);
	return ddp_model_collect(model, tensors);
}

void ddp_model_forget_extras(ddp_model *model, ddp_tensors *tensors)
{
	leave_out_extras(tensors);
	if (model->strategy->forget != NULL)
		model->strategy->forget(model);
}
