/* SPDX-License-Identifier: Apache-2.0 */
/* scatter: ZeRO stages 1 and 2 (Rajbhandari et al., SC 2020) over any nodes. A bucket's
   units are reduce-scattered while backward runs: each rank gets the sums of what it
   owns, updates it with the optimizer's state that it alone keeps, and the new parameters
   are all-gathered: at the end of the step or, with late_gather, while the next forward
   runs, in the order in which that uses them. In stage 2 a bucket's gradients are given back
   to the system as soon as they are reduced, so that a rank holds its own sums and what is
   under way.

   A device's memory is not given back: both stages keep all gradients there. The host enqueues
   all of a backward pass before the device has reduced its first bucket, and memory can be
   unmapped, or lie elsewhere, only when the device needs it no more; so the host would have to
   wait in the backward pass, or to be told where a bucket's first gradient is about to be
   written, which a program that adds to fixed addresses does not tell.

   A unit's reduce-scatter combines in the order in which its all-reduce would, and squares
   are summed in the same pieces: the parameters' bits are those of all_reduce. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/agree.h"
#include "comm/request.h"
#include "reduce/buddy.h"
#include "reduce/model_state.h"

typedef struct scatter {
	float *sums;     /* of the gradients of what this rank owns */
	float *state[DDP_OPTIM_STATES_MAX];
	size_t *counts;  /* [units][ranks]: elements of each rank's slice */
	int ended;       /* buckets before it have given their gradients back */
	bool shares;     /* the node's other ranks reach `state` */
	int *order;      /* [units]: by the first parameter of each, as the program counts them */
	int arrived, gathered; /* of that order, units from `arrived` to `gathered` are on their way
	                    to all ranks */
} scatter;

static scatter *scatter_of(const ddp_model *model)
{
	return model->own;
}

static size_t *counts_of(const ddp_model *model, int u)
{
	return scatter_of(model)->counts + (size_t)u * (size_t)model->units.ranks;
}

static void fill_counts(const ddp_model *model)
{
	int64_t begin, end;

	for (int u = 0; u < model->units.count; u++) {
		for (int r = 0; r < model->units.ranks; r++) {
			ddp_unit_slice(&model->units, &model->units.list[u], r, &begin, &end);
			counts_of(model, u)[r] = (size_t)(end - begin);
		}
	}
}

static bool overlaps(const ddp_unit *unit, int64_t begin, int64_t end)
{
	return unit->begin < end && unit->end > begin;
}

/* `placed` is all false. */
static void fill_order(const ddp_model *model, bool *placed)
{
	int count = 0;

	for (int p = 0; p < model->layout.count; p++) {
		const ddp_slot *slot = ddp_model_slot(model, p);
		for (int u = 0; u < model->units.count; u++) {
			if (placed[u] || !overlaps(&model->units.list[u], slot->offset, slot->offset + slot->count))
				continue;
			placed[u] = true;
			scatter_of(model)->order[count++] = u;
		}
	}
}

/* As many numbers as a rank owns at most, and never nothing: the same on all ranks. */
static size_t shard_bytes(const ddp_model *model)
{
	return ((size_t)model->units.most + 1) * sizeof(float);
}

/* Allocates a shard where the model is. */
static ddp_status alloc_shard(const ddp_model *model, bool shares, float **shard)
{
	void *memory;

	ddp_status status = shares ? ddp_mem_alloc(model->comm, shard_bytes(model), &memory)
	                           : ddp_place_alloc(&model->place, shard_bytes(model), &memory);
	if (status != DDP_OK)
		return ddp_fail_context(status, "a shard of the model");
	*shard = memory;
	return DDP_OK;
}

static ddp_status alloc_states(ddp_model *model)
{
	scatter *s = scatter_of(model);
	ddp_status status = DDP_OK;

	for (int i = 0; i < model->optim.state_count && status == DDP_OK; i++) {
		status = alloc_shard(model, s->shares, &s->state[i]);
		ddp_optim_lend(&model->optim, i, s->state[i]);
	}
	return status;
}

