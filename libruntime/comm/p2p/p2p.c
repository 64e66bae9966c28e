/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/p2p/p2p.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net/net.h"

enum {
	LARGE = 1 << 20,    /* bytes of a message that is announced in any case */
	KEPT_MAX = 16 << 20 /* bytes that messages kept of another rank take */
};

enum frame {
	WHOLE,     /* the message follows */
	ANNOUNCED, /* nothing follows, until the receiver asks */
	ANSWER     /* the message of an announcement follows */
};

/* Goes before a message's bytes in a ring. */
typedef struct ring_header {
	uint64_t bytes;
	uint64_t count;
	uint64_t number; /* but for WHOLE: of the announcement */
	uint32_t tag;
	uint8_t type, frame;
} ring_header;

/* The message that is coming in from a rank of this node, and those that came
   while a receive with another tag was waiting. */
struct ddp_incoming {
	ring_header header;
	size_t have;           /* bytes of header and data that have come */
	ddp_request *receiver; /* NULL: kept for later */
	char *kept;
	struct kept_message {
		struct kept_message *next;
		ring_header header;
		char *data;            /* NULL: still with the sender */
		ddp_request *receiver; /* of such a message, when there is one */
	} *first, **last;
	uint64_t wanted;       /* the announcement that the sender is to answer; 0: none */
};

/* The memory that a kept message takes. */
static size_t cost_of(size_t bytes)
{
	return bytes + sizeof(struct kept_message);
}

ddp_status ddp_p2p_open(ddp_comm *comm)
{
	comm->node.incoming = calloc((size_t)comm->node.size, sizeof(*comm->node.incoming));
	return comm->node.incoming != NULL ? DDP_OK
		: ddp_fail(DDP_ERR_NOMEM, "no memory for the messages of %d ranks", comm->node.size);
}

/* ---- the list of requests ---------------------------------------------------------- */

void ddp_p2p_add(ddp_comm *comm, ddp_request *request)
{
	request->deadline_ns = ddp_now_ns() + (uint64_t)comm->timeout_ms * 1000000;
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

/* Hands a message between nodes to the network. */
static ddp_status begin_on_net(ddp_comm *comm, ddp_request *r)
{
	const ddp_operation *c = &r->operation;
	const ddp_envelope envelope = {
		.tag = DDP_NET_P2P_TAG | (uint64_t)c->tag, .source = comm->rank,
		.operation = { .kind = DDP_SEND, .type = (uint8_t)c->type, .count = c->count },
	};

	if (is_send(r))
		return ddp_net_send(comm, c->root, &envelope, c->send, bytes_of(r), r->transfer);
	ddp_net_recv(comm, c->root, &envelope, c->recv, bytes_of(r), r->transfer);
	return DDP_OK;
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
	for (ddp_request *r = *end; r != NULL; r = r->next) {
		r->start_ns = ddp_now_ns();
		/* After a failure the network may be shut down already: it would keep
		   the transfer for longer than the request lives. */
		if (ddp_is_local(comm, r->operation.root) || atomic_load(&comm->failure.status) != DDP_OK)
			continue;
		r->transfer = calloc(1, sizeof(*r->transfer));
		if (r->transfer == NULL || begin_on_net(comm, r) != DDP_OK)
			ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory for a message of %zu bytes",
			               bytes_of(r));
	}
}

/* ---- rings --------------------------------------------------------------------------- */

static ddp_ring *ring_between(const ddp_comm *comm, int from, int to)
{
	return (ddp_ring *)(void *)comm->node.rings + (size_t)from * (size_t)comm->node.size + (size_t)to;
}

/* Copies between a ring, from its position `at`, and memory. */
static void ring_copy(ddp_ring *ring, uint64_t at, void *memory, size_t bytes, bool into_ring)
{
	size_t offset = at % DDP_RING_BYTES, first = DDP_RING_BYTES - offset;

	first = first < bytes ? first : bytes;
	if (into_ring) {
		memcpy(ring->bytes + offset, memory, first);
		memcpy(ring->bytes, (char *)memory + first, bytes - first);
	} else {
		memcpy(memory, ring->bytes + offset, first);
		memcpy((char *)memory + first, ring->bytes, bytes - first);
	}
}

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

