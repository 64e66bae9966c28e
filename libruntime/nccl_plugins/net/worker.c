/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "comm/net/log.h"
#include "job/environment.h"
#include "base/text.h"
#include "nccl_plugins/net/report.h"

static struct {
	pthread_mutex_t lock;
	net_worker *of[NET_DEVICES_MAX];
	net_worker *left; /* to the process's end */
} workers = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Behind UCX's address, a worker tells its peers its listeners, and then this. */
typedef struct entrance {
	ddp_share share;
	uint32_t checks; /* who connects to a listener has to prove the key */
	uint32_t listener_count;
} entrance;

static void destroy(net_worker *w)
{
	if (w->guard != NULL)
		ddp_guard_close(w->guard);
	if (w->ucx != NULL)
		ucp_worker_destroy(w->ucx);
	if (w->guard != NULL)
		ddp_guard_free(w->guard);
	explicit_bzero(&w->key, sizeof(w->key));
	free(w->address);
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

/* Until a peer has proved the key, nobody connects to UCX; then only who has it: the guard keeps others out,
   and the kernel other hosts, if it takes filters. */
static ddp_status shut(net_worker *w, const ddp_listening *before, const ucp_address_t *own, size_t bytes,
                       const ddp_share *share)
{
	ddp_proof_key key;
	int error = ddp_listeners_find(&w->listeners, before, own, bytes);
	const char *lacks = error != 0 ? "its listening sockets are not known" : ddp_guard_lacks(w->guard, &w->listeners);
	ddp_status status = ddp_proof_key_make(&w->key, share, &key);

	if (status != DDP_OK)
		return status;
	w->checks = lacks == NULL;
	if (w->checks)
		ddp_guard_require_proof(w->guard, &key);
	else
		ddp_guard_let_all_in(w->guard);
	explicit_bzero(&key, sizeof(key));
	w->unfiltered = error != 0 ? error : ddp_listeners_shut(&w->listeners);
	if (w->checks)
		return DDP_OK;
	net_info("NET/ddpucx: who connects to UCX's listening sockets cannot be checked: %s", lacks);
	if (w->unfiltered != 0)
		net_info("NET/ddpucx: UCX's listening sockets are open to any host: no filter could be set for them (%s)%s",
		         ddp_reason(w->unfiltered), w->unfiltered == EPERM ? ", as it may for users without privileges" : "");
	return DDP_OK;
}

static ddp_status write_address(net_worker *w, const ddp_share *share, const ucp_address_t *own, size_t bytes)
{
	const entrance e = { .share = *share, .checks = w->checks, .listener_count = (uint32_t)w->listeners.count };
	const size_t place_bytes = e.listener_count * sizeof(*w->listeners.places);
	char *to = malloc(bytes + place_bytes + sizeof(e));

	if (to == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for UCX's address of %zu bytes", bytes);
	w->address = (ucp_address_t *)(void *)to;
	w->address_bytes = bytes + place_bytes + sizeof(e);
	memcpy(to, own, bytes);
	memcpy(to + bytes, w->listeners.places, place_bytes);
	memcpy(to + bytes + place_bytes, &e, sizeof(e));
	return DDP_OK;
}

static ddp_status guard_ucx(net_worker *w, const ddp_listening *before)
{
	ucp_address_t *own;
	ddp_share share;
	size_t bytes;

	if (ucp_worker_get_address(w->ucx, &own, &bytes) != UCS_OK)
		return ddp_fail(DDP_ERR_IO, "UCX tells no address of device %s", w->device->name);
	ddp_status status = ddp_share_make(&share);
	if (status == DDP_OK)
		status = shut(w, before, own, bytes, &share);
	if (status == DDP_OK)
		status = write_address(w, &share, own, bytes);
	ucp_worker_release_address(w->ucx, own);
	return status;
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
	ddp_guard_begin(w->guard);
	if (status == UCS_OK)
		status = ucp_worker_create(w->context, &params, &w->ucx);
	ddp_guard_end();
	ddp_ucx_log_claim_thread(&threads);
	ddp_status result = status == UCS_OK ? guard_ucx(w, &before) :
		ddp_fail(DDP_ERR_IO, "UCX cannot open device %s: %s; NCCL_DEBUG=INFO shows more", w->device->name,
		         ucs_status_string(status));
	free(before.places);
	return result;
}

static ddp_status make(const net_device *device, const ddp_key *step, net_worker **worker)
{
	net_worker *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for UCX's worker of device %s", device->name);
	pthread_mutex_init(&w->lock, NULL);
	w->device = device;
	w->key = *step;
	ddp_status status = ddp_guard_make(&w->guard);
	if (status == DDP_OK)
		status = open_ucx(w);
	if (status == DDP_OK)
		*worker = w;
	else
		destroy(w);
	return status;
}

ddp_status net_worker_use(int device, const ddp_key *step, net_worker **worker)
{
	const net_device *d = net_device_at(device);
	ddp_status status = DDP_OK;

	if (d == NULL)
		return ddp_fail(DDP_ERR_INTERNAL, "NCCL asks for device %d of %d", device, net_devices_count());
	pthread_mutex_lock(&workers.lock);
	if (workers.of[device] == NULL)
		status = make(d, step, &workers.of[device]);
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

static ddp_status filter(net_worker *w, const net_card *peer)
{
	const int before = w->host_count;
	int bits[2];

	if (w->unfiltered != 0 || w->listeners.count == 0)
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

/* This process may connect to the peer's listeners, and proves the key there. */
static ddp_status know_listeners(net_worker *w, const net_card *peer, const entrance *e, size_t place_bytes)
{
	ddp_place places[DDP_LISTENERS_MAX];
	ddp_proof_key key;

	if ((e->checks != 0) != w->checks)
		return ddp_fail(DDP_ERR_PEER, "the plugin can check who connects to UCX %s only: let all nodes have the same UCX",
		                w->checks ? "here" : "there");
	if (!w->checks)
		return DDP_OK;
	memcpy(places, (const char *)peer->address + peer->address_bytes - sizeof(*e) - place_bytes, place_bytes);
	ddp_status status = ddp_proof_key_make(&w->key, &e->share, &key);
	if (status == DDP_OK)
		status = ddp_guard_add_peer(w->guard, places, (int)e->listener_count, &key);
	explicit_bzero(&key, sizeof(key));
	return status;
}

ddp_status net_worker_admit(net_worker *w, const net_card *peer)
{
	entrance e = { .listener_count = UINT32_MAX };

	if (peer->address_bytes > sizeof(e))
		memcpy(&e, (const char *)peer->address + peer->address_bytes - sizeof(e), sizeof(e));
	const size_t place_bytes = e.listener_count * sizeof(ddp_place);
	if (e.listener_count > DDP_LISTENERS_MAX || peer->address_bytes <= place_bytes + sizeof(e))
		return ddp_fail(DDP_ERR_PEER, "it sent a card without an address of UCX's: let all nodes have the same "
		                "version of slurm-ddp");
	ddp_status status = know_listeners(w, peer, &e, place_bytes);
	return status == DDP_OK ? filter(w, peer) : status;
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
