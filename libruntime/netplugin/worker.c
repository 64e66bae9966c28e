#include "netplugin/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "comm/net/ucx_log.h"
#include "job/environment.h"
#include "base/text.h"
#include "netplugin/report.h"

static struct {
	pthread_mutex_t lock;
	net_worker *of[NET_DEVICES_MAX];
	net_worker *left; /* to the process's end */
} workers = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void destroy(net_worker *w)
{
	if (w->address != NULL)
		ucp_worker_release_address(w->ucx, w->address);
	if (w->ucx != NULL)
		ucp_worker_destroy(w->ucx);
	if (w->context != NULL)
		ucp_cleanup(w->context);
	for (net_leftover *l = w->leftovers, *next; l != NULL; l = next) {
		next = l->next;
		l->release(l->memory);
		free(l);
	}
	pthread_mutex_destroy(&w->lock);
	free(w->hosts);
	free(w);
}

/* Until a peer has proved the key, the kernel lets nobody connect to UCX. */
static void shut(net_worker *w, const ddp_listening *before)
{
	int error = ddp_listeners_find(&w->listeners, before, w->address, w->address_bytes);
	if (error == 0)
		error = ddp_listeners_shut(&w->listeners);
	if (error == 0)
		return;
	w->listeners.count = 0;
	net_info("NET/ddpucx: UCX's listening sockets are open to any host: no filter could be set for them (%s)%s",
	         ddp_reason(error), error == EPERM ? ", as it may for users without privileges" : "");
}

static ddp_status open_ucx(net_worker *w)
{
	DDP_UCX_FOR_LIBDDP();
	const ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED,
	};
	ddp_listening before;
	ddp_threads threads;

	ddp_ucx_log_list_threads(&threads);
	ucs_status_t status = net_ucx_start(w->device, &w->context);
	ddp_listeners_list(&before);
	if (status == UCS_OK)
		status = ucp_worker_create(w->context, &params, &w->ucx);
	if (status == UCS_OK)
		status = ucp_worker_get_address(w->ucx, &w->address, &w->address_bytes);
	ddp_ucx_log_claim_thread(&threads);
	if (status == UCS_OK)
		shut(w, &before);
	free(before.places);
	if (status != UCS_OK)
		return ddp_fail(DDP_ERR_IO, "UCX cannot open device %s: %s; NCCL_DEBUG=INFO shows more",
		                w->device->name, ucs_status_string(status));
	return DDP_OK;
}

static ddp_status make(const net_device *device, net_worker **worker)
{
	net_worker *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for UCX's worker of device %s", device->name);
	pthread_mutex_init(&w->lock, NULL);
	w->device = device;
	ddp_status status = open_ucx(w);
	if (status == DDP_OK)
		*worker = w;
	else
		destroy(w);
	return status;
}

ddp_status net_worker_use(int device, net_worker **worker)
{
	const net_device *d = net_device_at(device);
	ddp_status status = DDP_OK;

	if (d == NULL)
		return ddp_fail(DDP_ERR_INTERNAL, "NCCL asks for device %d of %d", device, net_devices_count());
	pthread_mutex_lock(&workers.lock);
	if (workers.of[device] == NULL)
		status = make(d, &workers.of[device]);
	if (status == DDP_OK) {
		*worker = workers.of[device];
		(*worker)->users++;
	}
	pthread_mutex_unlock(&workers.lock);
	return status;
}

void net_worker_share(net_worker *w)
{
	pthread_mutex_lock(&workers.lock);
	w->users++;
	pthread_mutex_unlock(&workers.lock);
}

static bool must_stay(const net_worker *w)
{
	for (const net_leftover *l = w->leftovers; l != NULL; l = l->next) {
		if (l->release == NULL)
			return true;
	}
	return false;
}

void net_worker_leave(net_worker *w)
{
	DDP_UCX_FOR_LIBDDP();

	pthread_mutex_lock(&workers.lock);
	if (--w->users == 0) {
		for (int i = 0; i < NET_DEVICES_MAX; i++) {
			if (workers.of[i] == w)
				workers.of[i] = NULL;
		}
		if (must_stay(w)) {
			net_info("NET/ddpucx: UCX's part of device %s is left to the process's end", w->device->name);
			w->next = workers.left;
			workers.left = w;
		} else {
			destroy(w);
		}
	}
	pthread_mutex_unlock(&workers.lock);
}

void net_worker_lock(net_worker *w)
{
	pthread_mutex_lock(&w->lock);
}

void net_worker_unlock(net_worker *w)
{
	pthread_mutex_unlock(&w->lock);
}

void net_worker_card(const net_worker *w, uint32_t connection, net_card *card)
{
	const char *text = ddp_environment("RANK");
	int64_t rank = -1;

	if (text != NULL && !ddp_parse_int64(text, 0, INT32_MAX, &rank))
		rank = -1;
	*card = (net_card){ .rank = (int)rank, .connection = connection, .address_bytes = w->address_bytes,
	                    .address = w->address };
	card->host_count = (uint32_t)ddp_host_places(card->hosts);
}

static bool is_admitted(const net_worker *w, const ddp_place *host)
{
	for (int i = 0; i < w->host_count; i++) {
		if (memcmp(&w->hosts[i], host, sizeof(*host)) == 0)
			return true;
	}
	return false;
}

ddp_status net_worker_admit(net_worker *w, const net_card *peer)
{
	const int before = w->host_count;
	int bits[2];

	if (w->listeners.count == 0)
		return DDP_OK;
	ddp_place *hosts = realloc(w->hosts, ((size_t)before + peer->host_count) * sizeof(*hosts));
	if (hosts == NULL && before + (int)peer->host_count > 0)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the addresses of %d hosts",
		                before + (int)peer->host_count);
	w->hosts = hosts;
	for (uint32_t i = 0; i < peer->host_count; i++) {
		if (!is_admitted(w, &peer->hosts[i]))
			w->hosts[w->host_count++] = peer->hosts[i];
	}
	int error = w->host_count > before ?
	            ddp_listeners_admit(&w->listeners, w->hosts, w->host_count, bits) : 0;
	if (error == 0)
		return DDP_OK;
	const int wanted = w->host_count;
	w->host_count = before; /* the next connection from there asks the kernel again */
	return ddp_fail_errno(DDP_ERR_IO, error, "the kernel does not take the filter of UCX's listening "
	                      "sockets that lets the job's %d addresses in", wanted);
}

void net_worker_leave_over(net_worker *w, void *memory, void (*release)(void *memory))
{
	static net_leftover unknown;
	net_leftover *leftover = malloc(sizeof(*leftover));

	if (leftover == NULL) {
		w->leftovers = &unknown;
		return;
	}
	*leftover = (net_leftover){ .next = w->leftovers, .memory = memory, .release = release };
	w->leftovers = leftover;
}

bool net_worker_progress(net_worker *w)
{
	return ucp_worker_progress(w->ucx) != 0;
}
