/* SPDX-License-Identifier: Apache-2.0 */
/* node: the strategies for ranks of a node that share memory. Each rank owns a slice of each unit and
   updates it for all: it stores the new parameters to all ranks of its node, in small blocks while they
   are in the cache. Only the owner of a slice keeps its optimizer state, in memory that the node's other
   ranks can read. A rank that saves a checkpoint reads it there, so the state outlives its owner.

   On one node, each rank also sums the gradients of its slices over all ranks, in the order of ranks, in
   the same pass after backward. Over several nodes (strategy_hybrid.c) buckets are all-reduced while
   backward runs, so each node has all sums, and each node updates all parameters once. Nodes may have
   different numbers of ranks.

   If survivors are to go on without a rank (reduce/survival.h), each rank first copies what it is about to change to
   memory that the node's other ranks reach. So they can undo an update in the middle of which a rank has died.

   Ranks synchronise by a collective before a pass and after it: all gradients are complete before ranks
   sum or update, and no rank uses parameters or gradients until all ranks have updated. */
#pragma once

#include "reduce/strategy.h"
#include "reduce/unit.h"

/* Call this before the update of a step. It fails if the communicator is broken. Then no rank changes anything
   any more of what the remaining ranks save. */
ddp_status ddp_node_strategy_begin(struct ddp_model *model, int64_t step);
/* Call this after the update. The parameters are partly updated until all ranks have stored what they own.
   `updated` is this rank's part of *squares, which is written unless `reduced`. */
ddp_status ddp_node_strategy_end(struct ddp_model *model, bool reduced, double updated, double *squares);

/* The rest is what both share; these are as in ddp_strategy. */
ddp_status ddp_node_strategy_prepare(struct ddp_model *model);
ddp_status ddp_node_strategy_open(struct ddp_model *model);
void ddp_node_strategy_close(struct ddp_model *model);
void ddp_node_strategy_read(const struct ddp_model *model, int i, int64_t begin, int64_t end, float *to);
ddp_status ddp_node_strategy_keep_undo(struct ddp_model *model);
void ddp_node_strategy_undo(struct ddp_model *model, int64_t step, const bool *dead);
ddp_status ddp_node_strategy_check(const struct ddp_model *model, int64_t steps);
void ddp_node_strategy_set_steps(struct ddp_model *model, int64_t steps);

/* Updates this rank's slices of units [first, end), whose gradients are summed, on all ranks of
   the node; tells the sum of the squares of these gradients. */
double ddp_node_strategy_update(struct ddp_model *model, const ddp_update *update, int first, int end);

/* How all ranks of the world, not the node's, share out the units: squares are summed in the
   pieces of that. */
const ddp_units *ddp_node_strategy_world(const struct ddp_model *model);
