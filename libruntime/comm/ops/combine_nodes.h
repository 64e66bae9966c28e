/* SPDX-License-Identifier: Apache-2.0 */
/* comm/ops/combine_nodes: the order in which nodes' partial results are combined. It is a
   tree that depends on the number of nodes only, so that every algorithm
   between nodes gives the same bits: with 2^k + e nodes, the first 2e are
   combined in pairs, and what is left by recursive halving of neighbours. */
#pragma once

#include "comm/ops/kernels.h"

/* The form in which nodes' partial results of `type` travel: the type itself,
   though it is combined in a wider one; but the accumulator's where rounding or
   cutting a partial result would lose what the result needs, as a sum of u8 that
   is still to be divided. All ranks get the same answer. */
ddp_type ddp_travel_type(ddp_type type, ddp_op op);

/* Combines `count` elements of parts[0 .. nodes - 1], two nodes or more, which are
   in the type `travel`; divides, rounds and stores the result as `last` says.
   Parts are only read; a destination may be one of them. `scratch`, aligned to 8
   bytes, is as large as ddp_combine_scratch_bytes() says. */
void ddp_combine_nodes(const ddp_combination *last, ddp_type travel, void *const *parts, int nodes, size_t count,
                       void *scratch);
size_t ddp_combine_scratch_bytes(int nodes);

/* result = lower op upper, in accumulator form; result may be either. */
void ddp_combine_pair(ddp_type type, ddp_op op, const void *lower, const void *upper, void *result,
                      size_t count);

/* The largest power of two that is at most `nodes`. */
int ddp_nodes_power(int nodes);
