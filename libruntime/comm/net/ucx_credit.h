/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/ucx_credit: a credit of bytes for each pair of processes. What a rank sends
 * goes out at once as long as its receiver has taken all but a credit's bytes of
 * what was sent before; so a rank keeps at most that of each other one's messages
 * that it has not asked for yet, however late it is. Beyond, a message is only
 * announced (a rendezvous of UCX's), and its data goes when it is asked for: in
 * whatever order that is, nobody waits for what stands behind a credit that is used up.
 */
#ifndef DDP_COMM_NET_UCX_CREDIT_H
#define DDP_COMM_NET_UCX_CREDIT_H

#include "comm/net/ucx_state.h"

/* Does a transfer's data fit in its peer's credit? If not, it is only to be
   announced. *charge is what the receiver gives back with ddp_ucx_taken(), also of
   what nobody will ever ask for. */
bool ddp_ucx_charge(connection *c, const ddp_transfer *transfer, uint64_t *charge);
void ddp_ucx_taken(connection *c, uint64_t charge);

/* Tells the peer what was taken of what it sent; false if that cannot be sent now. */
bool ddp_ucx_send_credit(connection *c);
/* comm/net/ucx_handlers calls this when a peer has told its credit. */
void ddp_ucx_credit_arrived(connection *c, const control_header *header);

#endif
