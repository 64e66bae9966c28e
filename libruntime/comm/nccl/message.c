/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/host.h"
#include "comm/nccl/handle.h"
#include "comm/request.h"

/* A sender tells the receiver this of a message. */
typedef struct announcement {
	uint64_t number;     /* of the sender's messages */
	uint64_t count;
	uint64_t type;
	ddp_nccl_id id;      /* of the link from the sender to the receiver */
} announcement;

/* The receiver answers the message's turn on their link, from 1. */
typedef uint64_t answer;

/* One direction between this rank and a peer. */
typedef struct ddp_nccl_link {
	struct ddp_nccl_link *next;
	int peer;
	bool sends;
	ddp_nccl_id id;
	ddp_nccl_handle *handle; /* NULL: it is not begun, or ends at this rank itself */
	ddp_device_queue *queue;
	uint64_t given, taken;   /* turns: that this rank has given, or got; that are on the queue,
	                            or nearly */
	uint64_t expected;       /* turns, of a sender that closes */
	ddp_nccl_aborting aborting;
	struct ddp_nccl_message *current; /* NCCL puts it on the queue */
	bool ends;
} ddp_nccl_link;

typedef struct ddp_nccl_message {
	ddp_nccl_operation *operation;
	struct ddp_nccl_message *next;
	ddp_nccl_link *link;
	announcement told;
	answer turn;             /* 0: none yet */
	ddp_request *telling;    /* the announcement is sent, or awaited */
	ddp_request *answering;  /* the answer is awaited, or sent */
} ddp_nccl_message;

static bool sends(const ddp_nccl_message *m)
{
	return m->operation->c.kind == DDP_SEND;
}

/* ---- links ------------------------------------------------------------------------------------- */

static ddp_status find_link(ddp_nccl_lane *lane, int peer, bool sending, ddp_nccl_link **found)
{
	ddp_nccl_link *link = lane->links;
	ddp_status status = DDP_OK;

	while (link != NULL && (link->peer != peer || link->sends != sending))
		link = link->next;
	*found = link;
	if (link != NULL)
		return DDP_OK;
	link = calloc(1, sizeof(*link));
	if (link == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for messages with %s",
		                ddp_rank_text(lane->comm, peer));
	link->peer = peer;
	link->sends = sending;
	if (sending && peer != lane->comm->rank)
		status = ddp_nccl_status(lane->nccl, NULL, lane->nccl->get_id(&link->id), "ncclGetUniqueId()");
	if (status == DDP_OK)
		status = ddp_device_queue_create(lane->device, DDP_DEVICE_HIGH, &link->queue);
	if (status != DDP_OK) {
		free(link);
		return status;
	}
	link->next = lane->links;
	lane->links = link;
	*found = link;
	return DDP_OK;
}

/* Both ends begin when they know that the other one does. */
static ddp_status begin_link(ddp_nccl_lane *lane, ddp_nccl_link *link)
{
	if (link->handle != NULL || link->peer == lane->comm->rank)
		return DDP_OK;
	return ddp_nccl_begin(lane->nccl, lane->device, 2, link->sends ? 0 : 1, &link->id, 1,
	                      lane->comm->roster->max_ctas, &link->handle);
}

/* ---- matching, by the host ----------------------------------------------------------------------- */

/* Answers are told apart by the message's number: more than that many are never open. */
static int answer_tag(uint64_t number)
{
	return (int)(number % 65536);
}

static ddp_status issue_bytes(ddp_comm *twin, ddp_operation_kind kind, void *bytes, size_t count, int peer, int tag,
                              ddp_request **request)
{
	return ddp_comm_issue(twin, &(ddp_operation){ .kind = kind, .send = bytes, .recv = bytes, .count = count,
	                                               .type = DDP_U8, .root = peer, .tag = tag }, request);
}

