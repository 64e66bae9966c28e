/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/node_copy: collectives that only move data, on a node: each rank exposes
   what others want, and they pull it, as in comm/shm/node_reduce. */
#pragma once

#include "ddp.h"

/* The part of a collective that runs between nodes meanwhile. */
typedef struct ddp_between {
	void *argument;
	int source; /* of a broadcast: the rank that spreads its data on this node */
	/* All ranks of the node have come; `exposed` is what this one exposes. When it
	   returns, a broadcast's source has the data. */
	ddp_status (*begin)(void *argument, const void *exposed);
	/* Ends what was begun, if it was; `status` says how this node has fared. */
	ddp_status (*end)(void *argument, ddp_status status);
} ddp_between;

/* `c` is complete (comm/check); `between` is NULL on one node. */
ddp_status ddp_node_copy(ddp_comm *comm, const ddp_operation *c, const ddp_between *between);
