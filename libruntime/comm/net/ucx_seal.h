/* comm/net/ucx_seal: what precedes each message, and tells whom it is from. */
#ifndef DDP_COMM_NET_UCX_SEAL_H
#define DDP_COMM_NET_UCX_SEAL_H

#include "comm/net/ucx.h"

/* Of a message of this rank's to a peer. */
seal ddp_ucx_seal(const ddp_net *net, int peer);
/* The source of an authentic message, or DDP_NOBODY. */
int ddp_ucx_source(ddp_net *net, const void *header, size_t header_bytes, size_t expected_bytes);

#endif
