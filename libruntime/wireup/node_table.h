/* SPDX-License-Identifier: Apache-2.0 */
/* node_table: the blobs of all ranks in memory that the ranks of a node share. Rank 0 sends them to one rank of each
   node, the node's leader, which writes them there for the others. A rank that cannot open the memory gets the blobs
   from rank 0. The leader writes the next ones when all ranks have sent new blobs, so all have read the last ones. */
#pragma once

#include "base/segment.h"
#include "ddp.h"

/* Each rank has one, which begins as {.fd = -1}. */
typedef struct ddp_node_table {
	int fd;                  /* of its own memory, then of the leader's; -1: none */
	bool leads;
	ddp_segment_offer offer; /* of its own; fd -1: none */
} ddp_node_table;

/* Makes this rank's memory, and says in `offer` how others open it. */
void ddp_node_table_offer(ddp_node_table *table);
/* `leader` is the offer of the node's leader, maybe this rank. Returns whether this rank has its memory open. */
bool ddp_node_table_join(ddp_node_table *table, const ddp_segment_offer *leader);

/* Returns whether they are there for the others. */
bool ddp_node_table_write(const ddp_node_table *table, const void *blobs, size_t bytes);
/* *blobs is malloc'd. */
ddp_status ddp_node_table_read(const ddp_node_table *table, size_t bytes, unsigned char **blobs);
void ddp_node_table_close(ddp_node_table *table);
