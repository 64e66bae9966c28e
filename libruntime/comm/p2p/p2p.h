/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/p2p/p2p: send and recv. On a node each ordered pair of ranks has a ring
 * of bytes in the control segment, through which messages follow one another;
 * between nodes they are messages of comm/net. They move whenever a thread
 * runs or awaits anything on the communicator, beside collectives.
 *
 * A receiver keeps messages that come before they are asked for, but not without bound: of a
 * large one, and once it keeps much, the sender writes the header alone, and the data follow
 * when the receiver asks for them.
 */
#ifndef DDP_COMM_P2P_P2P_H
#define DDP_COMM_P2P_P2P_H

#include "comm/core/comm.h"

enum { DDP_RING_BYTES = 64 * 1024 };

/* The ring from one rank to another. Counters only grow. */
typedef struct ddp_ring {
	alignas(128) _Atomic uint64_t written; /* by the sender */
	_Atomic uint64_t announced;            /* by the sender: messages of which the header alone was written */
	alignas(128) _Atomic uint64_t read;    /* by the receiver, as the next ones */
	_Atomic uint64_t kept;                 /* bytes that messages take which nobody has asked for yet */
	_Atomic uint64_t wanted;               /* the number of an announced message; 0: none yet */
	alignas(128) char bytes[DDP_RING_BYTES];
} ddp_ring;

ddp_status ddp_p2p_open(ddp_comm *comm);

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

/* Frees messages that nobody asked for. */
void ddp_p2p_free(ddp_comm *comm);

#endif
