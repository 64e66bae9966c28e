#include "comm/net/ucx_connect.h"

#include <string.h>

#include "base/clock.h"
#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_send.h"

enum { SETTLE_MS = 100 }; /* for what is under way, before a connection is begun */

static void connection_lost(void *argument, ucp_ep_h ep, ucs_status_t status)
{
	connection *c = argument;

	(void)ep;
	if (c->lost == UCS_OK)
		c->lost = status;
}

/* ---- handshakes ---------------------------------------------------------------------------- */

/* They come and go in the order in which the fields of `connection` tell. */
static void send_handshake(connection *c, handshake_header *handshake)
{
	static const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
	                                           .flags = UCP_AM_SEND_FLAG_EAGER };

	if (c->ep == NULL || c->lost != UCS_OK)
		return;
	handshake->seal = ddp_ucx_seal(c->net, c->peer);
	void *request = ucp_am_send_nbx(c->ep, DDP_AM_HANDSHAKE, handshake, sizeof(*handshake), NULL, 0, &param);
	if (UCS_PTR_IS_ERR(request))
		connection_lost(c, c->ep, UCS_PTR_STATUS(request));
	else if (request != NULL)
		ucp_request_free(request);
}

void ddp_ucx_say_ready(ddp_net *net, int peer)
{
	connection *c = &net->peers[peer];

	c->handshakes[2] = (handshake_header){ .heard = 1, .ready = 1 };
	send_handshake(c, &c->handshakes[2]);
}

ucs_status_t ddp_ucx_handshake_arrived(void *argument, const void *header, size_t header_bytes,
                                       void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_net *net = argument;
	int source = ddp_ucx_source(net, header, header_bytes, sizeof(handshake_header));
	handshake_header handshake;

	(void)data;
	(void)bytes;
	(void)param;
	if (source == DDP_NOBODY)
		return UCS_OK;
	memcpy(&handshake, header, sizeof(handshake));
	connection *c = &net->peers[source];
	c->hears_us = c->hears_us || handshake.heard != 0;
	c->ready = c->ready || handshake.ready != 0;
	/* Answered after the callback, in ddp_net_progress(). */
	c->handshake_due = true;
	net->handshakes_due = true;
	return UCS_OK;
}

static void release_held(ddp_net *net, int peer)
{
	for (ddp_transfer **link = &net->held; *link != NULL;) {
		ddp_transfer *t = *link;
		if (t->peer != peer) {
			link = &t->next;
			continue;
		}
		*link = t->next;
		if (ddp_ucx_begin_send(net, t) != DDP_OK)
			connection_lost(&net->peers[peer], NULL, UCS_ERR_NO_MEMORY);
	}
}

bool ddp_ucx_answer_handshakes(ddp_net *net)
{
	if (!net->handshakes_due)
		return false;
	net->handshakes_due = false;
	for (int r = 0; r < net->comm->size; r++) {
		connection *c = &net->peers[r];
		if (!c->handshake_due)
			continue;
		c->handshake_due = false;
		/* A broken communicator begins no new one. */
		if ((net->down && c->ep == NULL) || ddp_ucx_connect(net, r) != DDP_OK)
			continue;
		if (!c->heard_sent) {
			c->heard_sent = true;
			c->handshakes[1] = (handshake_header){ .heard = 1 };
			send_handshake(c, &c->handshakes[1]);
		}
		if (c->hears_us && !c->settled) {
			c->settled = true;
			release_held(net, r);
		}
	}
	return true;
}

/* ---- connections ------------------------------------------------------------------------- */

static void create_endpoint(ddp_net *net, connection *c)
{
	const ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
			UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = c->address, .err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler = { .cb = connection_lost, .arg = c },
	};

	/* UCX 1.13 asserts if a connection of the peer's that has just failed, and
	   waits for its end, is taken for the new endpoint. */
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)SETTLE_MS * 1000000;
	while (ucp_worker_progress(net->worker) != 0 && ddp_now_ns() < deadline_ns)
		continue;
	ucs_status_t status = ucp_ep_create(net->worker, &params, &c->ep);
	if (status != UCS_OK) {
		c->ep = NULL;
		c->lost = status;
	}
}

ddp_status ddp_ucx_connect(ddp_net *net, int peer)
{
	connection *c = &net->peers[peer];

	if (c->ep == NULL && c->lost == UCS_OK)
		create_endpoint(net, c);
	if (c->ep == NULL)
		return ddp_comm_break(net->comm, DDP_ERR_PEER, peer, "cannot connect to %s: %s",
		                      ddp_rank_text(net->comm, peer), ucs_status_string(c->lost));
	if (!c->handshake_sent) {
		c->handshake_sent = true;
		send_handshake(c, &c->handshakes[0]);
	}
	return DDP_OK;
}
