/* SPDX-License-Identifier: Apache-2.0 */
/* bucket: cuts the gradient arena into buckets, from its end, which backward fills first, to its
   beginning, and tracks which buckets are ready. A bucket may be any range of the arena, so a
   tensor may be split over several buckets. The first parameter is ready last, so its bucket holds
   little of the other parameters. All ranks take buckets in the order of their index, because they
   must issue the collectives of a communicator in one order. */
#pragma once

#include "params/layout.h"

typedef struct ddp_bucket {
	int64_t begin, end;         /* elements of the arena */
	int first_param, last_param; /* those that it covers a part of */
} ddp_bucket;

/* The buckets, and the grains: buckets may be cut anew between two grains, but a grain always stays in one
   bucket. */
typedef struct ddp_bucket_plan {
	int count;
	ddp_bucket *buckets;  /* [grain_count] */
	int grain_count;
	int64_t *grains;      /* [grain_count + 1]: grain i is [grains[i + 1], grains[i]) */
} ddp_bucket_plan;

/* Covers the layout's dense elements. Sizes are caps in elements; they are rounded down to a multiple of
   DDP_ALIGN_ELEMENTS, and to at least one of it. Each bucket is a grain. */
ddp_status ddp_bucket_plan_make(const ddp_layout *layout, int64_t first_size,
                                int64_t size, ddp_bucket_plan *plan);
void ddp_bucket_plan_free(ddp_bucket_plan *plan);

/* Divides grains at borders of tensors, into parts of at least 64 KiB and a 512th of all.
   DDP_ERR_NOMEM. */
ddp_status ddp_bucket_plan_refine(const ddp_layout *layout, ddp_bucket_plan *plan);

/* Cuts anew: bucket k has the grains from ends[k - 1] to ends[k] - 1, and the last one ends with
   the last grain. */
void ddp_bucket_plan_cut(const ddp_layout *layout, const int *ends, int count, ddp_bucket_plan *plan);
/* Writes the ends [count] that would give the buckets as they are. */
void ddp_bucket_plan_ends(const ddp_bucket_plan *plan, int *ends);

/* The bucket with which the arena's element `offset` travels. */
int ddp_bucket_of(const ddp_bucket_plan *plan, int64_t offset);

typedef struct ddp_ready {
	const ddp_layout *layout;
	const ddp_bucket_plan *plan;
	int *pending;    /* [grain_count]: of each bucket, parameters not announced yet */
	bool *announced; /* of each parameter */
	const bool *absent; /* of each, as the program counts them: it is never announced, and not
	                       waited for. NULL: all are */
	int announced_count;
	int next;        /* the first bucket not taken yet */
} ddp_ready;

/* The layout and the plan must outlive it. */
ddp_status ddp_ready_make(const ddp_layout *layout, const ddp_bucket_plan *plan,
                          ddp_ready *ready);
void ddp_ready_free(ddp_ready *ready);

/* A new step: nothing is announced, nothing taken. */
void ddp_ready_reset(ddp_ready *ready);

/* DDP_ERR_INVALID: no such parameter. DDP_ERR_STATE: announced before. */
ddp_status ddp_ready_announce(ddp_ready *ready, int param);

/* Takes the next bucket below `limit` if it is complete; -1 if it is not. */
int ddp_ready_take(ddp_ready *ready, int limit);

/* Takes the next bucket below `limit`, complete or not; -1: none is left. */
int ddp_ready_force(ddp_ready *ready, int limit);
