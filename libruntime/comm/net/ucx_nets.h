/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_nets: the communicators of the process, by the id that messages carry. */
#ifndef DDP_COMM_NET_UCX_NETS_H
#define DDP_COMM_NET_UCX_NETS_H

#include "comm/net/ucx_state.h"

void ddp_ucx_add(ddp_net *net);
void ddp_ucx_remove(ddp_net *net);
/* NULL: not here, or not any more. */
ddp_net *ddp_ucx_find(const ddp_worker *worker, uint64_t id);

/* Is `rank` of the communicator the process at the other end? And which rank is it, or
   DDP_NOBODY? */
bool ddp_ucx_is_rank(const ddp_net *net, int rank, const connection *c);
int ddp_ucx_rank_of(const ddp_net *net, const connection *c);

/* Calls `visit` for each. */
void ddp_ucx_for_each(ddp_worker *worker, void (*visit)(ddp_net *net));

#endif