ddp_status ddp_nccl_message_begin(ddp_nccl_operation *o)
{
	ddp_nccl_lane *lane = o->lane;
	const ddp_operation *c = &o->c;
	ddp_nccl_message *m = calloc(1, sizeof(*m)), **end = &lane->messages;
	ddp_status status;

	if (m == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a message");
	m->operation = o;
	status = find_link(lane, c->root, c->kind == DDP_SEND, &m->link);
	if (status == DDP_OK && sends(m)) {
		m->told = (announcement){ .number = lane->sent, .count = c->count, .type = (uint64_t)c->type, .id = m->link->id };
		status = issue_bytes(lane->reply, DDP_RECV, &m->turn, sizeof(m->turn), c->root, answer_tag(lane->sent),
		                     &m->answering);
	}
	if (status != DDP_OK) {
		free(m);
		return status;
	}
	o->message = m;
	while (*end != NULL)
		end = &(*end)->next;
	*end = m;
	lane->sent += sends(m);
	/* Memory that a request under way may write cannot be freed: so it fails later. */
	status = issue_bytes(lane->talk, sends(m) ? DDP_SEND : DDP_RECV, &m->told, sizeof(m->told), c->root, c->tag,
	                     &m->telling);
	if (status != DDP_OK)
		(void)ddp_comm_break(lane->comm, status, lane->comm->rank, "%s", ddp_last_error());
	return DDP_OK;
}

/* Is it over, and well? *request is NULL then. */
static ddp_status check_request(ddp_request **request)
{
	bool done = false;
	const ddp_status status = *request != NULL ? ddp_test(*request, &done) : DDP_OK;

	if (done)
		*request = NULL;
	return status;
}

static ddp_status check_announcement(ddp_nccl_message *m)
{
	const ddp_operation *c = &m->operation->c;
	ddp_comm *comm = m->operation->lane->comm;

	if (m->told.count == c->count && m->told.type == (uint64_t)c->type)
		return DDP_OK;
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, c->root,
	                      "%s sent %llu elements of %s by tag %d, but %s receives %zu of %s",
	                      ddp_rank_text(comm, c->root), (unsigned long long)m->told.count,
	                      ddp_type_name((ddp_type)m->told.type), c->tag, ddp_rank_text(comm, comm->rank), c->count,
	                      ddp_type_name(c->type));
}

/* The receiver has been told of a message: it gets the next turn. */
static ddp_status give_turn(ddp_nccl_message *m)
{
	ddp_nccl_lane *lane = m->operation->lane;
	ddp_status status = check_announcement(m);

	if (status != DDP_OK)
		return status;
	if (m->link->given == 0)
		m->link->id = m->told.id;
	m->turn = ++m->link->given;
	return issue_bytes(lane->reply, DDP_SEND, &m->turn, sizeof(m->turn), m->operation->c.root,
	                   answer_tag(m->told.number), &m->answering);
}

static ddp_status match_receive(ddp_nccl_message *m)
{
	const bool told_before = m->telling == NULL;
	ddp_status status = check_request(&m->telling);

	if (status == DDP_OK && !told_before && m->telling == NULL)
		status = give_turn(m);
	return status == DDP_OK ? check_request(&m->answering) : status;
}

/* Whether the receiver knows of the message, its answer says. */
static ddp_status match_send(ddp_nccl_message *m)
{
	const bool got_before = m->answering == NULL;
	(void)check_request(&m->telling);
	const ddp_status status = check_request(&m->answering);

	m->link->given += !got_before && m->answering == NULL && status == DDP_OK;
	return status;
}

/* ---- moving, by NCCL ----------------------------------------------------------------------------- */

/* The turn is the host's to write, until its requests are over. */
static bool is_matched(const ddp_nccl_message *m)
{
	return m->telling == NULL && m->answering == NULL && m->turn != 0;
}

