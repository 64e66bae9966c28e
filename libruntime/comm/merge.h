/*
 * comm/merge: the order in which nodes' partial results are combined. It is a
 * tree that depends on the number of nodes only, so that every algorithm
 * between nodes gives the same bits: with 2^k + e nodes, the first 2e are
 * combined in pairs, and what is left by recursive halving of neighbours.
 */
#ifndef DDP_COMM_MERGE_H
#define DDP_COMM_MERGE_H

#include "comm/kernels.h"

/* Combines `count` elements, in accumulator form, of parts[0 .. nodes - 1],
   two nodes or more, as last->op says, and stores the result as last's divisor
   and destinations say; last->type is an accumulator's. parts[own] is only
   read, unless it is a destination; the others are destroyed. */
void ddp_merge(const ddp_fold *last, void **parts, int own, int nodes, size_t count);

/* result = lower op upper; result may be either. */
void ddp_merge_pair(ddp_type type, ddp_op op, const void *lower, const void *upper, void *result,
                    size_t count);

/* The largest power of two that is at most `nodes`. */
int ddp_merge_power(int nodes);

#endif
