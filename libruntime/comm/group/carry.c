/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/carry.h"

#include <stdlib.h>
#include <string.h>

#include "comm/core/liveness.h"
#include "comm/net/net.h"

enum {
	BATCH_MS = 100, /* a node's proposals are carried after this time though some are missing */
	SERIAL_SHIFT = 26
};

static ddp_envelope envelope_of(uint64_t serial, int source)
{
	return (ddp_envelope){ .tag = DDP_NET_AGREEMENT_TAG | serial << SERIAL_SHIFT, .source = source };
}

static uint64_t serial_of(const ddp_envelope *envelope)
{
	return (envelope->tag & ~DDP_NET_AGREEMENT_TAG) >> SERIAL_SHIFT;
}

bool ddp_carry_is_gone(const ddp_comm *comm, int r)
{
	if (ddp_is_local(comm, r))
		return atomic_load(&ddp_lines_of(comm, r)->left) != 0 || ddp_node_ended(comm, comm->topology.local_of[r]);
	return ddp_net_lost(comm, r);
}

/* The path-th of the two ranks of node `of` that carry to and from node `other`; the first if there is no second. Both
   nodes' numbers choose them. So the ranks of a node share this work, and those of two nodes have the same connections
   for both directions. */
static int carrier(const ddp_agreement *m, int of, int other, int path)
{
	const ddp_comm *comm = m->comm;
	const int size = ddp_node_size(comm, of), theirs = ddp_node_size(comm, other);
	const int first = (of ^ other) % (size < theirs ? size : theirs);
	int found = DDP_NOBODY;

	for (int k = 0; k < size && path >= 0; k++) {
		const int r = ddp_channel_rank(comm, of, (first + k) % size);
		if (!m->present[r] || ddp_carry_is_gone(comm, r))
			continue;
		found = r;
		path--;
	}
	return found;
}

/* Sends this rank's own record to one rank. */
static void tell(const ddp_agreement *m, ddp_telling *t, int r)
{
	const ddp_envelope envelope = envelope_of(t->serial, m->comm->rank);

	if (t->to[r] || ddp_net_lost(m->comm, r))
		return;
	t->to[r] = true;
	/* One that cannot be reached is lost. */
	(void)ddp_net_send(m->comm, r, &envelope, t->record, m->record_bytes, &t->transfers[r]);
}

/* Sends rank r what it has not got yet of this node's records. */
static void carry(const ddp_agreement *m, ddp_telling *t, int r)
{
	const ddp_envelope envelope = envelope_of(t->serial, m->comm->rank);
	const size_t from = t->sent[r];

	if (from == t->count || (from > 0 && !t->carried[r].done) || ddp_net_lost(m->comm, r))
		return;
	t->sent[r] = t->count;
	(void)ddp_net_send(m->comm, r, &envelope, t->batch + from * m->record_bytes, (t->count - from) * m->record_bytes,
	                   &t->carried[r]);
}

static void carry_all(const ddp_agreement *m, ddp_telling *t)
{
	const ddp_comm *comm = m->comm;
	const int own = comm->topology.node_of[comm->rank];

	for (int node = 0; node < comm->topology.nodes; node++) {
		for (int path = 0; path < 2 && node != own; path++) {
			const int to = carrier(m, own, node, path) == comm->rank ? carrier(m, node, own, path) : DDP_NOBODY;
			if (to != DDP_NOBODY)
				carry(m, t, to);
		}
	}
}

bool ddp_carry_is_told(const ddp_agreement *m, int r)
{
	for (int i = 0; i < 2; i++) {
		const ddp_telling *t = &m->tellings[i];
		if (((t->to[r] && !t->transfers[r].done) || (t->sent[r] > 0 && !t->carried[r].done)) &&
		    !ddp_net_lost(m->comm, r))
			return false;
	}
	return true;
}

void ddp_carry_given_up(ddp_agreement *m)
{
	const ddp_comm *comm = m->comm;
	const int *node_of = comm->topology.node_of;

	for (int r = 0; r < comm->size; r++) {
		if (m->called[r] && !m->present[r] && !ddp_is_local(comm, r) &&
		    (ddp_net_settled(comm, r) || carrier(m, node_of[comm->rank], node_of[r], 0) == comm->rank))
			tell(m, ddp_telling_of(m, m->serial), r);
		m->called[r] = m->present[r];
	}
}

/* Whom the last round was told is not asked again, and who did not get it may get it again. */
void ddp_carry_begin(ddp_agreement *m)
{
	const size_t size = (size_t)m->comm->size;
	ddp_telling *now = ddp_telling_of(m, m->serial), *last = ddp_telling_of(m, m->serial - 1);

	for (int i = 0; i < 2; i++) {
		memset(m->tellings[i].to, 0, size * sizeof(*m->tellings[i].to));
		memset(m->tellings[i].transfers, 0, size * sizeof(*m->tellings[i].transfers));
	}
	for (size_t r = 0; r < size; r++)
		last->sent[r] = last->carried[r].done ? last->sent[r] : 0;
	memset(now->sent, 0, size * sizeof(*now->sent));
	now->serial = m->serial;
	now->count = 0;
}

/* Has one of those who carry between this node and another one not come? */
static bool lacks_carriers(const ddp_agreement *m, int node)
{
	const int own = m->comm->topology.node_of[m->comm->rank];
	bool lacks = false;

	for (int path = 0; path < 2; path++) {
		const int here = carrier(m, own, node, path), there = carrier(m, node, own, path);
		lacks = lacks || (here != DDP_NOBODY && m->proposals[here] == NULL) ||
			(there != DDP_NOBODY && m->proposals[there] == NULL);
	}
	return lacks;
}

