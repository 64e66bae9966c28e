/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "device/device.h"
#include "kernels.h"
#include "reduce/agree.h"
#include "reduce/buddy.h"
#include "reduce/fit.h"
#include "reduce/hypers.h"
#include "reduce/survival.h"

/* 64 MiB. Each broadcast has a deadline of its own, which a slow network must be able
   to meet. */
enum { BROADCAST_ELEMENTS = 1 << 24 };

/* Checks that memory of the program's, if there is some, is where the model is. */
static ddp_status check_where(const ddp_model *model, const char *name, const float *memory, size_t bytes)
{
	ddp_device *device = model->place.device;

	if (memory == NULL)
		return DDP_OK;
	if (device == NULL && ddp_device_of(memory) != NULL)
		return ddp_fail(DDP_ERR_INVALID, "model option %s is %p, which is a device's memory, and the model "
		                "is in the host's; give the option memory, DDP_MEMORY_DEVICE, too", name,
		                (const void *)memory);
	if (device == NULL || (ddp_device_owns(device, memory) &&
	                       ddp_device_owns(device, (const char *)memory + bytes - 1)))
		return DDP_OK;
	return ddp_fail(DDP_ERR_INVALID, "model option %s is %p, of which %zu bytes are not all memory of device "
	                "%s:%d, where the model is; allocate them there, or leave the option out", name,
	                (const void *)memory, bytes, ddp_device_describe(device)->kind,
	                ddp_device_describe(device)->index);
}

/* Checks that the program's own arenas are where the model is, and apart. */
static ddp_status check_memories(const ddp_model *model)
{
	const uintptr_t params = (uintptr_t)model->settings.options.params_memory;
	const uintptr_t grads = (uintptr_t)model->settings.options.grads_memory;
	const size_t params_bytes = (size_t)model->layout.all * sizeof(float);
	const size_t grads_bytes = (size_t)model->layout.elements * sizeof(float);

	ddp_status status = check_where(model, "params_memory", model->settings.options.params_memory, params_bytes);
	if (status == DDP_OK)
		status = check_where(model, "grads_memory", model->settings.options.grads_memory, grads_bytes);
	if (status != DDP_OK || params == 0 || grads == 0 || params + params_bytes <= grads ||
	    grads + grads_bytes <= params)
		return status;
	return ddp_fail(DDP_ERR_INVALID, "model options params_memory (%p, %zu bytes) and grads_memory (%p, %zu bytes) "
	                "overlap; give each memory of its own", (const void *)model->settings.options.params_memory,
	                params_bytes, (const void *)model->settings.options.grads_memory, grads_bytes);
}

static ddp_status make_uses(ddp_model *model)
{
	model->first_ranks = ddp_model_first_ranks(model);
	ddp_status status = ddp_uses_make(model->settings.options.unused, &model->layout, model->first_ranks, &model->uses);

	if (status != DDP_OK)
		return status;
	model->consensus = calloc(DDP_CONSENSUS_COUNT + (size_t)ddp_uses_words_max(&model->uses),
	                          sizeof(*model->consensus));
	return model->consensus != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for a consensus");
}

/* Does the work that can fail on this rank alone. */
static ddp_status prepare(ddp_model *model, const ddp_param *params, int count,
                          const ddp_model_options *options)
{
	ddp_status status = ddp_model_settings_make(options, &model->settings);
	if (status == DDP_OK)
		status = ddp_place_open(model->context, model->settings.options.memory, model->settings.options.stream,
		                        &model->place);
	if (status == DDP_OK)
		status = ddp_layout_make(params, count, &model->layout);
	if (status == DDP_OK)
		status = ddp_layout_arrange(&model->layout, ddp_model_choose(model));
	if (status == DDP_OK)
		status = check_memories(model);
	if (status == DDP_OK)
		status = make_uses(model);
	return status == DDP_OK ? ddp_model_fit(model) : status;
}

/* The order in which ranks go through this is the same on all. */
static ddp_status join(ddp_model *model)
{
	ddp_comm *comm = model->comm;

	ddp_status status = ddp_arena_open(comm, &model->place, model->settings.options.params_memory, model->layout.all,
	                                   false, &model->params_memory);
	if (status != DDP_OK)
		return ddp_fail_context(status, "the model's parameters");
	model->params = model->params_memory.data;
	status = ddp_arena_open(comm, &model->place, model->settings.options.grads_memory, model->layout.elements,
	                        ddp_model_gives_back(model), &model->grads_memory);
	if (status != DDP_OK)
		return ddp_fail_context(status, "the model's gradients");
	model->grads = model->grads_memory.data;
	if (model->settings.options.bf16_params) {
		status = ddp_arena_open(comm, &model->place, NULL, model->layout.buffers / 2,
		                        model->place.device == NULL, &model->rounded_memory);
		if (status != DDP_OK)
			return ddp_fail_context(status, "the model's parameters in bf16");
		model->rounded = (uint16_t *)(void *)model->rounded_memory.data;
	}
	return ddp_model_join_fit(model);
}

