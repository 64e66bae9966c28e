/* SPDX-License-Identifier: Apache-2.0 */
/* plugin: the tables that NCCL looks for, and the only symbols of the library. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "job/environment.h"
#include "nccl_plugins/net/abi.h"
#include "nccl_plugins/net/handle.h"
#include "nccl_plugins/net/listener.h"
#include "nccl_plugins/net/report.h"
#include "nccl_plugins/net/transfer.h"

static const char name[] = "ddpucx";

enum { MESSAGE_MAX = 1 << 30, CONNECTIONS_MAX = 1 << 16 };

/* v11 and v12 have one for each of NCCL's communicators, the other versions one in all. */
typedef struct net_context {
	uint64_t communicator;
} net_context;

static net_context the_only_context;

/* ---- start -------------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	ddp_key key;
} step = { .lock = PTHREAD_MUTEX_INITIALIZER };

static ddp_status read_key(ddp_key *key)
{
	pthread_mutex_lock(&step.lock);
	ddp_status status = ddp_environment_key(&step.key);
	*key = step.key;
	pthread_mutex_unlock(&step.lock);
	if (status == DDP_OK && !key->present)
		status = ddp_fail(DDP_ERR_AUTH, "DDP_KEY is not set, by which processes of a job know each other: srun "
		                  "--ddp sets it; without it, give all of them the same DDP_KEY=$(openssl rand -hex 32)");
	return status;
}

static net_result start(net_logger logger)
{
	ddp_key key;

	net_report_to(logger);
	ddp_status status = read_key(&key);
	explicit_bzero(&key, sizeof(key));
	if (status == DDP_OK)
		status = net_devices_find();
	return net_report(status);
}

static net_result start_v10(net_logger logger, net_profiler profiler)
{
	(void)profiler;
	return start(logger);
}

static net_result start_v11(void **context, uint64_t communicator, net_config *config, net_logger logger,
                            net_profiler profiler)
{
	(void)profiler;
	net_result result = start(logger);
	if (result != NET_SUCCESS)
		return result;
	if (config != NULL && config->traffic_class != NET_UNDEFINED)
		net_info("NET/ddpucx: communicator %llx asks for traffic class %d, which UCX takes from "
		         "UCX_IB_TRAFFIC_CLASS only", (unsigned long long)communicator, config->traffic_class);
	net_context *made = malloc(sizeof(*made));
	if (made == NULL)
		return net_report(ddp_fail(DDP_ERR_NOMEM, "no memory for NCCL's communicator %llx",
		                           (unsigned long long)communicator));
	made->communicator = communicator;
	*context = made;
	return NET_SUCCESS;
}

/* ---- devices ------------------------------------------------------------------------------ */

static net_result devices(int *count)
{
	*count = net_devices_count();
	return NET_SUCCESS;
}

static net_result properties_v12(int device, net_properties_v12 *p)
{
	const net_device *d = net_device_at(device);

	if (d == NULL)
		return net_report(ddp_fail(DDP_ERR_INTERNAL, "NCCL asks for device %d of %d", device, net_devices_count()));
	*p = (net_properties_v12){
		.name = (char *)d->name, .pci_path = d->path[0] != '\0' ? (char *)d->path : NULL,
		.guid = d->guid, .memory = NET_HOST | d->cuda,
		.speed_mbps = d->speed_mbps, .port = d->port, .connections_max = CONNECTIONS_MAX,
		.receives_max = NET_RECEIVES_MAX, .merged = { .count = 1, .devices = { device } },
		.message_max = MESSAGE_MAX, .collective_max = MESSAGE_MAX, .requests_at_once_max = 1,
		.rail = NET_UNDEFINED, .plane = NET_UNDEFINED,
	};
	return NET_SUCCESS;
}

static net_result properties_v10(int device, net_properties_v10 *p)
{
	net_properties_v12 all = { .name = NULL };
	net_result result = properties_v12(device, &all);

	if (result == NET_SUCCESS)
		*p = (net_properties_v10){
			.name = all.name, .pci_path = all.pci_path, .guid = all.guid, .memory = all.memory,
			.registers_globally = all.registers_globally, .always_flush = all.always_flush,
			.speed_mbps = all.speed_mbps, .port = all.port, .latency_us = all.latency_us,
			.connections_max = all.connections_max, .receives_max = all.receives_max,
			.merged = { .count = 1, .devices = { device } },
			.message_max = all.message_max, .collective_max = all.collective_max,
		};
	return result;
}

static net_result properties_v11(int device, net_properties_v11 *p)
{
	net_result result = properties_v10(device, &p->v10);

	if (result == NET_SUCCESS)
		p->requests_at_once_max = 1;
	return result;
}

