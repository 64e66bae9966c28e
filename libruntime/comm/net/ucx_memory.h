/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/ucx_memory: memory for messages. If the process has none left, small messages take what the worker keeps for
 * them. By small messages ranks agree on what all of them do or none does: a rank that has said yes must hear the others.
 */
#ifndef DDP_COMM_NET_UCX_MEMORY_H
#define DDP_COMM_NET_UCX_MEMORY_H

#include "comm/net/ucx_state.h"

/* worker->lock is held. NULL: there is no memory. */
void *ddp_ucx_memory(ddp_worker *worker, size_t bytes);
void ddp_ucx_memory_free(ddp_worker *worker, void *memory);

#endif
