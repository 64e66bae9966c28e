/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/undo.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/fence.h"
#include "comm/agree.h"
#include "comm/allocate.h"
#include "reduce/model_state.h"

/* A rank's memory holds, for each piece, the step before whose update the piece was copied. Parameters and each state
   follow there, or lie in `own`. A piece is copied before its step is set, and changed afterwards. */
typedef struct area {
	_Atomic int64_t *copied;
	float *values[1 + DDP_OPTIM_STATES_MAX];
} area;

static area area_of(const ddp_model *model, const ddp_undo *undo, int rank)
{
	area a = { .copied = undo->memory[rank] };
	float *const first = undo->own != NULL ? undo->own : (float *)(a.copied + undo->pieces);

	for (int i = 0; i <= model->optim.state_count; i++)
		a.values[i] = first + i * undo->most;
	return a;
}

/* Only a device can fail here. Its next call then returns the error. */
static void copy(const ddp_model *model, float *to, const float *from, int64_t count)
{
	(void)ddp_place_copy(&model->place, to, from, (size_t)count * sizeof(*to));
}

static ddp_status allocate(const ddp_model *model, size_t bytes, ddp_undo *undo)
{
	void *own, *copied;
	const ddp_status status = ddp_place_alloc(&model->place, bytes, &own);

	if (status != DDP_OK)
		return status;
	undo->own = own;
	undo->memory[model->units.rank] = copied = calloc((size_t)undo->pieces, sizeof(int64_t));
	return copied != NULL ? DDP_OK
	                      : ddp_fail(DDP_ERR_NOMEM, "no memory for a list of %lld pieces", (long long)undo->pieces);
}

ddp_status ddp_undo_open(const ddp_model *model, int64_t most, bool shares, ddp_undo *undo)
{
	const ddp_units *units = &model->units;
	const size_t parts = 1 + (size_t)model->optim.state_count, bytes = (size_t)most * sizeof(float);
	ddp_undo made = { .most = most, .pieces = ddp_pieces_in(most) + units->count,
	                  .memory = calloc(parts * (size_t)units->ranks, sizeof(*made.memory)) };

	ddp_status status = made.memory != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for %d addresses", units->ranks);
	if (shares && status == DDP_OK)
		made.states = made.memory + units->ranks;
	for (int i = 0; i < model->optim.state_count && shares && status == DDP_OK; i++)
		status = ddp_comm_copies(model->comm, model->optim.state[i], bytes, made.states + i * units->ranks);
	if (shares)
		status = ddp_comm_agree(model->comm, status, "keep what an update changes");
	if (status == DDP_OK)
		status = shares ? ddp_host_share(model->comm, (size_t)made.pieces * sizeof(int64_t) + parts * bytes, made.memory)
		                : allocate(model, parts * bytes, &made);
	if (status == DDP_OK)
		*undo = made;
	else
		ddp_undo_close(model, &made);
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "what an update changes");
}

void ddp_undo_close(const ddp_model *model, ddp_undo *undo)
{
	void *memory = undo->memory != NULL ? undo->memory[model->units.rank] : NULL;

	if (undo->own != NULL)
		free(memory);
	else if (memory != NULL)
		ddp_mem_free(model->comm, memory);
	ddp_place_free(&model->place, undo->own);
	free(undo->memory);
	*undo = (ddp_undo){ 0 };
}

void ddp_undo_keep(const ddp_model *model, const ddp_undo *undo, int64_t step, int64_t begin, int64_t end, int64_t at)
{
	const ddp_units *units = &model->units;
	const area a = area_of(model, undo, units->rank);
	int i = units->list[ddp_unit_at(units, begin)].first_piece;

	copy(model, a.values[0] + at, model->params + begin, end - begin);
	for (int s = 0; s < model->optim.state_count; s++)
		copy(model, a.values[1 + s] + at, model->optim.state[s] + at, end - begin);
	for (; i < units->piece_count && units->pieces[i].begin < end; i++) {
		if (units->pieces[i].begin >= begin)
			atomic_store(&a.copied[i], step);
	}
	ddp_full_fence();
}

void ddp_undo_forget(const ddp_model *model, const ddp_undo *undo)
{
	const area a = area_of(model, undo, model->units.rank);

	for (int64_t i = 0; i < undo->pieces; i++)
		atomic_store(&a.copied[i], 0);
}

static float *state_of(const ddp_model *model, const ddp_undo *undo, int rank, int i)
{
	return undo->states != NULL ? undo->states[i * model->units.ranks + rank] : model->optim.state[i];
}

void ddp_undo_rank(const ddp_model *model, const ddp_undo *undo, int rank, int64_t step, void *const *arenas,
                   int count)
{
	const area a = area_of(model, undo, rank);
	void *const own = model->params;
	int64_t begin, end, now, number = 0, kept = 0;

	if (arenas == NULL) {
		arenas = &own;
		count = 1;
	}
	for (int u = 0; u < model->units.count; u++) {
		ddp_unit_slice(&model->units, &model->units.list[u], rank, &begin, &end);
		for (; begin < end; begin += now, kept += now, number++) {
			now = end - begin < DDP_PIECE_ELEMENTS ? end - begin : DDP_PIECE_ELEMENTS;
			if (atomic_load(&a.copied[number]) != step)
				continue;
			for (int i = 0; i < count; i++)
				copy(model, (float *)arenas[i] + begin, a.values[0] + kept, now);
			for (int i = 0; i < model->optim.state_count; i++)
				copy(model, state_of(model, undo, rank, i) + kept, a.values[1 + i] + kept, now);
		}
	}
}