/* A message to this rank itself: the copy is the receiver's, and the sender's end behind it. */
static ddp_status copy_to_itself(ddp_nccl_message *to)
{
	ddp_nccl_lane *lane = to->operation->lane;
	ddp_nccl_operation *r = to->operation, *s;
	ddp_nccl_message *from = lane->messages;
	ddp_device_queue *queue = to->link->queue;

	while (from != NULL &&
	       !(sends(from) && from->operation->c.root == lane->comm->rank && from->told.number == to->told.number))
		from = from->next;
	if (from == NULL || !is_matched(from))
		return DDP_OK;
	s = from->operation;
	ddp_status status = ddp_device_queue_wait(lane->device, queue, s->begun);
	if (status == DDP_OK)
		status = ddp_device_queue_wait(lane->device, queue, r->begun);
	if (status == DDP_OK)
		status = ddp_device_event_record(lane->device, s->start, queue);
	if (status == DDP_OK)
		status = ddp_device_event_record(lane->device, r->start, queue);
	if (status == DDP_OK && r->c.recv != s->c.send)
		status = ddp_device_copy(lane->device, queue, r->c.recv, s->c.send, r->c.count * ddp_type_bytes(r->c.type));
	if (status == DDP_OK)
		status = ddp_device_event_record(lane->device, s->end, queue);
	if (status == DDP_OK)
		status = ddp_device_event_record(lane->device, r->end, queue);
	if (status == DDP_OK)
		s->stage = r->stage = DDP_NCCL_ENQUEUED;
	return status;
}

static ddp_status enqueue(ddp_nccl_message *m)
{
	ddp_nccl_link *link = m->link;
	ddp_nccl_lane *lane = m->operation->lane;
	const ddp_operation *c = &m->operation->c;
	const int type = ddp_nccl_type_of(c->type), peer = link->sends ? 1 : 0;
	int result = DDP_NCCL_SUCCESS;

	ddp_status status = ddp_device_queue_wait(lane->device, link->queue, m->operation->begun);
	if (status == DDP_OK)
		status = ddp_device_event_record(lane->device, m->operation->start, link->queue);
	if (status != DDP_OK)
		return status;
	if (c->count > 0 && link->sends)
		result = lane->nccl->send(c->send, c->count, type, peer, link->handle, link->queue);
	else if (c->count > 0)
		result = lane->nccl->recv(c->recv, c->count, type, peer, link->handle, link->queue);
	link->taken++;
	link->current = m;
	m->operation->stage = DDP_NCCL_BEGUN;
	return ddp_nccl_status(lane->nccl, link->handle, result, link->sends ? "ncclSend()" : "ncclRecv()");
}

static ddp_status finish(ddp_nccl_link *link)
{
	ddp_nccl_operation *o = link->current->operation;

	link->current = NULL;
	o->stage = DDP_NCCL_ENQUEUED;
	return ddp_device_event_record(o->lane->device, o->end, link->queue);
}

/* Puts a message that is matched on its link's queue, if it is its turn. */
static ddp_status move(ddp_nccl_message *m)
{
	ddp_nccl_link *link = m->link;
	ddp_nccl_lane *lane = m->operation->lane;
	bool ready = false;

	if (link->peer == lane->comm->rank)
		return sends(m) ? DDP_OK : copy_to_itself(m);
	ddp_status status = begin_link(lane, link);
	if (status == DDP_OK)
		status = ddp_nccl_ready(lane->nccl, link->handle, &ready);
	if (status == DDP_OK && ready && link->current != NULL)
		status = finish(link);
	if (status == DDP_OK && ready && m->operation->stage == DDP_NCCL_WAITS && m->turn == link->taken + 1)
		status = enqueue(m);
	if (status == DDP_OK)
		status = ddp_nccl_ready(lane->nccl, link->handle, &ready);
	if (status == DDP_OK && ready && link->current == m)
		status = finish(link);
	return status;
}

/* The host's part ends with an error: nothing of it will be enqueued. */
static void fail(ddp_nccl_message *m, ddp_status status)
{
	if (status == DDP_ERR_STATE)
		(void)ddp_fail(status, "%s had not met its counterpart when its communicator was closed",
		               ddp_kind_name(m->operation->c.kind));
	m->operation->status = status;
	m->operation->text = strdup(ddp_last_error());
	m->operation->stage = DDP_NCCL_FAILED;
}

static void match_all(ddp_nccl_lane *lane)
{
	for (ddp_nccl_message *m = lane->messages; m != NULL; m = m->next) {
		if (m->operation->stage != DDP_NCCL_WAITS)
			continue;
		const ddp_status status = sends(m) ? match_send(m) : match_receive(m);
		if (status != DDP_OK)
			fail(m, status);
	}
}

