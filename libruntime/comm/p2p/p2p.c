/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/p2p/p2p.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/net/net.h"
#include "comm/p2p/match.h"
#include "comm/p2p/ring.h"

/* ---- the list of requests ---------------------------------------------------------- */

void ddp_p2p_add(ddp_comm *comm, ddp_request *request)
{
	const ddp_operation *c = &request->operation;
	const int timeout_ms = c->timeout_ms > 0 ? c->timeout_ms : comm->timeout_ms;
	const uint64_t now = ddp_now_ns();

	request->deadline_ns = now + (uint64_t)timeout_ms * 1000000;
	request->recorded = ddp_comm_record(comm, c, 0, now);
	request->open = ddp_match_is_open(c);
	ddp_request **end = &comm->p2p.added;
	while (*end != NULL)
		end = &(*end)->next;
	*end = request;
	atomic_fetch_add(&comm->p2p.count, 1);
}

static bool is_send(const ddp_request *r)
{
	return r->operation.kind == DDP_SEND;
}

static size_t bytes_of(const ddp_request *r)
{
	return r->operation.count * ddp_type_bytes(r->operation.type);
}

/* Moves new requests to the end of the list that this thread works on. */
static void take_new(ddp_comm *comm)
{
	ddp_request **end = &comm->p2p.requests;

	pthread_mutex_lock(&comm->queue.lock);
	while (*end != NULL)
		end = &(*end)->next;
	*end = comm->p2p.added;
	comm->p2p.added = NULL;
	pthread_mutex_unlock(&comm->queue.lock);
	for (ddp_request *r = *end; r != NULL; r = r->next)
		r->start_ns = ddp_now_ns();
}

const ddp_request *ddp_p2p_first_due(const ddp_comm *comm)
{
	const ddp_request *first = comm->p2p.requests;

	for (const ddp_request *r = first; r != NULL; r = r->next)
		first = r->deadline_ns < first->deadline_ns ? r : first;
	return first;
}

static bool is_gone(const ddp_comm *comm, int rank)
{
	if (!ddp_is_local(comm, rank))
		return ddp_net_lost(comm, rank);
	const ddp_node_rank *lines = ddp_lines_of(comm, rank);
	return atomic_load(&lines->left) != 0 || atomic_load(&lines->ending) != 0;
}

/* Between nodes, no rank closes a communicator before all ranks do. So a rank that is gone there has failed. */
int ddp_p2p_peer(const ddp_comm *comm, const ddp_request *r)
{
	int other = DDP_NOBODY;

	if (r->operation.root != DDP_ANY_SOURCE)
		return r->operation.root;
	for (int i = 1; i < comm->size; i++) {
		const int rank = (comm->rank + i) % comm->size;
		const bool gone = is_gone(comm, rank);
		if (gone && !ddp_is_local(comm, rank))
			return rank;
		if (!gone && other == DDP_NOBODY)
			other = rank;
	}
	return other != DDP_NOBODY ? other : (comm->rank + 1) % comm->size;
}

/* ---- between nodes --------------------------------------------------------------------- */

static ddp_status give_to_net(ddp_comm *comm, ddp_request *r)
{
	const ddp_operation *c = &r->operation;
	const ddp_envelope envelope = {
		.tag = DDP_NET_P2P_TAG | (uint32_t)c->tag, .source = comm->rank,
		.operation = { .kind = DDP_SEND, .type = (uint8_t)c->type, .count = c->count },
	};

	if (is_send(r))
		return ddp_net_send(comm, c->root, &envelope, c->send, bytes_of(r), r->transfer);
	ddp_net_recv(comm, c->root, &envelope, c->recv, bytes_of(r), r->transfer);
	return DDP_OK;
}

/* Hands a message to the network. */
static void begin_on_net(ddp_comm *comm, ddp_request *r)
{
	r->transfer = calloc(1, sizeof(*r->transfer));
	if (r->transfer == NULL || give_to_net(comm, r) != DDP_OK)
		ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory for a message of %zu bytes", bytes_of(r));
}

/* Is there an earlier receive that takes this message and has none yet? */
static bool is_wanted_before(const ddp_comm *comm, const ddp_request *r, int source, int tag, bool open)
{
	for (const ddp_request *o = comm->p2p.requests; o != r; o = o->next) {
		if (!o->claimed && (o->open || !open) && ddp_match_takes(o, source, tag))
			return true;
	}
	return false;
}

