/* comm/net/ucx_failure: what ranks of different nodes tell each other of a failure. */
#ifndef DDP_COMM_NET_UCX_FAILURE_H
#define DDP_COMM_NET_UCX_FAILURE_H

#include "comm/net/ucx.h"

/* Tells all that this rank is connected with, at most until the deadline. */
void ddp_ucx_tell_failure(ddp_net *net, uint64_t deadline_ns);

/* For UCX: a peer has told its failure. */
ucs_status_t ddp_ucx_failure_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param);

/* Lets requests end, at most until the deadline. */
void ddp_ucx_finish_requests(ddp_net *net, void **requests, int count, uint64_t deadline_ns);

#endif
