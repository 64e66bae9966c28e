/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/join.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/pages.h"
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
	float *aside;      /* [AT_ONCE], or as many as are sent, where the model is: what this rank has already */
	int *holders;      /* [ranks]: see ddp_buddy_holders() */
	float *params, *grads; /* memory of the new world for the arenas; NULL: they stay where they are */
} joining;

/* A step leaves these numbers. */
typedef struct numbers {
	double learning_rate, largest;
	ddp_scaler scaler;
	ddp_step_stats stats;
	int64_t user_bytes;
} numbers;

/* Gives newcomers numbers of the model's memory. */
static ddp_operation giving(const joining *j, float *values, size_t count)
{
	const ddp_place *place = &j->model->place;

	return (ddp_operation){ .kind = DDP_BROADCAST, .type = DDP_F32, .root = j->root, .count = count,
	                        .recv = j->comes || j->gives ? values : j->aside, .memory = ddp_place_memory(place),
	                        .stream = place->stream };
}

static ddp_status give(const joining *j, float *values, int64_t count)
{
	ddp_status status = DDP_OK;

	for (int64_t at = 0; at < count && status == DDP_OK; at += AT_ONCE) {
		const ddp_operation sent = giving(j, values + at, (size_t)(count - at < AT_ONCE ? count - at : AT_ONCE));
		status = ddp_run(j->comm, &sent);
	}
	return status;
}

/* The new pages come here, as a lack of memory is an error here and would be a signal later. Linux before 5.14
   cannot. */
static ddp_status make_pages(float *from, size_t count)
{
#ifdef MADV_POPULATE_WRITE
	const size_t before = (uintptr_t)from % ddp_system_page_bytes(), bytes = before + count * sizeof(float);

	if (madvise((char *)from - before, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "no memory for %zu bytes of the model in the ranks' new world", bytes);
#else
	(void)from;
	(void)count;
#endif
	return DDP_OK;
}

/* The pages of the new world's gradients come, and those of the former ones go, which no rank needs any more. */
static ddp_status move_grads(const joining *j, int64_t at, size_t count)
{
	const ddp_arena *former = &j->model->grads_memory;
	const size_t page = ddp_system_page_bytes();

	ddp_status status = make_pages(j->grads + at, count);
	if (status != DDP_OK)
		return status;
	/* Otherwise all go at the end. */
	(void)madvise(former->data + at, count * sizeof(float) / page * page, former->own ? MADV_DONTNEED : MADV_REMOVE);
	return DDP_OK;
}

/* Does what takes a rank about as long as to read and write its arenas, while the network is busy. A rank that has
   stayed copies its parameters to the new world's memory. */
static ddp_status move_beside(const joining *j, int64_t at, size_t count)
{
	const ddp_model *model = j->model;
	const int64_t left = model->layout.elements - at;
	ddp_status status = DDP_OK;

	if (j->params != NULL && !j->comes)
		status = make_pages(j->params + at, count);
	if (status == DDP_OK && j->params != NULL && !j->comes)
		memcpy(j->params + at, model->params + at, count * sizeof(float));
	return status == DDP_OK && j->grads != NULL && left > 0
		? move_grads(j, at, left < (int64_t)count ? (size_t)left : count) : status;
}

/* Owners of shards send what they update with their shards. */
static ddp_status give_params(const joining *j)
{
	const int64_t all = j->model->layout.all, first = j->sharded ? j->model->layout.elements : 0;
	ddp_status status = DDP_OK;

	if (first > 0)
		status = move_beside(j, 0, (size_t)first);
	for (int64_t at = first; at < all && status == DDP_OK; at += AT_ONCE) {
		const size_t now = (size_t)(all - at < AT_ONCE ? all - at : AT_ONCE);
		const ddp_operation sent = giving(j, j->model->params + at, now);
		ddp_request *request;
		status = ddp_issue(j->comm, &sent, &request);
		if (status != DDP_OK)
			return status;
		const ddp_status moved = move_beside(j, at, now);
		status = ddp_wait(request);
		status = status == DDP_OK ? moved : status;
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

	ddp_status status = give_params(j);
	for (int i = 0; i < model->optim.state_count && status == DDP_OK && !j->sharded; i++)
		status = give_state(j, i);
	/* The ranks that have stayed have the same. */
	if (status == DDP_OK)
		status = ddp_broadcast(j->comm, model->uses.missed, (size_t)model->layout.count, DDP_F32, j->root);
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
	int64_t most = model->layout.all;
	void *aside = NULL;

	for (int i = 0; i < model->optim.state_count; i++)
		most = model->optim.state_elements[i] > most ? model->optim.state_elements[i] : most;
	most = most < AT_ONCE ? most : AT_ONCE;
	ddp_status status = ddp_place_alloc(&model->place, (size_t)most * sizeof(*j->aside), &aside);
	j->aside = aside;
	j->holders = calloc((size_t)ddp_comm_size(j->comm), sizeof(*j->holders));
	if (status == DDP_OK && j->holders == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory to join other ranks");
	return status == DDP_OK && j->comes ? ddp_survival_make(model) : status;
}

static ddp_status prepare_arenas(joining *j)
{
	float *none;

	ddp_status status = ddp_arena_prepare(j->comm, &j->model->params_memory, &j->params);
	if (status == DDP_OK)
		status = ddp_arena_prepare(j->comm, &j->model->grads_memory, &j->grads);
	/* On the host each rank has memory of its own for these. */
	return status == DDP_OK ? ddp_arena_prepare(j->comm, &j->model->rounded_memory, &none) : status;
}

/* A newcomer gets parameters where they stay. */
static ddp_status move_params(const joining *j)
{
	ddp_status status = ddp_arena_move(j->model->comm, j->params, &j->model->params_memory);

	j->model->params = j->model->params_memory.data;
	return status;
}

/* The step under way begins again, without its gradients. */
static ddp_status move_arenas(const joining *j)
{
	ddp_status status = j->comes ? DDP_OK : move_params(j);

	if (status == DDP_OK)
		status = ddp_arena_move(j->model->comm, j->grads, &j->model->grads_memory);
	j->model->grads = j->model->grads_memory.data;
	if (status == DDP_OK && j->grads == NULL)
		status = ddp_arena_clear(&j->model->grads_memory, 0, j->model->layout.elements);
	return ddp_comm_agree(j->comm, status, "keep its parameters");
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
		status = prepare_arenas(&j);
	if (status == DDP_OK)
		status = ddp_comm_agree(comm, j.comes ? move_params(&j) : DDP_OK, "make room for parameters");
	if (status == DDP_OK)
		status = give_all(&j, all[root].steps);
	if (status == DDP_OK)
		status = give_holders(&j);
	/* A device may still be clearing it. */
	(void)ddp_place_sync(&model->place);
	ddp_place_free(&model->place, j.aside);
	if (status == DDP_OK)
		status = move_arenas(&j);
	if (status == DDP_OK)
		status = ddp_model_refit(model, comm, j.sharded ? j.holders : NULL);
	free(j.holders);
	return status;
}