static enum frame choose_frame(const ddp_ring *ring, const ddp_request *r)
{
	if (r->wanted)
		return ANSWER;
	return bytes_of(r) > LARGE || atomic_load(&ring->kept) + cost_of(bytes_of(r)) > KEPT_MAX ? ANNOUNCED : WHOLE;
}

/* Writes a header, for which there is room. */
static void write_header(ddp_ring *ring, uint64_t at, ddp_request *r)
{
	const enum frame frame = choose_frame(ring, r);

	if (frame == ANNOUNCED)
		r->number = atomic_fetch_add(&ring->announced, 1) + 1;
	ring_header header = { .bytes = bytes_of(r), .count = r->operation.count, .number = r->number,
	                       .tag = (uint32_t)r->operation.tag, .type = (uint8_t)r->operation.type,
	                       .frame = (uint8_t)frame };
	ring_copy(ring, at, &header, sizeof(header), true);
	r->moved = frame == ANNOUNCED ? 0 : sizeof(header);
}

/* Has a send been announced, and its receiver not asked for the data yet? */
static bool awaits_receiver(const ddp_comm *comm, ddp_request *r)
{
	if (r->number != 0 && !r->wanted)
		r->wanted = r->number == atomic_load(&ring_between(comm, comm->node.self,
		                                                   comm->topology.local_of[r->operation.root])->wanted);
	return r->number != 0 && !r->wanted;
}

/* Writes as much of a message as there is room for, which does not await its receiver. */
static bool write_some(ddp_comm *comm, ddp_request *r)
{
	int to = comm->topology.local_of[r->operation.root];
	ddp_ring *ring = ring_between(comm, comm->node.self, to);
	uint64_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
	size_t room = DDP_RING_BYTES - (size_t)(at - atomic_load(&ring->read));
	uint64_t begin = at;

	if (r->moved == 0) {
		if (room < sizeof(ring_header))
			return false;
		write_header(ring, at, r);
		at += sizeof(ring_header);
		room -= sizeof(ring_header);
	}
	if (r->moved > 0) {
		size_t done = r->moved - sizeof(ring_header), now = smaller(room, bytes_of(r) - done);
		if (now > 0)
			ring_copy(ring, at, (char *)(uintptr_t)r->operation.send + done, now, true);
		r->moved += now;
		at += now;
	}
	if (at == begin)
		return false;
	atomic_store(&ring->written, at);
	ddp_node_wake_rank(comm, to);
	return true;
}

/* The first receive from `from` that takes this tag; or any, with tag -1. */
static ddp_request *find_receive(const ddp_comm *comm, int from, int tag)
{
	for (ddp_request *r = comm->p2p.requests; r != NULL; r = r->next) {
		if (!is_send(r) && r->operation.root == from && !r->claimed &&
		    (tag < 0 || r->operation.tag == tag))
			return r;
	}
	return NULL;
}

static ddp_status check_fit(ddp_comm *comm, const ddp_request *r, const ring_header *h)
{
	char text[128];

	if (h->bytes == bytes_of(r) && h->type == (uint32_t)r->operation.type)
		return DDP_OK;
	ddp_collective_describe(&r->operation, text, sizeof(text));
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, r->operation.root,
	                      "%s issued %s with tag %d, but %s sent %s[%llu]",
	                      ddp_rank_text(comm, comm->rank), text, r->operation.tag,
	                      ddp_rank_text(comm, r->operation.root), ddp_type_name((ddp_type)h->type),
	                      (unsigned long long)h->count);
}

/* The first message that waits for a receive with this tag. */
static struct kept_message **find_kept(struct ddp_incoming *in, uint32_t tag)
{
	struct kept_message **link = &in->first;

	while (*link != NULL && ((*link)->header.tag != tag || (*link)->receiver != NULL))
		link = &(*link)->next;
	return link;
}

