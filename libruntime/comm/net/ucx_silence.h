/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/ucx_silence: what follows for connections from a silent node (comm/core/silence): those with its ranks
 * are lost, and the ranks of other nodes are told, each of which tells others.
 */
#ifndef DDP_COMM_NET_UCX_SILENCE_H
#define DDP_COMM_NET_UCX_SILENCE_H

#include "comm/net/ucx_state.h"

/* Ends the connections with the nodes that have fallen silent since the last call. Not from UCX's callbacks; the lock
   is held. */
void ddp_ucx_silence(ddp_worker *worker);

/* comm/net/ucx_handlers calls this when a peer has told of a silent node. */
void ddp_ucx_silence_arrived(connection *c, const control_header *header);

#endif
