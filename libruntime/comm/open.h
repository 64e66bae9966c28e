/* comm/open: making and taking down communicators. */
#ifndef DDP_COMM_OPEN_H
#define DDP_COMM_OPEN_H

#include "comm/internal.h"

/* How the ranks of a communicator to be exchange blobs: like
   ddp_wireup_ops.exchange, over all ranks that take part in opening. Of
   ddp_comm_build(), also without `blobs` and `sizes`: what comes is not kept. */
typedef struct ddp_opening {
	ddp_status (*exchange)(void *exchanger, const void *blob, size_t bytes, void **blobs,
	                       size_t *sizes);
	void *exchanger;
	/* Agrees, at the end, on whether all have made their part: DDP_OK if `mine`
	   is everyone's. Not for the world. */
	ddp_status (*confirm)(void *exchanger, ddp_status mine);
	bool confirm_early; /* also before they greet each other */
} ddp_opening;

/* A communicator without shared parts yet. */
ddp_status ddp_comm_create(ddp_roster *roster, const int *world_ranks, int size, int rank,
                           int timeout_ms, ddp_comm **comm);
/* Finds the nodes of its ranks, and their places on them. */
ddp_status ddp_comm_place(ddp_comm *comm);
/* Releases its memory; the progress thread has been stopped. */
void ddp_comm_destroy(ddp_comm *comm);

/* Starts the progress thread; with several nodes it also looks after the
   network while no operation runs. */
ddp_status ddp_comm_start(ddp_comm *comm);
/* A barrier after what is queued, and nothing runs after it: a peer that closes
   its communicator from then on breaks no send or receive that is still open. */
ddp_status ddp_comm_last_barrier(ddp_comm *comm);
/* Ends the progress thread, if there is one, after what is queued; sends and
   receives that have not met their counterpart end with an error. */
void ddp_comm_stop(ddp_comm *comm);

#endif
