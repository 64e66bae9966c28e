/*
 * comm/await: waiting, and what ends a wait: a failed communicator, a dead
 * peer, a deadline.
 */
#ifndef DDP_COMM_AWAIT_H
#define DDP_COMM_AWAIT_H

#include "comm/internal.h"

/* A rank of the communicator that is still missing, or DDP_NOBODY when what
   is waited for is there. */
typedef int (*ddp_missing_fn)(ddp_comm *comm, const void *argument);

typedef struct ddp_condition {
	ddp_missing_fn missing;
	const void *argument;
	uint32_t sleeps_for; /* which post of a peer wakes the sleeper */
	uint64_t until;      /* the sequence or step that all are to reach */
	uint64_t gather_ns;  /* so long may messages gather while the program computes */
} ddp_condition;

/* Returns when nobody is missing. Any error has broken the communicator. */
ddp_status ddp_comm_await(ddp_comm *comm, const ddp_condition *wait);

/*
 * Breaks the communicator: every operation under way or to come, here and on
 * all peers, ends with `status` and the message. `culprit` is a rank of the
 * communicator or DDP_NOBODY. The first failure wins; the one that counts is
 * returned. Any thread.
 */
ddp_status ddp_comm_break(ddp_comm *comm, ddp_status status, int culprit,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The operation under way has ended: the progress page says so, if it had told
   of a wait. comm->run_lock is held. */
void ddp_comm_tell_end(ddp_comm *comm);

/* DDP_OK, or the failure that broke the communicator. */
ddp_status ddp_comm_check(ddp_comm *comm);

/* Wakes the node's ranks that sleep for `event` (or for ANY), if what they
   wait for is there; to be called after each store that others wait for, which
   has to be sequentially consistent. */
void ddp_node_wake(ddp_comm *comm, uint32_t event);
/* The same for a store that was only a release, by one who then waited for all
   ranks' stores: the last to come wakes those that sleep. It needs a full
   fence, which is cheap when the store has long left the core. */
void ddp_node_wake_late(ddp_comm *comm, uint32_t event);
/* Wakes the node's i-th rank, if it sleeps. */
void ddp_node_wake_rank(ddp_comm *comm, int i);
/* Wakes all of the node's ranks, whatever they sleep for. */
void ddp_node_wake_all(ddp_comm *comm);

/* "rank 3 on n1" in one of a few buffers of the thread. */
const char *ddp_rank_text(const ddp_comm *comm, int rank);

#endif
