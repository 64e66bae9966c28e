/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/nccl_driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so"

/* Layouts are NCCL's, in numbers that the compiler gave for its own headers, on x86_64 and
   alike: v8 to v11 of 2.28.9 and of 2.30.7, v12 of 2.30.7. The plugin cannot be tried with other
   layouts than those of abi.h: a member of it that is left out or swapped shows here only. */
#define AT(type, member, bytes) _Static_assert(offsetof(type, member) == (bytes), "as in NCCL: " #type "." #member)
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "as in NCCL: " #type)
#define TABLE(table) \
	AT(table, name, 0); AT(table, init, 8); AT(table, devices, 16); AT(table, properties, 24); \
	AT(table, listen, 32); AT(table, connect, 40); AT(table, accept, 48); \
	AT(table, register_memory, 56); AT(table, register_dmabuf, 64); \
	AT(table, deregister_memory, 72); AT(table, send, 80); AT(table, receive, 88); \
	AT(table, flush, 96); AT(table, test, 104); AT(table, close_sender, 112); \
	AT(table, close_receiver, 120); AT(table, close_listener, 128); \
	AT(table, device_handle, 136); AT(table, consumed, 144)
#define CONTEXTS(table) \
	TABLE(table); AT(table, merge_devices, 152); AT(table, finalize, 160); AT(table, set_attributes, 168)

TABLE(net_plugin_v8);
TABLE(net_plugin_v10);
AT(net_plugin_v10, merge_devices, 152);
CONTEXTS(net_plugin_v11);
CONTEXTS(net_plugin_v12);
SIZE(net_plugin_v8, 152);
SIZE(net_plugin_v10, 160);
SIZE(net_plugin_v11, 176);
SIZE(net_plugin_v12, 176);

AT(net_properties_v8, name, 0); AT(net_properties_v8, pci_path, 8);
AT(net_properties_v8, guid, 16); AT(net_properties_v8, memory, 24);
AT(net_properties_v8, registers_globally, 28); AT(net_properties_v8, speed_mbps, 32);
AT(net_properties_v8, port, 36); AT(net_properties_v8, latency_us, 40);
AT(net_properties_v8, connections_max, 44); AT(net_properties_v8, receives_max, 48);
AT(net_properties_v8, offload, 52); AT(net_properties_v8, offload_version, 56);
SIZE(net_properties_v8, 64);

#define PROPERTIES(type) \
	AT(type, name, 0); AT(type, pci_path, 8); AT(type, guid, 16); AT(type, memory, 24); \
	AT(type, registers_globally, 28); AT(type, always_flush, 32); AT(type, speed_mbps, 36); \
	AT(type, port, 40); AT(type, latency_us, 44); AT(type, connections_max, 48); \
	AT(type, receives_max, 52); AT(type, offload, 56); AT(type, offload_version, 60); \
	AT(type, merged, 64)
PROPERTIES(net_properties_v10);
AT(net_properties_v10, message_max, 88); AT(net_properties_v10, collective_max, 96);
AT(net_properties_v11, v10, 0); AT(net_properties_v11, requests_at_once_max, 104);
PROPERTIES(net_properties_v12);
AT(net_properties_v12, message_max, 104); AT(net_properties_v12, collective_max, 112);
AT(net_properties_v12, requests_at_once_max, 120);
AT(net_properties_v12, rail, 124); AT(net_properties_v12, plane, 126);
SIZE(net_properties_v10, 104);
SIZE(net_properties_v11, 112);
SIZE(net_properties_v12, 128);
AT(net_devices_4, devices, 4); AT(net_devices_8, devices, 4);
SIZE(net_devices_4, 20);
SIZE(net_devices_8, 36);
SIZE(net_config, 4);

#define TAKE_COMMON(table) \
	do { \
		d->accept = (table)->accept; \
		d->register_memory = (table)->register_memory; \
		d->deregister_memory = (table)->deregister_memory; \
		d->flush = (table)->flush; \
		d->test = (table)->test; \
		d->close_sender = (table)->close_sender; \
		d->close_receiver = (table)->close_receiver; \
		d->close_listener = (table)->close_listener; \
	} while (0)

bool nccl_load(nccl_driver *d, int version)
{
	char symbol[32];
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	*d = (nccl_driver){ .version = version };
	if (library == NULL) {
		fprintf(stderr, "# %s\n", dlerror());
		return false;
	}
	snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
	const void *table = dlsym(library, symbol);
	if (table == NULL)
		return false;
	switch (version) {
	case 8:
		d->v8 = table;
		TAKE_COMMON(d->v8);
		return true;
	case 10:
		d->v10 = table;
		TAKE_COMMON(d->v10);
		return true;
	case 11:
		d->v11 = table;
		TAKE_COMMON(d->v11);
		return true;
	case 12:
		d->v12 = table;
		TAKE_COMMON(d->v12);
		return true;
	default:
		return false;
	}
}

