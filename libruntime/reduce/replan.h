/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replan: cuts a model's buckets anew, once, behind its first steps. In these each rank notes when
 * each gradient is complete, and what its buckets' all-reduces take, in two cuts, so that they
 * are of two sizes; then ranks take the slowest rank's times of the former, and of the latter
 * the quickest's, as the others have waited for a rank, not for the network. Rank 0 decides by
 * these (reduce/merge.h), for all. Where that promises too little, the first cut stays.
 *
 * Only sums travel in buckets: what is summed, in which order, and who owns what hang on the
 * gradients' units and not on their buckets, where the strategy says so.
 */
#ifndef DDP_REDUCE_REPLAN_H
#define DDP_REDUCE_REPLAN_H

#include "ddp.h"

enum {
	DDP_REPLAN_STEPS = 3,     /* in each of the two cuts */
	DDP_REPLAN_GROUP = 4,     /* of the first cut's buckets are one in the second */
};

/* Once the buckets are cut, pointers are NULL, and nothing more is noted. */
typedef struct ddp_replan {
	int steps;                /* that all ranks have trained; the first is to warm up */
	int first_count, second_count; /* buckets in the two cuts */
	int *first_ends;          /* [grains]: those of the first cut, as for ddp_bucket_plan_cut() */
	uint64_t *ready_ns;       /* [layout.count]: when a gradient was complete in the step under
	                             way; 0: not yet */
	uint64_t end_ns;          /* when the step's backward had ended */
	double *ready;            /* [grains][2 * DDP_REPLAN_STEPS]: seconds since a step's begin */
	double *took;             /* [DDP_REPLAN_STEPS][first_count], then [..][second_count]: seconds of
	                             buckets; of totals [2 * DDP_REPLAN_STEPS]; room for [grains + 1] */
	double update[2 * DDP_REPLAN_STEPS]; /* seconds of the optimizer */
} ddp_replan;

struct ddp_model;

/* Prepares it, for a model whose buckets are to be cut anew. DDP_ERR_NOMEM. */
ddp_status ddp_replan_open(struct ddp_model *model);
void ddp_replan_close(struct ddp_model *model);

/* The gradient in this slot is complete. */
void ddp_replan_ready(struct ddp_model *model, int slot);
/* The step's backward has ended. */
void ddp_replan_end(struct ddp_model *model);
/* The next step has not begun. */
void ddp_replan_forget(struct ddp_model *model);
/* All ranks have new parameters: keeps what the step has shown. */
void ddp_replan_take(struct ddp_model *model);
/* Behind that, when the next step may begin: cuts the buckets if it is time to. Collective then. */
ddp_status ddp_replan_step(struct ddp_model *model);

#endif