/* Carriers have had time: tells those who may not hear of it otherwise. */
static void tell_more(const ddp_agreement *m, ddp_telling *t)
{
	const ddp_comm *comm = m->comm;

	for (int node = 0; node < comm->topology.nodes; node++) {
		if (node == comm->topology.node_of[comm->rank])
			continue;
		const bool all = lacks_carriers(m, node);
		for (int i = 0; i < ddp_node_size(comm, node); i++) {
			const int r = ddp_channel_rank(comm, node, i);
			if (m->present[r] && (all || m->proposals[r] == NULL))
				tell(m, t, r);
		}
	}
}

/* Is it a message of a round up to the one that this rank is at? One of each rank is received at a time. */
static bool is_message(const ddp_comm *comm, const ddp_unexpected *message, const void *argument)
{
	const ddp_agreement *m = argument;

	(void)comm;
	return ddp_net_is_of_agreement(&message->envelope) && serial_of(&message->envelope) <= m->serial &&
	       m->arriving[message->envelope.source] == NULL;
}

/* Finds memory for what arrives from rank r. */
static bool take_memory(ddp_agreement *m, int r, size_t bytes)
{
	m->arriving[r] = malloc(bytes);
	if (m->arriving[r] == NULL) {
		m->arriving[r] = m->spare;
		m->spare = NULL;
	}
	return m->arriving[r] != NULL;
}

static const void *spare_of(const ddp_agreement *m)
{
	return ddp_agreement_record(m, (size_t)m->comm->size + 3 + 2 * (size_t)m->comm->node.size);
}

static void give_back_memory(ddp_agreement *m, int r)
{
	if (m->arriving[r] == spare_of(m))
		m->spare = m->arriving[r];
	else
		free(m->arriving[r]);
	m->arriving[r] = NULL;
}

/* Shows what rank `from` has carried here, of its node. */
static void show_arrived(ddp_agreement *m, int from)
{
	const unsigned char *records = m->arriving[from];
	const int *node_of = m->comm->topology.node_of;

	for (size_t at = 0; at < m->transfers[from].bytes; at += m->record_bytes) {
		const ddp_proposal *n = (const ddp_proposal *)(const void *)(records + at);
		if (!ddp_proposal_is_sound(m, n, m->serial) || node_of[n->source] != node_of[from] || m->shown[n->source])
			continue;
		m->shown[n->source] = true;
		ddp_board_add(m, n);
	}
}

void ddp_carry_take(ddp_agreement *m)
{
	ddp_comm *comm = m->comm;
	ddp_unexpected message;

	while (ddp_net_find_unexpected(comm, is_message, m, &message)) {
		const int r = message.envelope.source;
		const size_t most = (size_t)ddp_node_size(comm, comm->topology.node_of[r]) * m->record_bytes;
		if (serial_of(&message.envelope) < m->serial || message.bytes > most || message.bytes % m->record_bytes != 0) {
			ddp_net_drop_unexpected(comm, &message);
			continue;
		}
		if (!take_memory(m, r, most))
			break; /* for now */
		ddp_net_recv(comm, r, &message.envelope, m->arriving[r], message.bytes, &m->transfers[r]);
	}
	for (int r = 0; r < comm->size; r++) {
		if (m->arriving[r] == NULL || !m->transfers[r].done)
			continue;
		show_arrived(m, r);
		give_back_memory(m, r);
	}
}

void ddp_carry_add(ddp_agreement *m, const ddp_proposal *n)
{
	ddp_telling *t = ddp_telling_of(m, m->serial);

	if (ddp_is_local(m->comm, n->source) && t->count < (size_t)m->comm->node.size)
		memcpy(t->batch + t->count++ * m->record_bytes, n, m->record_bytes);
}

/* Tells of those who are gone without having come: other nodes, if they were of this one, and otherwise this node. */
static void tell_gone(ddp_agreement *m)
{
	for (int r = 0; r < m->comm->size; r++) {
		if (!m->gone[r] || !m->present[r] || m->proposals[r] != NULL || m->shown[r])
			continue;
		m->shown[r] = true;
		const ddp_proposal *n = ddp_proposal_gone(m, r);
		if (ddp_is_local(m->comm, r))
			ddp_carry_add(m, n);
		else
			ddp_board_add(m, n);
	}
}

/* Does this rank wait for one of its node? */
static bool awaits_node(const ddp_agreement *m)
{
	for (int i = 0; i < m->comm->node.size; i++) {
		const int r = m->comm->node.ranks[i];
		if (m->present[r] && m->proposals[r] == NULL && !m->gone[r])
			return true;
	}
	return false;
}

void ddp_carry_on(ddp_agreement *m, int64_t waited_ms)
{
	const bool long_since = waited_ms > m->timeout_ms / 4;
	ddp_telling *now = ddp_telling_of(m, m->serial), *last = ddp_telling_of(m, m->serial - 1);

	tell_gone(m);
	if (long_since || waited_ms > BATCH_MS || !awaits_node(m))
		carry_all(m, now);
	if (long_since)
		tell_more(m, now);
	if (last->serial != m->serial - 1)
		return;
	carry_all(m, last);
	if (long_since)
		tell_more(m, last);
}

void ddp_carry_end(ddp_agreement *m)
{
	for (int r = 0; r < m->comm->size && m->arriving != NULL; r++) {
		if (m->arriving[r] != NULL)
			give_back_memory(m, r);
	}
}
