/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/hier/broadcast: broadcast between nodes, in chunks. A binomial tree sends each
 * byte log2(nodes) times from its root; a chain (pipelined, for data of many chunks)
 * once, but takes a chunk's time per node. The ranks of a node share what comes.
 */
#ifndef DDP_COMM_HIER_BROADCAST_H
#define DDP_COMM_HIER_BROADCAST_H

#include "ddp.h"

ddp_status ddp_hier_broadcast(ddp_comm *comm, const ddp_operation *c);

#endif
