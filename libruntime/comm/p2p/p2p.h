/* SPDX-License-Identifier: Apache-2.0 */
/* comm/p2p/p2p: send and recv. On a node they go through rings (comm/p2p/ring); between nodes they are
   messages of comm/net. They move whenever a thread runs or awaits anything on the communicator, beside
   collectives. */
#pragma once

#include "comm/core/comm.h"

/* Adds a send or recv. queue.lock is held; run.lock need not be. */
void ddp_p2p_add(ddp_comm *comm, ddp_request *request);

/* Is anything under way? Any thread. */
static inline bool ddp_p2p_pending(const ddp_comm *comm)
{
	return atomic_load_explicit(&comm->p2p.count, memory_order_acquire) != 0;
}

/* Moves what can be moved, and completes requests; true if something moved.
   run.lock is held. */
bool ddp_p2p_progress(ddp_comm *comm);

/* The communicator is broken: completes all requests with its failure. */
void ddp_p2p_fail(ddp_comm *comm);

/* The communicator is being closed, and nothing runs any more: completes what
   nobody has waited for with an error. */
void ddp_p2p_abandon(ddp_comm *comm);

/* The request whose deadline is the next one. NULL: none is under way. run.lock is held. */
const ddp_request *ddp_p2p_first_due(const ddp_comm *comm);
/* The rank that a request waits for; where that may be any, one of another node that has
   failed, or else one that can still send, or else one that cannot. run.lock is held. */
int ddp_p2p_peer(const ddp_comm *comm, const ddp_request *r);
