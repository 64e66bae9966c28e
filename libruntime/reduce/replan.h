/* SPDX-License-Identifier: Apache-2.0 */
/* replan: cuts a model's buckets anew, once, after its first steps. In these steps each rank measures
   when each gradient is complete, and how long the all-reduces of its buckets take. It does so with two
   cuts, so there are all-reduces of two sizes. For the gradients, the times of the slowest rank count.
   For the all-reduces, those of the quickest rank count, because the other ranks have also waited for a
   rank, and not only for the network. Rank 0 chooses the cut for all ranks (reduce/merge.h). If the gain
   would be too small, the first cut stays.

   Another cut changes no result if the strategy says so (`recuts`): which numbers are summed, in which
   order, and which rank owns what depend on the units and not on the buckets. */
#pragma once

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
/* Call this after ddp_replan_take(), when the next step may begin. It cuts the buckets if it is time to, and is
   collective then. */
ddp_status ddp_replan_step(struct ddp_model *model);
