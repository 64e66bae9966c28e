/*
 * sharded: the update where all ranks share one node's memory. Each rank owns
 * a part of the arenas: it sums that part of all ranks' gradients, in the
 * order of ranks, updates its parameters, and stores them to all ranks, piece
 * by piece while they are in the cache. The optimizer's state of a part is
 * its owner's only.
 *
 * Between the calls, ranks must meet (by a collective): all gradients are
 * complete before sum or update, and nobody uses parameters or gradients
 * until all have updated.
 */
#ifndef DDP_REDUCE_SHARDED_H
#define DDP_REDUCE_SHARDED_H

#include "comm/comm.h"
#include "optim/optim.h"

typedef struct ddp_sharded {
	const ddp_layout *layout;
	int ranks, rank;         /* ranks 0: the update is replicated */
	void **params, **grads;  /* [ranks]: all ranks' arenas, f32 */
	int64_t begin, end;      /* what this rank owns */
	double *squares;         /* of each of its pieces */
} ddp_sharded;

/* params and grads are this rank's arenas, of ddp_mem_alloc(). They and the
   layout must outlive it. */
ddp_status ddp_sharded_make(ddp_comm *comm, const ddp_layout *layout, float *params,
                            float *grads, ddp_sharded *sharded);
void ddp_sharded_free(ddp_sharded *sharded);

/* Sums this rank's part into its own gradients and sets it to zero on the
   others. Returns the sum of the squares. */
double ddp_sharded_sum(ddp_sharded *sharded);

/* Updates this rank's part on all ranks, and sets its gradients to zero.
   `summed`: ddp_sharded_sum() has been called. Returns as that does. */
double ddp_sharded_update(ddp_sharded *sharded, ddp_optim *optim, const ddp_update *update,
                          bool summed);

/* Gathers the optimizer's state on rank 0. Collective. */
ddp_status ddp_sharded_collect(const ddp_sharded *sharded, ddp_comm *comm, ddp_optim *optim);

/* The squares of gradients [begin, end) as the calls above sum them up. */
double ddp_sum_squares(const float *grads, int64_t begin, int64_t end);

#endif
