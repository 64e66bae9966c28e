/*
 * comm/core/doorbell: sleeping, and waking ranks of this node. On one node a rank
 * sleeps on a futex in its lines of the control segment; where there are others,
 * on a pipe, which its peers open through /proc as they do the memory, so that it
 * can sleep on the network as well.
 */
#ifndef DDP_COMM_CORE_DOORBELL_H
#define DDP_COMM_CORE_DOORBELL_H

#include "ddp.h"

typedef struct ddp_doorbell {
	int pipe[2]; /* of this rank: read and write end; -1: none */
	int *peers;  /* [node size]: write ends; NULL: there are no pipes */
} ddp_doorbell;

/* Makes this rank's pipe; and opens those of the node's ranks, fds[comm->size]. */
ddp_status ddp_doorbell_open(ddp_comm *comm);
ddp_status ddp_doorbell_open_peers(ddp_comm *comm, const int *fds);
/* What peers need to open this rank's pipe; -1: there is none. */
int ddp_doorbell_fd(const ddp_comm *comm);
void ddp_doorbell_close(ddp_comm *comm);

/* Wakes the node's i-th rank, whatever it sleeps for. Any thread. */
void ddp_doorbell_notify(ddp_comm *comm, int i);
/* The same with the pipe only: for this rank's progress thread. */
void ddp_doorbell_notify_pipe(ddp_comm *comm, int i);

/* Sleeps until a notification comes through the pipe, or `fd` (-1: none) has
   something to read, or time is over (-1: never). Needs no run.lock. */
void ddp_doorbell_sleep(ddp_comm *comm, int fd, int timeout_ms);
/* Sleeps for so long, or until a notification. */
void ddp_doorbell_rest(ddp_comm *comm, uint64_t ns);
/* Takes the notifications that have come off the pipe. */
void ddp_doorbell_drain(ddp_comm *comm);

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

#endif
