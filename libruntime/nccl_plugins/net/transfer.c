/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net/log.h"
#include "nccl_plugins/net/report.h"

enum { GONE_MS = 3000 }; /* for UCX to end what was under way with a peer that is gone */

struct net_memory {
	ucs_memory_type_t type;
	ucp_mem_h handle; /* NULL: of no bytes */
	ucp_rkey_h key;   /* CUDA memory: to read it for a flush */
};

/* ---- memory --------------------------------------------------------------------------------- */

/* A connection of the worker to itself. */
static ucs_status_t connect_self(net_worker *w)
{
	const ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = w->address };

	return w->self != NULL ? UCS_OK : ucp_ep_create(w->ucx, &params, &w->self);
}

static ucs_status_t make_key(net_worker *w, net_memory *m)
{
	void *packed;
	size_t bytes;
	ucs_status_t status = connect_self(w);

	if (status == UCS_OK)
		status = ucp_rkey_pack(w->context, m->handle, &packed, &bytes);
	if (status != UCS_OK)
		return status;
	status = ucp_ep_rkey_unpack(w->self, packed, &m->key);
	ucp_rkey_buffer_release(packed);
	return status;
}

static ucs_status_t map(net_worker *w, void *data, size_t bytes, net_memory *m)
{
	const ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
			UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
		.address = data, .length = bytes, .memory_type = m->type,
	};
	ucs_status_t status = bytes > 0 ? ucp_mem_map(w->context, &params, &m->handle) : UCS_OK;

	if (status == UCS_OK && bytes > 0 && m->type == UCS_MEMORY_TYPE_CUDA)
		status = make_key(w, m);
	return status;
}

void net_memory_deregister(net_connection *c, net_memory *m)
{
	DDP_UCX_FOR_LIBDDP();

	net_worker_lock(c->worker);
	/* NCCL frees the memory next, while others let UCX go on. */
	const bool unused = net_connection_withdraw(c, m);
	if (unused && m->key != NULL)
		ucp_rkey_destroy(m->key);
	if (unused && m->handle != NULL)
		(void)ucp_mem_unmap(c->worker->context, m->handle);
	net_worker_unlock(c->worker);
	if (!unused)
		net_warn("NET/ddpucx: memory is taken back while it is moved %s %s, and UCX does not end that",
		         c->sends ? "to" : "from", c->peer);
	else
		free(m);
}

ddp_status net_memory_register(net_connection *c, void *data, size_t bytes, int memory, net_memory **memory_handle)
{
	DDP_UCX_FOR_LIBDDP();

	if (memory != NET_HOST && !(memory == NET_CUDA && c->worker->device->cuda != 0))
		return ddp_fail(DDP_ERR_UNSUPPORTED, "memory of kind %d cannot be registered: the UCX of this process "
		                "%s", memory, memory == NET_CUDA ? "moves no CUDA memory through this device" :
		                "knows host memory and CUDA memory");
	net_memory *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to register %zu bytes", bytes);
	m->type = memory == NET_CUDA ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
	net_worker_lock(c->worker);
	ucs_status_t status = map(c->worker, data, bytes, m);
	net_worker_unlock(c->worker);
	if (status == UCS_OK) {
		*memory_handle = m;
		return DDP_OK;
	}
	net_memory_deregister(c, m);
	return ddp_fail(DDP_ERR_IO, "UCX cannot register %zu bytes of %s memory for device %s: %s; is ulimit -l large "
	                "enough?", bytes, memory == NET_CUDA ? "CUDA" : "host", c->worker->device->name,
	                ucs_status_string(status));
}

static net_slice slice_of(void *data, size_t bytes, const net_memory *m)
{
	return (net_slice){ .data = data, .bytes = bytes, .type = m != NULL ? m->type : UCS_MEMORY_TYPE_HOST,
	                    .handle = m != NULL ? m->handle : NULL };
}

/* ---- requests ------------------------------------------------------------------------------- */

static net_request *take_request(net_connection *c, int count)
{
	net_request *r = c->free;

	if (r == NULL) {
		c->counters.exhausted++;
		return NULL;
	}
	c->free = r->next;
	r->busy = true;
	r->flushes = false;
	r->count = count;
	if (++c->counters.under_way > c->counters.under_way_max)
		c->counters.under_way_max = c->counters.under_way;
	return r;
}

static void give_back(net_request *r)
{
	net_connection *c = r->connection;

	r->busy = false;
	r->next = c->free;
	c->free = r;
	c->counters.under_way--;
}

static ddp_status fail_gone(net_connection *c)
{
	return ddp_fail(DDP_ERR_PEER, "the connection %s %s is gone: %s; the log of that process, or of its node, "
	                "says more", c->sends ? "to" : "from", c->peer, c->why);
}

/* ---- sending and receiving -------------------------------------------------------------------- */

ddp_status net_transfer_send(net_connection *c, void *data, size_t bytes, int tag, const net_memory *m,
                             net_request **request)
{
	DDP_UCX_FOR_LIBDDP();
	const net_slice slice = slice_of(data, bytes, m);
	ddp_status status = DDP_OK;

	*request = NULL;
	net_worker_lock(c->worker);
	if (c->lost != UCS_OK)
		net_connection_look(c);
	if (c->gone)
		status = fail_gone(c);
	else if (c->lost == UCS_OK) /* otherwise NCCL asks again, until it is gone */
		*request = take_request(c, 1);
	if (*request != NULL) {
		net_send_begin((*request)->operations, c->ep, &slice, net_tag(c->peer_id, tag));
		(*request)->operations->memory = m;
	}
	net_worker_unlock(c->worker);
	return status;
}

