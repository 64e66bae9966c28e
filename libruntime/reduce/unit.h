/* SPDX-License-Identifier: Apache-2.0 */
/* unit: a slice of the arenas that is owned, updated and saved as one. Units are cut once, when the
   model is made, at the borders of its first buckets or of these buckets' grains, and wherever a unit
   would be larger than 4 MiB. Each rank owns a slice of each unit, so all ranks have the same amount of
   work in each bucket. What a rank keeps for its slices, such as the optimizer's state, lies one behind
   the other in the order of the arenas. So an element has two offsets: one in the arenas and one in its
   owner's memory. */
#pragma once

#include "optim/optim.h"
#include "reduce/bucket.h"
#include "reduce/place.h"

enum {
	DDP_UNIT_ELEMENTS = 1 << 20,
	DDP_PIECE_ELEMENTS = DDP_OPTIM_PIECE_ELEMENTS,
};

typedef struct ddp_unit {
	int64_t begin, end;         /* elements of the arenas */
	int first_piece, end_piece; /* of this rank's slice */
} ddp_unit;

/* A thread works on one piece at a time. */
typedef struct ddp_piece {
	int64_t begin, end;  /* elements of the arenas */
	int64_t kept;        /* where the first is in what this rank keeps */
} ddp_piece;

typedef struct ddp_units {
	int ranks, rank;
	int count;
	ddp_unit *list;      /* [count]: in the order of the arenas, without gaps */
	int piece_count;
	ddp_piece *pieces;   /* of this rank, in that order, too */
	int64_t most;        /* elements that a rank owns */
} ddp_units;

/* DDP_ERR_NOMEM. `fine`: no unit is of two grains, so that each is of one bucket, wherever
   buckets are cut. */
ddp_status ddp_units_make(const ddp_layout *layout, const ddp_bucket_plan *plan, bool fine, int ranks,
                          int rank, ddp_units *units);
void ddp_units_free(ddp_units *units);

/* Elements [*begin, *end) of the arenas: the rank's slice of a unit, which may be empty. */
void ddp_unit_slice(const ddp_units *units, const ddp_unit *unit, int rank, int64_t *begin,
                    int64_t *end);

/* The number of pieces in so many elements. */
int64_t ddp_pieces_in(int64_t elements);

/* The unit that the arenas' element `offset` is of; the count if it is behind them. */
int ddp_unit_at(const ddp_units *units, int64_t offset);

/* Copies those of the arenas' elements [first, first + count) that this rank owns to where
   it keeps them, in memory of the place. */
ddp_status ddp_units_store(const ddp_units *units, const ddp_place *place, float *kept, int64_t first,
                           const float *values, int64_t count);
