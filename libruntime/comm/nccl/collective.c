/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/lane.h"

#include <stdlib.h>

#include "base/error.h"
#include "comm/nccl/handle.h"
#include "comm/ops/names.h"

/* An operation while its calls are made. The first result that is an error stays. */
typedef struct calls {
	ddp_nccl_operation *o;
	const ddp_operation *c;
	const ddp_nccl *nccl;
	ddp_nccl_handle *handle;
	void *queue;
	int rank, ranks, type;
	size_t element;
	const char *call;
	int result;
} calls;

/* ---- memory of the device ------------------------------------------------------------------ */

/* Gives at least `bytes` for work on the lane's queue. The next operation gets the same memory. */
static ddp_status get_scratch(ddp_nccl_lane *lane, size_t bytes, void **memory)
{
	const size_t before = lane->scratch != NULL ? lane->scratch->bytes : 0;

	if (bytes > before) {
		ddp_nccl_scratch *made = calloc(1, sizeof(*made));
		if (made == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for the record of %zu bytes on the device",
			                bytes);
		/* The size at least doubles. So all memory that was too small takes no more than this. */
		made->bytes = bytes > 2 * before ? bytes : 2 * before;
		const ddp_status status = ddp_device_alloc(lane->device, made->bytes, &made->memory);
		if (status != DDP_OK) {
			free(made);
			return status;
		}
		made->older = lane->scratch;
		lane->scratch = made;
	}
	*memory = lane->scratch->memory;
	return DDP_OK;
}

void ddp_nccl_scratch_free(ddp_nccl_lane *lane)
{
	while (lane->scratch != NULL) {
		ddp_nccl_scratch *last = lane->scratch;
		lane->scratch = last->older;
		(void)ddp_device_free(lane->device, last->memory);
		free(last);
	}
}

/* ---- operations ------------------------------------------------------------------------------ */

static calls calls_of(ddp_nccl_operation *o)
{
	const ddp_nccl_lane *lane = o->lane;

	return (calls){ .o = o, .c = &o->c, .nccl = lane->nccl, .handle = lane->handle, .queue = lane->queue,
	                .rank = lane->comm->rank, .ranks = lane->comm->size, .type = ddp_nccl_type_of(o->c.type),
	                .element = ddp_type_bytes(o->c.type) };
}

static void note(calls *k, int result, const char *call)
{
	if (result == DDP_NCCL_SUCCESS || result == DDP_NCCL_IN_PROGRESS || k->result != DDP_NCCL_SUCCESS)
		return;
	k->result = result;
	k->call = call;
}

static ddp_status status_of(const calls *k)
{
	return ddp_nccl_status(k->nccl, k->handle, k->result, k->call);
}

static size_t count_of(const size_t *counts, size_t count, int rank)
{
	return counts != NULL ? counts[rank] : count;
}

/* Bytes before a rank's block. */
static size_t offset_of(const calls *k, const size_t *counts, int rank)
{
	size_t elements = 0;

	for (int r = 0; r < rank; r++)
		elements += count_of(counts, k->c->count, r);
	return elements * k->element;
}

static ddp_status copy(const calls *k, void *to, const void *from, size_t bytes)
{
	if (to == from || bytes == 0)
		return DDP_OK;
	return ddp_device_copy(k->o->lane->device, k->queue, to, from, bytes);
}

