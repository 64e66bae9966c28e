/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/ucx_sendv: how UCX's transports write into TCP sockets. UCX's own functions end the process
 * where a peer has died.
 */
#ifndef DDP_COMM_NET_UCX_SENDV_H
#define DDP_COMM_NET_UCX_SENDV_H

/* Replaces these functions for the whole process. `ucp` is a handle of UCX's libraries. NULL: it is done;
   otherwise the reason why UCX's own functions stay. */
const char *ddp_sendv_replace(void *ucp);

#endif
