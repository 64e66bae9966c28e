/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier: collectives between nodes, each in a file: all_gather, broadcast, pairwise, reduce. */
#pragma once

#include "ddp.h"

/* Each block goes once to each other node, to the rank there that has the same index (modulo the node's size), and is
   read by that node's other ranks from there. */
ddp_status ddp_hier_all_gather(ddp_comm *comm, const ddp_operation *c);

/* In chunks, which go from node to node one behind the other (comm/hier/tree). The ranks of a node share what comes. */
ddp_status ddp_hier_broadcast(ddp_comm *comm, const ddp_operation *c);

/* Gather, scatter and all_to_all: each pair of ranks on different nodes exchanges what the one has for the other
   (pairwise exchange: Thakur, Rabenseifner and Gropp 2005), while the ranks of each node work together. */
ddp_status ddp_hier_pairwise(ddp_comm *comm, const ddp_operation *c);

/* All_reduce, reduce and reduce_scatter. */
ddp_status ddp_hier_reduction(ddp_comm *comm, const ddp_operation *c);
