/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/topology: which of a communicator's ranks are on which node. */
#pragma once

#include "comm/core/roster.h"

typedef struct ddp_topology {
	int *world_ranks; /* [size] */
	int nodes;        /* number of nodes */
	int *node_of;     /* [size]: 0 .. nodes - 1, by first rank */
	int *node_begin;  /* [nodes + 1]: where a node's ranks begin in */
	int *node_ranks;  /* [size]: ranks, node by node */
	int *local_of;    /* [size]: index among its node's ranks */
	int channels;     /* ranks of each node that use the network */
} ddp_topology;

/* Makes the topology of `size` processes, given by world rank; the nodes are not known yet. */
ddp_status ddp_topology_make(ddp_topology *t, const int *world_ranks, int size);
/* Numbers the nodes by their first rank and lists their ranks, by roster->peers. */
ddp_status ddp_topology_place(ddp_topology *t, int size, const ddp_roster *roster);
void ddp_topology_free(ddp_topology *t);
