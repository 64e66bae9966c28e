/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/listener: a listener, and the receivers that it makes. */
#pragma once

#include "nccl_plugins/net/connection.h"

#include "wireup/acceptor.h"

enum { NET_RECEIVERS_MAX = 16 }; /* that a listener makes at a time */

typedef struct net_listener {
	ddp_key key;
	char host[DDP_AUTH_HOST_BYTES]; /* this one */
	net_worker *worker;
	ddp_acceptor acceptor;
	net_connection *receivers[NET_RECEIVERS_MAX];
} net_listener;

/* `handle` is NET_HANDLE_BYTES long. */
ddp_status net_listener_open(int device, const ddp_key *step, void *handle, net_listener **listener);
/* NULL: none is ready yet. */
ddp_status net_listener_accept(net_listener *l, net_connection **receiver);
void net_listener_close(net_listener *l);
