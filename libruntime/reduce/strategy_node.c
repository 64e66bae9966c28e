/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/strategy_node.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fence.h"
#include "comm/allocate.h"
#include "comm/core/failure.h"
#include "comm/ops/kernels.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "reduce/undo.h"

/* Addresses are those in this process, of the memory of each of the node's ranks. */
typedef struct node {
	int ranks, rank;         /* of this node, as in the model's units */
	ddp_units world;         /* if buckets are all-reduced: see ddp_node_strategy_world() */
	void **params, **grads;  /* [ranks]: arenas; gradients of one node only */
	void **state[DDP_OPTIM_STATES_MAX]; /* [ranks]: of what that rank owns */
	void **begun;            /* [ranks]: _Atomic int64_t, the last step whose update
	                            that rank has begun */
	double *squares;         /* of each of this rank's pieces */
	ddp_undo undo;           /* no memory: nothing is kept */
} node;

static node *node_of(const ddp_model *model)
{
	return model->own;
}

ddp_status ddp_node_strategy_prepare(ddp_model *model)
{
	ddp_comm *comm = model->comm;
	size_t ranks = (size_t)model->units.ranks;

	node *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the addresses of %zu ranks' parameters", ranks);
	model->own = made;
	made->ranks = model->units.ranks;
	made->rank = model->units.rank;
	made->params = calloc(ranks, sizeof(*made->params));
	made->grads = calloc(ranks, sizeof(*made->grads));
	made->begun = calloc(ranks, sizeof(*made->begun));
	made->squares = calloc((size_t)model->units.piece_count + 1, sizeof(*made->squares));
	if (model->strategy->start != NULL) {
		ddp_status status = ddp_units_make(&model->layout, &model->plan, false, ddp_comm_size(comm),
		                                   ddp_comm_rank(comm), &made->world);
		if (status != DDP_OK)
			return status;
	}
	bool complete = made->params != NULL && made->grads != NULL && made->begun != NULL &&
	                made->squares != NULL;
	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++) {
		made->state[i] = calloc(ranks, sizeof(*made->state[i]));
		complete = complete && made->state[i] != NULL;
	}
	return complete ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for the addresses of %zu ranks' "
	                                    "parameters", ranks);
}

/* Bytes for what any rank owns, never none: as many on all ranks, however many a node has. */
static size_t kept_bytes(const ddp_model *model)
{
	const int64_t rounding = (int64_t)(model->units.count + 1) * DDP_ALIGN_ELEMENTS;
	const int ranks = ddp_comm_least_local_size(model->comm);

	return (size_t)(model->layout.elements / ranks + rounding) * sizeof(float);
}

ddp_status ddp_node_strategy_open(ddp_model *model)
{
	node *n = node_of(model);
	ddp_comm *comm = model->comm;
	const size_t params_bytes = (size_t)model->layout.all * sizeof(float);
	const size_t grads_bytes = (size_t)model->layout.elements * sizeof(float);

	ddp_status status = ddp_comm_copies(comm, model->params, params_bytes, n->params);
	/* Over several nodes, each rank has all sums in its own memory. */
	if (status == DDP_OK && ddp_comm_nodes(comm) == 1)
		status = ddp_comm_copies(comm, model->grads, grads_bytes, n->grads);
	if (status == DDP_OK)
		status = ddp_host_share(comm, sizeof(_Atomic int64_t), n->begun);
	for (int i = 0; i < model->optim.state_count && status == DDP_OK; i++) {
		status = ddp_host_share(comm, kept_bytes(model), n->state[i]);
		if (status == DDP_OK)
			ddp_optim_lend(&model->optim, i, n->state[i][n->rank]);
	}
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "the optimizer's state");
}

static void release(ddp_comm *comm, int rank, void **copies)
{
	if (copies != NULL)
		ddp_mem_free(comm, copies[rank]);
	free(copies);
}

