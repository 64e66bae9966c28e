/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net: what ranks tell each other beside data: that a communicator has failed or is closed, what a rank waits for,
   which node is silent. */
#include "comm/net/ucx.h"

#include <string.h>

#include "base/clock.h"
#include "comm/core/silence.h"
#include "watch/page.h"

/* ---- failed and closed communicators ------------------------------------------------- */

void ddp_ucx_failure_arrived(connection *c, const control_header *header)
{
	ddp_net *net = ddp_ucx_find(c->worker, header->failure.id);

	if (net == NULL || net->failure_came)
		return;
	if (ddp_ucx_rank_of(net, c) == DDP_NOBODY) {
		ddp_ucx_unauthentic(c->worker);
		return;
	}
	net->failure = header->failure.failure;
	net->failure.text[sizeof(net->failure.text) - 1] = '\0';
	if (net->failure.status <= DDP_OK || net->failure.status > DDP_ERR_INTERNAL)
		net->failure.status = DDP_ERR_PEER;
	if (net->failure.culprit < 0 || net->failure.culprit >= net->comm->size)
		net->failure.culprit = DDP_NOBODY;
	net->failure_came = true;
	ddp_ucx_trouble(net);
}

/* A new connection at this time is what UCX 1.13 asserts over. */
void ddp_ucx_send_failure(ddp_net *net)
{
	const ddp_comm *comm = net->comm;
	failure_header message = { .id = net->id };

	message.failure.status = atomic_load(&comm->failure.status);
	message.failure.culprit = comm->failure.culprit;
	memcpy(message.failure.text, comm->failure.text, sizeof(comm->failure.text));
	for (int r = 0; r < comm->size; r++)
		(void)ddp_ucx_notify(&net->tickets, ddp_ucx_connection(net, r), DDP_AM_FAILURE, &message,
		                     sizeof(message));
}

void ddp_ucx_send_closed(ddp_net *net)
{
	const closed_header message = { .id = net->id };

	for (int r = 0; r < net->comm->size; r++)
		(void)ddp_ucx_notify(&net->worker->tickets, ddp_ucx_connection(net, r), DDP_AM_CLOSED, &message,
		                     sizeof(message));
}

/* If it cannot be sent now: who waits in vain asks again (comm/wait/message). */
void ddp_ucx_answer_closed(connection *c)
{
	const closed_header message = { .id = c->closed_due };

	c->closed_due = 0;
	(void)ddp_ucx_notify(&c->worker->tickets, c, DDP_AM_CLOSED, &message, sizeof(message));
}

void ddp_ucx_closed_arrived(connection *c, const control_header *header)
{
	ddp_net *net = ddp_ucx_find(c->worker, header->closed.id);
	int rank = net != NULL ? ddp_ucx_rank_of(net, c) : DDP_NOBODY;

	if (rank != DDP_NOBODY && atomic_load(&net->members[rank].closed_ns) == 0) {
		atomic_store(&net->members[rank].closed_ns, ddp_now_ns());
		ddp_ucx_news(net);
	}
}

/* ---- inquiries of comm/wait/verdict -------------------------------------------------- */

/* A rank that asks will ask again. So if an answer cannot be sent now, a later one can. */
static void send_inquiry(ddp_net *net, int rank, inquiry_header inquiry)
{
	inquiry.id = net->id;
	inquiry.rank = net->comm->rank;
	(void)ddp_ucx_notify(&net->tickets, ddp_ucx_connection(net, rank), DDP_AM_INQUIRY, &inquiry,
	                     sizeof(inquiry));
}

void ddp_ucx_inquire(ddp_net *net, int rank)
{
	if (net->down || !ddp_ucx_connect(ddp_ucx_connection(net, rank)))
		return;
	send_inquiry(net, rank, (inquiry_header){ .asks = 1, .names = DDP_NOBODY });
}

void ddp_ucx_inquiry_arrived(connection *c, const control_header *header)
{
	const inquiry_header *inquiry = &header->inquiry;
	ddp_net *net = ddp_ucx_find(c->worker, inquiry->id);

	if (net == NULL || net->refusing)
		return;
	if (!ddp_ucx_is_rank(net, inquiry->rank, c)) {
		ddp_ucx_unauthentic(c->worker);
		return;
	}
	member *asker = &net->members[inquiry->rank];
	if (inquiry->asks != 0) {
		/* Answered after the callback. */
		asker->inquired = net->inquired = c->worker->inquired = true;
		return;
	}
	asker->answer = (ddp_answer){ .at_ns = ddp_now_ns(), .waits = inquiry->waits != 0,
	                              .names = inquiry->names };
}

static void answer_inquiries(ddp_net *net)
{
	if (!net->inquired)
		return;
	net->inquired = false;
	const uint64_t now = ddp_now_ns();
	const ddp_answer answer = ddp_lines_inquire(ddp_lines_own(net->comm), now);
	ddp_page_wanted(net->comm->roster->page, now);
	for (int r = 0; r < net->comm->size; r++) {
		if (net->members[r].inquired)
			send_inquiry(net, r, (inquiry_header){ .waits = answer.waits, .names = answer.names });
		net->members[r].inquired = false;
	}
}

void ddp_ucx_answer_inquiries(ddp_worker *worker)
{
	if (!worker->inquired)
		return;
	worker->inquired = false;
	ddp_ucx_for_each(worker, answer_inquiries);
}

/* ---- silent nodes -------------------------------------------------------------------- */

static void lose_node(ddp_worker *worker, int node)
{
	for (int r = 0; r < worker->roster->size; r++) {
		if (worker->roster->peers[r].node == node)
			ddp_ucx_lose(&worker->peers[r], UCS_ERR_ENDPOINT_TIMEOUT);
	}
	worker->news = worker->alarm = true;
}

static void announce(ddp_worker *worker, int node, int silent_ms)
{
	const silence_header message = { .rank = node, .silent_ms = silent_ms };

	/* When the network is back, other nodes must not believe this node about nodes that they hear. */
	if (atomic_load(&worker->roster->deaf))
		return;
	for (int r = 0; r < worker->roster->size; r++)
		(void)ddp_ucx_notify(&worker->tickets, &worker->peers[r], DDP_AM_SILENCE, &message, sizeof(message));
}

void ddp_ucx_end_silent(ddp_worker *worker)
{
	const ddp_roster *roster = worker->roster;
	const int count = ddp_silence_count(roster);

	if (worker->silences == count || worker->ended)
		return;
	worker->silences = count;
	for (int r = 0; r < roster->size; r++) {
		const int silent_ms = atomic_load(&roster->peers[r].silent_ms);
		if (roster->peers[r].node != r || silent_ms == 0 || worker->peers[r].silence_told)
			continue;
		worker->peers[r].silence_told = true;
		lose_node(worker, r);
		announce(worker, r, silent_ms);
	}
}

void ddp_ucx_silence_arrived(connection *c, const control_header *header)
{
	const silence_header *silence = &header->silence;
	ddp_roster *roster = c->worker->roster;

	if (silence->rank < 0 || silence->rank >= roster->size)
		return;
	/* Another node cannot hear this one; it can hear others, and is heard. */
	if (roster->peers[silence->rank].node == roster->peers[roster->rank].node)
		return;
	if (ddp_silence_note(roster, silence->rank, silence->silent_ms))
		c->worker->news = c->worker->alarm = true;
}
