/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/fit.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"
#include "reduce/buddy.h"
#include "reduce/merge.h"
#include "reduce/model_state.h"

/* Whether the model's ranks exchange gradients. */
static bool communicates(const ddp_model *model)
{
	return ddp_comm_size(model->comm) > 1 && !model->settings.no_communication;
}

/* Whether its buckets, which are cut for the first time, are to be cut anew. */
static bool is_to_replan(const ddp_model *model)
{
	const ddp_model_settings *settings = &model->settings;
	const ddp_bucket_plan *plan = &model->plan;

	return model->strategy->recuts && communicates(model) && ddp_comm_nodes(model->comm) > 1 &&
	       model->place.device == NULL && !settings->caps_given && !settings->no_overlap &&
	       plan->count > 1 && plan->count <= DDP_GRAINS_MAX / 2;
}

static ddp_status make_plan(ddp_model *model)
{
	ddp_model_settings *settings = &model->settings;

	if (settings->bucket_elements == 0)
		settings->bucket_elements = ddp_default_bucket_elements(model->layout.elements);
	ddp_status status = ddp_bucket_plan_make(&model->layout, settings->first_bucket_elements,
	                                         settings->bucket_elements, &model->plan);
	if (status != DDP_OK || !is_to_replan(model))
		return status;
	status = ddp_bucket_plan_refine(&model->layout, &model->plan);
	return status == DDP_OK ? ddp_replan_open(model) : status;
}

/* `ranks`: those that communicate. */
static ddp_status make_units(ddp_model *model, int ranks)
{
	const ddp_comm *comm = model->comm;
	const int owners = model->strategy->per_node ? ddp_comm_local_size(comm) : ranks;
	const int rank = model->strategy->per_node ? ddp_comm_local_rank(comm) : ddp_comm_rank(comm);

	/* A node's units are each updated with their bucket. */
	return ddp_units_make(&model->layout, &model->plan, model->strategy->per_node, owners,
	                      owners > 1 ? rank : 0, &model->units);
}

static ddp_status make_reducer(ddp_model *model)
{
	ddp_reducer reducer = {
		.comm = model->comm, .watch = model->context->watch, .plan = &model->plan,
		.place = &model->place, .model = model,
		.communicates = communicates(model), .overlaps = !model->settings.no_overlap,
		.totals_max = DDP_CONSENSUS_COUNT + (size_t)ddp_uses_words_max(&model->uses),
	};

	/* Units of gradients, or buckets of as little as a grain; then tensors that one rank updates
	   for all. */
	const int tensors = model->optim.owners != NULL ? model->layout.trained : 0;
	const int grains = model->plan.grain_count;
	int requests = model->units.count > tensors ? model->units.count : tensors;
	requests = requests > grains ? requests : grains;

	ddp_status status = ddp_reducer_make(&model->layout, requests, &reducer);
	if (status == DDP_OK)
		model->reducer = reducer;
	return status;
}

static int rank_count(const ddp_model *model)
{
	return communicates(model) ? ddp_comm_size(model->comm) : 1;
}

/* Whether the model is made to be fitted to the ranks that this process joins. */
static bool joins(const ddp_model *model)
{
	return model->context->renewal.joins && model->comm == model->context->world;
}

int ddp_model_first_ranks(const ddp_model *model)
{
	return joins(model) ? model->context->job.world_size : rank_count(model);
}

/* Whether the layout has parameters whose rows travel, behind those whose gradients are in buckets. */
static bool has_rows(const ddp_layout *layout)
{
	for (int i = 0; i < layout->count; i++) {
		if (layout->slots[i].rows_travel)
			return true;
	}
	return false;
}

/* Whether the strategy moves rows. On a device they are added to the dense part where they are. */
static bool moves_rows(const ddp_model *model)
{
	return model->strategy->moves_rows && model->place.device == NULL;
}

