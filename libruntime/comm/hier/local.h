/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/local: a reduction's inputs and outputs on this node. */
#pragma once

#include "comm/hier/reduction.h"

/* Combines this node's inputs of a range of share i. */
void ddp_local_combine(ddp_reduction *x, int i, ddp_range range, char *partial);
/* Combines into accumulators, and first rounds as for a transfer. So the bits are those of the other algorithms.
   `scratch` is as large as `partial`. */
void ddp_local_combine_wide(ddp_reduction *x, int i, ddp_range range, char *scratch, char *partial);
/* Divides results in accumulator form, rounds and stores them. */
void ddp_local_round(const ddp_reduction *x, const void *results, size_t count, void *const *places,
                     int place_count);
/* The places where the ranks of this node want a range of share i; this rank's
   own first. At most node.size; returns how many. */
int ddp_local_places(const ddp_reduction *x, int i, ddp_range range, void **places);
/* These are called before and after a window. Data that is not in shared memory passes through slots. */
void ddp_local_stage(const ddp_reduction *x);
void ddp_local_pull(const ddp_reduction *x);
