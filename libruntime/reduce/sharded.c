#include "reduce/sharded.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fence.h"
#include "comm/core/failure.h"
#include "comm/ops/kernels.h"
#include "kernels.h"

/* 128 KiB of each arena: what one piece needs stays in a core's own cache. */
enum { PIECE_ELEMENTS = 32 * 1024 };

static int64_t piece_count(int64_t begin, int64_t end)
{
	return (end - begin + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
}

static int64_t piece_end(int64_t begin, int64_t end)
{
	return end - begin < PIECE_ELEMENTS ? end : begin + PIECE_ELEMENTS;
}

static double total(const double *squares, int64_t count)
{
	double sum = 0;

	for (int64_t i = 0; i < count; i++)
		sum += squares[i];
	return sum;
}

double ddp_sum_squares(const float *grads, int64_t begin, int64_t end)
{
	double sum = 0;

	for (; begin < end; begin = piece_end(begin, end))
		sum += dk_sum_squares(grads + begin, piece_end(begin, end) - begin);
	return sum;
}

static int64_t largest_part(const ddp_layout *layout, int ranks)
{
	int64_t begin, end, largest = 1;

	for (int r = 0; r < ranks; r++) {
		ddp_layout_part(layout, ranks, r, &begin, &end);
		if (end - begin > largest)
			largest = end - begin;
	}
	return largest;
}

ddp_status ddp_sharded_make(ddp_comm *comm, const ddp_layout *layout, ddp_sharded *sharded)
{
	int ranks = ddp_comm_size(comm);
	ddp_sharded made = { .layout = layout, .ranks = ranks, .rank = ddp_comm_rank(comm) };

	ddp_layout_part(layout, ranks, made.rank, &made.begin, &made.end);
	made.params = calloc((size_t)ranks, sizeof(*made.params));
	made.grads = calloc((size_t)ranks, sizeof(*made.grads));
	made.begun = calloc((size_t)ranks, sizeof(*made.begun));
	made.squares = calloc((size_t)piece_count(made.begin, made.end) + 1, sizeof(*made.squares));
	bool complete = made.params != NULL && made.grads != NULL && made.begun != NULL &&
	                made.squares != NULL;
	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++) {
		made.state[i] = calloc((size_t)ranks, sizeof(*made.state[i]));
		complete = complete && made.state[i] != NULL;
	}
	*sharded = made;
	if (!complete)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the addresses of %d ranks' parameters",
		                ranks);
	return DDP_OK;
}

static ddp_status share(ddp_comm *comm, size_t bytes, void **copies)
{
	void *memory;

	ddp_status status = ddp_mem_alloc(comm, bytes, &memory);
	return status == DDP_OK ? ddp_comm_copies(comm, memory, bytes, copies) : status;
}

ddp_status ddp_sharded_join(ddp_sharded *sharded, ddp_comm *comm, float *params, float *grads,
                            ddp_optim *optim)
{
	size_t bytes = (size_t)sharded->layout->elements * sizeof(float);
	size_t part = (size_t)largest_part(sharded->layout, sharded->ranks) * sizeof(float);

	ddp_status status = ddp_comm_copies(comm, params, bytes, sharded->params);
	if (status == DDP_OK)
		status = ddp_comm_copies(comm, grads, bytes, sharded->grads);
	if (status == DDP_OK)
		status = share(comm, sizeof(_Atomic int64_t), sharded->begun);
	for (int i = 0; i < optim->state_count && status == DDP_OK; i++) {
		status = share(comm, part, sharded->state[i]);
		if (status == DDP_OK)
			ddp_optim_lend(optim, i, sharded->state[i][sharded->rank], sharded->begin);
	}
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "the optimizer's state");
}

static void release(const ddp_sharded *sharded, ddp_comm *comm, void **copies)
{
	if (copies != NULL)
		ddp_mem_free(comm, copies[sharded->rank]);
	free(copies);
}

void ddp_sharded_free(ddp_sharded *sharded, ddp_comm *comm)
{
	free(sharded->params);
	free(sharded->grads);
	free(sharded->squares);
	release(sharded, comm, sharded->begun);
	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++)
		release(sharded, comm, sharded->state[i]);
	*sharded = (ddp_sharded){ 0 };
}

static _Atomic int64_t *begun_of(const ddp_sharded *sharded, int rank)
{
	return sharded->begun[rank];
}

