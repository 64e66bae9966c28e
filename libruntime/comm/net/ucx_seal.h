/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_seal: what precedes each message, and tells whom it is from. */
#ifndef DDP_COMM_NET_UCX_SEAL_H
#define DDP_COMM_NET_UCX_SEAL_H

#include "comm/net/ucx_state.h"

/* Makes the seal of a message of this rank to a peer. */
seal ddp_ucx_seal(const connection *c);
/* The source of an authentic message, or NULL; and what to do with one whose content
   cannot be its source's. */
connection *ddp_ucx_source(ddp_worker *worker, const void *header, size_t header_bytes, size_t expected_bytes);
void ddp_ucx_unauthentic(ddp_worker *worker);

#endif
