/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/agreement.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/core/liveness.h"
#include "comm/net/net.h"
#include "comm/wait/await.h"

enum {
	ROUND_BITS = 12,
	LOOK_MIN_US = 200, LOOK_MAX_US = 5000, /* between two looks */
	LOOK_SHARE = 16 /* of the time that it has waited: many ranks may share a core */
};

static ddp_proposal *record(const ddp_agreement *m, size_t k)
{
	return (ddp_proposal *)(void *)(m->records + k * m->record_bytes);
}

static bool open_tellings(ddp_agreement *m)
{
	const size_t size = (size_t)m->comm->size;

	for (size_t i = 0; i < 2; i++) {
		ddp_telling *t = &m->tellings[i];
		t->record = record(m, 2 * size + i);
		t->to = calloc(size, sizeof(*t->to));
		t->receivers = malloc(2 * (size_t)m->comm->topology.nodes * sizeof(*t->receivers));
		t->transfers = calloc(size, sizeof(*t->transfers));
		if (t->to == NULL || t->receivers == NULL || t->transfers == NULL)
			return false;
	}
	return true;
}

ddp_status ddp_agreement_open(ddp_agreement *m, ddp_comm *comm)
{
	const size_t size = (size_t)comm->size;

	*m = (ddp_agreement){ .comm = comm, .serial = ++comm->agreements << ROUND_BITS,
	                      .timeout_ms = comm->timeout_ms,
	                      .record_bytes = (sizeof(ddp_proposal) + size / 8 + 1 + 7) / 8 * 8 };
	m->present = malloc(size);
	m->told = calloc(size, 1);
	m->gone = malloc(size);
	m->called = calloc(size, 1);
	m->coming = malloc(size);
	m->proposals = calloc(size, sizeof(*m->proposals));
	m->transfers = calloc(size, sizeof(*m->transfers));
	m->records = calloc(2 * size + 3, m->record_bytes);
	m->seen = malloc((size_t)comm->node.size * sizeof(*m->seen));
	if (m->present == NULL || m->told == NULL || m->gone == NULL || m->called == NULL || m->coming == NULL ||
	    m->proposals == NULL || m->transfers == NULL || m->records == NULL || m->seen == NULL || !open_tellings(m)) {
		ddp_agreement_close(m);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for what %d ranks agree on", comm->size);
	}
	memset(m->present, true, size);
	return DDP_OK;
}

void ddp_agreement_close(ddp_agreement *m)
{
	free(m->present);
	free(m->told);
	free(m->gone);
	free(m->called);
	free(m->coming);
	free(m->proposals);
	free(m->transfers);
	free(m->records);
	free(m->seen);
	for (int i = 0; i < 2; i++) {
		free(m->tellings[i].to);
		free(m->tellings[i].receivers);
		free(m->tellings[i].transfers);
	}
}

/* ---- proposals ------------------------------------------------------------------------ */

/* These return where rank r's proposal is kept, where it arrives, and where this rank reads. */
static ddp_proposal *kept(const ddp_agreement *m, int r)
{
	return record(m, (size_t)r);
}

static ddp_proposal *arriving(const ddp_agreement *m, int r)
{
	return record(m, (size_t)m->comm->size + (size_t)r);
}

static ddp_proposal *scratch(const ddp_agreement *m)
{
	return record(m, 2 * (size_t)m->comm->size + 2);
}

static ddp_telling *telling_of(ddp_agreement *m, uint64_t serial)
{
	return &m->tellings[serial & 1];
}

static uint64_t hash_of(const ddp_agreement *m, const ddp_proposal *n)
{
	return ddp_hash((const char *)n + sizeof(n->hash), m->record_bytes - sizeof(n->hash));
}

static void write_proposal(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data,
                           size_t bytes)
{
	ddp_proposal *n = telling_of(m, m->serial)->record;

	memset(n, 0, m->record_bytes);
	n->serial = m->serial;
	n->source = m->comm->rank;
	n->stage = stage;
	n->verdict = verdict;
	n->decided = decided;
	n->size = (uint32_t)m->comm->size;
	n->bytes = (uint32_t)bytes;
	if (bytes > 0)
		memcpy(n->data, data, bytes);
	for (int r = 0; r < m->comm->size; r++)
		n->present[r / 8] |= (unsigned char)(m->present[r] << r % 8);
	n->hash = hash_of(m, n);
}

