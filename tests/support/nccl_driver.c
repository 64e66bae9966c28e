#include "tests/support/nccl_driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "libruntime/netplugin/.libs/libnccl-net-ddpucx.so"

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
