/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node: the strategies where the ranks of a node share memory. Of each unit, each of them
 * owns a slice, which it updates for all: it stores the new parameters to all ranks of its
 * node, piece by piece while they are in the cache. The optimizer's state is kept by its
 * owner only, in memory that the node's others can read: a rank that saves a checkpoint
 * does, and so its state outlives a rank that died.
 *
 * On one node each rank also sums all ranks' gradients of what it owns, in the order of
 * ranks, in the same pass after backward. Over several nodes (strategy_hybrid.c) buckets are
 * all-reduced while backward runs, so that each node has all sums, and each node updates all
 * parameters, once. Nodes may have different numbers of ranks.
 *
 * Between their passes, ranks must meet (by a collective): all gradients are complete
 * before sum or update, and nobody uses parameters or gradients until all have updated.
 */
#ifndef DDP_REDUCE_STRATEGY_NODE_H
#define DDP_REDUCE_STRATEGY_NODE_H

#include "reduce/strategy.h"
#include "reduce/unit.h"

/* Before the update of a step. Fails if the communicator is broken: of what the
   ranks that are left then save, no rank changes anything any more. */
ddp_status ddp_node_strategy_begin(struct ddp_model *model, int64_t step);
/* After the update: the parameters are partly updated until all ranks have stored what they own.
   `updated` is this rank's part of *squares, which is written unless `reduced`. */
ddp_status ddp_node_strategy_end(struct ddp_model *model, bool reduced, double updated, double *squares);

/* The rest is what both share; these are as in ddp_strategy. */
ddp_status ddp_node_strategy_prepare(struct ddp_model *model);
ddp_status ddp_node_strategy_open(struct ddp_model *model);
void ddp_node_strategy_close(struct ddp_model *model);
void ddp_node_strategy_collect(const struct ddp_model *model, int i, float *whole);
ddp_status ddp_node_strategy_check(const struct ddp_model *model, int64_t steps);
void ddp_node_strategy_set_steps(struct ddp_model *model, int64_t steps);

/* Updates this rank's slices of units [first, end), whose gradients are summed, on all ranks of
   the node; tells the sum of the squares of these gradients. */
double ddp_node_strategy_update(struct ddp_model *model, const ddp_update *update, int first, int end);

/* How all ranks of the world, not the node's, share out the units: squares are summed in the
   pieces of that. */
const ddp_units *ddp_node_strategy_world(const struct ddp_model *model);

#endif