/* Is it whole, and of that round? It may have been overwritten while it was read. */
static bool is_sound(const ddp_agreement *m, const ddp_proposal *n, uint64_t serial)
{
	return n->hash == hash_of(m, n) && n->serial == serial && n->size == (uint32_t)m->comm->size &&
	       n->source >= 0 && n->source < m->comm->size && n->bytes <= DDP_AGREEMENT_DATA;
}

/* Whoever has come tells who has not: nobody waits for these. */
static void exclude(ddp_agreement *m, const ddp_proposal *n)
{
	for (int r = 0; r < m->comm->size; r++) {
		if (r != m->comm->rank && m->proposals[r] == NULL && !ddp_proposal_counts(n, r))
			m->present[r] = false;
	}
}

static void accept(ddp_agreement *m, const ddp_proposal *n)
{
	const int r = n->source;

	if (!m->present[r] || m->proposals[r] != NULL)
		return;
	m->proposals[r] = kept(m, r);
	memcpy(m->proposals[r], n, m->record_bytes);
	exclude(m, n);
}

/* ---- on this node -------------------------------------------------------------------- */

/* The number of a round in its agreement, from 1. */
static uint64_t in_agreement(uint64_t serial)
{
	return serial & ((UINT64_C(1) << ROUND_BITS) - 1);
}

/* Is round `at` of a later agreement than round `serial`? */
static bool is_again(uint64_t at, uint64_t serial)
{
	return at >> ROUND_BITS > serial >> ROUND_BITS;
}

/* Local rank i shows its proposal of round `serial` here, and behind it those of other nodes that were told to it. A
   rank that has not seen the failure yet may still read and write the slots of the operation. */
typedef struct board {
	alignas(64) _Atomic uint64_t others;
	alignas(64) unsigned char records[];
} board;

/* Rounds use the boards in turn, because no rank is two rounds ahead of a rank that is present to it. The first
   round of an agreement has a board of its own: a rank may begin again while others of its node still read what
   it told last. */
static board *board_of(const ddp_comm *comm, int i, uint64_t serial)
{
	const uint64_t place = in_agreement(serial) == 1 ? DDP_PROPOSAL_BOARDS - 1 : serial & 1;

	return (board *)(void *)(comm->node.proposals +
	                         ((size_t)i * DDP_PROPOSAL_BOARDS + place) * comm->node.proposals_bytes);
}

_Static_assert(sizeof(board) + sizeof(ddp_proposal) + sizeof(uint64_t) <= DDP_PROPOSAL_BYTES, "of a board's share");

static void show(ddp_agreement *m)
{
	ddp_comm *comm = m->comm;
	board *b = board_of(comm, comm->node.self, m->serial);

	atomic_store(&b->others, 0);
	memcpy(b->records, telling_of(m, m->serial)->record, m->record_bytes);
	atomic_store(&ddp_lines_of(comm, comm->rank)->agreement, m->serial);
}

/* Shows the ranks of this node, once in a round, what has come from a rank of another node. */
static void show_other(const ddp_agreement *m, const ddp_proposal *n)
{
	board *b = board_of(m->comm, m->comm->node.self, m->serial);
	const uint64_t others = atomic_load(&b->others);

	memcpy(b->records + (others + 1) * m->record_bytes, n, m->record_bytes);
	atomic_store(&b->others, others + 1);
}

/* The k-th on local rank i's board, if it is of that round. */
static const ddp_proposal *read_board(const ddp_agreement *m, int i, size_t k, uint64_t serial)
{
	ddp_proposal *n = scratch(m);

	memcpy(n, board_of(m->comm, i, serial)->records + k * m->record_bytes, m->record_bytes);
	return is_sound(m, n, serial) ? n : NULL;
}

/* Reads what local rank i shows. False if it has gone on without this one: nobody is two
   rounds ahead of who is present to him, but for one that has begun the next agreement. One
   that was given up may have shown something before. */
