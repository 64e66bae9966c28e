/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/device: what NCCL may choose between: the network devices that UCX would use
   in this process, whatever they are. Where there are RDMA devices, other networks are
   left out; without any network, what UCX has on a node is one device. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

#include "ddp.h"

enum { NET_DEVICES_MAX = 32, NET_DEVICE_NAME_MAX = 64 };

typedef struct net_device {
	char name[NET_DEVICE_NAME_MAX]; /* UCX's: mlx5_0:1, eth0 */
	char transport[NET_DEVICE_NAME_MAX];
	bool any;                       /* not UCX's name: what is not restricted to a device */
	bool rdma, loopback;
	int cuda;                       /* NET_CUDA, NET_DMABUF: by what ways it takes CUDA memory */
	char path[PATH_MAX];            /* below /sys; "": none */
	uint64_t guid;
	int port, speed_mbps;
} net_device;

/* Starts UCX once to ask it. Thread-safe; after an error it asks again. */
ddp_status net_devices_find(void);
int net_devices_count(void);
/* NULL: there is none. */
const net_device *net_device_at(int index);

/* Starts UCX for one of them; NULL: for all. */
ucs_status_t net_ucx_start(const net_device *device, ucp_context_h *context);
