/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/agreement.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/liveness.h"
#include "comm/group/carry.h"
#include "comm/net/net.h"
#include "comm/wait/await.h"

enum { LOOK_MS = 5 /* between two looks, if nobody wakes the rank */ };

static bool open_tellings(ddp_agreement *m)
{
	const size_t size = (size_t)m->comm->size, on_node = (size_t)m->comm->node.size;

	for (size_t i = 0; i < 2; i++) {
		ddp_telling *t = &m->tellings[i];
		t->record = ddp_agreement_record(m, size + 1 + i);
		t->batch = m->records + (size + 3 + i * on_node) * m->record_bytes;
		t->sent = calloc(size, sizeof(*t->sent));
		t->carried = calloc(size, sizeof(*t->carried));
		t->to = calloc(size, sizeof(*t->to));
		t->transfers = calloc(size, sizeof(*t->transfers));
		if (t->sent == NULL || t->carried == NULL || t->to == NULL || t->transfers == NULL)
			return false;
	}
	return true;
}

ddp_status ddp_agreement_open(ddp_agreement *m, ddp_comm *comm)
{
	const size_t size = (size_t)comm->size, on_node = (size_t)comm->node.size;
	size_t largest = 0;

	for (int node = 0; node < comm->topology.nodes; node++)
		largest = (size_t)ddp_node_size(comm, node) > largest ? (size_t)ddp_node_size(comm, node) : largest;
	*m = (ddp_agreement){ .comm = comm, .serial = ++comm->agreements << DDP_ROUND_BITS,
	                      .timeout_ms = comm->timeout_ms,
	                      .record_bytes = (sizeof(ddp_proposal) + size / 8 + 1 + 7) / 8 * 8 };
	m->present = malloc(size);
	m->told = calloc(size, 1);
	m->gone = malloc(size);
	m->called = calloc(size, 1);
	m->shown = malloc(size);
	m->proposals = calloc(size, sizeof(*m->proposals));
	m->arriving = calloc(size, sizeof(*m->arriving));
	m->transfers = calloc(size, sizeof(*m->transfers));
	m->records = calloc(size + 3 + 2 * on_node + largest, m->record_bytes);
	m->seen = malloc(on_node * sizeof(*m->seen));
	if (m->present == NULL || m->told == NULL || m->gone == NULL || m->called == NULL || m->shown == NULL ||
	    m->proposals == NULL || m->arriving == NULL || m->transfers == NULL || m->records == NULL || m->seen == NULL ||
	    !open_tellings(m)) {
		ddp_agreement_close(m);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for what %d ranks agree on", comm->size);
	}
	memset(m->present, true, size);
	m->spare = ddp_agreement_record(m, size + 3 + 2 * on_node);
	return DDP_OK;
}

void ddp_agreement_close(ddp_agreement *m)
{
	ddp_carry_end(m);
	free(m->present);
	free(m->told);
	free(m->gone);
	free(m->called);
	free(m->shown);
	free(m->proposals);
	free(m->arriving);
	free(m->transfers);
	free(m->records);
	free(m->seen);
	for (int i = 0; i < 2; i++) {
		free(m->tellings[i].sent);
		free(m->tellings[i].carried);
		free(m->tellings[i].to);
		free(m->tellings[i].transfers);
	}
}

/* ---- proposals ------------------------------------------------------------------------ */

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
	if (n->stage == DDP_PROPOSAL_GONE) {
		m->present[r] = r == m->comm->rank;
		return;
	}
	m->proposals[r] = ddp_agreement_record(m, (size_t)r);
	memcpy(m->proposals[r], n, m->record_bytes);
	exclude(m, n);
	ddp_carry_add(m, n);
}

/* ---- on this node -------------------------------------------------------------------- */

/* Is round `at` of a later agreement than round `serial`? */
static bool is_again(uint64_t at, uint64_t serial)
{
	return at >> DDP_ROUND_BITS > serial >> DDP_ROUND_BITS;
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
	if (m->proposals[rank] == NULL && (n = ddp_board_read(m, i, 0, m->serial)) != NULL)
		accept(m, n);
	for (const size_t others = ddp_board_others(m, i); m->seen[i] < others; m->seen[i]++) {
		if ((n = ddp_board_read(m, i, m->seen[i] + 1, m->serial)) != NULL)
			accept(m, n);
	}
	if (is_again(at, m->serial))
		return m->proposals[rank] != NULL || !m->present[rank];
	/* One that is ahead has missed those whom it does not count in any more. */
	if (at == m->serial + 1 && m->present[rank] && (n = ddp_board_read(m, i, 0, at)) != NULL)
		exclude(m, n);
	return true;
}

/* ---- a round ------------------------------------------------------------------------------ */

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
		m->gone[r] = m->present[r] && m->proposals[r] == NULL && ddp_carry_is_gone(m->comm, r);
}