static bool look_at(ddp_agreement *m, int i)
{
	const uint64_t at = atomic_load(&m->comm->node.shared->ranks[i].agreement);
	const int rank = m->comm->node.ranks[i];
	const ddp_proposal *n;

	if (at > m->serial + 1 && !is_again(at, m->serial))
		return !m->present[rank];
	if (at < m->serial)
		return true;
	if (m->proposals[rank] == NULL && (n = read_board(m, i, 0, m->serial)) != NULL)
		accept(m, n);
	const uint64_t others = atomic_load(&board_of(m->comm, i, m->serial)->others);
	for (; m->seen[i] < others && m->seen[i] < (size_t)m->comm->size; m->seen[i]++) {
		if ((n = read_board(m, i, m->seen[i] + 1, m->serial)) != NULL)
			accept(m, n);
	}
	if (is_again(at, m->serial))
		return m->proposals[rank] != NULL || !m->present[rank];
	/* One that is ahead has missed those whom it does not count in any more. */
	if (at == m->serial + 1 && m->present[rank] && (n = read_board(m, i, 0, at)) != NULL)
		exclude(m, n);
	return true;
}

/* ---- on other nodes -------------------------------------------------------------------- */

enum { SERIAL_SHIFT = 26 };

static ddp_envelope envelope_of(uint64_t serial, int source)
{
	return (ddp_envelope){ .tag = DDP_NET_AGREEMENT_TAG | serial << SERIAL_SHIFT, .source = source };
}

static uint64_t serial_of(const ddp_envelope *envelope)
{
	return (envelope->tag & ~DDP_NET_AGREEMENT_TAG) >> SERIAL_SHIFT;
}

static void tell(const ddp_agreement *m, ddp_telling *t, int r)
{
	const ddp_envelope envelope = envelope_of(t->serial, m->comm->rank);

	if (t->to[r] || ddp_net_lost(m->comm, r))
		return;
	t->to[r] = true;
	/* One that cannot be reached is lost. */
	(void)ddp_net_send(m->comm, r, &envelope, t->record, m->record_bytes, &t->transfers[r]);
}

static bool is_told(const ddp_agreement *m, int r)
{
	for (int i = 0; i < 2; i++) {
		const ddp_telling *t = &m->tellings[i];
		if (t->to[r] && !t->transfers[r].done && !ddp_net_lost(m->comm, r))
			return false;
	}
	return true;
}

/* Two ranks of the node that are present: that with this one's index, and the other of its
   pair, or who is next to these. They tell this one, too: so ranks need one connection
   less to each node than if everyone told the one behind. */
static void choose_receivers(const ddp_agreement *m, ddp_telling *t, int node)
{
	const ddp_comm *comm = m->comm;
	const int size = ddp_node_size(comm, node);
	int found = 0;

	t->receivers[2 * node] = t->receivers[2 * node + 1] = DDP_NOBODY;
	for (int k = 0; k <= (comm->node.self | (size - 1)) * 2 && found < 2; k++) {
		const int i = comm->node.self ^ k;
		const int r = i < size ? ddp_channel_rank(comm, node, i) : DDP_NOBODY;
		if (r != DDP_NOBODY && m->present[r] && !ddp_net_lost(comm, r))
			t->receivers[2 * node + found++] = r;
	}
}

/* Those that were given up in the last round are told so, if they can be. */
static void tell_given_up(ddp_agreement *m)
{
	for (int r = 0; r < m->comm->size; r++) {
		if (m->called[r] && !m->present[r] && !ddp_is_local(m->comm, r))
			tell(m, telling_of(m, m->serial), r);
		m->called[r] = m->present[r];
	}
}

/* Nothing of the last round's is under way any more: whom it was told is not asked again. */
static void begin_telling(ddp_agreement *m)
{
	const size_t size = (size_t)m->comm->size;

	for (int i = 0; i < 2; i++) {
		memset(m->tellings[i].to, 0, size * sizeof(*m->tellings[i].to));
		memset(m->tellings[i].transfers, 0, size * sizeof(*m->tellings[i].transfers));
	}
	memset(m->transfers, 0, size * sizeof(*m->transfers));
	telling_of(m, m->serial)->serial = m->serial;
}