/* Messages that are on their queues and have not ended are checked, too. */
static ddp_status check_links(const ddp_nccl_lane *lane)
{
	ddp_status status = DDP_OK;
	bool ready;

	for (const ddp_nccl_link *link = lane->links; link != NULL && status == DDP_OK; link = link->next) {
		if (link->handle != NULL)
			status = ddp_nccl_ready(lane->nccl, link->handle, &ready);
	}
	return status;
}

ddp_status ddp_nccl_messages_advance(ddp_nccl_lane *lane)
{
	ddp_status status = check_links(lane);

	match_all(lane);
	for (ddp_nccl_message *m = lane->messages; m != NULL && status == DDP_OK; m = m->next) {
		if (m->operation->stage < DDP_NCCL_ENQUEUED && is_matched(m))
			status = move(m);
	}
	/* Off the list goes what needs no further step. */
	for (ddp_nccl_message **m = &lane->messages; *m != NULL;) {
		if ((*m)->operation->stage >= DDP_NCCL_ENQUEUED)
			*m = (*m)->next;
		else
			m = &(*m)->next;
	}
	return status;
}

/* ---- begin and end --------------------------------------------------------------------------------- */

void ddp_nccl_message_free(ddp_nccl_operation *o)
{
	ddp_nccl_message *m = o->message, **at = &o->lane->messages;

	if (m == NULL)
		return;
	while (*at != NULL && *at != m)
		at = &(*at)->next;
	if (*at == m)
		*at = m->next;
	/* They end with the communicator, or with ddp_host_end() of their twins. */
	if (m->telling != NULL)
		(void)ddp_wait(m->telling);
	if (m->answering != NULL)
		(void)ddp_wait(m->answering);
	free(m);
	o->message = NULL;
}

/* ---- closing --------------------------------------------------------------------------------------- */

/* Begins a collective on all ranks, while messages are taken further. */
static void begin_together(ddp_nccl_lane *lane, const ddp_operation *c)
{
	const ddp_status status = ddp_comm_issue(lane->reply, c, &lane->together);

	if (status != DDP_OK)
		(void)ddp_comm_break(lane->comm, status, lane->comm->rank, "%s", ddp_last_error());
}

/* All ranks close: announcements that have not come never will, and no turn is given any
   more. Each receiver tells how many it has given. */
static void begin_comparison(ddp_nccl_lane *lane)
{
	const size_t size = (size_t)lane->comm->size;

	(void)ddp_host_end(lane->talk);
	match_all(lane);
	lane->given = calloc(2 * size, sizeof(*lane->given));
	if (lane->given == NULL) {
		(void)ddp_comm_break(lane->comm, DDP_ERR_NOMEM, lane->comm->rank,
		                     "no memory to compare the messages of %zu ranks", size);
		return;
	}
	for (const ddp_nccl_link *link = lane->links; link != NULL; link = link->next)
		lane->given[link->peer] += link->sends ? 0 : (int64_t)link->given;
	begin_together(lane, &(ddp_operation){ .kind = DDP_ALL_TO_ALL, .send = lane->given, .recv = lane->given + size,
	                                        .count = 1, .type = DDP_I64 });
}

static void end_comparison(ddp_nccl_lane *lane)
{
	const int64_t *given = lane->given + lane->comm->size;

	for (ddp_nccl_link *link = lane->links; link != NULL; link = link->next)
		link->expected = link->sends ? (uint64_t)given[link->peer] : 0;
}

/* Have all answers come, and gone? */
static bool is_settled(const ddp_nccl_lane *lane)
{
	for (const ddp_nccl_link *link = lane->links; link != NULL; link = link->next) {
		if (link->sends && link->given < link->expected)
			return false;
	}
	for (const ddp_nccl_message *m = lane->messages; m != NULL; m = m->next) {
		if (!sends(m) && m->operation->stage == DDP_NCCL_WAITS && m->answering != NULL)
			return false;
	}
	return true;
}

