/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_receive: messages with data that arrive, and who receives them. */
#ifndef DDP_COMM_NET_UCX_RECEIVE_H
#define DDP_COMM_NET_UCX_RECEIVE_H

#include "comm/net/ucx_state.h"

/* UCX calls this when a message has arrived. */
ucs_status_t ddp_ucx_data_arrived(void *argument, const void *header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param);

/* Gives a transfer the first message that has arrived for it, or lets it wait. */
void ddp_ucx_receive(ddp_net *net, ddp_transfer *transfer);
/* Receives what could not be in UCX's callback; true if there was any. */
bool ddp_ucx_receive_deferred(ddp_worker *worker);

/* Takes messages that nobody has asked for off, and releases them: one of a rank's,
   all, or all but those of comm/group/agreement. A rendezvous is refused, which
   completes it for its sender. */
void ddp_ucx_drop(ddp_net *net, int rank, uint64_t tag);
void ddp_ucx_drop_all(ddp_net *net, bool agreement);

#endif
