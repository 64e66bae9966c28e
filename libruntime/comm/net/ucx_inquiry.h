/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_inquiry: inquiries of comm/wait/verdict, and their answers. */
#ifndef DDP_COMM_NET_UCX_INQUIRY_H
#define DDP_COMM_NET_UCX_INQUIRY_H

#include "comm/net/ucx_state.h"

/* Asks a rank what it waits for; and answers what has come. */
void ddp_ucx_inquire(ddp_net *net, int rank);
void ddp_ucx_answer_inquiries(ddp_worker *worker);

/* comm/net/ucx_handlers calls this for an inquiry, or for an answer. */
void ddp_ucx_inquiry_arrived(connection *c, const control_header *header);

#endif
