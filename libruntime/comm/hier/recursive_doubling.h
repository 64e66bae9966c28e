/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/recursive_doubling: a small all_reduce between nodes. In round k each node
   exchanges all that it has with the one whose number differs in bit k (Thakur,
   Rabenseifner and Gropp 2005); with comm/hier/plan that is comm/ops/combine_nodes's
   order of combination. What travels is combined already and would be rounded in each
   round: it goes in accumulator form. */
#pragma once

#include "comm/hier/reduction.h"

ddp_cost ddp_recursive_doubling_cost(const ddp_link *link, const ddp_shape *shape);
void ddp_recursive_doubling_cut(ddp_reduction *x, size_t longest);
/* The only slice, which is one chunk. */
ddp_status ddp_recursive_doubling(ddp_reduction *x);

/* Combines `mine` (count elements of `type`, in accumulator form) over the first ranks
   of all nodes, in place; `theirs` is as large. Messages are numbered from `tag` on. */
ddp_status ddp_recursive_doubling_of(ddp_comm *comm, ddp_type type, ddp_op op, void *mine,
                                     void *theirs, size_t count, uint32_t tag);
