/* comm/net/ucx_ticket: requests of UCX's that are under way. */
#ifndef DDP_COMM_NET_UCX_TICKET_H
#define DDP_COMM_NET_UCX_TICKET_H

#include "comm/net/ucx.h"

/* A ticket for a request that is about to begin: of a transfer, or of a message to
   a peer that belongs to none; NULL without memory. */
ticket *ddp_ucx_ticket(ddp_net *net, ddp_transfer *transfer, int peer);
/* After UCX has begun the request: it may have ended at once. */
void ddp_ucx_begun(ticket *t, void *request);
/* For UCX: the request has ended. */
void ddp_ucx_sent(void *request, ucs_status_t status, void *ticket);
void ddp_ucx_received(void *request, ucs_status_t status, size_t length, void *ticket);

/* Sends a message without data, whose header begins with a seal that is filled in,
   and holds no more than a ticket has room for; false if that is not possible now. */
bool ddp_ucx_notify(ddp_net *net, int peer, unsigned int id, const void *header, size_t bytes);

#endif
