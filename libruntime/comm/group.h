/* comm/group: communicators made from another one. */
#ifndef DDP_COMM_GROUP_H
#define DDP_COMM_GROUP_H

#include "comm/internal.h"
#include "comm/open.h"

/*
 * Builds a communicator of `size` processes, given by world rank, of which
 * this is number `rank`, or DDP_NOBODY if it only takes part in the exchanges
 * (*part is then NULL). `opening` exchanges among all that take part and gives
 * the members' blobs in order. If one member fails, all do.
 */
ddp_status ddp_comm_build(ddp_roster *roster, const int *world_ranks, int size, int rank,
                          int timeout_ms, const ddp_opening *opening, ddp_comm **part);

/* All ranks tell how they fared, with `mine`. If it is not DDP_OK on all, it is an
   error on all; on the others one that says which rank could not do `what`. */
ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what);

#endif
