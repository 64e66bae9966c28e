/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/build: makes communicators, and takes them down. The world, parts of
   another communicator and the survivors of a broken one differ only in how their
   ranks reach each other meanwhile. */
#pragma once

#include "comm/core/roster.h"

/* How the ranks of a communicator to be reach each other. */
typedef struct ddp_opening {
	void *argument;
	/* Exchanges blobs, which may differ in size, over all ranks that take part; the
	   members' come, in order, to be freed by ddp_blobs_free(). Without `blobs` and
	   `sizes` what comes is not kept. */
	ddp_status (*exchange)(void *argument, const void *blob, size_t bytes, void **blobs,
	                       size_t *sizes);
	/* Agrees on whether all have made their part: DDP_OK if `mine` is everyone's. */
	ddp_status (*confirm)(void *argument, ddp_status mine);
	bool confirms_parts; /* when a rank has all that the handshake needs, */
	bool confirms_all;   /* and at the end */
	int control_fd;      /* the node's control segment, if it is open; else -1 */
	const struct ddp_link *link; /* what the ranks' former communicator has measured; NULL: there is none */
} ddp_opening;

/* Builds a communicator of `size` processes, given by world rank, of which
   this is number `rank`, or DDP_NOBODY if it only takes part in the exchanges
   (*part is then NULL). If one member fails, all do that confirm. */
ddp_status ddp_comm_build(ddp_roster *roster, const int *world_ranks, int size, int rank,
                          int timeout_ms, const ddp_opening *opening, ddp_comm **part);

/* DDP_ERR_INVALID if a list of ranks of `comm` has one that is not there, or one twice; `function` was given it. */
ddp_status ddp_group_check(const ddp_comm *comm, const char *function, const int *ranks, int count);

/* Tells the others that this rank closes its communicator, and releases it; nothing
   that was queued runs any more. */
void ddp_comm_leave(ddp_comm *comm);