ddp_status ddp_model_create(ddp_context *context, const ddp_param *params, int count,
                            const ddp_model_options *options, ddp_model **model)
{
	if (context == NULL || model == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_model_create(): the context, or the place for the model, is NULL");
	ddp_comm *comm;
	ddp_status status = ddp_comm_choose(context->world, ddp_options_pointer(options, comm), "ddp_model_create()",
	                                    &comm);
	if (status != DDP_OK)
		return status;
	ddp_model *made = calloc(1, sizeof(*made));
	if (made == NULL) {
		ddp_fail(DDP_ERR_NOMEM, "no memory for a model");
		return ddp_model_agree(comm, DDP_ERR_NOMEM, NULL, NULL);
	}
	made->context = context;
	made->comm = comm;
	ddp_comm_keep(comm, 1);
	made->sync = true;
	made->compared = -1;

	status = prepare(made, params, count, options);
	status = ddp_model_agree(comm, status, &made->layout, &made->settings);
	if (status == DDP_OK && ddp_comm_rank(comm) == 0 &&
	    (made->settings.no_overlap || made->settings.no_communication))
		ddp_log(DDP_LOG_WARN, "DDP_MEASURE is set, for a measurement: the model %s", made->settings.no_communication ?
		        "of each rank is trained on its own" : "communicates after backward only");
	if (status == DDP_OK)
		status = join(made);
	if (status != DDP_OK) {
		ddp_watch_error(context->watch, status);
		ddp_model_free(made);
		return status;
	}
	made->learning_rate = made->settings.options.learning_rate;
	const ddp_loss_scaling *scaling = &made->settings.options.loss_scaling;
	made->scaler = (ddp_scaler){
		.kind = scaling->kind, .scale = scaling->kind != DDP_SCALING_NONE ? scaling->initial : 1,
		.interval = scaling->interval,
	};
	made->summary.evaluation_loss = NAN;
	ddp_watch_begin_step(context->watch, 1, made->plan.count);
	ddp_watch_go_on(context->watch);
	*model = made;
	return DDP_OK;
}

void ddp_model_free(ddp_model *model)
{
	if (model == NULL)
		return;
	ddp_comm *comm = model->comm;

	/* Parameters that are on their way leave no step unfinished. */
	const bool known = model->failed || model->partly_updated;
	if (model->strategy != NULL && model->own != NULL && ddp_model_arrive(model) != DDP_OK && !known)
		ddp_comm_leave_failure(comm);
	if (model->reducer.requests != NULL)
		ddp_reducer_abandon(&model->reducer, "a model was freed in the middle of a step");
	ddp_model_attach(model, NULL, NULL);
	ddp_timeline_mark(model->timeline, DDP_PHASE_IDLE, model->steps);
	(void)ddp_place_sync(&model->place); /* of a broken device, what frees still works */
	ddp_timeline_tell(model->timeline);
	ddp_timeline_close(model->timeline);
	ddp_model_unfit(model);
	ddp_arena_close(comm, &model->grads_memory);
	ddp_arena_close(comm, &model->params_memory);
	ddp_arena_close(comm, &model->rounded_memory);
	ddp_comm_keep(comm, -1);
	ddp_survival_close(model);
	ddp_place_close(&model->place);
	ddp_layout_free(&model->layout);
	ddp_uses_free(&model->uses);
	free(model->consensus);
	free(model->hooks);
	free(model->user_state);
	free(model);
}

float *ddp_model_param_data(ddp_model *model, int param)
{
	const ddp_slot *slot = ddp_model_slot(model, param);

	return slot != NULL ? ddp_arena_home(&model->params_memory) + slot->offset : NULL;
}

float *ddp_model_param_grad(ddp_model *model, int param)
{
	const ddp_slot *slot = ddp_model_slot(model, param);

	if (slot == NULL || slot->kind != DDP_PARAM_TRAINED)
		return NULL;
	return ddp_arena_home(&model->grads_memory) + slot->offset;
}

ddp_status ddp_model_arrive(ddp_model *model)
{
	ddp_status status = ddp_model_arrive_in(model, 0, model->layout.elements);

	/* A device's queue does not know which buckets have failed. */
	if (status == DDP_OK && (status = ddp_model_end_buckets(model)) != DDP_OK)
		model->partly_updated = true;
	return status;
}

ddp_status ddp_model_param_wait(ddp_model *model, int param)
{
	ddp_status status = ddp_model_check(model);

	if (status != DDP_OK)
		return status;
	const ddp_slot *slot = ddp_model_slot(model, param);
	if (slot == NULL && param != DDP_ALL_PARAMS)
		return ddp_fail(DDP_ERR_INVALID, "no parameter has index %d; there are %d", param,
		                model->layout.count);
	/* Nothing is on its way for a tensor that is not trained. */
	status = slot != NULL ? ddp_model_arrive_in(model, slot->offset, slot->offset + slot->count)
	                      : ddp_model_arrive_in(model, 0, model->layout.elements);
	if (status == DDP_OK)
		return DDP_OK;
	ddp_fail_context(status, "parameters of step %lld", (long long)model->steps);
	return ddp_model_fail(model, status);
}

double *ddp_model_device_loss(ddp_model *model)
{
	return model != NULL && model->results != NULL ? model->results->loss : NULL;
}

const uint16_t *ddp_model_param_bf16(const ddp_model *model, int param)
{
	const ddp_slot *slot = ddp_model_slot(model, param);

	if (slot == NULL || model->rounded == NULL || slot->offset >= model->layout.buffers)
		return NULL;
	return model->rounded + slot->offset;
}

void ddp_model_round_all(ddp_model *model)
{
	ddp_model_round(model, 0, model->layout.buffers);
}

int64_t ddp_model_param_count(const ddp_model *model, int param)
{
	const ddp_slot *slot = ddp_model_slot(model, param);

	return slot != NULL ? slot->count : 0;
}

static ddp_status broadcast(const ddp_model *model, float *params, size_t count)
{
	const ddp_operation there = {
		.kind = DDP_BROADCAST, .recv = params, .count = count, .type = DDP_F32,
		.memory = DDP_MEMORY_DEVICE, .stream = model->place.stream,
	};

	if (model->place.device != NULL)
		return ddp_run(model->comm, &there);
	return ddp_broadcast(model->comm, params, count, DDP_F32, 0);
}

ddp_status ddp_model_broadcast_params(ddp_model *model)
{
	ddp_status status = ddp_model_check(model);
	if (status != DDP_OK)
		return status;
	status = ddp_model_arrive(model);
	for (int64_t at = 0; at < model->layout.all && status == DDP_OK; at += BROADCAST_ELEMENTS) {
		int64_t left = model->layout.all - at;
		status = broadcast(model, model->params + at,
		                   (size_t)(left < BROADCAST_ELEMENTS ? left : BROADCAST_ELEMENTS));
	}
	if (status != DDP_OK) {
		ddp_fail_context(status, "broadcast of the parameters");
		return ddp_model_fail(model, status);
	}
	ddp_model_round(model, 0, model->layout.buffers);
	ddp_buddy_forget(model, model->steps);
	return DDP_OK;
}

void ddp_model_set_learning_rate(ddp_model *model, double learning_rate)
{
	if (model != NULL)
		model->learning_rate = learning_rate;
}

double ddp_model_loss_scale(const ddp_model *model)
{
	return model != NULL ? model->scaler.scale : 1;
}

void ddp_model_attach(ddp_model *model, void *thing, void (*release)(void *thing))
{
	if (model->attached != NULL)
		model->release(model->attached);
	model->attached = thing;
	model->release = release;
}

ddp_comm *ddp_model_comm(const ddp_model *model)
{
	return model != NULL ? model->comm : NULL;
}

ddp_status ddp_model_average_params(ddp_model *model)
{
	ddp_status status = ddp_model_check(model);

	if (status != DDP_OK || model->strategy->average == NULL)
		return status;
	status = model->strategy->average(model);
	return status == DDP_OK ? DDP_OK : ddp_model_fail(model, status);
}

int64_t ddp_model_step_count(const ddp_model *model)
{
	return model->steps;
}

void ddp_model_set_step_count(ddp_model *model, int64_t steps)
{
	model->steps = model->averaged = model->settled = steps;
	model->compared = -1;
	if (model->strategy->set_steps != NULL)
		model->strategy->set_steps(model, steps);
	ddp_watch_begin_step(model->context->watch, steps + 1, model->plan.count);
}

ddp_status ddp_model_check_whole(const ddp_model *model)
{
	if (model->partly_updated)
		return ddp_fail(DDP_ERR_STATE,
		                "only a part of what follows step %lld reached the parameters before it "
		                "failed; go back to the last checkpoint", (long long)model->steps);
	return model->strategy->check != NULL ? model->strategy->check(model, model->steps) : DDP_OK;
}

ddp_status ddp_model_begin_save(ddp_model *model, int64_t *steps, double *hypers)
{
	/* The model is partly updated if something does not arrive. */
	(void)ddp_model_arrive(model);
	*steps = model->steps;
	ddp_model_get_hypers(model, hypers);
	return ddp_model_check_whole(model);
}

void ddp_model_request_stop(ddp_model *model)
{
	if (model != NULL)
		atomic_store(&model->stop_requested, true);
}

void ddp_model_summary(const ddp_model *model, ddp_summary *summary)
{
	if (summary == NULL)
		return;
	*summary = model != NULL ? model->summary : (ddp_summary){ 0 };
	if (model == NULL)
		return;
	summary->shard = model->strategy->shard;
	summary->skipped = (int)model->scaler.skipped;
	summary->units_per_second =
		summary->seconds > 0 ? model->weight_sum / summary->seconds : 0;
	summary->overlap_ratio =
		ddp_overlap_ratio(summary->exposed_seconds, summary->communication_seconds);
	if (summary->steps == 0)
		summary->first_loss = summary->last_loss = summary->overlap_ratio = NAN;
}
