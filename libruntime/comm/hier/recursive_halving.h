/*
 * comm/hier/recursive_halving: a large all_reduce between many nodes: reduce-scatter by
 * recursive halving, with distances that double, then all-gather by recursive doubling
 * (Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005). As few bytes as by direct
 * exchange, with log2(nodes) peers instead of all, in messages whose size follows from
 * the chunk and not from the number of nodes. A reduce gathers the parts on the root's
 * node instead; a reduce_scatter ends when each node has its ranks' blocks.
 */
#ifndef DDP_COMM_HIER_RECURSIVE_HALVING_H
#define DDP_COMM_HIER_RECURSIVE_HALVING_H

#include "comm/hier/reduction.h"

/* Buffers of `depth` chunks; they stay with the communicator. */
ddp_status ddp_recursive_halving_prepare(ddp_reduction *x);
/* All chunks of the present window. */
ddp_status ddp_recursive_halving_run(ddp_reduction *x);

#endif
