/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/node: how the ranks of a node go through an operation together.

   An operation begins with every rank posting a header and waiting for all
   headers, which are compared. After that, ranks advance in steps: each posts
   its step counter, and waits for all. When a rank sees all headers of
   operation n, all ranks have finished reading what they read in n - 1. */
#pragma once

#include "base/segment.h"
#include "comm/core/lines.h"

/* An operation's header says this besides the operation itself. */
typedef struct ddp_entry {
	const void *payload;  /* copied beside the header */
	size_t payload_bytes; /* at most DDP_SMALL_BYTES; 0: none */
	/* without payload: */
	ddp_memory_ref send, recv;
	uint64_t largest_block;
} ddp_entry;

/* The operation as this rank issued it, then all ranks' headers compared:
   DDP_ERR_MISMATCH, on all ranks, if they differ. */
ddp_status ddp_node_enter(ddp_comm *comm, const ddp_operation *c, const ddp_entry *entry);

/* Local rank i's header, and payload, of the running operation. */
const ddp_header *ddp_node_header(const ddp_comm *comm, int i);
const void *ddp_node_payload(const ddp_comm *comm, int i, size_t bytes);

/* True if all ranks' headers have `flag`. */
bool ddp_node_all_have(const ddp_comm *comm, uint8_t flag);

/* Posts this rank's next step; and waits until all ranks have posted theirs.
   On one node, who posts has to wait soon: the last to come wakes the others. */
void ddp_node_post_step(ddp_comm *comm);
ddp_status ddp_node_wait_steps(ddp_comm *comm);
ddp_status ddp_node_step(ddp_comm *comm);

/* ---- the control segment, which the ranks of a node share ---- */

/* A control segment's size before it is mapped. */
enum { DDP_SEGMENT_START_BYTES = 4096 };

/* Returns the error for a segment of a rank that could not be opened, by errno. A rank that has failed
   since it offered the segment has closed it: that is DDP_ERR_PEER. */
ddp_status ddp_segment_not_opened(const ddp_comm *comm, int rank, int error);

/* Maps the control segment, which any of its ranks makes large enough; fd
   stays open. */
ddp_status ddp_node_map(ddp_comm *comm, int fd);
void ddp_node_unmap(ddp_comm *comm);