static void drop_kept(struct ddp_incoming *in, struct kept_message **link)
{
	struct kept_message *message = *link;

	*link = message->next;
	if (message->next == NULL)
		in->last = link;
	free(message->data);
	free(message);
}

/* Has the sender answer the next announcement that has a receiver. */
static void want_next(ddp_comm *comm, int local)
{
	struct ddp_incoming *in = &comm->node.incoming[local];
	const struct kept_message *message = in->first;

	while (message != NULL && message->receiver == NULL)
		message = message->next;
	if (in->wanted != 0 || message == NULL)
		return;
	in->wanted = message->header.number;
	atomic_store(&ring_between(comm, local, comm->node.self)->wanted, in->wanted);
	ddp_node_wake_rank(comm, local);
}

/* The data of an announced message come: they are the receiver's that asked for them. */
static void take_answer(ddp_comm *comm, int local)
{
	struct ddp_incoming *in = &comm->node.incoming[local];
	struct kept_message **link = &in->first;

	while ((*link)->header.number != in->header.number)
		link = &(*link)->next;
	in->receiver = (*link)->receiver;
	drop_kept(in, link);
	in->wanted = 0;
	want_next(comm, local);
}

/* A header has come: who takes the message? */
static bool choose_receiver(ddp_comm *comm, struct ddp_incoming *in, int from)
{
	/* Not past an earlier message that waits for the same receiver. */
	if (*find_kept(in, in->header.tag) == NULL)
		in->receiver = find_receive(comm, from, (int)in->header.tag);
	if (in->receiver != NULL) {
		in->receiver->claimed = true;
		return check_fit(comm, in->receiver, &in->header) == DDP_OK;
	}
	if (in->header.frame == ANNOUNCED)
		return true;
	in->kept = malloc(in->header.bytes + 1);
	if (in->kept == NULL)
		ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory for a message of %llu bytes",
		               (unsigned long long)in->header.bytes);
	return in->kept != NULL;
}

/* One that has come, or was announced. */
static bool keep_message(ddp_comm *comm, int local)
{
	struct ddp_incoming *in = &comm->node.incoming[local];
	struct kept_message *message = calloc(1, sizeof(*message));

	if (message == NULL) {
		ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory for a message of %llu bytes",
		               (unsigned long long)in->header.bytes);
		return false;
	}
	message->header = in->header;
	message->data = in->kept;
	message->receiver = in->receiver;
	if (in->kept != NULL)
		atomic_fetch_add(&ring_between(comm, local, comm->node.self)->kept, cost_of(in->header.bytes));
	in->kept = NULL;
	in->receiver = NULL;
	if (in->last == NULL)
		in->last = &in->first;
	*in->last = message;
	in->last = &message->next;
	return true;
}

/* A header has come. */
static bool begin_message(ddp_comm *comm, int local)
{
	struct ddp_incoming *in = &comm->node.incoming[local];

	in->have = sizeof(in->header);
	if (in->header.frame == ANSWER) {
		take_answer(comm, local);
		return true;
	}
	if (!choose_receiver(comm, in, comm->node.ranks[local]))
		return false;
	if (in->header.frame == WHOLE)
		return true;
	in->have = 0;
	if (!keep_message(comm, local))
		return false;
	want_next(comm, local);
	return true;
}

/* Reads as much as has come from a rank, as long as somebody waits for a
   message of that rank. */
