/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_inquiry.h"

#include "base/clock.h"
#include "comm/net/ucx_connect.h"
#include "comm/net/ucx_nets.h"
#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_ticket.h"
#include "watch/page.h"

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