static net_result properties_v8(int device, net_properties_v8 *p)
{
	net_properties_v12 all = { .name = NULL };
	net_result result = properties_v12(device, &all);

	if (result == NET_SUCCESS)
		*p = (net_properties_v8){
			.name = all.name, .pci_path = all.pci_path, .guid = all.guid, .memory = all.memory,
			.registers_globally = all.registers_globally, .speed_mbps = all.speed_mbps, .port = all.port,
			.latency_us = all.latency_us, .connections_max = all.connections_max,
			.receives_max = all.receives_max,
		};
	return result;
}

/* ---- connections -------------------------------------------------------------------------- */

/* A sender that is not open yet. NCCL calls again with the same handle, in which its
   number stands; a pointer from there would have come through the network. */
typedef struct attempt {
	struct attempt *next;
	uint64_t number;
	const void *context;
	net_connection *sender;
} attempt;

static struct {
	pthread_mutex_t lock;
	attempt *first;
	uint64_t last_number;
} attempts = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void add_attempt(attempt *a)
{
	pthread_mutex_lock(&attempts.lock);
	if (a->number == 0)
		a->number = ++attempts.last_number;
	a->next = attempts.first;
	attempts.first = a;
	pthread_mutex_unlock(&attempts.lock);
}

/* The one of this number, or any of the context if it is 0. */
static attempt *take_attempt(uint64_t number, const void *context)
{
	attempt **link = &attempts.first, *a;

	pthread_mutex_lock(&attempts.lock);
	while ((a = *link) != NULL && (a->context != context || (number != 0 && a->number != number)))
		link = &a->next;
	if (a != NULL)
		*link = a->next;
	pthread_mutex_unlock(&attempts.lock);
	return a;
}

static net_result finalize(void *context)
{
	attempt *a;

	while ((a = take_attempt(0, context)) != NULL) {
		net_connection_abandon(a->sender);
		free(a);
	}
	free(context);
	return NET_SUCCESS;
}

static net_result listen_v11(void *context, int device, void *handle, void **listener)
{
	ddp_key key;
	net_listener *made = NULL;
	ddp_status status = read_key(&key);

	(void)context;
	if (status == DDP_OK)
		status = net_listener_open(device, &key, handle, &made);
	explicit_bzero(&key, sizeof(key));
	*listener = made;
	return net_report(status);
}

static net_result listen_v8(int device, void *handle, void **listener)
{
	return listen_v11(&the_only_context, device, handle, listener);
}

