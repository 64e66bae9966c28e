/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/plugin: the tables that NCCL looks for, and the only symbols of the library. */
#ifndef DDP_NCCL_PLUGINS_NET_PLUGIN_H
#define DDP_NCCL_PLUGINS_NET_PLUGIN_H

#include "nccl_plugins/net/abi.h"

#define NET_EXPORT __attribute__((visibility("default")))

extern NET_EXPORT const net_plugin_v8 ncclNetPlugin_v8;
extern NET_EXPORT const net_plugin_v10 ncclNetPlugin_v10;
extern NET_EXPORT const net_plugin_v11 ncclNetPlugin_v11;
extern NET_EXPORT const net_plugin_v12 ncclNetPlugin_v12;

#endif
