/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/p2p/ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/p2p/match.h"

enum {
	LARGE = 1 << 20,    /* bytes of a message that is announced in any case */
	KEPT_MAX = 16 << 20, /* bytes that messages kept of another rank take */
	ROOM_MOST = 64 << 10, /* bytes of a ring, */
	ROOM_LEAST = 4 << 10,
	ROOM_ALL = 64 << 20   /* and of all rings of a node, unless each has the least */
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

/* The bytes that a ring has for messages, a power of two: fewer where many ranks share the node, as each pair of them
   has two rings. */
static size_t room_of_ring(int ranks)
{
	const size_t rings = (size_t)ranks * (size_t)ranks;
	size_t room = ROOM_MOST;

	while (room > ROOM_LEAST && rings * room > ROOM_ALL)
		room /= 2;
	return room;
}

size_t ddp_rings_bytes(int ranks)
{
	return (size_t)ranks * (size_t)ranks * (sizeof(ddp_ring) + room_of_ring(ranks));
}

ddp_status ddp_ring_open(ddp_comm *comm)
{
	comm->node.ring_room = room_of_ring(comm->node.size);
	comm->node.incoming = calloc((size_t)comm->node.size, sizeof(*comm->node.incoming));
	return comm->node.incoming != NULL ? DDP_OK
		: ddp_fail(DDP_ERR_NOMEM, "no memory for the messages of %d ranks", comm->node.size);
}

static size_t bytes_of(const ddp_request *r)
{
	return r->operation.count * ddp_type_bytes(r->operation.type);
}

/* ---- rings --------------------------------------------------------------------------- */

static ddp_ring *ring_between(const ddp_comm *comm, int from, int to)
{
	const size_t index = (size_t)from * (size_t)comm->node.size + (size_t)to;

	return (ddp_ring *)(void *)(comm->node.rings + index * (sizeof(ddp_ring) + comm->node.ring_room));
}

/* Copies between a ring of `room` bytes, from its position `at`, and memory. */
static void ring_copy(ddp_ring *ring, size_t room, uint64_t at, void *memory, size_t bytes, bool into_ring)
{
	size_t offset = at % room, first = room - offset;

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
static void write_header(const ddp_comm *comm, ddp_ring *ring, uint64_t at, ddp_request *r)
{
	const enum frame frame = choose_frame(ring, r);

	if (frame == ANNOUNCED)
		r->number = atomic_fetch_add(&ring->announced, 1) + 1;
	ring_header header = { .bytes = bytes_of(r), .count = r->operation.count, .number = r->number,
	                       .tag = (uint32_t)r->operation.tag, .type = (uint8_t)r->operation.type,
	                       .frame = (uint8_t)frame };
	ring_copy(ring, comm->node.ring_room, at, &header, sizeof(header), true);
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
	size_t room = comm->node.ring_room - (size_t)(at - atomic_load(&ring->read));
	uint64_t begin = at;

	if (r->moved == 0) {
		if (room < sizeof(ring_header))
			return false;
		write_header(comm, ring, at, r);
		at += sizeof(ring_header);
		room -= sizeof(ring_header);
	}
	if (r->moved > 0) {
		size_t done = r->moved - sizeof(ring_header), now = smaller(room, bytes_of(r) - done);
		if (now > 0)
			ring_copy(ring, comm->node.ring_room, at, (char *)(uintptr_t)r->operation.send + done, now, true);
		r->moved += now;
		at += now;
	}
	if (at == begin)
		return false;
	atomic_store(&ring->written, at);
	ddp_node_wake_rank(comm, to);
	return true;
}

/* The first receive that takes the message. */
static ddp_request *find_receive(const ddp_comm *comm, int from, int tag)
{
	for (ddp_request *r = comm->p2p.requests; r != NULL; r = r->next) {
		if (!r->claimed && ddp_match_takes(r, from, tag))
			return r;
	}
	return NULL;
}

/* Does somebody wait for a message of this rank? */
static bool is_awaited(const ddp_comm *comm, int from)
{
	for (const ddp_request *r = comm->p2p.requests; r != NULL; r = r->next) {
		if (r->operation.kind == DDP_RECV && !r->claimed &&
		    (r->operation.root == from || r->operation.root == DDP_ANY_SOURCE))
			return true;
	}
	return false;
}

static ddp_message message_of(const ring_header *h, int from)
{
	return (ddp_message){ .source = from, .tag = (int)h->tag, .type = (ddp_type)h->type, .count = h->count,
	                      .bytes = h->bytes };
}

/* The first message of a rank that waits for a receiver and that this one takes. */
static struct kept_message **find_kept(struct ddp_incoming *in, const ddp_request *r, int from)
{
	struct kept_message **link = &in->first;

	while (*link != NULL && ((*link)->receiver != NULL || !ddp_match_takes(r, from, (int)(*link)->header.tag)))
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
	ddp_request *receiver = find_receive(comm, from, (int)in->header.tag);

	/* The message must not pass an earlier one that waits for the same receiver. */
	if (receiver != NULL && *find_kept(in, receiver, from) == NULL) {
		const ddp_message message = message_of(&in->header, from);
		in->receiver = receiver;
		receiver->claimed = true;
		return ddp_match_accept(comm, receiver, &message) == DDP_OK;
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
			if (end - at < sizeof(in->header) || (in->wanted == 0 && !is_awaited(comm, from)))
				break;
			ring_copy(ring, comm->node.ring_room, at, &in->header, sizeof(in->header), false);
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
			ring_copy(ring, comm->node.ring_room, at, place + done, now, false);
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

/* Has a message of this rank come before it was asked for? */
static bool take_kept(ddp_comm *comm, ddp_request *r, int local)
{
	struct ddp_incoming *in = &comm->node.incoming[local];
	const int from = comm->node.ranks[local];
	struct kept_message **link = find_kept(in, r, from), *found = *link;

	if (found == NULL)
		return false;
	const ddp_message message = message_of(&found->header, from);
	if (ddp_match_accept(comm, r, &message) != DDP_OK)
		return false;
	if (found->data == NULL) {
		found->receiver = r;
		r->claimed = true;
		want_next(comm, local);
		return false;
	}
	if (found->header.bytes > 0)
		memcpy(r->operation.recv, found->data, found->header.bytes);
	atomic_fetch_sub(&ring_between(comm, local, comm->node.self)->kept, cost_of(found->header.bytes));
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
		else if (other->operation.kind == DDP_SEND && other->operation.root == r->operation.root &&
		         (other->moved > 0 || (earlier && other->number == 0)))
			return true;
	}
	return false;
}

bool ddp_ring_send(ddp_comm *comm, ddp_request *r, bool *moved)
{
	if (!awaits_receiver(comm, r) && !must_queue(comm, r) && write_some(comm, r))
		*moved = true;
	return r->moved == sizeof(ring_header) + bytes_of(r);
}

static bool receive_from(ddp_comm *comm, ddp_request *r, int local, bool *moved)
{
	if (!r->claimed && take_kept(comm, r, local))
		return true;
	if (!r->arrived && read_some(comm, local))
		*moved = true;
	return r->arrived;
}

bool ddp_ring_receive(ddp_comm *comm, ddp_request *r, bool *moved)
{
	const int size = comm->node.size;
	/* Each time another rank is first, so that none has to wait for a busy one. */
	const int first = r->operation.root == DDP_ANY_SOURCE ? (int)(comm->p2p.turn++ % (unsigned int)size) : 0;

	for (int i = 0; i < size && r->operation.root == DDP_ANY_SOURCE; i++) {
		if (receive_from(comm, r, (first + i) % size, moved))
			return true;
	}
	return r->operation.root != DDP_ANY_SOURCE &&
	       receive_from(comm, r, comm->topology.local_of[r->operation.root], moved);
}

void ddp_ring_free(ddp_comm *comm)
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
