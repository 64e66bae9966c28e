/*
 * comm/pairs: send and recv. On a node each ordered pair of ranks has a ring
 * of bytes in the control segment, through which messages follow one another;
 * between nodes they are messages of comm/net. They move whenever a thread
 * runs or awaits anything on the communicator, beside collectives.
 */
#ifndef DDP_COMM_PAIRS_H
#define DDP_COMM_PAIRS_H

#include "comm/internal.h"

enum { DDP_RING_BYTES = 64 * 1024 };

/* The ring from one rank to another. Counters only grow. */
typedef struct ddp_ring {
	alignas(128) _Atomic uint64_t written; /* by the sender */
	alignas(128) _Atomic uint64_t read;    /* by the receiver */
	alignas(128) char bytes[DDP_RING_BYTES];
} ddp_ring;

ddp_status ddp_pairs_open(ddp_comm *comm);

/* Adds a send or recv; the run_lock need not be held. */
void ddp_pairs_add(ddp_comm *comm, ddp_request *request);

/* Is anything under way? Any thread. */
static inline bool ddp_pairs_pending(const ddp_comm *comm)
{
	return atomic_load_explicit(&comm->pair_count, memory_order_acquire) != 0;
}

/* Moves what can be moved, and completes requests; true if something moved.
   run_lock is held. */
bool ddp_pairs_progress(ddp_comm *comm);

/* The communicator is broken: completes all requests with its failure. */
void ddp_pairs_fail(ddp_comm *comm);

/* The communicator is being closed, and nothing runs any more: completes what
   nobody has waited for with an error. */
void ddp_pairs_abandon(ddp_comm *comm);

/* Awaits until `request` is complete (NULL: until none is left), or something
   else wants to run, or the communicator is being closed. run_lock is held. */
ddp_status ddp_pairs_await(ddp_comm *comm, const ddp_request *request);

/* Breaks the communicator if the oldest request is late, however busy others
   keep it. run_lock is held. */
ddp_status ddp_pairs_check(ddp_comm *comm);

/* Frees messages that nobody asked for. */
void ddp_pairs_free(ddp_comm *comm);

/* comm/request: ends an operation, and wakes who waits for it. */
void ddp_request_complete(ddp_request *request, ddp_status status);
/* Does a thread of the program wait for a message or for what is queued? run_lock
   is held. */
bool ddp_requests_awaited(ddp_comm *comm);

#endif
