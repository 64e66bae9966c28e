/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/direct: reductions between nodes by direct exchange: each node sends its
   part of a slice to the node that owns it, which combines all parts and sends results
   where they are wanted. An all_reduce is then a reduce-scatter and an all-gather, of
   one message time each, and 2 (nodes - 1) / nodes of the data go in and out of each
   node, the least that is possible (Patarasuk and Yuan 2009). Or every node owns
   everything: one message time, but nodes - 1 times the data. */
#pragma once

#include "comm/hier/reduction.h"

/* How long it takes: where every node owns everything, */
ddp_cost ddp_direct_cost(const ddp_link *link, const ddp_shape *shape);
/* and where each owns its part. */
ddp_cost ddp_scatter_gather_cost(const ddp_link *link, const ddp_shape *shape);
/* Sets the chunks of slices, the longest of which is so long. */
void ddp_direct_cut(ddp_reduction *x, size_t longest);
/* Buffers of the chunks; they stay with the communicator. */
ddp_status ddp_direct_prepare(ddp_reduction *x);
/* All chunks of the present window. */
ddp_status ddp_direct_run(ddp_reduction *x);
