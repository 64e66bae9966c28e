/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_connect: connections, and how their ends find each other. */
#ifndef DDP_COMM_NET_UCX_CONNECT_H
#define DDP_COMM_NET_UCX_CONNECT_H

#include "comm/net/ucx_state.h"

/* Makes the endpoint to a peer at its first use; false if it cannot be: the
   connection is lost. */
bool ddp_ucx_connect(connection *c);
/* Raises the soft limit of descriptors, where it is too low for connections with two ranks of
   each other node. UCX 1.13 closes its listener for good when it cannot accept one. */
void ddp_ucx_make_room(ddp_worker *worker, int nodes);
/* Raises the limit again, and lets connections begin that lacked descriptors. */
void ddp_ucx_try_again(ddp_net *net);
/* Sends the handshakes that are due, and what was held back for a peer that has settled. */
void ddp_ucx_answer_handshake(connection *c);
/* Tells the peer that this rank's connections are made. */
void ddp_ucx_say_ready(connection *c);
/* Tells the peer that nothing follows; its answer is that it has had all. */
void ddp_ucx_take_leave(connection *c);

/* comm/net/ucx_handlers calls this for the handshake of a peer. */
void ddp_ucx_handshake_arrived(connection *c, const control_header *header);

#endif