ddp_status net_transfer_receive(net_connection *c, int count, void *const *data, const size_t *bytes,
                                const int *tags, void *const *memories, net_request **request)
{
	DDP_UCX_FOR_LIBDDP();

	*request = NULL;
	if (count < 1 || count > NET_RECEIVES_MAX)
		return ddp_fail(DDP_ERR_INTERNAL, "NCCL asks for %d receives in a group, of at most %d", count, NET_RECEIVES_MAX);
	net_worker_lock(c->worker);
	if (c->cut) {
		const ddp_status status = fail_gone(c);
		net_worker_unlock(c->worker);
		return status;
	}
	net_request *r = take_request(c, count);
	for (int i = 0; r != NULL && i < count; i++) {
		const net_slice slice = slice_of(data[i], bytes[i], memories != NULL ? memories[i] : NULL);
		net_operation *o = &r->operations[i];
		net_receive_begin(o, c->worker->ucx, &slice, net_tag(c->own_id, tags[i]));
		o->memory = memories != NULL ? memories[i] : NULL;
		/* Messages that the peer sent before it went can still be taken. */
		if (c->gone)
			net_receive_cancel(o, c->worker->ucx);
	}
	net_worker_unlock(c->worker);
	*request = r;
	return DDP_OK;
}

ddp_status net_transfer_flush(net_connection *c, int count, void *const *data, const int *bytes,
                              void *const *memories, net_request **request)
{
	DDP_UCX_FOR_LIBDDP();
	int last = count - 1;

	/* A read behind the last write of the network brings all of them to the GPU. */
	*request = NULL;
	while (last >= 0 && bytes[last] == 0)
		last--;
	const net_memory *m = last >= 0 && memories != NULL ? memories[last] : NULL;
	if (m == NULL || m->key == NULL)
		return DDP_OK;
	net_worker_lock(c->worker);
	net_request *r = take_request(c, 1);
	if (r != NULL) {
		r->flushes = true;
		net_get_begin(r->operations, c->worker->self, &c->flushed, (uint64_t)(uintptr_t)data[last], m->key);
		r->operations->memory = m;
	}
	net_worker_unlock(c->worker);
	*request = r;
	return r != NULL ? DDP_OK : ddp_fail(DDP_ERR_INTERNAL, "NCCL flushes more than it receives");
}

/* ---- the end of a request ---------------------------------------------------------------------- */

static int count_active(const net_request *r)
{
	int active = 0;

	for (int i = 0; i < r->count; i++)
		active += r->operations[i].active;
	return active;
}

static bool has_failed(const net_request *r)
{
	for (int i = 0; i < r->count; i++) {
		if (!r->operations[i].active && r->operations[i].status != UCS_OK)
			return true;
	}
	return false;
}

/* UCX failed it when it lost the peer, which may have had it all the same, and may yet say so. */
static bool undecided(const net_request *r)
{
	return r->connection->lost != UCS_OK && !r->connection->gone && has_failed(r);
}

static ddp_status judge(net_connection *c, const net_operation *o, bool flushes)
{
	if (o->status == UCS_OK || c->delivered)
		return DDP_OK;
	if (!c->gone && !c->sends && !flushes && o->status != UCS_ERR_MESSAGE_TRUNCATED)
		net_connection_cut(c, ucs_status_string(o->status));
	if (c->gone)
		return fail_gone(c);
	if (o->status == UCS_ERR_MESSAGE_TRUNCATED)
		return ddp_fail(DDP_ERR_MISMATCH, "a message from %s is longer than what it is to be received into: the "
		                "ranks' calls differ in count or type", c->peer);
	return ddp_fail(DDP_ERR_IO, "%s %s failed: %s", c->sends ? "sending to" : "receiving from", c->peer,
	                ucs_status_string(o->status));
}

static ddp_status finish(net_request *r, int *bytes)
{
	net_connection *c = r->connection;

	for (int i = 0; i < r->count; i++) {
		ddp_status status = judge(c, &r->operations[i], r->flushes);
		if (status != DDP_OK)
			return status;
	}
	for (int i = 0; i < r->count && !r->flushes; i++) {
		const net_operation *o = &r->operations[i];
		c->counters.messages++;
		c->counters.bytes += o->bytes;
		if (bytes != NULL)
			bytes[i] = (int)o->bytes;
	}
	if (count_active(r) == 0) /* else UCX has it until the connection closes */
		give_back(r);
	return DDP_OK;
}

ddp_status net_transfer_test(net_request *r, bool *done, int *bytes)
{
	DDP_UCX_FOR_LIBDDP();
	net_connection *c = r->connection;
	ddp_status status = DDP_OK;

	*done = false;
	net_worker_lock(c->worker);
	if (!r->busy)
		status = ddp_fail(DDP_ERR_INTERNAL, "NCCL tests a request that has ended");
	if (status == DDP_OK && (count_active(r) > 0 ? !net_worker_progress(c->worker) : undecided(r)))
		net_connection_look(c);
	/* UCX's acknowledgement may be lost with the worker of a receiver that has closed. */
	if (status == DDP_OK && (c->delivered || (count_active(r) == 0 && !undecided(r)))) {
		status = finish(r, bytes);
		*done = status == DDP_OK;
	} else if (status == DDP_OK && c->gone &&
	           (c->sends || ddp_now_ns() - c->gone_ns > (uint64_t)GONE_MS * 1000000)) {
		status = fail_gone(c);
	}
	net_worker_unlock(c->worker);
	return status;
}
