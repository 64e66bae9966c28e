/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx_handlers: which file takes which of the messages that UCX brings. */
#ifndef DDP_COMM_NET_UCX_HANDLERS_H
#define DDP_COMM_NET_UCX_HANDLERS_H

#include "comm/net/ucx_state.h"

ucs_status_t ddp_ucx_set_handlers(ddp_worker *worker);

#endif
