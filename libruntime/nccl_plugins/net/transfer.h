/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/transfer: what NCCL moves through an open connection. No call waits. */
#pragma once

#include "nccl_plugins/net/connection.h"

/* Memory that NCCL has told us of. */
typedef struct net_memory net_memory;

ddp_status net_memory_register(net_connection *c, void *data, size_t bytes, int memory, net_memory **m);
void net_memory_deregister(net_connection *c, net_memory *m);

/* *request NULL: none is free; NCCL asks again. */
ddp_status net_transfer_send(net_connection *c, void *data, size_t bytes, int tag, const net_memory *m,
                             net_request **request);
/* `count` messages, one for each tag; they are one request. */
ddp_status net_transfer_receive(net_connection *c, int count, void *const *data, const size_t *bytes,
                                const int *tags, void *const *memories, net_request **request);
/* Lets the GPU see what was received. *request NULL: it does already. */
ddp_status net_transfer_flush(net_connection *c, int count, void *const *data, const int *bytes,
                              void *const *memories, net_request **request);
/* `bytes`, if not NULL, has room for each of a group; with `done`, the request is free. */
ddp_status net_transfer_test(net_request *r, bool *done, int *bytes);
