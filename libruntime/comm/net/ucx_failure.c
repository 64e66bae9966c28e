/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_failure.h"

#include <string.h>

#include "base/clock.h"
#include "comm/net/ucx_nets.h"
#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_ticket.h"

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
void ddp_ucx_tell_failure(ddp_net *net)
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

void ddp_ucx_tell_closed(ddp_net *net)
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
