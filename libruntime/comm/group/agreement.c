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
#include "wireup/wireup.h"

enum { LOOK_EVERY_US = 200, ROUND_BITS = 12 };

ddp_status ddp_agreement_open(ddp_agreement *m, ddp_comm *comm)
{
	size_t size = (size_t)comm->size;

	*m = (ddp_agreement){ .comm = comm, .serial = ++comm->agreements << ROUND_BITS,
	                      .timeout_ms = comm->timeout_ms };
	m->present = malloc(size);
	m->told = calloc(size, 1);
	m->called = malloc(size);
	m->proposals = calloc(size, sizeof(*m->proposals));
	m->transfers = calloc(4 * size, sizeof(*m->transfers));
	m->lengths = calloc(2 * size, sizeof(*m->lengths));
	m->come = malloc(size);
	m->plain = malloc(sizeof(*m->plain) + size);
	if (m->present == NULL || m->told == NULL || m->called == NULL || m->proposals == NULL ||
	    m->transfers == NULL || m->lengths == NULL || m->come == NULL || m->plain == NULL) {
		ddp_agreement_close(m);
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	}
	memset(m->present, true, size);
	memset(m->called, false, size);
	return DDP_OK;
}

static void forget_proposals(ddp_agreement *m)
{
	for (int r = 0; r < m->comm->size && m->proposals != NULL; r++) {
		free(m->proposals[r]);
		m->proposals[r] = NULL;
	}
}

void ddp_agreement_close(ddp_agreement *m)
{
	forget_proposals(m);
	free(m->present);
	free(m->told);
	free(m->called);
	free(m->proposals);
	free(m->transfers);
	free(m->lengths);
	free(m->come);
	free(m->plain);
}

/* ---- proposals ------------------------------------------------------------------------ */

static size_t proposal_bytes(const ddp_agreement *m, size_t bytes)
{
	return sizeof(ddp_proposal) + (size_t)m->comm->size + bytes;
}

static uint64_t hash_of(const ddp_proposal *n, size_t bytes)
{
	return ddp_hash((const char *)n + sizeof(n->hash), bytes - sizeof(n->hash));
}

/* Into `n`, which has room for it. */
static void write_proposal(const ddp_agreement *m, ddp_proposal *n, uint32_t stage, int verdict, bool decided,
                           const void *data, size_t bytes)
{
	size_t whole = proposal_bytes(m, bytes), size = (size_t)m->comm->size;

	memset(n, 0, sizeof(*n));
	n->serial = m->serial;
	n->bytes = bytes;
	n->stage = stage;
	n->verdict = verdict;
	n->decided = decided;
	n->size = (uint32_t)size;
	for (size_t r = 0; r < size; r++)
		n->present[r] = m->present[r];
	if (bytes > 0)
		memcpy(n->present + size, data, bytes);
	n->hash = hash_of(n, whole);
}

/* Is it whole, and of this round? It may have been overwritten while it was read. */
static bool is_sound(const ddp_agreement *m, const ddp_proposal *n, size_t whole)
{
	return whole >= proposal_bytes(m, 0) && n->hash == hash_of(n, whole) && n->serial == m->serial &&
	       n->size == (uint32_t)m->comm->size && proposal_bytes(m, n->bytes) == whole;
}

/* ---- on this node -------------------------------------------------------------------- */

/* Where local rank i shows its proposal of round `serial`. A rank that has not seen
   the failure yet may still read and write the windows of the operation. */
static char *proposal_slot(const ddp_comm *comm, int i, uint64_t serial)
{
	return comm->node.proposals + ((size_t)i * 2 + (serial & 1)) * comm->node.stage_bytes;
}

/* Local ranks read it from this rank's slot. */
static ddp_status show(ddp_agreement *m, const ddp_proposal *n, size_t whole)
{
	ddp_comm *comm = m->comm;
	char *slot = proposal_slot(comm, comm->node.self, m->serial);
	const uint64_t length = whole;

	if (whole + sizeof(length) > comm->node.stage_bytes)
		return ddp_fail(DDP_ERR_INTERNAL, "a proposal of %zu bytes", whole);
	memcpy(slot, &length, sizeof(length));
	memcpy(slot + sizeof(length), n, whole);
	atomic_store(&ddp_lines_of(comm, comm->rank)->agreement, m->serial);
	return DDP_OK;
}

/* Sets *ahead if the rank has gone on without this one: nobody is two rounds
   ahead of who is present to him. */
static bool look_local(ddp_agreement *m, int r, bool *ahead)
{
	ddp_comm *comm = m->comm;
	uint64_t length, at = atomic_load(&ddp_lines_of(comm, r)->agreement);

	*ahead = at > m->serial + 1;
	if (at < m->serial || *ahead)
		return false;
	const char *slot = proposal_slot(comm, comm->topology.local_of[r], m->serial);
	memcpy(&length, slot, sizeof(length));
	if (length > comm->node.stage_bytes - sizeof(length))
		return false;
	ddp_proposal *n = malloc(length + 1);
	if (n == NULL)
		return false;
	memcpy(n, slot + sizeof(length), length);
	if (!is_sound(m, n, length)) {
		free(n);
		return false;
	}
	m->proposals[r] = n;
	return true;
}

/* ---- on other nodes -------------------------------------------------------------------- */

static ddp_envelope envelope_of(const ddp_agreement *m, bool data)
{
	return (ddp_envelope){ .tag = DDP_NET_AGREEMENT_TAG | m->serial << 26 | (uint64_t)data << 25,
	                       .source = m->comm->rank };
}