ddp_status ddp_sharded_begin(ddp_sharded *sharded, ddp_comm *comm, int64_t step)
{
	_Atomic int64_t *begun = begun_of(sharded, sharded->rank);

	/* Who saves does the reverse: it sees the communicator broken, then looks here. */
	atomic_store(begun, step);
	ddp_full_fence();
	ddp_status status = ddp_comm_check(comm);
	if (status != DDP_OK)
		atomic_store(begun, step - 1);
	return status;
}

void ddp_sharded_set_steps(ddp_sharded *sharded, int64_t steps)
{
	atomic_store(begun_of(sharded, sharded->rank), steps);
}

ddp_status ddp_sharded_check(const ddp_sharded *sharded, int64_t steps)
{
	ddp_full_fence();
	for (int r = 0; r < sharded->ranks; r++) {
		if (atomic_load(begun_of(sharded, r)) > steps)
			return ddp_fail(DDP_ERR_STATE,
			                "step %lld failed after rank %d began to update the parameters; go back "
			                "to the last checkpoint", (long long)steps + 1, r);
	}
	return DDP_OK;
}

/* What the threads of one pass share. */
typedef struct pass {
	ddp_sharded *sharded;
	ddp_optim *optim;         /* NULL: sum only */
	const ddp_update *update;
	bool summed;
} pass;

static void sum_piece(const ddp_sharded *sharded, int64_t begin, int64_t end)
{
	const ddp_combination fold = {
		.type = DDP_F32, .op = DDP_SUM, .nsrc = sharded->ranks,
		.src = (const void *const *)sharded->grads,
		.ndst = 1, .dst = &sharded->grads[sharded->rank],
	};

	ddp_combine(&fold, (size_t)begin, (size_t)(end - begin));
	for (int r = 0; r < sharded->ranks; r++) {
		float *grads = sharded->grads[r];
		if (r != sharded->rank)
			memset(grads + begin, 0, (size_t)(end - begin) * sizeof(float));
	}
}

static double update_piece(const pass *p, int64_t begin, int64_t end)
{
	const ddp_sharded *sharded = p->sharded;
	float *own = sharded->params[sharded->rank];

	double squares = ddp_optim_apply(p->optim, p->update, own, sharded->grads[sharded->rank],
	                                 begin, end);
	for (int r = 0; r < sharded->ranks; r++) {
		float *params = sharded->params[r];
		if (r != sharded->rank)
			memcpy(params + begin, own + begin, (size_t)(end - begin) * sizeof(float));
	}
	return squares;
}

static void run_pieces(void *argument, int64_t first, int64_t last)
{
	const pass *p = argument;
	const ddp_sharded *sharded = p->sharded;
	const float *grads = sharded->grads[sharded->rank];

	for (int64_t i = first; i < last; i++) {
		int64_t begin = sharded->begin + i * PIECE_ELEMENTS;
		int64_t end = piece_end(begin, sharded->end);

		if (!p->summed)
			sum_piece(sharded, begin, end);
		sharded->squares[i] = p->optim != NULL
			? update_piece(p, begin, end)
			: dk_sum_squares(grads + begin, end - begin);
	}
}

static double run_pass(pass *p)
{
	int64_t pieces = piece_count(p->sharded->begin, p->sharded->end);

	dk_parallel(pieces, 1, run_pieces, p);
	return total(p->sharded->squares, pieces);
}

double ddp_sharded_sum(ddp_sharded *sharded)
{
	return run_pass(&(pass){ .sharded = sharded });
}

double ddp_sharded_update(ddp_sharded *sharded, ddp_optim *optim, const ddp_update *update,
                          bool summed)
{
	return run_pass(&(pass){ .sharded = sharded, .optim = optim, .update = update,
	                         .summed = summed });
}

void ddp_sharded_collect(const ddp_sharded *sharded, int i, float *whole)
{
	int64_t begin, end;

	for (int r = 0; r < sharded->ranks; r++) {
		ddp_layout_part(sharded->layout, sharded->ranks, r, &begin, &end);
		memcpy(whole + begin, sharded->state[i][r], (size_t)(end - begin) * sizeof(*whole));
	}
}

void ddp_sharded_store(const ddp_sharded *sharded, int i, int64_t first, const float *values,
                       int64_t count)
{
	float *own = sharded->state[i][sharded->rank];
	int64_t from = first > sharded->begin ? first : sharded->begin;
	int64_t to = first + count < sharded->end ? first + count : sharded->end;

	if (from < to)
		memcpy(own + (from - sharded->begin), values + (from - first),
		       (size_t)(to - from) * sizeof(*own));
}
