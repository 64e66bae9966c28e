/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_progress: the lock of the process's worker, and letting messages move. */
#ifndef DDP_COMM_NET_UCX_PROGRESS_H
#define DDP_COMM_NET_UCX_PROGRESS_H

#include "comm/net/ucx_state.h"

/* The lock is taken for a communicator, or for none (NULL). When the lock is given up, it wakes other
   communicators for which something came meanwhile. */
void ddp_ucx_lock(ddp_worker *worker, const ddp_net *net);
bool ddp_ucx_try_lock(ddp_worker *worker, const ddp_net *net);
void ddp_ucx_unlock(ddp_worker *worker);

/* Lets messages move; true if some did. The lock is held. */
bool ddp_ucx_progress(ddp_worker *worker);

#endif