static void call_remote(ddp_agreement *m, int r, const ddp_proposal *n, size_t whole)
{
	ddp_comm *comm = m->comm;
	ddp_transfer *t = &m->transfers[4 * r];
	const ddp_envelope length = envelope_of(m, false), data = envelope_of(m, true);

	m->lengths[comm->size + r] = whole;
	if (m->present[r])
		ddp_net_recv(comm, r, &length, &m->lengths[r], sizeof(uint64_t), &t[0]);
	if (ddp_net_send(comm, r, &length, &m->lengths[comm->size + r], sizeof(uint64_t), &t[1]) == DDP_OK)
		(void)ddp_net_send(comm, r, &data, n, whole, &t[2]);
}

/* The data is asked for once its length is known. */
static bool look_remote(ddp_agreement *m, int r)
{
	ddp_transfer *t = &m->transfers[4 * r];
	const ddp_envelope data = envelope_of(m, true);

	if (!t[0].done || m->lengths[r] > DDP_BLOB_MAX)
		return false;
	if (m->proposals[r] == NULL) {
		m->proposals[r] = malloc(m->lengths[r] + 1);
		if (m->proposals[r] == NULL)
			return false;
		ddp_net_recv(m->comm, r, &data, m->proposals[r], m->lengths[r], &t[3]);
	}
	return t[1].done && t[2].done && t[3].done && is_sound(m, m->proposals[r], m->lengths[r]);
}

/* Those that were given up in the last round are told so, if they can be. */
static void call_all_remote(ddp_agreement *m, const ddp_proposal *n, size_t whole)
{
	ddp_comm *comm = m->comm;

	memset(m->transfers, 0, 4 * (size_t)comm->size * sizeof(*m->transfers));
	for (int r = 0; r < comm->size; r++) {
		if (ddp_is_local(comm, r))
			continue;
		if (m->present[r] || (m->called[r] && !ddp_net_lost(comm, r)))
			call_remote(m, r, n, whole);
		m->called[r] = m->present[r];
	}
}

/* ---- a round ------------------------------------------------------------------------------ */

static bool is_gone(const ddp_comm *comm, int r)
{
	if (ddp_is_local(comm, r))
		return atomic_load(&ddp_lines_of(comm, r)->left) != 0 ||
		       !ddp_peer_alive(&comm->roster->peers[comm->topology.world_ranks[r]]);
	return ddp_net_lost(comm, r);
}

static ddp_status left_out(const ddp_comm *comm)
{
	return ddp_fail(DDP_ERR_PEER, "the other ranks went on without %s, which came too late",
	                ddp_rank_text(comm, comm->rank));
}

/* Looks once for rank r's proposal; true if it is still to come. */
static bool look(ddp_agreement *m, int r, bool late, bool *come, bool *ahead)
{
	/* Gone is asked first: what it left before it went counts. */
	bool gone = is_gone(m->comm, r);

	*come = ddp_is_local(m->comm, r) ? look_local(m, r, ahead) : look_remote(m, r);
	m->present[r] = *come || !(gone || late);
	return m->present[r] && !*come;
}

static ddp_status look_for_all(ddp_agreement *m)
{
	ddp_comm *comm = m->comm;
	bool *come = m->come;
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)m->timeout_ms * 1000000;
	bool waiting = true, ahead = false;

	while (waiting) {
		bool late = ddp_now_ns() > deadline_ns;
		waiting = false;
		if (comm->net != NULL)
			(void)ddp_net_progress(comm);
		for (int r = 0; r < comm->size; r++) {
			if (m->present[r] && !come[r])
				waiting = look(m, r, late, &come[r], &ahead) || waiting;
			if (ahead || (come[r] && m->proposals[r]->present[comm->rank] == 0))
				return left_out(comm);
		}
		if (waiting)
			usleep(LOOK_EVERY_US);
	}
	return DDP_OK;
}

ddp_status ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data,
                               size_t bytes)
{
	ddp_comm *comm = m->comm;
	ddp_status lack = DDP_OK, status;

	if (comm->net != NULL && ddp_net_ended(comm))
		return ddp_fail(DDP_ERR_PEER, "%s has no network any more: UCX did not end what was under way",
		                ddp_rank_text(comm, comm->rank));
	m->serial++;
	forget_proposals(m);
	ddp_proposal *own = bytes == 0 ? m->plain : malloc(proposal_bytes(m, bytes));
	/* The others are not kept waiting for what this rank cannot tell. */
	if (own == NULL) {
		lack = DDP_ERR_NOMEM;
		own = m->plain;
		bytes = 0;
	}
	write_proposal(m, own, stage, verdict, decided, data, bytes);
	memset(m->come, false, (size_t)comm->size);
	status = show(m, own, proposal_bytes(m, bytes));
	memcpy(m->told, m->present, (size_t)comm->size);
	if (status == DDP_OK && comm->net != NULL)
		call_all_remote(m, own, proposal_bytes(m, bytes));
	if (status == DDP_OK)
		status = look_for_all(m);
	if (comm->net != NULL)
		ddp_net_forget(comm);
	/* What came in parts, or torn, did not come. */
	for (int r = 0; r < comm->size; r++) {
		if (!m->come[r]) {
			free(m->proposals[r]);
			m->proposals[r] = NULL;
		}
	}
	m->timeout_ms += comm->timeout_ms / 8 + 100;
	if (own != m->plain)
		free(own);
	return status == DDP_OK && lack != DDP_OK ? ddp_fail(lack, "out of memory") : status;
}
