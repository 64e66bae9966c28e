/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_ticket: a request of UCX's, from its begin to its end. */
#ifndef DDP_COMM_NET_UCX_TICKET_H
#define DDP_COMM_NET_UCX_TICKET_H

#include "comm/net/ucx_state.h"

/* Adds a ticket to a list, for a request with the peer. `transfer` may be NULL. The caller writes the header, of
   header_bytes. NULL: there is no memory. */
ticket *ddp_ucx_ticket(ticket **list, connection *c, ddp_transfer *transfer, size_t header_bytes);

/* Takes what UCX returned for it. */
void ddp_ucx_begun(ticket *t, void *request);
/* UCX calls these when the request has ended. */
void ddp_ucx_received(void *request, ucs_status_t status, size_t length, void *user);
void ddp_ucx_sent(void *request, ucs_status_t status, void *user);

/* Sends a header alone, which begins with a seal, to a peer that has settled; false if
   it cannot be sent now. */
bool ddp_ucx_notify(ticket **list, connection *c, unsigned int id, const void *header, size_t bytes);

#endif
