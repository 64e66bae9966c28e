/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/ucx_transports: by what UCX reaches a peer.
 */
#ifndef DDP_COMM_NET_UCX_TRANSPORTS_H
#define DDP_COMM_NET_UCX_TRANSPORTS_H

#include <stddef.h>
#include <ucp/api/ucp_def.h>

/* Writes the transports and devices of an endpoint, each once: "posix/memory+cma/memory". Empty: UCX does not tell,
   or there is no memory. What does not fit is left out. */
void ddp_ucx_transports(ucp_ep_h ep, char *text, size_t bytes);

#endif
