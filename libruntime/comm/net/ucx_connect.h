/* comm/net/ucx_connect: connections, and how their ends find each other. */
#ifndef DDP_COMM_NET_UCX_CONNECT_H
#define DDP_COMM_NET_UCX_CONNECT_H

#include "comm/net/ucx.h"

/* Makes the endpoint to a peer at its first use; an error has broken the
   communicator. */
ddp_status ddp_ucx_connect(ddp_net *net, int peer);
/* Sends the handshakes that are due, and what was held back for peers that have
   settled; true if there were any. */
bool ddp_ucx_answer_handshakes(ddp_net *net);
/* Tells the peer that this rank's connections are made. */
void ddp_ucx_say_ready(ddp_net *net, int peer);

/* For UCX: a handshake of a peer's. */
ucs_status_t ddp_ucx_handshake_arrived(void *argument, const void *header, size_t header_bytes,
                                       void *data, size_t bytes, const ucp_am_recv_param_t *param);

#endif