void ddp_node_strategy_close(ddp_model *model)
{
	node *n = node_of(model);
	ddp_comm *comm = model->comm;

	if (n == NULL)
		return;
	free(n->params);
	free(n->grads);
	free(n->squares);
	ddp_undo_close(model, &n->undo);
	ddp_units_free(&n->world);
	release(comm, n->rank, n->begun);
	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++)
		release(comm, n->rank, n->state[i]);
	free(n);
}

static _Atomic int64_t *begun_of(const node *n, int rank)
{
	return n->begun[rank];
}

ddp_status ddp_node_strategy_begin(ddp_model *model, int64_t step)
{
	_Atomic int64_t *begun = begun_of(node_of(model), node_of(model)->rank);

	/* A rank that saves does the reverse: it first sees the communicator broken, then looks here. */
	atomic_store(begun, step);
	ddp_full_fence();
	ddp_status status = ddp_comm_check(model->comm);
	if (status != DDP_OK)
		atomic_store(begun, step - 1);
	return status;
}

ddp_status ddp_node_strategy_end(ddp_model *model, bool reduced, double updated, double *squares)
{
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	ddp_status status = ddp_reducer_meet(&model->reducer, "updated", &updated, 1);
	if (status != DDP_OK)
		return status;
	model->partly_updated = false;
	if (!reduced)
		*squares = updated;
	return DDP_OK;
}

ddp_status ddp_node_strategy_check(const ddp_model *model, int64_t steps)
{
	const node *n = node_of(model);

	ddp_full_fence();
	for (int r = 0; r < n->ranks; r++) {
		if (atomic_load(begun_of(n, r)) > steps)
			return ddp_fail(DDP_ERR_STATE,
			                "step %lld failed after rank %d began to update the parameters; go back "
			                "to the last checkpoint", (long long)steps + 1,
			                ddp_comm_world_rank(model->comm, ddp_comm_rank_at(model->comm, r)));
	}
	return DDP_OK;
}

/* The threads of one pass share this. */
typedef struct pass {
	ddp_model *model;
	node *node;
	const ddp_update *update; /* NULL: sum only */
	bool reduced;
	int first;                /* piece */
} pass;

/* Into this rank's own gradients; those of the others become 0. */
static void sum_piece(const node *n, const ddp_piece *piece)
{
	const size_t begin = (size_t)piece->begin, count = (size_t)(piece->end - piece->begin);
	const ddp_combination sum = {
		.type = DDP_F32, .op = DDP_SUM, .nsrc = n->ranks, .src = (const void *const *)n->grads,
		.ndst = 1, .dst = &n->grads[n->rank],
	};

	ddp_combine(&sum, begin, count);
	for (int r = 0; r < n->ranks; r++) {
		float *grads = n->grads[r];
		if (r != n->rank)
			memset(grads + begin, 0, count * sizeof(float));
	}
}

/* ---- undo ------------------------------------------------------------------------------ */

ddp_status ddp_node_strategy_keep_undo(ddp_model *model)
{
	/* A first call that failed has not ended what the model keeps. */
	ddp_undo_close(model, &node_of(model)->undo);
	return ddp_undo_open(model, (int64_t)(kept_bytes(model) / sizeof(float)), true, &node_of(model)->undo);
}

void ddp_node_strategy_set_steps(ddp_model *model, int64_t steps)
{
	atomic_store(begun_of(node_of(model), node_of(model)->rank), steps);
	if (node_of(model)->undo.memory != NULL)
		ddp_undo_forget(model, &node_of(model)->undo);
}

void ddp_node_strategy_undo(ddp_model *model, int64_t step, const bool *dead)
{
	const node *n = node_of(model);
	int first = 0;

	/* One rank of the node does it for the dead. */
	while (dead[first])
		first++;
	for (int r = 0; r < n->ranks && n->undo.memory != NULL; r++) {
		if (r == n->rank || (dead[r] && n->rank == first))
			ddp_undo_rank(model, &n->undo, r, step, n->params, n->ranks);
	}
}

/* ---- the pass -------------------------------------------------------------------------- */

