/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_send: hands data to UCX. */
#ifndef DDP_COMM_NET_UCX_SEND_H
#define DDP_COMM_NET_UCX_SEND_H

#include "comm/net/ucx_state.h"

/* Sends a transfer's data; the peer's connection is settled. */
ddp_status ddp_ucx_begin_send(ddp_net *net, ddp_transfer *transfer);

#endif