static ddp_status new_attempt(void *context, int device, const void *handle, attempt **made)
{
	attempt *a = calloc(1, sizeof(*a));
	ddp_key key;

	if (a == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to begin a connection");
	a->context = context;
	ddp_status status = read_key(&key);
	if (status == DDP_OK)
		status = net_sender_begin(device, &key, handle, &a->sender);
	explicit_bzero(&key, sizeof(key));
	if (status == DDP_OK)
		*made = a;
	else
		free(a);
	return status;
}

static net_result connect_v11(void *context, int device, void *handle, void **sender, void **offload)
{
	uint64_t *number = net_handle_attempt(handle);
	attempt *a = *number != 0 ? take_attempt(*number, context) : NULL;
	ddp_status status = DDP_OK;

	(void)offload;
	*sender = NULL;
	if (a == NULL)
		status = new_attempt(context, device, handle, &a);
	if (status != DDP_OK)
		return net_report(ddp_fail_context(status, "cannot connect to a peer"));
	*number = 0;
	status = net_connection_step(a->sender);
	if (status == DDP_OK && !a->sender->open) {
		add_attempt(a);
		*number = a->number;
		return NET_SUCCESS;
	}
	if (status == DDP_OK)
		*sender = a->sender;
	else {
		status = ddp_fail_context(status, "cannot connect to %s", a->sender->peer);
		net_connection_abandon(a->sender);
	}
	free(a);
	return net_report(status);
}

static net_result connect_v10(int device, net_config *config, void *handle, void **sender, void **offload)
{
	(void)config;
	return connect_v11(&the_only_context, device, handle, sender, offload);
}

static net_result connect_v8(int device, void *handle, void **sender, void **offload)
{
	return connect_v11(&the_only_context, device, handle, sender, offload);
}

static net_result accept_one(void *listener, void **receiver, void **offload)
{
	net_connection *made = NULL;
	ddp_status status = net_listener_accept(listener, &made);

	(void)offload;
	*receiver = made;
	return net_report(status);
}

static net_result close_connection(void *connection)
{
	net_connection_close(connection);
	return NET_SUCCESS;
}

static net_result close_listener(void *listener)
{
	net_listener_close(listener);
	return NET_SUCCESS;
}

/* ---- transfers ---------------------------------------------------------------------------- */

/* NCCL asks again and again before it gives up: users read why once. */
static net_result report_once(net_connection *c, ddp_status status)
{
	if (status == DDP_OK)
		return NET_SUCCESS;
	if (c->told)
		return net_result_of(status);
	c->told = true;
	return net_report(status);
}

static net_result register_memory(void *connection, void *data, size_t bytes, int memory, void **handle)
{
	net_memory *made = NULL;
	ddp_status status = net_memory_register(connection, data, bytes, memory, &made);

	*handle = made;
	return net_report(status);
}

/* UCX's interface takes no descriptor; it asks the CUDA driver for one of its own. */
static net_result register_dmabuf(void *connection, void *data, size_t bytes, int memory, uint64_t offset, int fd,
                                  void **handle)
{
	(void)offset;
	(void)fd;
	return register_memory(connection, data, bytes, memory, handle);
}

static net_result deregister_memory(void *connection, void *handle)
{
	if (handle != NULL)
		net_memory_deregister(connection, handle);
	return NET_SUCCESS;
}

static net_result send_v11(void *sender, void *data, size_t bytes, int tag, void *handle, void *event, void **request)
{
	net_request *made;

	(void)event;
	ddp_status status = net_transfer_send(sender, data, bytes, tag, handle, &made);
	*request = made;
	return report_once(sender, status);
}

static net_result receive_v11(void *receiver, int count, void **data, size_t *bytes, int *tags, void **handles,
                              void **events, void **request)
{
	net_request *made;

	(void)events;
	ddp_status status = net_transfer_receive(receiver, count, data, bytes, tags, handles, &made);
	*request = made;
	return report_once(receiver, status);
}

static net_result send_v8(void *sender, void *data, int bytes, int tag, void *handle, void **request)
{
	return send_v11(sender, data, (size_t)bytes, tag, handle, NULL, request);
}

static net_result receive_v8(void *receiver, int count, void **data, int *bytes, int *tags, void **handles,
                             void **request)
{
	size_t sizes[NET_RECEIVES_MAX] = { 0 };

	for (int i = 0; i < count && i < NET_RECEIVES_MAX; i++)
		sizes[i] = (size_t)bytes[i];
	return receive_v11(receiver, count, data, sizes, tags, handles, NULL, request);
}

static net_result flush(void *receiver, int count, void **data, int *bytes, void **handles, void **request)
{
	net_request *made;
	ddp_status status = net_transfer_flush(receiver, count, data, bytes, handles, &made);

	*request = made;
	return report_once(receiver, status);
}

static net_result test(void *request, int *done, int *bytes)
{
	net_connection *c = ((net_request *)request)->connection;
	bool is_done;
	ddp_status status = net_transfer_test(request, &is_done, bytes);

	*done = is_done;
	return report_once(c, status);
}

/* ---- the tables ----------------------------------------------------------------------------- */

DDP_API const net_plugin_v12 ncclNetPlugin_v12 = {
	.name = name, .init = start_v11, .devices = devices, .properties = properties_v12,
	.listen = listen_v11, .connect = connect_v11, .accept = accept_one,
	.register_memory = register_memory, .register_dmabuf = register_dmabuf,
	.deregister_memory = deregister_memory, .send = send_v11, .receive = receive_v11,
	.flush = flush, .test = test, .close_sender = close_connection, .close_receiver = close_connection,
	.close_listener = close_listener, .finalize = finalize,
};

DDP_API const net_plugin_v11 ncclNetPlugin_v11 = {
	.name = name, .init = start_v11, .devices = devices, .properties = properties_v11,
	.listen = listen_v11, .connect = connect_v11, .accept = accept_one,
	.register_memory = register_memory, .register_dmabuf = register_dmabuf,
	.deregister_memory = deregister_memory, .send = send_v11, .receive = receive_v11,
	.flush = flush, .test = test, .close_sender = close_connection, .close_receiver = close_connection,
	.close_listener = close_listener, .finalize = finalize,
};

DDP_API const net_plugin_v10 ncclNetPlugin_v10 = {
	.name = name, .init = start_v10, .devices = devices, .properties = properties_v10,
	.listen = listen_v8, .connect = connect_v10, .accept = accept_one,
	.register_memory = register_memory, .register_dmabuf = register_dmabuf,
	.deregister_memory = deregister_memory, .send = send_v11, .receive = receive_v11,
	.flush = flush, .test = test, .close_sender = close_connection, .close_receiver = close_connection,
	.close_listener = close_listener,
};

DDP_API const net_plugin_v8 ncclNetPlugin_v8 = {
	.name = name, .init = start, .devices = devices, .properties = properties_v8,
	.listen = listen_v8, .connect = connect_v8, .accept = accept_one,
	.register_memory = register_memory, .register_dmabuf = register_dmabuf,
	.deregister_memory = deregister_memory, .send = send_v8, .receive = receive_v8,
	.flush = flush, .test = test, .close_sender = close_connection, .close_receiver = close_connection,
	.close_listener = close_listener,
};
