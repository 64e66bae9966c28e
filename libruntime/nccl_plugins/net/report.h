/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/report: what the plugin says, by NCCL's logger. NCCL_DEBUG chooses what
   of it is seen. */
#pragma once

#include <ucp/api/ucp_def.h>

#include "ddp.h"
#include "nccl_plugins/net/abi.h"

/* From now on, UCX's warnings go there, too. */
void net_report_to(net_logger logger);

void net_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void net_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The result that NCCL gets for the status. */
net_result net_result_of(ddp_status status);
/* The calling thread's last error as a warning, and what NCCL gets for it. DDP_OK: NET_SUCCESS. */
net_result net_report(ddp_status status);

/* Writes the transports and devices by which UCX reaches a peer, each once: "posix/memory+cma/memory". Empty: UCX
   does not tell, or there is no memory. What does not fit is left out. */
void net_transports_of(ucp_ep_h ep, char *text, size_t bytes);
