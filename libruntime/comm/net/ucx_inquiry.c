#include "comm/net/ucx_inquiry.h"

#include <string.h>

#include "base/clock.h"
#include "comm/net/ucx_connect.h"
#include "comm/net/ucx_nets.h"
#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_ticket.h"

/* Who asks asks again, so that an answer that cannot be sent now comes later. */
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

ucs_status_t ddp_ucx_inquiry_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_worker *worker = argument;
	const connection *c = ddp_ucx_source(worker, header, header_bytes, sizeof(inquiry_header));
	inquiry_header inquiry;

	(void)data;
	(void)bytes;
	(void)param;
	if (c == NULL)
		return UCS_OK;
	memcpy(&inquiry, header, sizeof(inquiry));
	ddp_net *net = ddp_ucx_find(worker, inquiry.id);
	if (net == NULL || net->refusing)
		return UCS_OK;
	if (!ddp_ucx_is_rank(net, inquiry.rank, c)) {
		ddp_ucx_unauthentic(worker);
		return UCS_OK;
	}
	member *asker = &net->members[inquiry.rank];
	if (inquiry.asks != 0) {
		/* Answered after the callback. */
		asker->inquired = net->inquired = worker->inquired = true;
		return UCS_OK;
	}
	asker->answer = (ddp_answer){ .at_ns = ddp_now_ns(), .waits = inquiry.waits != 0,
	                              .names = inquiry.names };
	return UCS_OK;
}

static void answer_inquiries(ddp_net *net)
{
	if (!net->inquired)
		return;
	net->inquired = false;
	const ddp_answer answer = ddp_lines_inquire(ddp_lines_own(net->comm), ddp_now_ns());
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
