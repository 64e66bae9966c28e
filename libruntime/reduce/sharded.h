/*
 * sharded: the update where all ranks share one node's memory. Each rank owns
 * a part of the arenas: it sums that part of all ranks' gradients, in the
 * order of ranks, updates its parameters, and stores them to all ranks, piece
 * by piece while they are in the cache. The optimizer's state of a part is
 * kept by its owner only, in memory that the others can read: a rank that
 * saves a checkpoint does, and so its state outlives a rank that died.
 *
 * Between the calls, ranks must meet (by a collective): all gradients are
 * complete before sum or update, and nobody uses parameters or gradients
 * until all have updated.
 */
#ifndef DDP_REDUCE_SHARDED_H
#define DDP_REDUCE_SHARDED_H

#include "comm/api.h"
#include "optim/optim.h"

typedef struct ddp_sharded {
	const ddp_layout *layout;
	int ranks, rank;         /* ranks 0: the update is replicated */
	void **params, **grads;  /* [ranks]: all ranks' arenas, f32 */
	void **state[DDP_OPTIM_STATES_MAX]; /* [ranks]: of the optimizer, each rank's part */
	void **begun;            /* [ranks]: _Atomic int64_t, the last step whose update
	                            that rank has begun */
	int64_t begin, end;      /* what this rank owns */
	double *squares;         /* of each of its pieces */
} ddp_sharded;

/* What can fail on this rank alone. The layout must outlive it. */
ddp_status ddp_sharded_make(ddp_comm *comm, const ddp_layout *layout, ddp_sharded *sharded);

/* params and grads are this rank's arenas, of ddp_mem_alloc(), and must outlive
   it; the optimizer borrows its state. Collective. */
ddp_status ddp_sharded_join(ddp_sharded *sharded, ddp_comm *comm, float *params, float *grads,
                            ddp_optim *optim);
void ddp_sharded_free(ddp_sharded *sharded, ddp_comm *comm);

/* Before the update of a step. Fails if the communicator is broken: of what the
   ranks that are left then save, no rank changes anything any more. */
ddp_status ddp_sharded_begin(ddp_sharded *sharded, ddp_comm *comm, int64_t step);

/* This many steps are done, as a checkpoint says. */
void ddp_sharded_set_steps(ddp_sharded *sharded, int64_t steps);

/* DDP_ERR_STATE if a rank has begun to update what is complete after `steps`. */
ddp_status ddp_sharded_check(const ddp_sharded *sharded, int64_t steps);

/* Sums this rank's part into its own gradients and sets it to zero on the
   others. Returns the sum of the squares. */
double ddp_sharded_sum(ddp_sharded *sharded);

/* Updates this rank's part on all ranks, and sets its gradients to zero.
   `summed`: ddp_sharded_sum() has been called. Returns as that does. */
double ddp_sharded_update(ddp_sharded *sharded, ddp_optim *optim, const ddp_update *update,
                          bool summed);

/* Copies state i of all ranks' parts into an arena of the whole layout. */
void ddp_sharded_collect(const ddp_sharded *sharded, int i, float *whole);
/* Copies of state i of the layout's elements [first, first + count) what is this
   rank's. */
void ddp_sharded_store(const ddp_sharded *sharded, int i, int64_t first, const float *values,
                       int64_t count);

/* The squares of gradients [begin, end) as the calls above sum them up. */
double ddp_sum_squares(const float *grads, int64_t begin, int64_t end);

#endif