/* A newcomer's is that of the ranks that it is to join. */
static const ddp_strategy *strategy_of_all(const ddp_model *model)
{
	const int nodes = joins(model) ? model->context->job.nnodes : ddp_comm_nodes(model->comm);
	const int ranks = ddp_model_first_ranks(model);
	const ddp_model_options *options = &model->settings.options;

	if (ranks == 1)
		return &ddp_all_reduce_strategy;
	if (options->hook.start != NULL)
		return &ddp_hook_strategy;
	if (options->local_sgd.steps > 0)
		return &ddp_local_strategy;
	if (options->compress == DDP_COMPRESS_POWERSGD)
		return &ddp_powersgd_strategy;
	if (options->compress != DDP_COMPRESS_NONE)
		return &ddp_compress_strategy;
	if (options->shard == DDP_SHARD_NONE)
		return &ddp_all_reduce_strategy;
	if (options->shard == DDP_SHARD_GRADIENTS)
		return &ddp_scatter_gradients_strategy;
	const bool shared = model->place.device == NULL && options->params_memory == NULL && options->grads_memory == NULL;
	/* In shared memory, sum, update and publication are one pass. */
	if (nodes == 1 && shared)
		return &ddp_node_strategy;
	if (ranks > nodes && shared && options->shard == DDP_SHARD_AUTO)
		return &ddp_hybrid_strategy;
	return options->shard == DDP_SHARD_STATE ? &ddp_scatter_strategy : &ddp_all_reduce_strategy;
}

bool ddp_model_gives_back(const ddp_model *model)
{
	return strategy_of_all(model)->gives_back;
}

int ddp_model_choose(ddp_model *model)
{
	model->strategy = strategy_of_all(model);
	/* Parameters stay where they are in the arenas, so a model whose rows have travelled goes on so. */
	if (has_rows(&model->layout) && !moves_rows(model))
		model->strategy = &ddp_hybrid_strategy;
	const int sharing = moves_rows(model) ? ddp_model_first_ranks(model) : 1;
	/* Until it joins the others, it is alone. */
	if (joins(model))
		model->strategy = &ddp_all_reduce_strategy;
	return sharing;
}

static ddp_status make_optim(ddp_model *model)
{
	const int ranks = rank_count(model);
	ddp_status status = DDP_OK;

	if (model->optim.layout == NULL)
		status = ddp_optim_make(&model->settings.options, &model->layout,
		                        model->strategy->spreads || model->place.device != NULL, &model->optim);
	return status == DDP_OK && ranks > 1 ? ddp_optim_share(&model->optim, ranks, ddp_comm_rank(model->comm)) : status;
}

ddp_status ddp_model_fit(ddp_model *model)
{
	const int ranks = rank_count(model), times = (model->first_ranks + ranks - 1) / ranks;
	ddp_status status = ddp_rows_make(&model->layout, ranks, times, &model->rows);

	if (status == DDP_OK)
		status = make_plan(model);
	if (status == DDP_OK)
		status = make_units(model, ranks);
	if (status == DDP_OK)
		status = make_optim(model);
	if (status == DDP_OK)
		status = make_reducer(model);
	if (status == DDP_OK)
		status = ddp_squares_open(model);
	/* A newcomer needs no more than its part, which it gets with the ranks that it joins. */
	if (status == DDP_OK && model->place.device != NULL)
		status = ddp_on_device_open(model, !strategy_of_all(model)->spreads);
	return status == DDP_OK && model->strategy->prepare != NULL ? model->strategy->prepare(model) : status;
}

ddp_status ddp_model_join_fit(ddp_model *model)
{
	/* If each rank updates its own part only, the end of a step rounds all. */
	model->optim.rounded = model->strategy->spreads ? NULL : model->rounded;
	ddp_status status = model->strategy->open != NULL ? model->strategy->open(model) : DDP_OK;
	if (status == DDP_OK && model->survival != NULL && model->strategy->keep_undo != NULL)
		status = model->strategy->keep_undo(model);
	return status;
}

void ddp_model_unfit(ddp_model *model)
{
	ddp_reducer_free(&model->reducer);
	ddp_replan_close(model);
	ddp_buddy_close(model);
	if (model->strategy != NULL && model->strategy->close != NULL)
		model->strategy->close(model);
	model->own = NULL;
	ddp_on_device_close(model);
	ddp_squares_close(model);
	ddp_rows_free(&model->rows);
	ddp_optim_free(&model->optim);
	ddp_units_free(&model->units);
	ddp_bucket_plan_free(&model->plan);
}

/* ---- for fewer ranks ------------------------------------------------------------------- */

