/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/hier/barrier: the barrier by dissemination (Hensgen, Finkel and Manber 1988):
 * in round k each node's first rank tells the node 2^k further on; after it, it has
 * heard of 2^(k + 1) nodes.
 */
#ifndef DDP_COMM_HIER_BARRIER_H
#define DDP_COMM_HIER_BARRIER_H

#include "ddp.h"

ddp_status ddp_hier_barrier(ddp_comm *comm, const ddp_operation *c);

#endif
