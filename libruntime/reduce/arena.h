/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena: memory of one role for all tensors of a model, f32. Either the ranks of a node
 * share it, so that collectives on it take no copy; or it is this rank's own, and what is
 * cleared goes back to the system, page by page, until it is written again; or it lies on
 * a device; or it is the program's, who frees it.
 */
#ifndef DDP_REDUCE_ARENA_H
#define DDP_REDUCE_ARENA_H

#include "reduce/place.h"

typedef struct ddp_arena {
	float *data;
	size_t bytes;
	bool gives_back, lent;
	const ddp_place *place;
} ddp_arena;

/* Zeroed. `place` outlives it; on a device nothing is given back, nor if it is to lie in the
   program's memory, `lent` (NULL: it is not). Collective. */
ddp_status ddp_arena_open(ddp_comm *comm, const ddp_place *place, float *lent, int64_t elements,
                          bool gives_back, ddp_arena *arena);
void ddp_arena_close(ddp_comm *comm, ddp_arena *arena);

/* Sets elements [begin, end) to zero; on a device, in the order of the place's queue. */
ddp_status ddp_arena_clear(const ddp_arena *arena, int64_t begin, int64_t end);

#endif
