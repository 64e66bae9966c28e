/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_driver: calls libnccl-net-ddpucx.so as NCCL does, by the table of any version that
   the plugin has. What differs between versions is hidden here. NULL and -1 stand for
   what NCCL would leave out. */
#pragma once

#include <stdbool.h>

#include "nccl_plugins/net/abi.h"

typedef struct nccl_driver {
	int version; /* 8, 10, 11 or 12 */
	const net_plugin_v8 *v8;
	const net_plugin_v10 *v10;
	const net_plugin_v11 *v11;
	const net_plugin_v12 *v12;
	void *context;
	/* The same in all versions: */
	net_accept *accept;
	net_register *register_memory;
	net_deregister *deregister_memory;
	net_flush *flush;
	net_test *test;
	net_close *close_sender, *close_receiver, *close_listener;
} nccl_driver;

/* The plugin of this build, from the build folder. False: it cannot be loaded, or lacks the version. */
bool nccl_load(nccl_driver *d, int version);
net_result nccl_init(nccl_driver *d, net_logger logger);
net_result nccl_devices(const nccl_driver *d, int *count);
net_result nccl_properties(const nccl_driver *d, int device, net_properties_v12 *properties);
net_result nccl_listen(const nccl_driver *d, int device, void *handle, void **listener);
net_result nccl_connect(const nccl_driver *d, int device, void *handle, void **sender);
net_result nccl_send(const nccl_driver *d, void *sender, void *data, size_t bytes, int tag, void *memory,
                     void **request);
net_result nccl_receive(const nccl_driver *d, void *receiver, int count, void **data, size_t *bytes, int *tags,
                        void **memories, void **request);
net_result nccl_finalize(const nccl_driver *d);
