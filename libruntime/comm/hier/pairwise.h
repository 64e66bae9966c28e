/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/hier/pairwise: gather, scatter and all_to_all between nodes: each pair of ranks
 * on different nodes exchanges what the one has for the other (pairwise exchange:
 * Thakur, Rabenseifner and Gropp 2005), while the ranks of each node work together.
 */
#ifndef DDP_COMM_HIER_PAIRWISE_H
#define DDP_COMM_HIER_PAIRWISE_H

#include "ddp.h"

ddp_status ddp_hier_pairwise(ddp_comm *comm, const ddp_operation *c);

#endif
