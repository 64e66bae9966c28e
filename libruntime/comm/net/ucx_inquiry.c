#include "comm/net/ucx_inquiry.h"

#include <string.h>

#include "base/clock.h"
#include "comm/net/ucx_connect.h"
#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_ticket.h"

/* Who asks asks again, so that an answer that cannot be sent now comes later. */
static void send_inquiry(ddp_net *net, int peer, const inquiry_header *inquiry)
{
	(void)ddp_ucx_notify(net, peer, DDP_AM_INQUIRY, inquiry, sizeof(*inquiry));
}

void ddp_ucx_inquire(ddp_net *net, int peer)
{
	const inquiry_header question = { .asks = 1, .names = DDP_NOBODY };

	if (net->down || ddp_ucx_connect(net, peer) != DDP_OK)
		return;
	send_inquiry(net, peer, &question);
}

ucs_status_t ddp_ucx_inquiry_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_net *net = argument;
	int source = ddp_ucx_source(net, header, header_bytes, sizeof(inquiry_header));
	inquiry_header inquiry;

	(void)data;
	(void)bytes;
	(void)param;
	if (source == DDP_NOBODY || net->refusing)
		return UCS_OK;
	memcpy(&inquiry, header, sizeof(inquiry));
	connection *c = &net->peers[source];
	if (inquiry.asks != 0) {
		/* Answered after the callback, in ddp_net_progress(). */
		c->inquired = net->inquired = true;
		return UCS_OK;
	}
	c->answer = (ddp_answer){ .at_ns = ddp_now_ns(), .waits = inquiry.waits != 0,
	                          .names = inquiry.names };
	return UCS_OK;
}

void ddp_ucx_answer_inquiries(ddp_net *net)
{
	if (!net->inquired)
		return;
	net->inquired = false;
	const ddp_answer answer = ddp_lines_inquire(ddp_lines_own(net->comm), ddp_now_ns());
	const inquiry_header reply = { .waits = answer.waits, .names = answer.names };
	for (int r = 0; r < net->comm->size; r++) {
		if (net->peers[r].inquired)
			send_inquiry(net, r, &reply);
		net->peers[r].inquired = false;
	}
}
