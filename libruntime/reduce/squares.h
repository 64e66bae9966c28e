/* SPDX-License-Identifier: Apache-2.0 */
/*
 * squares: the sum of the squares of a step's gradients, from which the norm is computed, and the
 * updates that use and clear these gradients. In the host's memory both are done at once. On a device
 * they are enqueued, and the host fetches the sums at the end. Both sum the same slices in the same
 * order, so they give the same bits.
 */
#ifndef DDP_REDUCE_SQUARES_H
#define DDP_REDUCE_SQUARES_H

#include "kernels.h"
#include "optim/optim.h"

struct ddp_model;

typedef struct ddp_squares {
	bool wanted;
	int64_t most, count; /* sums of squares, of a piece of gradients each */
	double *sums;        /* [most]: where the model is */
	double *here;        /* [most]: on the host */
	int run_count;
	int *runs;           /* [most]: of so many sums the sum is taken by itself */
	dk_array *added;     /* [most]: arrays whose sums are not begun yet, */
	int64_t added_count; /* of so many */
} ddp_squares;

/* DDP_ERR_NOMEM. The model has its units. */
ddp_status ddp_squares_open(struct ddp_model *model);
void ddp_squares_close(struct ddp_model *model);

/* Begins a new sum; if it is not `wanted`, only updates follow, and no end. */
void ddp_squares_begin(struct ddp_model *model, bool wanted);
/* Adds those of `values`, which are read at the end. */
void ddp_squares_add(struct ddp_model *model, const float *values, int64_t count);
/* Adds those of `grads`, and updates: see ddp_optim_apply(). */
void ddp_squares_update(struct ddp_model *model, const ddp_update *update, float *params, float *grads,
                        int64_t begin, int64_t end, int64_t at);
/* If the model is on a device, the host waits for the communication before this call, and for the sums. */
ddp_status ddp_squares_end(struct ddp_model *model, double *squares);

#endif
