/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/abi: what NCCL and a network plugin call each other by. Layouts as in NCCL
   2.28.9 (v11, v10, v8) and 2.30.7 (v12). NCCL takes the newest table that it knows:
   2.30 takes v12, 2.27.6 and later v11, 2.26 v10, 2.20 to 2.25 v8. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
	NET_HANDLE_BYTES = 128,  /* of the opaque text that a listener is reached by */
	NET_REQUESTS_MAX = 32,   /* that NCCL has under way on a connection */
	NET_RECEIVES_MAX = 8,    /* that we take in one group */
	NET_UNDEFINED = -1
};

typedef enum net_result {
	NET_SUCCESS = 0,
	NET_SYSTEM_ERROR = 2,
	NET_INTERNAL_ERROR = 3, /* NCCL calls in a way that it should not */
	NET_INVALID_USAGE = 5
} net_result;

/* Kinds of memory, as bits. */
enum { NET_HOST = 1, NET_CUDA = 2, NET_DMABUF = 4 };

enum { NET_LOG_WARN = 2, NET_LOG_INFO = 3 };
enum { NET_LOG_ABOUT_NET = 0x10, NET_LOG_ABOUT_ALL = ~0 };

typedef void (*net_logger)(int level, unsigned long about, const char *file, int line,
                           const char *format, ...);
typedef net_result (*net_profiler)(void **event, int type, void *parent, int64_t id, void *data);

/* Tells what queue of the network's a communicator's traffic goes through. */
typedef struct net_config {
	int traffic_class; /* NET_UNDEFINED: any */
} net_config;

typedef struct net_properties_v8 {
	char *name;
	char *pci_path;      /* below /sys; NULL: none */
	uint64_t guid;       /* the same for ports of one card */
	int memory;          /* bits: NET_HOST ... */
	int registers_globally;
	int speed_mbps;
	int port;
	float latency_us;    /* 0: unknown */
	int connections_max;
	int receives_max;    /* in a group */
	int offload, offload_version; /* 0: none */
} net_properties_v8;

typedef struct net_devices_4 {
	int count;
	int devices[4];
} net_devices_4;

typedef struct net_devices_8 {
	int count;
	int devices[8];
} net_devices_8;

typedef struct net_properties_v10 {
	char *name;
	char *pci_path;
	uint64_t guid;
	int memory;
	int registers_globally;
	int always_flush;
	int speed_mbps;
	int port;
	float latency_us;
	int connections_max;
	int receives_max;
	int offload, offload_version;
	net_devices_4 merged; /* what this one is made of: itself */
	size_t message_max, collective_max; /* bytes */
} net_properties_v10;

typedef struct net_properties_v11 {
	net_properties_v10 v10;
	int requests_at_once_max;
} net_properties_v11;

typedef struct net_properties_v12 {
	char *name;
	char *pci_path;
	uint64_t guid;
	int memory;
	int registers_globally;
	int always_flush;
	int speed_mbps;
	int port;
	float latency_us;
	int connections_max;
	int receives_max;
	int offload, offload_version;
	net_devices_8 merged;
	size_t message_max, collective_max;
	int requests_at_once_max;
	int16_t rail, plane;
} net_properties_v12;

/* From accept to the last but init: the same in all versions, up to the types of sizes. */
typedef net_result net_accept(void *listener, void **receiver, void **offload);
typedef net_result net_register(void *connection, void *data, size_t bytes, int memory, void **handle);
typedef net_result net_register_dmabuf(void *connection, void *data, size_t bytes, int memory,
                                       uint64_t offset, int fd, void **handle);
typedef net_result net_deregister(void *connection, void *handle);
typedef net_result net_send(void *sender, void *data, size_t bytes, int tag, void *handle, void *event,
                            void **request);
typedef net_result net_receive(void *receiver, int count, void **data, size_t *bytes, int *tags,
                               void **handles, void **events, void **request);
typedef net_result net_send_v8(void *sender, void *data, int bytes, int tag, void *handle, void **request);
typedef net_result net_receive_v8(void *receiver, int count, void **data, int *bytes, int *tags,
                                  void **handles, void **request);
typedef net_result net_flush(void *receiver, int count, void **data, int *bytes, void **handles,
                             void **request);
typedef net_result net_test(void *request, int *done, int *bytes);
typedef net_result net_close(void *object);

typedef struct net_plugin_v8 {
	const char *name;
	net_result (*init)(net_logger logger);
	net_result (*devices)(int *count);
	net_result (*properties)(int device, net_properties_v8 *properties);
	net_result (*listen)(int device, void *handle, void **listener);
	net_result (*connect)(int device, void *handle, void **sender, void **offload);
	net_accept *accept;
	net_register *register_memory;
	net_register_dmabuf *register_dmabuf;
	net_deregister *deregister_memory;
	net_send_v8 *send;
	net_receive_v8 *receive;
	net_flush *flush;
	net_test *test;
	net_close *close_sender, *close_receiver, *close_listener;
	net_result (*device_handle)(void *connection, void *handle, void **on_device); /* NULL: no offload */
	net_result (*consumed)(void *receiver, int count, void *request);              /* NULL: no offload */
} net_plugin_v8;

typedef struct net_plugin_v10 {
	const char *name;
	net_result (*init)(net_logger logger, net_profiler profiler);
	net_result (*devices)(int *count);
	net_result (*properties)(int device, net_properties_v10 *properties);
	net_result (*listen)(int device, void *handle, void **listener);
	net_result (*connect)(int device, net_config *config, void *handle, void **sender, void **offload);
	net_accept *accept;
	net_register *register_memory;
	net_register_dmabuf *register_dmabuf;
	net_deregister *deregister_memory;
	net_send *send;
	net_receive *receive;
	net_flush *flush;
	net_test *test;
	net_close *close_sender, *close_receiver, *close_listener;
	net_result (*device_handle)(void *connection, void *handle, void **on_device);
	net_result (*consumed)(void *receiver, int count, void *request);
	net_result (*merge_devices)(int *device, net_devices_4 *devices); /* NULL: cannot */
} net_plugin_v10;

/* v11, and v12, which differs in what `properties` and `merge_devices` are given. */
#define NET_PLUGIN_OF_CONTEXTS(properties_type, devices_type) \
	const char *name; \
	net_result (*init)(void **context, uint64_t communicator, net_config *config, net_logger logger, \
	                   net_profiler profiler); \
	net_result (*devices)(int *count); \
	net_result (*properties)(int device, properties_type *properties); \
	net_result (*listen)(void *context, int device, void *handle, void **listener); \
	net_result (*connect)(void *context, int device, void *handle, void **sender, void **offload); \
	net_accept *accept; \
	net_register *register_memory; \
	net_register_dmabuf *register_dmabuf; \
	net_deregister *deregister_memory; \
	net_send *send; \
	net_receive *receive; \
	net_flush *flush; \
	net_test *test; \
	net_close *close_sender, *close_receiver, *close_listener; \
	net_result (*device_handle)(void *connection, void *handle, void **on_device); \
	net_result (*consumed)(void *receiver, int count, void *request); \
	net_result (*merge_devices)(int *device, devices_type *devices); \
	net_result (*finalize)(void *context); \
	net_result (*set_attributes)(void *context, void *attributes); /* NULL: they are of no use to us */

typedef struct net_plugin_v11 {
	NET_PLUGIN_OF_CONTEXTS(net_properties_v11, net_devices_4)
} net_plugin_v11;

typedef struct net_plugin_v12 {
	NET_PLUGIN_OF_CONTEXTS(net_properties_v12, net_devices_8)
} net_plugin_v12;