/* Messages that are not matched now fail: on all ranks before one of them leaves its twins, or
   receives of answers that never come would break those of the others. So all meet here,
   also those of one node. None waits for NCCL until it is here, so nobody waits long. */
static void end_matching(ddp_nccl_lane *lane)
{
	if (lane->closing == DDP_NCCL_SETTLES && ddp_comm_check(lane->comm) == DDP_OK)
		(void)ddp_comm_last_barrier(lane->reply);
	(void)ddp_host_end(lane->talk);
	(void)ddp_host_end(lane->reply);
	if (lane->together != NULL)
		(void)ddp_wait(lane->together);
	lane->together = NULL;
	free(lane->given);
	lane->given = NULL;
	lane->closing = DDP_NCCL_CLOSED;
}

/* Takes closing to its next step, if this rank can. */
static void close_further(ddp_nccl_lane *lane)
{
	switch (lane->closing) {
	case DDP_NCCL_OPEN:
		begin_together(lane, &(ddp_operation){ .kind = DDP_BARRIER });
		lane->closing = DDP_NCCL_AWAITS_CLOSING;
		break;
	case DDP_NCCL_AWAITS_CLOSING:
		begin_comparison(lane);
		lane->closing = DDP_NCCL_COMPARES;
		break;
	case DDP_NCCL_COMPARES:
		end_comparison(lane);
		lane->closing = DDP_NCCL_SETTLES;
		break;
	case DDP_NCCL_SETTLES:
		if (is_settled(lane))
			end_matching(lane);
		break;
	case DDP_NCCL_CLOSED:
		break;
	}
}

bool ddp_nccl_messages_stop(ddp_nccl_lane *lane)
{
	if (lane->closing == DDP_NCCL_CLOSED || lane->talk == NULL || lane->reply == NULL)
		return true;
	if (check_request(&lane->together) != DDP_OK || ddp_comm_check(lane->comm) != DDP_OK)
		end_matching(lane);
	else if (lane->together == NULL)
		close_further(lane);
	return lane->closing == DDP_NCCL_CLOSED;
}

void ddp_nccl_messages_begin_abort(ddp_nccl_lane *lane)
{
	for (ddp_nccl_link *link = lane->links; link != NULL; link = link->next) {
		ddp_nccl_begin_abort(lane->nccl, lane->device, link->handle, &link->aborting);
		link->handle = NULL;
	}
}

void ddp_nccl_messages_await_abort(ddp_nccl_lane *lane)
{
	for (ddp_nccl_link *link = lane->links; link != NULL; link = link->next)
		ddp_nccl_await_abort(&link->aborting);
}

bool ddp_nccl_messages_rest(ddp_nccl_lane *lane)
{
	bool rest = true;

	for (const ddp_nccl_link *link = lane->links; link != NULL && rest; link = link->next) {
		if (ddp_device_queue_query(lane->device, link->queue, &rest) != DDP_OK)
			return true; /* the device is broken, and does nothing more */
	}
	return rest;
}

ddp_status ddp_nccl_messages_open(ddp_nccl_lane *lane)
{
	const ddp_status status = ddp_twin_open(lane->comm, &lane->talk);

	return status == DDP_OK ? ddp_twin_open(lane->comm, &lane->reply) : status;
}

void ddp_nccl_messages_close(ddp_nccl_lane *lane)
{
	const uint64_t deadline_ns = ddp_ms_from_now(lane->comm->timeout_ms);

	for (ddp_nccl_link *link = lane->links; link != NULL; link = link->next)
		link->ends = link->handle != NULL && ddp_nccl_begin_end(lane->nccl, lane->device, link->handle, deadline_ns);
	while (lane->links != NULL) {
		ddp_nccl_link *link = lane->links;
		lane->links = link->next;
		if (link->handle != NULL)
			ddp_nccl_end(lane->nccl, lane->device, link->handle, link->ends, deadline_ns);
		(void)ddp_device_queue_free(lane->device, link->queue);
		free(link);
	}
	if (lane->reply != NULL)
		ddp_host_close(lane->reply);
	if (lane->talk != NULL)
		ddp_host_close(lane->talk);
}
