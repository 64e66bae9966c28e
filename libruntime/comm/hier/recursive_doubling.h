/*
 * comm/hier/recursive_doubling: recursive doubling. In round k each node exchanges what it
 * has with the one whose number differs in bit k. The order of combination is
 * comm/ops/combine_nodes's.
 */
#ifndef DDP_COMM_HIER_RECURSIVE_DOUBLING_H
#define DDP_COMM_HIER_RECURSIVE_DOUBLING_H

#include "ddp.h"

/* Combines `mine` (count elements, in accumulator form) over the first ranks
   of all nodes, in place; `theirs` is as large. */
ddp_status ddp_recursive_doubling(ddp_comm *comm, const ddp_collective *c, void *mine, void *theirs,
                                  size_t count, size_t bytes);

#endif