static ddp_status prepare(ddp_model *model)
{
	scatter *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a shard of the model");
	model->own = s;
	s->counts = calloc((size_t)model->units.count * (size_t)model->units.ranks, sizeof(*s->counts));
	s->order = calloc((size_t)model->units.count, sizeof(*s->order));
	bool *placed = calloc((size_t)model->units.count, sizeof(*placed));
	const bool complete = s->counts != NULL && s->order != NULL && placed != NULL;
	if (complete)
		fill_order(model, placed);
	free(placed);
	if (!complete)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a list of %d units", model->units.count);
	fill_counts(model);
	s->shares = ddp_buddy_shares(model);
	ddp_status status = alloc_shard(model, false, &s->sums);
	return status == DDP_OK && !s->shares ? alloc_states(model) : status;
}

/* To share memory, ranks meet. */
static ddp_status open_states(ddp_model *model)
{
	return scatter_of(model)->shares ? alloc_states(model) : DDP_OK;
}

static void close_memory(ddp_model *model)
{
	scatter *s = scatter_of(model);

	if (s == NULL)
		return;
	ddp_place_free(&model->place, s->sums);
	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++) {
		if (!s->shares)
			ddp_place_free(&model->place, s->state[i]);
		else if (s->state[i] != NULL)
			ddp_mem_free(model->comm, s->state[i]);
	}
	free(s->counts);
	free(s->order);
	free(s);
}

/* Returns where this rank keeps its slice of a unit. */
static int64_t kept_of(const ddp_model *model, const ddp_unit *unit)
{
	return unit->first_piece < unit->end_piece ? model->units.pieces[unit->first_piece].kept : 0;
}

/* The units of bucket k are [*first, *end). */
static void units_of(const ddp_model *model, int k, int *first, int *end)
{
	const ddp_bucket *bucket = &model->plan.buckets[k];

	*first = ddp_unit_at(&model->units, bucket->begin);
	*end = ddp_unit_at(&model->units, bucket->end);
}

static bool is_reduced(const ddp_model *model, int k)
{
	int first, end;

	units_of(model, k, &first, &end);
	for (int u = first; u < end; u++) {
		const ddp_request *request = model->reducer.requests[u];
		if (request != NULL && !ddp_request_done(request))
			return false;
	}
	return true;
}

static ddp_status wait(ddp_model *model, int k)
{
	ddp_status status = DDP_OK;
	char name[32];
	int first, end;

	units_of(model, k, &first, &end);
	for (int u = first; u < end && status == DDP_OK; u++) {
		const ddp_unit *unit = &model->units.list[u];
		if (model->reducer.requests[u] == NULL)
			continue;
		snprintf(name, sizeof(name), "bucket %d", k);
		status = ddp_reducer_end(&model->reducer, u, name,
		                         (unit->end - unit->begin) * (int64_t)sizeof(float));
		if (status == DDP_OK)
			status = ddp_arena_clear(&model->grads_memory, unit->begin, unit->end);
	}
	return status;
}

static ddp_status arrive(ddp_model *model, int64_t begin, int64_t end)
{
	scatter *s = scatter_of(model);
	ddp_watch *watch = model->context->watch;
	const ddp_phase before = ddp_watch_current_phase(watch);
	ddp_status status = DDP_OK;
	int last = s->gathered;
	char name[32];

	while (last > s->arrived && !overlaps(&model->units.list[s->order[last - 1]], begin, end))
		last--;
	while (s->arrived < last && status == DDP_OK) {
		const int u = s->order[s->arrived++];
		const ddp_unit *unit = &model->units.list[u];
		ddp_watch_phase(watch, DDP_PHASE_WAIT);
		snprintf(name, sizeof(name), "parameters %d", u);
		status = ddp_reducer_end(&model->reducer, u, name,
		                         (unit->end - unit->begin) * (int64_t)sizeof(float));
		if (status == DDP_OK)
			ddp_model_round(model, unit->begin, unit->end);
	}
	ddp_watch_phase(watch, before);
	return status;
}