static void tell_nodes(ddp_agreement *m)
{
	const ddp_comm *comm = m->comm;
	ddp_telling *t = telling_of(m, m->serial);

	for (int node = 0; node < comm->topology.nodes; node++) {
		if (node == comm->topology.node_of[comm->rank])
			continue;
		choose_receivers(m, t, node);
		for (int k = 0; k < 2; k++) {
			if (t->receivers[2 * node + k] != DDP_NOBODY)
				tell(m, t, t->receivers[2 * node + k]);
		}
	}
	tell_given_up(m);
}

/* How it is with those who are to show on a node what this rank tells. */
typedef enum showing { LOST, COMING, ALL_HERE } showing;

static showing look_at_receivers(const ddp_agreement *m, const ddp_telling *t, int node)
{
	showing found = LOST;

	for (int k = 0; k < 2; k++) {
		const int r = t->receivers[2 * node + k];
		if (r == DDP_NOBODY || ddp_net_lost(m->comm, r))
			continue;
		if (m->proposals[r] == NULL)
			return COMING;
		found = ALL_HERE;
	}
	return found;
}

/* Tells those who may not hear of it otherwise. `long_since`: they have had time. */
static void tell_more(const ddp_agreement *m, ddp_telling *t, bool long_since)
{
	const ddp_comm *comm = m->comm;

	for (int node = 0; node < comm->topology.nodes; node++) {
		if (node == comm->topology.node_of[comm->rank])
			continue;
		const showing found = look_at_receivers(m, t, node);
		const bool all = found == LOST || (long_since && found == COMING);
		for (int i = 0; (all || long_since) && i < ddp_node_size(comm, node); i++) {
			const int r = ddp_channel_rank(comm, node, i);
			if (m->present[r] && (all || m->proposals[r] == NULL))
				tell(m, t, r);
		}
	}
}

/* A message of some round's, up to the one that this rank is at. */
static bool is_message(const ddp_comm *comm, const ddp_unexpected *message, const void *argument)
{
	(void)argument;
	return ddp_net_is_of_agreement(&message->envelope) &&
	       serial_of(&message->envelope) <= atomic_load(&ddp_lines_own(comm)->agreement);
}

/* Takes what was told to this rank. */
static void take_messages(ddp_agreement *m)
{
	ddp_comm *comm = m->comm;
	ddp_unexpected message;

	while (ddp_net_find_unexpected(comm, is_message, NULL, &message)) {
		const int r = message.envelope.source;
		if (serial_of(&message.envelope) < m->serial || message.bytes != m->record_bytes || m->coming[r]) {
			ddp_net_drop_unexpected(comm, &message);
			continue;
		}
		m->coming[r] = true;
		ddp_net_recv(comm, r, &message.envelope, arriving(m, r), m->record_bytes, &m->transfers[r]);
	}
	for (int r = 0; r < comm->size; r++) {
		ddp_transfer *t = &m->transfers[r];
		if (!m->coming[r] || !t->done)
			continue;
		t->done = false; /* once */
		if (is_sound(m, arriving(m, r), m->serial) && arriving(m, r)->source == r)
			show_other(m, arriving(m, r));
	}
}

/* ---- a round ------------------------------------------------------------------------------ */

static bool is_gone(const ddp_comm *comm, int r)
{
	if (ddp_is_local(comm, r))
		return atomic_load(&ddp_lines_of(comm, r)->left) != 0 || ddp_node_ended(comm, comm->topology.local_of[r]);
	return ddp_net_lost(comm, r);
}

static ddp_status left_out(const ddp_comm *comm)
{
	return ddp_fail(DDP_ERR_PEER, "the other ranks went on without %s, which came too late",
	                ddp_rank_text(comm, comm->rank));
}

/* A rank that cannot connect with others does not know whether they live. It must not tell that it does not count
   them in. */
static ddp_status check_descriptors(const ddp_comm *comm)
{
	if (comm->net == NULL || !ddp_net_lacks_descriptors(comm))
		return DDP_OK;
	return ddp_fail(DDP_ERR_NOMEM, "%s has no descriptor left for connections with other ranks: raise its limit "
	                "(ulimit -n)", ddp_rank_text(comm, comm->rank));
}