/* Looks once at all that may have come; DDP_ERR_PEER if the others go on without this
   rank. */
static ddp_status look(ddp_agreement *m, int64_t waited_ms)
{
	ddp_comm *comm = m->comm;
	ddp_status status = DDP_OK;

	if (comm->net != NULL) {
		(void)ddp_net_progress(comm);
		ddp_carry_take(m);
	}
	for (int i = 0; i < comm->node.size && status == DDP_OK; i++) {
		if (!look_at(m, i))
			status = left_out(comm);
	}
	for (int r = 0; r < comm->size && status == DDP_OK; r++) {
		if (m->present[r] && m->proposals[r] != NULL && !ddp_proposal_counts(m->proposals[r], comm->rank))
			status = left_out(comm);
	}
	if (status == DDP_OK)
		status = check_descriptors(comm);
	if (status == DDP_OK && comm->net != NULL)
		ddp_carry_on(m, waited_ms);
	return status;
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
		if (m->present[r] && !late && !ddp_is_local(m->comm, r) && !ddp_carry_is_told(m, r))
			waiting = true;
	}
	return waiting;
}

/* ---- sleeping ----------------------------------------------------------------------------- */

/* Begins a sleep: from here on, others wake this rank. Returns what end_sleep() wants. */
static uint32_t begin_sleep(const ddp_comm *comm)
{
	ddp_node_rank *self = ddp_lines_own(comm);
	const uint32_t begun = comm->net != NULL ? ddp_doorbell_begin(&comm->roster->doorbell) : atomic_load(&self->bell);

	atomic_store(&self->sleeps_for, DDP_SLEEPS_FOR_ANY);
	return begun;
}

/* `sleeps`: until others wake this rank, a message comes, or it is time to look again. */
static void end_sleep(const ddp_comm *comm, uint32_t begun, bool sleeps)
{
	uint64_t look_ns = LOOK_MS * UINT64_C(1000000);
	ddp_node_rank *self = ddp_lines_own(comm);

	if (sleeps && comm->net == NULL)
		ddp_futex_wait(&self->bell, begun, look_ns);
	else if (sleeps && ddp_net_arm(comm->roster)) {
		const int fd = ddp_net_fd(comm->roster, &look_ns);
		ddp_doorbell_sleep(&comm->roster->doorbell, begun, fd, look_ns);
	}
	if (comm->net != NULL)
		ddp_doorbell_end(&comm->roster->doorbell);
	atomic_store(&self->sleeps_for, DDP_AWAKE);
}

static void wake_node(ddp_comm *comm)
{
	for (int i = 0; i < comm->node.size; i++) {
		if (i != comm->node.self)
			ddp_node_wake_rank(comm, i);
	}
}

/* Have all of this node come to the round? */
static bool is_node_here(const ddp_agreement *m)
{
	for (int i = 0; i < m->comm->node.size; i++) {
		if (m->present[m->comm->node.ranks[i]] && atomic_load(&m->comm->node.shared->ranks[i].agreement) < m->serial)
			return false;
	}
	return true;
}

/* The last rank that comes to a round wakes the others, so that they carry what their node tells. The first that is
   through with the round wakes them, too: others then have what it has. */
static ddp_status look_for_all(ddp_agreement *m)
{
	const uint64_t start_ns = ddp_now_ns(), ms_ns = 1000000, timeout_ns = (uint64_t)m->timeout_ms * ms_ns;
	ddp_comm *comm = m->comm;
	ddp_status status;
	bool waiting = true;

	if (is_node_here(m))
		wake_node(comm);
	do {
		const uint64_t waited_ns = ddp_now_ns() - start_ns;
		const uint32_t begun = begin_sleep(comm);
		mark_gone(m);
		status = look(m, (int64_t)(waited_ns / ms_ns));
		waiting = status == DDP_OK && is_waiting(m, waited_ns > timeout_ns);
		end_sleep(comm, begun, waiting);
	} while (waiting);
	wake_node(comm);
	return status;
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
	ddp_carry_begin(m);
	memset(m->shown, false, size);
	memset(m->seen, 0, (size_t)comm->node.size * sizeof(*m->seen));
	/* Ranks of other nodes need not find out who of this one is gone. */
	mark_gone(m);
	for (size_t r = 0; r < size && !decided; r++)
		m->present[r] = m->present[r] && !(m->gone[r] && ddp_is_local(comm, (int)r));
	ddp_proposal_write(m, stage, verdict, decided, data, bytes);
	ddp_board_show(m);
	memcpy(m->told, m->present, size);
	if (comm->net != NULL)
		ddp_carry_given_up(m);
	ddp_status status = look_for_all(m);
	if (comm->net != NULL)
		ddp_net_forget(comm);
	ddp_carry_end(m);
	m->timeout_ms += comm->timeout_ms / 8 + 100;
	return status;
}