static ddp_status start(ddp_model *model, int k)
{
	scatter *s = scatter_of(model);
	ddp_status status = k == 0 ? arrive(model, 0, model->layout.elements) : DDP_OK;
	int first, end;

	if (status != DDP_OK)
		return status;
	if (k == 0)
		ddp_buddy_read(model);
	/* Those that are reduced make room for the gradients to come. */
	for (s->ended = k > 0 ? s->ended : 0; s->ended < k && is_reduced(model, s->ended); s->ended++) {
		status = wait(model, s->ended);
		if (status != DDP_OK)
			return status;
	}
	units_of(model, k, &first, &end);
	for (int u = first; u < end && status == DDP_OK; u++) {
		const ddp_unit *unit = &model->units.list[u];
		const ddp_operation operation = {
			.kind = DDP_REDUCE_SCATTER, .send = model->grads + unit->begin,
			.recv = s->sums + kept_of(model, unit), .counts = counts_of(model, u),
			.type = DDP_F32, .op = DDP_SUM,
			.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
		};
		status = ddp_reducer_issue(&model->reducer, u, &operation);
	}
	return status;
}

/* A row may be of several owners. */
static void add_row(const ddp_model *model, int64_t begin, const float *values, int64_t width)
{
	const ddp_units *units = &model->units;
	float *sums = scatter_of(model)->sums;

	for (int u = ddp_unit_at(units, begin);
	     u < units->count && units->list[u].begin < begin + width; u++) {
		for (int i = units->list[u].first_piece; i < units->list[u].end_piece; i++) {
			const ddp_piece *piece = &units->pieces[i];
			int64_t from = begin > piece->begin ? begin : piece->begin;
			int64_t to = begin + width < piece->end ? begin + width : piece->end;
			for (int64_t e = from; e < to; e++)
				sums[piece->kept + e - piece->begin] += values[e - begin];
		}
	}
}

static void add_rows(ddp_model *model, const ddp_slot *slot, const int32_t *rows,
                     const float *values, int64_t count)
{
	const int64_t width = slot->count / slot->shape[0];

	for (int64_t i = 0; i < count; i++)
		add_row(model, slot->offset + rows[i] * width, values + i * width, width);
}

static void discard(ddp_model *model)
{
	/* A failure is the device's, and known to the next who uses it. */
	(void)ddp_place_clear(&model->place, scatter_of(model)->sums, (size_t)model->units.most * sizeof(float));
}

static ddp_status reduce(ddp_model *model, double *squares)
{
	ddp_status status = ddp_model_wait(model, 0, model->plan.count);
	int64_t begin, end;

	if (status != DDP_OK)
		return status;
	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	ddp_squares_begin(model, true);
	for (int u = 0; u < model->units.count; u++) {
		const ddp_unit *unit = &model->units.list[u];
		ddp_unit_slice(&model->units, unit, model->units.rank, &begin, &end);
		ddp_squares_add(model, scatter_of(model)->sums + kept_of(model, unit), end - begin);
	}
	status = ddp_squares_end(model, squares);
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	return status == DDP_OK ? ddp_reducer_meet(&model->reducer, "norm", squares, 1) : status;
}

/* The request uses the number of the unit's reduce-scatter, for which nobody waits any more. On a device it
   begins after the update. */
static ddp_status gather_unit(ddp_model *model, int u)
{
	const ddp_operation operation = {
		.kind = DDP_ALL_GATHER, .recv = model->params + model->units.list[u].begin,
		.counts = counts_of(model, u), .type = DDP_F32,
		.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
	};

	return ddp_reducer_issue(&model->reducer, u, &operation);
}

/* Updates what this rank owns of units [first, end), and starts to gather all of them unless
   that is to be later. */
static ddp_status update_units(ddp_model *model, const ddp_update *update, int first, int end)
{
	ddp_status status = DDP_OK;
	int64_t from, to;

	model->partly_updated = true;
	for (int u = first; u < end && status == DDP_OK; u++) {
		const ddp_unit *unit = &model->units.list[u];
		const int64_t kept = kept_of(model, unit);

		ddp_unit_slice(&model->units, unit, model->units.rank, &from, &to);
		ddp_squares_update(model, update, model->params + from, scatter_of(model)->sums + kept, from, to, kept);
		if (!model->settings.options.late_gather)
			status = gather_unit(model, u);
	}
	return status;
}

/* Issues what is gathered late; or waits for what is not. */
static ddp_status hand_out(ddp_model *model)
{
	const bool late = model->settings.options.late_gather;
	scatter *s = scatter_of(model);
	ddp_status status = DDP_OK;

	for (int i = 0; i < model->units.count && late && status == DDP_OK; i++)
		status = gather_unit(model, s->order[i]);
	s->arrived = 0;
	s->gathered = model->units.count;
	if (status == DDP_OK && !late)
		status = arrive(model, 0, model->layout.elements);
	return status == DDP_OK && !late ? ddp_model_end_buckets(model) : status;
}

