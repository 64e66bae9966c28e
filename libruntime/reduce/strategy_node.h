/*
 * node: the strategy where all ranks share one node's memory. Each rank sums all ranks'
 * gradients of what it owns, in the order of ranks, updates its parameters, and stores
 * them to all ranks, piece by piece while they are in the cache. The optimizer's state
 * is kept by its owner only, in memory that the others can read: a rank that saves a
 * checkpoint does, and so its state outlives a rank that died.
 *
 * Between its passes, ranks must meet (by a collective): all gradients are complete
 * before sum or update, and nobody uses parameters or gradients until all have updated.
 */
#ifndef DDP_REDUCE_STRATEGY_NODE_H
#define DDP_REDUCE_STRATEGY_NODE_H

#include "reduce/strategy.h"

/* Before the update of a step. Fails if the communicator is broken: of what the
   ranks that are left then save, no rank changes anything any more. */
ddp_status ddp_node_strategy_begin(struct ddp_model *model, int64_t step);

#endif
