/* comm/net/ucx_inquiry: inquiries of comm/wait/verdict, and their answers. */
#ifndef DDP_COMM_NET_UCX_INQUIRY_H
#define DDP_COMM_NET_UCX_INQUIRY_H

#include "comm/net/ucx.h"

/* Asks a rank what it waits for; and answers what has come. */
void ddp_ucx_inquire(ddp_net *net, int rank);
void ddp_ucx_answer_inquiries(ddp_worker *worker);

/* For UCX: an inquiry, or an answer. */
ucs_status_t ddp_ucx_inquiry_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param);

#endif