static ddp_status update(ddp_model *model, const ddp_update *update, bool reduced, double *squares)
{
	ddp_watch *watch = model->context->watch;
	ddp_status status = DDP_OK;
	double updated = 0;
	int first, end;

	ddp_squares_begin(model, !reduced);
	for (int k = 0; k < model->plan.count && status == DDP_OK; k++) {
		if (!reduced && k >= model->reducer.hold)
			ddp_watch_phase(watch, DDP_PHASE_WAIT);
		status = wait(model, k);
		ddp_watch_phase(watch, DDP_PHASE_OPTIMIZER);
		units_of(model, k, &first, &end);
		if (status == DDP_OK)
			status = update_units(model, update, first, end);
	}
	/* Parameters that travel by rows alone are complete. */
	if (status == DDP_OK)
		status = update_units(model, update, ddp_unit_at(&model->units, model->layout.dense),
		                      model->units.count);
	if (status == DDP_OK && !reduced)
		status = ddp_squares_end(model, &updated);
	ddp_watch_phase(watch, DDP_PHASE_WAIT);
	/* Who has ended a step shows that all ranks have updated. */
	if (status == DDP_OK && (!reduced || (model->buddy != NULL && model->settings.options.late_gather)))
		status = ddp_reducer_meet(&model->reducer, "norm", &updated, 1);
	if (status == DDP_OK)
		status = hand_out(model);
	if (status != DDP_OK)
		return status;
	model->partly_updated = false;
	if (!reduced)
		*squares = updated;
	return DDP_OK;
}

static ddp_status gather_from(ddp_model *model, const float *shard, float *whole)
{
	ddp_status status = DDP_OK;

	for (int u = 0; u < model->units.count && status == DDP_OK; u++) {
		const ddp_unit *unit = &model->units.list[u];
		const ddp_operation operation = {
			.kind = DDP_GATHER, .send = shard + kept_of(model, unit),
			.recv = whole != NULL ? whole + unit->begin : NULL, .counts = counts_of(model, u),
			.type = DDP_F32,
		};
		status = ddp_run(model->comm, &operation);
	}
	return status;
}

/* Copies a device's part of it to the host. */
static ddp_status fetch_shard(const ddp_model *model, int i, float **shard)
{
	const size_t bytes = shard_bytes(model);

	*shard = malloc(bytes);
	if (*shard == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a copy of a shard (%zu bytes)", bytes);
	return ddp_place_read(&model->place, *shard, scatter_of(model)->state[i], bytes);
}

static ddp_status gather(ddp_model *model, int i, float *whole)
{
	float *shard = NULL;

	if (model->place.device == NULL)
		return gather_from(model, scatter_of(model)->state[i], whole);
	ddp_status status = ddp_comm_agree(model->comm, fetch_shard(model, i, &shard),
	                                     "copy its shard of the optimizer's state");
	if (status == DDP_OK)
		status = gather_from(model, shard, whole);
	free(shard);
	return status;
}

const ddp_strategy ddp_scatter_strategy = {
	.name = "scatter", .shard = DDP_SHARD_STATE, .spreads = true, .moves_rows = true,
	.prepare = prepare, .open = open_states, .close = close_memory,
	.start = start, .wait = wait, .add_rows = add_rows, .discard = discard, .arrive = arrive,
	.reduce = reduce, .update = update, .gather = gather,
	.keep_undo = ddp_buddy_open, .undo = ddp_buddy_undo, .set_steps = ddp_buddy_forget,
};

const ddp_strategy ddp_scatter_gradients_strategy = {
	.name = "scatter, gradients too", .shard = DDP_SHARD_GRADIENTS, .spreads = true,
	.moves_rows = true, .gives_back = true,
	.prepare = prepare, .open = open_states, .close = close_memory,
	.start = start, .wait = wait, .add_rows = add_rows, .discard = discard, .arrive = arrive,
	.reduce = reduce, .update = update, .gather = gather,
	.keep_undo = ddp_buddy_open, .undo = ddp_buddy_undo, .set_steps = ddp_buddy_forget,
};
