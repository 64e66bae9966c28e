/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/recursive_halving: a large all_reduce between many nodes: reduce-scatter by
   recursive halving, with distances that double, then all-gather by recursive doubling
   (Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005). As few bytes as by direct
   exchange, with log2(nodes) peers instead of all, in messages whose size follows from
   the chunk and not from the number of nodes. A reduce gathers the parts on the root's
   node instead; a reduce_scatter ends when each node has its ranks' blocks. */
#pragma once

#include "comm/hier/plan.h"
#include "comm/hier/reduction.h"

/* It begins so many chunks while one is in a round. */
enum { DDP_HALVING_LAG = 2 };

ddp_cost ddp_recursive_halving_cost(const ddp_link *link, const ddp_shape *shape);
void ddp_recursive_halving_cut(ddp_reduction *x, size_t longest);

/* Buffers of `depth` chunks; they stay with the communicator. */
ddp_status ddp_recursive_halving_prepare(ddp_reduction *x);
/* All chunks of the present window. */
ddp_status ddp_recursive_halving_run(ddp_reduction *x);

/* Tests of the model use these, too. Returns who exchanges what with whom. */
ddp_plan ddp_halving_plan(const ddp_shape *shape, int root);
/* Returns how many elements of a chunk of `count` are exchanged: of a channel, or of each block. */
size_t ddp_halving_elements(const ddp_shape *shape, const ddp_plan *plan, ddp_range parts, bool share, size_t count);
/* Returns the elements of a chunk; of reduce_scatter, those of each block of a channel. They are the same on all
   nodes, whether nodes work on shared memory or through windows, which are whole multiples of a chunk. 0: a window
   is too small. */
size_t ddp_halving_chunk(const ddp_link *link, const ddp_shape *shape);
/* Returns how many chunks are under way at a time. */
size_t ddp_halving_depth(const ddp_shape *shape, size_t chunk, size_t longest);
