/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows: sparse parts of gradients, such as that of an embedding whose weight the classifier shares.
 * If rows are sent, they are kept apart until the end of the step, gathered from all ranks, and added
 * to the reduced gradient in the order of ranks, then of calls. So all ranks get the same bits.
 */
#ifndef DDP_REDUCE_ROWS_H
#define DDP_REDUCE_ROWS_H

#include "reduce/reducer.h"

/* The rows of one parameter. */
typedef struct ddp_row_set {
	const ddp_slot *slot;
	int64_t width, used;
	int64_t most;       /* times * sparse_rows */
	int32_t *rows;      /* [most] */
	float *values;      /* [most, width] */
	int32_t *all_rows;  /* [ranks * most] */
	float *all_values;
} ddp_row_set;

typedef struct ddp_rows {
	int count, ranks;
	ddp_row_set *sets;  /* [count]: of the parameters whose rows travel */
	size_t *counts;     /* [2 * ranks]: of rows, and of their values */
	int64_t *used;      /* [ranks] */
} ddp_rows;

/* The layout must outlive it. A rank adds up to `times` as many rows as the program has said: ranks that are left of a
   world share out the same samples. */
ddp_status ddp_rows_make(const ddp_layout *layout, int ranks, int times, ddp_rows *rows);
void ddp_rows_free(ddp_rows *rows);

/* Keeps rows for the exchange. DDP_ERR_INVALID: there are too many. */
ddp_status ddp_rows_keep(ddp_rows *rows, const ddp_slot *slot, const int32_t *index,
                         const float *values, int64_t count);

/* Forgets the rows of the step under way. */
void ddp_rows_discard(ddp_rows *rows);

/* Gathers all ranks' rows of set i, once per step: they are in all_rows and all_values
   then, *total of them. Collective. */
ddp_status ddp_rows_gather(ddp_rows *rows, int i, ddp_reducer *reducer, int64_t *total);

#endif
