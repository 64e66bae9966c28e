/* SPDX-License-Identifier: Apache-2.0 */
/* nodes: the node of each rank, so that a message about a rank that has not come names its node.
   Slurm tells the names of a step's nodes, how many tasks each has, and which tasks this node has. */
#pragma once

#include "job/job.h"

enum { DDP_MISSING_BYTES = 300 }; /* for a list of ranks in a message */

typedef struct ddp_nodes {
	int count;     /* 0: not known */
	char (*names)[DDP_HOST_MAX];
	int *of_rank;  /* [world_size]: index of its node, or DDP_UNKNOWN */
	int *other;    /* the same if Slurm has dealt tasks the other way; NULL: it has not */
	int world_size;
} ddp_nodes;

/* Finds the nodes; a name that cannot be known stays unknown. */
void ddp_nodes_find(const ddp_job *job, ddp_nodes *nodes);
void ddp_nodes_free(ddp_nodes *nodes);

/* A rank has come from this host. Where that is not its node, none is known. */
void ddp_nodes_check(ddp_nodes *nodes, int rank, const char *host);

/* Writes the ranks r of 0 .. world_size - 1 with listed[r] as "rank 2 on n1" or "ranks 2-3 on n1; 5 on n2".
   Where `bytes` do not suffice, how many they are follows. Returns `text`. */
const char *ddp_nodes_list(const ddp_nodes *nodes, const bool *listed, char *text, size_t bytes);
