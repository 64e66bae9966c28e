/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/ucx_failure: what ranks of different nodes tell each other of the end of a
 * communicator: that it has failed; or that one of them has closed it, whose
 * connections go on for others.
 */
#ifndef DDP_COMM_NET_UCX_FAILURE_H
#define DDP_COMM_NET_UCX_FAILURE_H

#include "comm/net/ucx_state.h"

/* Tells all that this rank is connected with. */
void ddp_ucx_tell_failure(ddp_net *net);
void ddp_ucx_tell_closed(ddp_net *net);
/* Answers a message of a communicator that is not open here. */
void ddp_ucx_answer_closed(connection *c);

/* comm/net/ucx_handlers calls these when a peer has told a failure, or that it has closed the communicator. */
void ddp_ucx_failure_arrived(connection *c, const control_header *header);
void ddp_ucx_closed_arrived(connection *c, const control_header *header);

#endif