static int tag_of(const ddp_unexpected *came)
{
	return (int)(uint32_t)came->envelope.tag;
}

static bool is_for(const ddp_comm *comm, const ddp_unexpected *came, const void *argument)
{
	const ddp_request *r = argument;
	const int source = came->envelope.source, tag = tag_of(came);

	return (came->envelope.tag & DDP_NET_AGREEMENT_TAG) == DDP_NET_P2P_TAG && ddp_match_takes(r, source, tag) &&
	       !is_wanted_before(comm, r, source, tag, false);
}

/* A receive that is open is not given to the network before its message has come: that tells from whom it
   is and of what size. */
static bool find_on_net(ddp_comm *comm, ddp_request *r)
{
	ddp_unexpected came;

	if (!ddp_net_find_unexpected(comm, is_for, r, &came))
		return false;
	const ddp_message message = { .source = came.envelope.source, .tag = tag_of(&came),
	                              .type = (ddp_type)came.envelope.operation.type,
	                              .count = came.envelope.operation.count, .bytes = came.bytes };
	if (ddp_match_accept(comm, r, &message) != DDP_OK)
		return false;
	begin_on_net(comm, r);
	return true;
}

/* Others are, unless an earlier receive that is open would take the same message. */
static bool advance_on_net(ddp_comm *comm, ddp_request *r)
{
	if (r->transfer == NULL && (is_send(r) || !is_wanted_before(comm, r, r->operation.root, r->operation.tag, true)))
		begin_on_net(comm, r);
	return r->transfer != NULL && r->transfer->done;
}

/* ---- progress -------------------------------------------------------------------------- */

/* Moves one request on; true if it is complete. */
static bool advance(ddp_comm *comm, ddp_request *r, bool *moved)
{
	const int peer = r->operation.root;

	if (is_send(r) && ddp_is_local(comm, peer))
		return ddp_ring_send(comm, r, moved);
	if (!is_send(r) && (peer == DDP_ANY_SOURCE || ddp_is_local(comm, peer)) && ddp_ring_receive(comm, r, moved))
		return true;
	if (r->open && comm->net != NULL && find_on_net(comm, r))
		*moved = true;
	return !r->open && !ddp_is_local(comm, r->operation.root) && advance_on_net(comm, r);
}

static void retire(ddp_comm *comm, ddp_request *r, ddp_status status)
{
	const ddp_operation *c = &r->operation;

	if (status == DDP_OK && c->received != NULL)
		*c->received = (ddp_received){ .source = c->root, .tag = c->tag, .count = c->count };
	free(r->transfer);
	r->transfer = NULL;
	ddp_request_complete(r, status);
	atomic_fetch_sub(&comm->p2p.count, 1);
}

bool ddp_p2p_progress(ddp_comm *comm)
{
	bool moved = false;

	take_new(comm);
	for (ddp_request **link = &comm->p2p.requests; *link != NULL;) {
		ddp_request *r = *link;
		if (atomic_load(&comm->failure.status) != DDP_OK || !advance(comm, r, &moved)) {
			link = &r->next;
			continue;
		}
		*link = r->next;
		moved = true;
		retire(comm, r, DDP_OK);
	}
	return moved;
}

void ddp_p2p_fail(ddp_comm *comm)
{
	ddp_status status = ddp_comm_check(comm);

	if (comm->net != NULL)
		ddp_net_shut_down(comm); /* it refers to the requests' transfers */
	take_new(comm);
	while (comm->p2p.requests != NULL) {
		ddp_request *r = comm->p2p.requests;
		comm->p2p.requests = r->next;
		(void)ddp_comm_check(comm); /* sets the message that goes with it */
		retire(comm, r, status);
	}
}

void ddp_p2p_abandon(ddp_comm *comm)
{
	char text[160];

	take_new(comm);
	if (comm->p2p.requests != NULL && comm->net != NULL)
		ddp_net_forget(comm);
	while (comm->p2p.requests != NULL) {
		ddp_request *r = comm->p2p.requests;
		comm->p2p.requests = r->next;
		ddp_match_describe(&r->operation, text, sizeof(text));
		retire(comm, r, ddp_fail(DDP_ERR_STATE, "the communicator was closed before %s was complete", text));
	}
}
