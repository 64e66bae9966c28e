/*
 * comm/hier/copy: collectives that only move data, among ranks of several nodes.
 * Ranks of a node work together through shared memory; what goes to other nodes
 * goes once.
 */
#ifndef DDP_COMM_HIER_COPY_H
#define DDP_COMM_HIER_COPY_H

#include "ddp.h"

ddp_status ddp_hier_barrier(ddp_comm *comm, const ddp_collective *c);
/* broadcast, gather, scatter, all_to_all. */
ddp_status ddp_hier_copy(ddp_comm *comm, const ddp_collective *c);

#endif