/* Marks the ranks that have not come and for whom nobody waits. What they left before they
   went still counts. */
static void mark_gone(ddp_agreement *m)
{
	ddp_node_look(m->comm);
	for (int r = 0; r < m->comm->size; r++)
		m->gone[r] = m->present[r] && m->proposals[r] == NULL && is_gone(m->comm, r);
}

/* Looks once at all that may have come; DDP_ERR_PEER if the others go on without this
   rank. */
static ddp_status look(ddp_agreement *m, bool long_since)
{
	ddp_comm *comm = m->comm;
	ddp_status status = DDP_OK;

	if (comm->net != NULL) {
		(void)ddp_net_progress(comm);
		take_messages(m);
		tell_more(m, telling_of(m, m->serial), long_since);
		if (telling_of(m, m->serial - 1)->serial == m->serial - 1)
			tell_more(m, telling_of(m, m->serial - 1), long_since);
	}
	for (int i = 0; i < comm->node.size && status == DDP_OK; i++) {
		if (!look_at(m, i))
			status = left_out(comm);
	}
	for (int r = 0; r < comm->size && status == DDP_OK; r++) {
		if (m->present[r] && m->proposals[r] != NULL && !ddp_proposal_counts(m->proposals[r], comm->rank))
			status = left_out(comm);
	}
	return status == DDP_OK ? check_descriptors(comm) : status;
}

/* Is there one to wait for? Who is gone, or late, is not present any more. */
static bool is_waiting(ddp_agreement *m, bool late)
{
	bool waiting = false;

	for (int r = 0; r < m->comm->size; r++) {
		if (m->present[r] && m->proposals[r] == NULL && (m->gone[r] || late))
			m->present[r] = false;
		if (m->present[r] && m->proposals[r] == NULL)
			waiting = true;
		if (m->present[r] && !late && !ddp_is_local(m->comm, r) && !is_told(m, r))
			waiting = true;
	}
	return waiting;
}

static ddp_status look_for_all(ddp_agreement *m)
{
	const uint64_t start_ns = ddp_now_ns(), timeout_ns = (uint64_t)m->timeout_ms * 1000000;

	for (;;) {
		const uint64_t waited_ns = ddp_now_ns() - start_ns;
		const bool late = waited_ns > timeout_ns;
		mark_gone(m);
		ddp_status status = look(m, waited_ns > timeout_ns / 4);
		if (status != DDP_OK || !is_waiting(m, late))
			return status;
		uint64_t sleep_us = waited_ns / 1000 / LOOK_SHARE;
		sleep_us = sleep_us < LOOK_MIN_US ? LOOK_MIN_US : sleep_us;
		usleep((useconds_t)(sleep_us > LOOK_MAX_US ? LOOK_MAX_US : sleep_us));
	}
}

ddp_status ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data,
                               size_t bytes)
{
	ddp_comm *comm = m->comm;
	const size_t size = (size_t)comm->size;

	if (comm->net != NULL && ddp_net_ended(comm))
		return ddp_fail(DDP_ERR_PEER, "%s has no network any more: UCX did not end what was under way",
		                ddp_rank_text(comm, comm->rank));
	if (bytes > DDP_AGREEMENT_DATA)
		return ddp_fail(DDP_ERR_INTERNAL, "a proposal with %zu bytes of data", bytes);
	m->serial++;
	memset(m->proposals, 0, size * sizeof(*m->proposals));
	begin_telling(m);
	memset(m->coming, false, size);
	memset(m->seen, 0, (size_t)comm->node.size * sizeof(*m->seen));
	/* Ranks of other nodes need not find out who of this one is gone. */
	mark_gone(m);
	for (size_t r = 0; r < size && !decided; r++)
		m->present[r] = m->present[r] && !(m->gone[r] && ddp_is_local(comm, (int)r));
	write_proposal(m, stage, verdict, decided, data, bytes);
	show(m);
	memcpy(m->told, m->present, size);
	if (comm->net != NULL)
		tell_nodes(m);
	ddp_status status = look_for_all(m);
	if (comm->net != NULL)
		ddp_net_forget(comm);
	m->timeout_ms += comm->timeout_ms / 8 + 100;
	return status;
}
