/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena: the memory that holds one role (such as gradients) of all tensors of a model, in f32.
 * There are five kinds. The ranks of a node share an arena, so collectives on it take no copy. A rank that is
 * alone in its communicator has private memory, which may consist of huge pages.
 * Or it is this rank's own; clearing it then gives its pages back to the system until they are
 * written again. Or it lies on a device. Or it is the program's, and the program frees it.
 */
#ifndef DDP_REDUCE_ARENA_H
#define DDP_REDUCE_ARENA_H

#include "reduce/place.h"

typedef struct ddp_arena {
	float *data;
	size_t bytes;
	bool gives_back, lent;
	bool own;            /* no other rank reaches it */
	float *home;         /* where the program knows it, and both are the same memory; NULL: at `data` */
	const ddp_place *place;
} ddp_arena;

/* Zeroed. `place` outlives it; on a device nothing is given back, nor if it is to lie in the
   program's memory, `lent` (NULL: it is not). Collective. */
ddp_status ddp_arena_open(ddp_comm *comm, const ddp_place *place, float *lent, int64_t elements,
                          bool gives_back, ddp_arena *arena);
void ddp_arena_close(ddp_comm *comm, ddp_arena *arena);

/*
 * The ranks of a world are to meet again in another one (renewal.h). The content of an arena and the address that the
 * program knows stay. leave(): the memory that ranks of `comm` have shared becomes this rank's own. Local. share(): the
 * ranks of `comm` share the memory, as after ddp_arena_open(). Collective.
 */
ddp_status ddp_arena_leave(ddp_comm *comm, ddp_arena *arena);
ddp_status ddp_arena_share(ddp_comm *comm, ddp_arena *arena);
/* The address that the program knows. */
float *ddp_arena_home(const ddp_arena *arena);

/* Sets elements [begin, end) to zero; on a device, in the order of the place's queue. */
ddp_status ddp_arena_clear(const ddp_arena *arena, int64_t begin, int64_t end);

#endif