net_result nccl_init(nccl_driver *d, net_logger logger)
{
	net_config config = { .traffic_class = NET_UNDEFINED };

	switch (d->version) {
	case 8:
		return d->v8->init(logger);
	case 10:
		return d->v10->init(logger, NULL);
	case 11:
		return d->v11->init(&d->context, 7, &config, logger, NULL);
	default:
		return d->v12->init(&d->context, 7, &config, logger, NULL);
	}
}

net_result nccl_devices(const nccl_driver *d, int *count)
{
	switch (d->version) {
	case 8:
		return d->v8->devices(count);
	case 10:
		return d->v10->devices(count);
	case 11:
		return d->v11->devices(count);
	default:
		return d->v12->devices(count);
	}
}

static void from_v10(net_properties_v12 *to, const net_properties_v10 *p)
{
	*to = (net_properties_v12){
		.name = p->name, .pci_path = p->pci_path, .guid = p->guid, .memory = p->memory,
		.registers_globally = p->registers_globally, .always_flush = p->always_flush,
		.speed_mbps = p->speed_mbps, .port = p->port, .latency_us = p->latency_us,
		.connections_max = p->connections_max, .receives_max = p->receives_max,
		.offload = p->offload, .offload_version = p->offload_version,
		.merged = { .count = p->merged.count, .devices = { p->merged.devices[0] } },
		.message_max = p->message_max, .collective_max = p->collective_max,
	};
}

/* What v8 does not tell stays 0. */
static void from_v8(net_properties_v12 *to, const net_properties_v8 *p)
{
	*to = (net_properties_v12){
		.name = p->name, .pci_path = p->pci_path, .guid = p->guid, .memory = p->memory,
		.registers_globally = p->registers_globally, .speed_mbps = p->speed_mbps, .port = p->port,
		.latency_us = p->latency_us, .connections_max = p->connections_max,
		.receives_max = p->receives_max, .offload = p->offload, .offload_version = p->offload_version,
	};
}

net_result nccl_properties(const nccl_driver *d, int device, net_properties_v12 *properties)
{
	net_properties_v8 p8 = { .name = NULL };
	net_properties_v10 p10 = { .name = NULL };
	net_properties_v11 p11 = { .requests_at_once_max = 0 };
	net_result result;

	switch (d->version) {
	case 8:
		result = d->v8->properties(device, &p8);
		from_v8(properties, &p8);
		return result;
	case 10:
		result = d->v10->properties(device, &p10);
		from_v10(properties, &p10);
		return result;
	case 11:
		result = d->v11->properties(device, &p11);
		from_v10(properties, &p11.v10);
		return result;
	default:
		return d->v12->properties(device, properties);
	}
}

net_result nccl_listen(const nccl_driver *d, int device, void *handle, void **listener)
{
	switch (d->version) {
	case 8:
		return d->v8->listen(device, handle, listener);
	case 10:
		return d->v10->listen(device, handle, listener);
	case 11:
		return d->v11->listen(d->context, device, handle, listener);
	default:
		return d->v12->listen(d->context, device, handle, listener);
	}
}

net_result nccl_connect(const nccl_driver *d, int device, void *handle, void **sender)
{
	net_config config = { .traffic_class = NET_UNDEFINED };
	void *offload = NULL;

	switch (d->version) {
	case 8:
		return d->v8->connect(device, handle, sender, &offload);
	case 10:
		return d->v10->connect(device, &config, handle, sender, &offload);
	case 11:
		return d->v11->connect(d->context, device, handle, sender, &offload);
	default:
		return d->v12->connect(d->context, device, handle, sender, &offload);
	}
}

net_result nccl_send(const nccl_driver *d, void *sender, void *data, size_t bytes, int tag, void *memory,
                     void **request)
{
	switch (d->version) {
	case 8:
		return d->v8->send(sender, data, (int)bytes, tag, memory, request);
	case 10:
		return d->v10->send(sender, data, bytes, tag, memory, NULL, request);
	case 11:
		return d->v11->send(sender, data, bytes, tag, memory, NULL, request);
	default:
		return d->v12->send(sender, data, bytes, tag, memory, NULL, request);
	}
}

net_result nccl_receive(const nccl_driver *d, void *receiver, int count, void **data, size_t *bytes, int *tags,
                        void **memories, void **request)
{
	int sizes[NET_RECEIVES_MAX + 1] = { 0 };

	for (int i = 0; i < count && i < NET_RECEIVES_MAX; i++)
		sizes[i] = (int)bytes[i];
	switch (d->version) {
	case 8:
		return d->v8->receive(receiver, count, data, sizes, tags, memories, request);
	case 10:
		return d->v10->receive(receiver, count, data, bytes, tags, memories, NULL, request);
	case 11:
		return d->v11->receive(receiver, count, data, bytes, tags, memories, NULL, request);
	default:
		return d->v12->receive(receiver, count, data, bytes, tags, memories, NULL, request);
	}
}

net_result nccl_finalize(const nccl_driver *d)
{
	if (d->version == 11)
		return d->v11->finalize(d->context);
	return d->version == 12 ? d->v12->finalize(d->context) : NET_SUCCESS;
}
