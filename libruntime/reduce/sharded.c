#include "reduce/sharded.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/kernels.h"
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

ddp_status ddp_sharded_make(ddp_comm *comm, const ddp_layout *layout, float *params,
                            float *grads, ddp_sharded *sharded)
{
	int ranks = ddp_comm_size(comm);
	size_t bytes = (size_t)layout->elements * sizeof(float);
	ddp_sharded made = { .layout = layout, .ranks = ranks, .rank = ddp_comm_rank(comm) };

	ddp_layout_part(layout, ranks, made.rank, &made.begin, &made.end);
	made.params = calloc((size_t)ranks, sizeof(*made.params));
	made.grads = calloc((size_t)ranks, sizeof(*made.grads));
	made.squares = calloc((size_t)piece_count(made.begin, made.end) + 1, sizeof(*made.squares));
	ddp_status status = DDP_OK;
	if (made.params == NULL || made.grads == NULL || made.squares == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for the addresses of %d ranks' parameters",
		                  ranks);
	if (status == DDP_OK)
		status = ddp_comm_copies(comm, params, bytes, made.params);
	if (status == DDP_OK)
		status = ddp_comm_copies(comm, grads, bytes, made.grads);
	if (status != DDP_OK) {
		ddp_sharded_free(&made);
		return status;
	}
	*sharded = made;
	return DDP_OK;
}

void ddp_sharded_free(ddp_sharded *sharded)
{
	free(sharded->params);
	free(sharded->grads);
	free(sharded->squares);
	*sharded = (ddp_sharded){ 0 };
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
	const ddp_fold fold = {
		.type = DDP_F32, .op = DDP_SUM, .nsrc = sharded->ranks,
		.src = (const void *const *)sharded->grads,
		.ndst = 1, .dst = &sharded->grads[sharded->rank],
	};

	ddp_fold_run(&fold, (size_t)begin, (size_t)(end - begin));
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

ddp_status ddp_sharded_collect(const ddp_sharded *sharded, ddp_comm *comm, ddp_optim *optim)
{
	size_t *counts = calloc((size_t)sharded->ranks, sizeof(*counts));
	ddp_status status = DDP_OK;
	int64_t begin, end;

	if (counts == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to gather the optimizer's state");
	for (int r = 0; r < sharded->ranks; r++) {
		ddp_layout_part(sharded->layout, sharded->ranks, r, &begin, &end);
		counts[r] = (size_t)(end - begin);
	}
	for (int i = 0; i < optim->state_count && status == DDP_OK; i++) {
		const ddp_collective gather = {
			.kind = DDP_GATHER, .send = optim->state[i] + sharded->begin,
			.recv = optim->state[i], .counts = counts, .type = DDP_F32, .root = 0,
		};
		status = ddp_run(comm, &gather);
	}
	free(counts);
	if (status != DDP_OK)
		return ddp_fail_context(status, "gathering the optimizer's state");
	return DDP_OK;
}
