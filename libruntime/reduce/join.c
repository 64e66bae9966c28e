/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/join.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"
#include "reduce/agree.h"
#include "reduce/buddy.h"
#include "reduce/fit.h"
#include "reduce/model_state.h"
#include "reduce/survival.h"

/* 64 MiB. Each broadcast has a deadline of its own. */
enum { AT_ONCE = 1 << 24 };

typedef struct joining {
	ddp_model *model;
	ddp_comm *comm;
	int root;
	bool comes, gives; /* this rank is a newcomer, or the root */
	bool sharded;      /* ranks have shards, which the root does not reach */
	float *aside;      /* [AT_ONCE], or as many as are sent: what this rank has already */
	int *holders;      /* [ranks]: see ddp_buddy_holders() */
} joining;

/* A step leaves these numbers. */
typedef struct numbers {
	double learning_rate, largest;
	ddp_scaler scaler;
	ddp_step_stats stats;
	int64_t user_bytes;
} numbers;

static ddp_status give(const joining *j, float *values, int64_t count)
{
	ddp_status status = DDP_OK;

	for (int64_t at = 0; at < count && status == DDP_OK; at += AT_ONCE) {
		const size_t now = (size_t)(count - at < AT_ONCE ? count - at : AT_ONCE);
		status = ddp_broadcast(j->comm, j->comes || j->gives ? values + at : j->aside, now, DDP_F32, j->root);
	}
	return status;
}

/* The root reads what ranks of its node have kept. */
static ddp_status give_state(const joining *j, int i)
{
	const ddp_model *model = j->model;
	const int64_t count = model->optim.state_elements[i];
	ddp_status status = DDP_OK;

	if (!j->gives || !model->strategy->spreads)
		return give(j, model->optim.state[i], count);
	for (int64_t at = 0; at < count && status == DDP_OK; at += AT_ONCE) {
		const int64_t end = count - at < AT_ONCE ? count : at + AT_ONCE;
		model->strategy->read(model, i, at, end, j->aside);
		status = ddp_broadcast(j->comm, j->aside, (size_t)(end - at), DDP_F32, j->root);
	}
	return status;
}

static ddp_status give_user_state(const joining *j, size_t bytes)
{
	ddp_model *model = j->model;
	void *state = bytes > 0 ? malloc(bytes) : NULL;

	ddp_status status = DDP_OK;
	if (bytes > 0 && state == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes", bytes);
	status = ddp_comm_agree(j->comm, status, "get the program's state");
	if (status == DDP_OK && bytes > 0 && j->gives)
		memcpy(state, model->user_state, bytes);
	if (status == DDP_OK && bytes > 0)
		status = ddp_broadcast(j->comm, state, bytes, DDP_U8, j->root);
	if (status == DDP_OK && j->comes)
		status = ddp_model_set_user_state(model, state, bytes);
	free(state);
	return status;
}

static ddp_status give_numbers(const joining *j, int64_t steps)
{
	ddp_model *model = j->model;
	numbers sent = { .learning_rate = model->learning_rate, .largest = model->largest, .scaler = model->scaler,
	                 .stats = model->survival->now.stats, .user_bytes = (int64_t)model->user_bytes };

	ddp_status status = ddp_broadcast(j->comm, &sent, sizeof(sent), DDP_U8, j->root);
	if (status == DDP_OK && j->comes) {
		model->learning_rate = sent.learning_rate;
		model->largest = sent.largest;
		model->scaler = sent.scaler;
		model->stats = sent.stats;
		model->steps = model->averaged = model->settled = steps;
	}
	return status == DDP_OK ? give_user_state(j, (size_t)sent.user_bytes) : status;
}

static ddp_status give_all(const joining *j, int64_t steps)
{
	ddp_model *model = j->model;
	/* What the owners of shards update comes with the shards. */
	const int64_t first = j->sharded ? model->layout.elements : 0;

	ddp_status status = give(j, model->params + first, model->layout.all - first);
	for (int i = 0; i < model->optim.state_count && status == DDP_OK && !j->sharded; i++)
		status = give_state(j, i);
	if (status == DDP_OK)
		status = give(j, model->uses.missed, model->layout.count);
	if (status == DDP_OK)
		status = give_numbers(j, steps);
	if (status != DDP_OK || !j->comes)
		return status;
	ddp_model_round_all(model);
	ddp_survival_end_step(model);
	return DDP_OK;
}

/* This can fail on this rank alone. */
static ddp_status prepare(joining *j)
{
	ddp_model *model = j->model;
	int64_t most = model->layout.all > model->layout.count ? model->layout.all : model->layout.count;

	for (int i = 0; i < model->optim.state_count; i++)
		most = model->optim.state_elements[i] > most ? model->optim.state_elements[i] : most;
	j->aside = malloc((size_t)(most < AT_ONCE ? most : AT_ONCE) * sizeof(*j->aside));
	j->holders = calloc((size_t)ddp_comm_size(j->comm), sizeof(*j->holders));
	if (j->aside == NULL || j->holders == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to join other ranks");
	return j->comes ? ddp_survival_make(model) : DDP_OK;
}

/* The ranks of the new world share what those of the former one have shared. */
static ddp_status move_arenas(ddp_model *model, ddp_comm *comm)
{
	ddp_status status = ddp_arena_leave(model->comm, &model->params_memory);

	if (status == DDP_OK)
		status = ddp_arena_leave(model->comm, &model->grads_memory);
	model->params = model->params_memory.data;
	model->grads = model->grads_memory.data;
	status = ddp_comm_agree(comm, status, "keep its parameters");
	if (status == DDP_OK)
		status = ddp_arena_share(comm, &model->params_memory);
	model->params = model->params_memory.data;
	if (status == DDP_OK)
		status = ddp_arena_share(comm, &model->grads_memory);
	model->grads = model->grads_memory.data;
	return status;
}

/* The newcomers learn who has the shards. */
static ddp_status give_holders(const joining *j)
{
	const size_t bytes = (size_t)ddp_comm_size(j->comm) * sizeof(*j->holders);

	if (!j->sharded)
		return DDP_OK;
	if (j->gives)
		memcpy(j->holders, ddp_buddy_holders(j->model), bytes);
	return ddp_broadcast(j->comm, j->holders, bytes, DDP_U8, j->root);
}

ddp_status ddp_join(ddp_model *model, ddp_comm *comm, const ddp_survivor *all, int root)
{
	const int rank = ddp_comm_rank(comm);
	joining j = { .model = model, .comm = comm, .root = root, .comes = all[rank].whole == 0,
	              .gives = rank == root, .sharded = all[root].sharded != 0 };

	ddp_status status = ddp_model_agree(comm, prepare(&j), &model->layout, &model->settings);
	if (status == DDP_OK)
		status = give_all(&j, all[root].steps);
	if (status == DDP_OK)
		status = give_holders(&j);
	free(j.aside);
	if (status == DDP_OK)
		status = move_arenas(model, comm);
	if (status == DDP_OK)
		status = ddp_model_refit(model, comm, j.sharded ? j.holders : NULL);
	free(j.holders);
	return status;
}
