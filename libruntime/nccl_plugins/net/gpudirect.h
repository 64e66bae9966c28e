/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/gpudirect: by what ways NCCL is told that a device moves CUDA memory.
   UCX moves it through any device, but by way of the host where the network cannot read it,
   which NCCL does better itself. */
#pragma once

#include <stdbool.h>

/* Bits of NET_CUDA and NET_DMABUF; 0: none. `sys` is where /sys is. */
int net_gpudirect(bool rdma, const char *sys);