/* Copies, too. If the two overlap, it goes by way of other memory. */
static ddp_status move(const calls *k, void *to, const void *from, size_t bytes)
{
	const size_t distance =
		to < from ? (size_t)((const char *)from - (char *)to) : (size_t)((char *)to - (const char *)from);
	void *between;

	if (distance == 0 || distance >= bytes)
		return copy(k, to, from, bytes);
	ddp_status status = get_scratch(k->o->lane, bytes, &between);
	if (status == DDP_OK)
		status = copy(k, between, from, bytes);
	return status == DDP_OK ? copy(k, to, between, bytes) : status;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Returns where NCCL leaves this rank's part of a reduce_scatter. In place, that is where its input lies, because
   others' inputs lie where ddp.h wants the result. */
static char *scattered(const calls *k)
{
	const bool in_place = k->c->send == k->c->recv;

	return (char *)k->c->recv + (in_place ? offset_of(k, k->c->counts, k->rank) : 0);
}

/* Parts of different sizes are reduced each to its rank. */
static void reduce_scatter_by_counts(calls *k)
{
	const char *block = k->c->send;

	note(k, k->nccl->group_start(), "ncclGroupStart()");
	for (int r = 0; r < k->ranks; r++) {
		const size_t count = k->c->counts[r];
		if (count > 0)
			note(k, k->nccl->reduce(block, r == k->rank ? scattered(k) : NULL, count, k->type, k->o->op, r,
			                        k->handle, k->queue), "ncclReduce()");
		block += count * k->element;
	}
	note(k, k->nccl->group_end(), "ncclGroupEnd()");
}

static void reduce(calls *k)
{
	const ddp_operation *c = k->c;

	note(k, ddp_nccl_make_op(k->o), "ncclRedOpCreatePreMulSum()");
	if (k->result != DDP_NCCL_SUCCESS)
		return;
	if (c->kind == DDP_ALL_REDUCE)
		note(k, k->nccl->all_reduce(c->send, c->recv, c->count, k->type, k->o->op, k->handle, k->queue), "ncclAllReduce()");
	else if (c->kind == DDP_REDUCE)
		note(k, k->nccl->reduce(c->send, c->recv, c->count, k->type, k->o->op, c->root, k->handle, k->queue), "ncclReduce()");
	else if (c->counts != NULL)
		reduce_scatter_by_counts(k);
	else
		note(k, k->nccl->reduce_scatter(c->send, scattered(k), c->count, k->type, k->o->op, k->handle, k->queue),
		     "ncclReduceScatter()");
}

/* ---- what only moves -------------------------------------------------------------------------- */

static void all_gather(calls *k)
{
	const ddp_operation *c = k->c;
	char *block = c->recv;

	if (c->counts == NULL) {
		note(k, k->nccl->all_gather(c->send, c->recv, c->count, k->type, k->handle, k->queue), "ncclAllGather()");
		return;
	}
	note(k, k->nccl->group_start(), "ncclGroupStart()");
	for (int r = 0; r < k->ranks; r++) {
		const size_t count = c->counts[r];
		if (count > 0)
			note(k, k->nccl->broadcast(r == k->rank ? c->send : block, block, count, k->type, r, k->handle, k->queue),
			     "ncclBroadcast()");
		block += count * k->element;
	}
	note(k, k->nccl->group_end(), "ncclGroupEnd()");
}

static void send(calls *k, const void *block, size_t count, int peer)
{
	if (count > 0)
		note(k, k->nccl->send(block, count, k->type, peer, k->handle, k->queue), "ncclSend()");
}

static void receive(calls *k, void *block, size_t count, int peer)
{
	if (count > 0)
		note(k, k->nccl->recv(block, count, k->type, peer, k->handle, k->queue), "ncclRecv()");
}

/* Gather, scatter and all-to-all, but for what a rank gives itself. `from` is the input of
   all-to-all. */
static void exchange(calls *k, const char *from)
{
	const ddp_operation *c = k->c;
	const bool root = c->root == k->rank;

	note(k, k->nccl->group_start(), "ncclGroupStart()");
	for (int r = 0; r < k->ranks; r++) {
		const size_t *recv_counts = c->kind == DDP_ALL_TO_ALL ? c->recv_counts : c->counts;
		const size_t sent = count_of(c->counts, c->count, r), got = count_of(recv_counts, c->count, r);
		if (r == k->rank)
			continue;
		if (c->kind == DDP_ALL_TO_ALL || (c->kind == DDP_SCATTER && root))
			send(k, from + offset_of(k, c->counts, r), sent, r);
		if (c->kind == DDP_ALL_TO_ALL || (c->kind == DDP_GATHER && root))
			receive(k, (char *)c->recv + offset_of(k, recv_counts, r), got, r);
		if (c->kind == DDP_GATHER && r == c->root)
			send(k, c->send, count_of(c->counts, c->count, k->rank), r);
		if (c->kind == DDP_SCATTER && r == c->root)
			receive(k, c->recv, count_of(c->counts, c->count, k->rank), r);
	}
	note(k, k->nccl->group_end(), "ncclGroupEnd()");
}

static ddp_status all_to_all(calls *k)
{
	const ddp_operation *c = k->c;
	const size_t bytes = offset_of(k, c->counts, k->ranks);
	const void *from = c->send;
	void *apart;

	if (c->send == c->recv && bytes > 0) {
		ddp_status status = get_scratch(k->o->lane, bytes, &apart);
		if (status == DDP_OK)
			status = copy(k, apart, c->send, bytes);
		if (status != DDP_OK)
			return status;
		from = apart;
	}
	exchange(k, from);
	return status_of(k);
}

/* ---- begin and end ------------------------------------------------------------------------------ */

ddp_status ddp_nccl_begin_collective(ddp_nccl_operation *o)
{
	calls k = calls_of(o);
	const ddp_operation *c = k.c;

	ddp_status status = ddp_device_queue_wait(o->lane->device, k.queue, o->begun);
	if (status == DDP_OK)
		status = ddp_device_event_record(o->lane->device, o->start, k.queue);
	if (status != DDP_OK)
		return status;
	switch (c->kind) {
	case DDP_ALL_REDUCE:
	case DDP_REDUCE:
	case DDP_REDUCE_SCATTER: reduce(&k); break;
	case DDP_BROADCAST:
		note(&k, k.nccl->broadcast(c->recv, c->recv, c->count, k.type, c->root, k.handle, k.queue), "ncclBroadcast()");
		break;
	case DDP_ALL_GATHER: all_gather(&k); break;
	case DDP_GATHER:
	case DDP_SCATTER: exchange(&k, c->send); break;
	case DDP_ALL_TO_ALL: return all_to_all(&k);
	default:
		note(&k, k.nccl->all_reduce(o->lane->word, o->lane->word, 1, DDP_NCCL_UINT8, DDP_NCCL_MAX, k.handle, k.queue),
		     "ncclAllReduce()");
		break;
	}
	return status_of(&k);
}

/* The block that a rank gives itself, or that lies elsewhere than ddp.h says. */
static ddp_status copy_own(const calls *k)
{
	const ddp_operation *c = k->c;
	const size_t *recv_counts = c->kind == DDP_ALL_TO_ALL ? c->recv_counts : c->counts;
	const size_t bytes = count_of(c->counts, c->count, k->rank) * k->element;
	const size_t sent = offset_of(k, c->counts, k->rank), got = offset_of(k, recv_counts, k->rank);

	switch (c->kind) {
	case DDP_REDUCE_SCATTER: return move(k, c->recv, scattered(k), bytes);
	case DDP_GATHER: return c->root == k->rank ? move(k, (char *)c->recv + got, c->send, bytes) : DDP_OK;
	case DDP_SCATTER: return c->root == k->rank ? move(k, c->recv, (const char *)c->send + sent, bytes) : DDP_OK;
	case DDP_ALL_TO_ALL:
		return c->send != c->recv ? copy(k, (char *)c->recv + got, (const char *)c->send + sent, bytes) : DDP_OK;
	default: return DDP_OK;
	}
}

ddp_status ddp_nccl_finish_collective(ddp_nccl_operation *o)
{
	const calls k = calls_of(o);

	ddp_nccl_free_op(o);
	const ddp_status status = copy_own(&k);
	return status == DDP_OK ? ddp_device_event_record(o->lane->device, o->end, k.queue) : status;
}