/* Takes from the model what is made for its ranks, and which `former` keeps. */
static void take_off(ddp_model *model, ddp_model *former)
{
	*former = *model;
	model->own = NULL;
	model->buddy = NULL;
	model->reducer = (ddp_reducer){ 0 };
	model->replan = (ddp_replan){ 0 };
	model->squares = (ddp_squares){ 0 };
	model->rows = (ddp_rows){ 0 };
	model->units = (ddp_units){ 0 };
	model->plan = (ddp_bucket_plan){ 0 };
	model->optim = (ddp_optim){ 0 };
}

/* If each rank keeps all of the optimizer's state, before and now, that state stays where it is. */
static void keep_optim(ddp_model *model, ddp_model *former)
{
	if (former->strategy->spreads || model->strategy->spreads)
		return;
	model->optim = former->optim;
	model->optim.owners = NULL;
}

/* A newcomer, which was alone, has all of it. */
static void read_state(const ddp_model *former, int i, int64_t begin, int64_t end, float *to)
{
	if (former->strategy->spreads)
		former->strategy->read(former, i, begin, end, to);
	else
		memcpy(to, former->optim.state[i] + begin, (size_t)(end - begin) * sizeof(*to));
}

/* The elements that this rank updates from now on. */
static void move_state(const ddp_model *former, const ddp_model *model, int i)
{
	const ddp_units *units = &model->units;
	float *state = model->optim.state[i];
	int64_t begin, end;

	if (!model->strategy->spreads)
		read_state(former, i, 0, model->optim.state_elements[i], state);
	for (int u = 0; u < units->count && model->strategy->spreads; u++) {
		ddp_unit_slice(units, &units->list[u], units->rank, &begin, &end);
		read_state(former, i, begin, end, state);
		state += end - begin;
	}
}

/* Each rank takes its part of the optimizer's state from the ranks that are left, and from memory or copies of those
   that are lost. */
static ddp_status take_states(const ddp_model *former, ddp_model *model, const int *holders)
{
	ddp_status status = holders != NULL ? ddp_buddy_hand_over(former, model, holders) : DDP_OK;

	if (status != DDP_OK)
		return status;
	for (int i = 0; i < model->optim.state_count && holders == NULL; i++) {
		if (former->optim.state[i] != model->optim.state[i])
			move_state(former, model, i);
	}
	if (model->strategy->set_steps != NULL)
		model->strategy->set_steps(model, model->steps);
	return ddp_buddy_settle(model);
}

/* The model keeps the optimizer's memory, and what a device has for a step. */
static void spare_memory(ddp_model *former, const ddp_model *model)
{
	former->results = NULL;
	if (former->strategy->spreads || model->strategy->spreads)
		return;
	free(former->optim.owners);
	former->optim = (ddp_optim){ 0 };
}

/* As it was, for the former ranks. */
static void put_back(ddp_model *model, const ddp_model *former)
{
	spare_memory(model, former);
	(void)ddp_place_sync(&model->place);
	ddp_model_unfit(model);
	ddp_comm_keep(model->comm, -1);
	*model = *former;
}

static ddp_status fit_anew(ddp_model *model, ddp_model *former, ddp_comm *comm)
{
	take_off(model, former);
	model->comm = comm;
	ddp_comm_keep(comm, 1);
	ddp_model_choose(model);
	keep_optim(model, former);
	model->uses.ranks = rank_count(model);
	return ddp_model_fit(model);
}

ddp_status ddp_model_refit(ddp_model *model, ddp_comm *comm, const int *holders)
{
	ddp_model *former = calloc(1, sizeof(*former));
	ddp_status status = former != NULL ? fit_anew(model, former, comm) : ddp_fail(DDP_ERR_NOMEM, "no memory for a model");

	status = ddp_comm_agree(comm, status, "fit its model to the ranks that are left");
	if (status == DDP_OK)
		status = ddp_model_join_fit(model);
	if (status == DDP_OK)
		status = take_states(former, model, holders);
	/* No rank forgets the former memory before all have read from it. */
	if (status == DDP_OK)
		status = ddp_comm_agree(comm, DDP_OK, "fit its model to the ranks that are left");
	if (status != DDP_OK) {
		if (former != NULL)
			put_back(model, former);
		free(former);
		return status;
	}
	spare_memory(former, model);
	(void)ddp_place_sync(&model->place);
	ddp_comm_keep(former->comm, -1);
	ddp_model_unfit(former);
	free(former);
	return DDP_OK;
}
