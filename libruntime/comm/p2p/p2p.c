#include "comm/p2p/p2p.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net/net.h"

/* Goes before a message's bytes in a ring. */
typedef struct ring_header {
	uint64_t bytes;
	uint64_t count;
	uint32_t tag;
	uint32_t type;
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
		char *data;
	} *first, **last;
};

ddp_status ddp_p2p_open(ddp_comm *comm)
{
	comm->node.incoming = calloc((size_t)comm->node.size, sizeof(*comm->node.incoming));
	return comm->node.incoming != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "out of memory");
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
	const ddp_collective *c = &r->operation;
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
			ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "out of memory");
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

/* Writes as much of a message as there is room for. */
static bool write_some(ddp_comm *comm, ddp_request *r)
{
	int to = comm->topology.local_of[r->operation.root];
	ddp_ring *ring = ring_between(comm, comm->node.self, to);
	ring_header header = { .bytes = bytes_of(r), .count = r->operation.count,
	                       .tag = (uint32_t)r->operation.tag, .type = r->operation.type };
	uint64_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
	size_t room = DDP_RING_BYTES - (size_t)(at - atomic_load(&ring->read));
	uint64_t begin = at;

	if (r->moved < sizeof(header)) {
		if (room < sizeof(header))
			return false;
		ring_copy(ring, at, &header, sizeof(header), true);
		at += sizeof(header);
		room -= sizeof(header);
		r->moved = sizeof(header);
	}
	size_t done = r->moved - sizeof(header), now = smaller(room, header.bytes - done);
	if (now > 0)
		ring_copy(ring, at, (char *)(uintptr_t)r->operation.send + done, now, true);
	r->moved += now;
	at += now;
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

static bool has_kept(const struct ddp_incoming *in, uint32_t tag)
{
	const struct kept_message *message = in->first;

	while (message != NULL && message->header.tag != tag)
		message = message->next;
	return message != NULL;
}

/* A header has come: who takes the message? */
static bool choose_receiver(ddp_comm *comm, struct ddp_incoming *in, int from)
{
	/* Not past an earlier message that waits for the same receiver. */
	if (!has_kept(in, in->header.tag))
		in->receiver = find_receive(comm, from, (int)in->header.tag);
	if (in->receiver != NULL) {
		in->receiver->claimed = true;
		return check_fit(comm, in->receiver, &in->header) == DDP_OK;
	}
	in->kept = malloc(in->header.bytes + 1);
	if (in->kept == NULL)
		ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory for a message of %llu bytes",
		               (unsigned long long)in->header.bytes);
	return in->kept != NULL;
}

static bool keep_message(ddp_comm *comm, struct ddp_incoming *in)
{
	struct kept_message *message = calloc(1, sizeof(*message));

	if (message == NULL) {
		ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "out of memory");
		return false;
	}
	message->header = in->header;
	message->data = in->kept;
	in->kept = NULL;
	if (in->last == NULL)
		in->last = &in->first;
	*in->last = message;
	in->last = &message->next;
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
			if (end - at < sizeof(in->header) || find_receive(comm, from, -1) == NULL)
				break;
			ring_copy(ring, at, &in->header, sizeof(in->header), false);
			at += sizeof(in->header);
			in->have = sizeof(in->header);
			if (!choose_receiver(comm, in, from))
				break;
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
		else if (!keep_message(comm, in))
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
	struct ddp_incoming *in = &comm->node.incoming[comm->topology.local_of[r->operation.root]];

	for (struct kept_message **link = &in->first; *link != NULL; link = &(*link)->next) {
		struct kept_message *message = *link;
		if (message->header.tag != (uint32_t)r->operation.tag)
			continue;
		if (check_fit(comm, r, &message->header) != DDP_OK)
			return false;
		if (message->header.bytes > 0)
			memcpy(r->operation.recv, message->data, message->header.bytes);
		*link = message->next;
		if (message->next == NULL)
			in->last = link;
		free(message->data);
		free(message);
		return true;
	}
	return false;
}

/* ---- progress -------------------------------------------------------------------------- */

/* Does an earlier send to the same rank have to go first? */
static bool must_queue(const ddp_comm *comm, const ddp_request *r)
{
	for (const ddp_request *other = comm->p2p.requests; other != r; other = other->next) {
		if (is_send(other) && other->operation.root == r->operation.root)
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
		if (!must_queue(comm, r) && write_some(comm, r))
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
