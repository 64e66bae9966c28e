/* SPDX-License-Identifier: Apache-2.0 */
/* simulate: recursive doubling and recursive halving on all nodes of a world, message by
   message, by the library's own plans (comm/hier/plan) and in the order in which
   comm/hier/recursive_halving works: to see whether the costs in comm/hier, which only add up
   what one node does, are right about chunks that overlap. */
#pragma once

#include "comm/hier/algorithms.h"

/* Seconds until the last node is through, or -1 without memory. A node's link carries its
   messages one by one in either direction, as its process makes them one by one. A reduce's
   root is the last node. */
double simulate(ddp_algorithm algorithm, const ddp_link *link, const ddp_shape *shape);