static bool read_some(ddp_comm *comm, int local)
{
	struct ddp_incoming *in = &comm->node.incoming[local];
	ddp_ring *ring = ring_between(comm, local, comm->node.self);
	int from = comm->node.ranks[local];
	uint64_t at = atomic_load_explicit(&ring->read, memory_order_relaxed);
	uint64_t begin = at, end = atomic_load(&ring->written);

	while (true) {
		if (in->have == 0) {
			if (end - at < sizeof(in->header) || (in->wanted == 0 && find_receive(comm, from, -1) == NULL))
				break;
			ring_copy(ring, at, &in->header, sizeof(in->header), false);
			at += sizeof(in->header);
			if (!begin_message(comm, local))
				break;
			if (in->have == 0)
				continue;
		}
		size_t done = in->have - sizeof(in->header);
		size_t now = smaller((size_t)(end - at), in->header.bytes - done);
		char *place = in->receiver != NULL ? in->receiver->operation.recv : in->kept;
		if (now > 0)
			ring_copy(ring, at, place + done, now, false);
		at += now;
		in->have += now;
		if (in->have - sizeof(in->header) < in->header.bytes)
			break;
		in->have = 0;
		if (in->receiver != NULL)
			in->receiver->arrived = true;
		else if (!keep_message(comm, local))
			break;
		in->receiver = NULL;
	}
	if (at == begin)
		return false;
	atomic_store(&ring->read, at);
	ddp_node_wake_rank(comm, local);
	return true;
}

/* Has the message come before it was asked for? */
static bool take_kept(ddp_comm *comm, ddp_request *r)
{
	const int local = comm->topology.local_of[r->operation.root];
	struct ddp_incoming *in = &comm->node.incoming[local];
	struct kept_message **link = find_kept(in, (uint32_t)r->operation.tag), *message = *link;

	if (message == NULL || check_fit(comm, r, &message->header) != DDP_OK)
		return false;
	if (message->data == NULL) {
		message->receiver = r;
		r->claimed = true;
		want_next(comm, local);
		return false;
	}
	if (message->header.bytes > 0)
		memcpy(r->operation.recv, message->data, message->header.bytes);
	atomic_fetch_sub(&ring_between(comm, local, comm->node.self)->kept, cost_of(message->header.bytes));
	drop_kept(in, link);
	return true;
}

/* ---- progress -------------------------------------------------------------------------- */

/* Does another send to the same rank have to go first: one that is being written, or an earlier
   one that has not even been announced? */
static bool must_queue(const ddp_comm *comm, const ddp_request *r)
{
	bool earlier = r->number == 0;

	for (const ddp_request *other = comm->p2p.requests; other != NULL; other = other->next) {
		if (other == r)
			earlier = false;
		else if (is_send(other) && other->operation.root == r->operation.root &&
		         (other->moved > 0 || (earlier && other->number == 0)))
			return true;
	}
	return false;
}

/* Moves one request on; true if it is complete. */
static bool advance(ddp_comm *comm, ddp_request *r, bool *moved)
{
	if (!ddp_is_local(comm, r->operation.root))
		return r->transfer != NULL && r->transfer->done;
	if (is_send(r)) {
		if (!awaits_receiver(comm, r) && !must_queue(comm, r) && write_some(comm, r))
			*moved = true;
		return r->moved == sizeof(ring_header) + bytes_of(r);
	}
	if (!r->claimed && take_kept(comm, r))
		return true;
	if (!r->arrived && read_some(comm, comm->topology.local_of[r->operation.root]))
		*moved = true;
	return r->arrived;
}

static void retire(ddp_comm *comm, ddp_request *r, ddp_status status)
{
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
	char text[128];

	take_new(comm);
	if (comm->p2p.requests != NULL && comm->net != NULL)
		ddp_net_forget(comm);
	while (comm->p2p.requests != NULL) {
		ddp_request *r = comm->p2p.requests;
		comm->p2p.requests = r->next;
		ddp_collective_describe(&r->operation, text, sizeof(text));
		retire(comm, r, ddp_fail(DDP_ERR_STATE, "the communicator was closed before %s with tag %d was complete",
		                         text, r->operation.tag));
	}
}

void ddp_p2p_free(ddp_comm *comm)
{
	for (int i = 0; i < comm->node.size && comm->node.incoming != NULL; i++) {
		struct ddp_incoming *in = &comm->node.incoming[i];
		for (struct kept_message *m = in->first, *next; m != NULL; m = next) {
			next = m->next;
			free(m->data);
			free(m);
		}
		free(in->kept);
	}
	free(comm->node.incoming);
	comm->node.incoming = NULL;
}