/* Updates a piece for all ranks. */
static double update_piece(const pass *p, const ddp_piece *piece)
{
	const node *n = p->node;
	float *own = p->model->params + piece->begin;

	if (n->undo.memory != NULL)
		ddp_undo_keep(p->model, &n->undo, p->update->step, piece->begin, piece->end, piece->kept);
	double squares = ddp_optim_apply(&p->model->optim, p->update, own,
	                                 p->model->grads + piece->begin, piece->begin, piece->end,
	                                 piece->kept);
	for (int r = 0; r < n->ranks; r++) {
		float *params = n->params[r];
		if (r != n->rank)
			memcpy(params + piece->begin, own, (size_t)(piece->end - piece->begin) * sizeof(float));
	}
	return squares;
}

static void run_pieces(void *argument, int64_t first, int64_t last)
{
	const pass *p = argument;

	for (int64_t i = p->first + first; i < p->first + last; i++) {
		const ddp_piece *piece = &p->model->units.pieces[i];

		if (!p->reduced)
			sum_piece(p->node, piece);
		p->node->squares[i] = p->update != NULL
			? update_piece(p, piece)
			: dk_sum_squares(p->model->grads + piece->begin, piece->end - piece->begin);
	}
}

/* Runs over pieces [first, end). */
static double run_pass(ddp_model *model, const ddp_update *update, bool reduced, int first, int end)
{
	pass p = { .model = model, .node = node_of(model), .update = update, .reduced = reduced,
	           .first = first };
	double squares = 0;

	dk_parallel(end - first, 1, run_pieces, &p);
	for (int i = first; i < end; i++)
		squares += p.node->squares[i];
	return squares;
}

double ddp_node_strategy_update(ddp_model *model, const ddp_update *update, int first, int end)
{
	const ddp_unit *list = model->units.list;

	return first < end ? run_pass(model, update, true, list[first].first_piece, list[end - 1].end_piece) : 0;
}

const ddp_units *ddp_node_strategy_world(const ddp_model *model)
{
	return &node_of(model)->world;
}

static ddp_status reduce(ddp_model *model, double *squares)
{
	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	*squares = run_pass(model, NULL, false, 0, model->units.piece_count);
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	return ddp_reducer_meet(&model->reducer, "norm", squares, 1);
}

static ddp_status update(ddp_model *model, const ddp_update *update, bool reduced, double *squares)
{
	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	ddp_status status = ddp_node_strategy_begin(model, update->step);
	if (status != DDP_OK)
		return status;
	model->partly_updated = true;
	const double updated = run_pass(model, update, reduced, 0, model->units.piece_count);
	return ddp_node_strategy_end(model, reduced, updated, squares);
}

void ddp_node_strategy_read(const ddp_model *model, int i, int64_t from, int64_t to, float *values)
{
	const ddp_units *units = &model->units;
	const node *n = node_of(model);
	int64_t begin, end;

	for (int r = 0; r < n->ranks; r++) {
		const float *kept = n->state[i][r];
		for (int u = 0; u < units->count && units->list[u].begin < to; u++) {
			ddp_unit_slice(units, &units->list[u], r, &begin, &end);
			const int64_t first = begin > from ? begin : from, last = end < to ? end : to;
			if (first < last)
				memcpy(values + (first - from), kept + (first - begin), (size_t)(last - first) * sizeof(*values));
			kept += end - begin;
		}
	}
}

const ddp_strategy ddp_node_strategy = {
	.name = "node", .shard = DDP_SHARD_STATE, .spreads = true,
	.per_node = true,
	.prepare = ddp_node_strategy_prepare, .open = ddp_node_strategy_open,
	.close = ddp_node_strategy_close, .reduce = reduce, .update = update,
	.survives = true, .keep_undo = ddp_node_strategy_keep_undo, .undo = ddp_node_strategy_undo,
	.read = ddp_node_strategy_read, .check = ddp_node_strategy_check,
	.set_steps = ddp_node_strategy_set_steps,
};
