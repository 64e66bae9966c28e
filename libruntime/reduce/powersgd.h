/* SPDX-License-Identifier: Apache-2.0 */
/*
 * powersgd: matrices of gradients as products of two of low rank (Vogels, Karimireddy and
 * Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
 * NeurIPS 2019). With M = sum of all ranks' matrices [rows, columns] and an orthonormal
 * right [rank, columns] of the step before:
 *
 *   left  = right M^T    [rank, rows], all-reduced, then made orthonormal;
 *   right = left M       [rank, columns], all-reduced;
 *   M is taken to be left^T right.
 *
 * Both factors are stored with their long side in a row. This part decides which tensors are
 * compressed and where factors lie; strategy_powersgd.c computes and sends them.
 */
#ifndef DDP_REDUCE_POWERSGD_H
#define DDP_REDUCE_POWERSGD_H

#include "reduce/bucket.h"
#include "reduce/options.h"

/* A parameter that is compressed. Its places are elements of memory that all share. */
typedef struct ddp_matrix {
	const ddp_slot *slot;
	int64_t rows, columns, rank;
	int64_t kept;         /* of what is kept back: [rows, columns] */
	int64_t start;        /* of the next step's right: [rank, columns] */
	int64_t left, right;  /* of what travels */
	int64_t kept_shape[2], right_shape[2]; /* as tensors of a checkpoint */
} ddp_matrix;

/* Elements of the arenas that travel as they are. */
typedef struct ddp_plain_range {
	int64_t begin, end;
} ddp_plain_range;

/* A bucket sends twice: first its plain ranges, one after the other, and the
   left factors of the matrices that end in it (which are complete when it is); then the
   right ones. */
typedef struct ddp_powersgd_bucket {
	int first_matrix, end_matrix;
	int first_range, end_range;
	int64_t first, first_count;   /* of what travels */
	int64_t second, second_count;
} ddp_powersgd_bucket;

typedef struct ddp_powersgd_plan {
	int matrix_count, range_count, bucket_count;
	ddp_matrix *matrices;         /* in the order of the buckets */
	ddp_plain_range *ranges;
	ddp_powersgd_bucket *buckets;
	int64_t kept, starts, travels; /* elements of each memory */
} ddp_powersgd_plan;

/* DDP_ERR_NOMEM. The layout must outlive it. */
ddp_status ddp_powersgd_plan_make(const ddp_layout *layout, const ddp_bucket_plan *buckets,
                                  const ddp_powersgd_options *settings, ddp_powersgd_plan *plan);
void ddp_powersgd_plan_free(ddp_powersgd_plan *plan);

#endif
