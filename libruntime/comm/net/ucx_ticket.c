#include "comm/net/ucx_ticket.h"

#include <stdlib.h>
#include <string.h>

#include "comm/net/ucx_seal.h"

ticket *ddp_ucx_ticket(ddp_net *net, ddp_transfer *transfer, int peer)
{
	ticket *t = malloc(sizeof(*t));

	if (t == NULL)
		return NULL;
	*t = (ticket){ .next = net->tickets, .link = &net->tickets, .transfer = transfer, .peer = peer };
	if (net->tickets != NULL)
		net->tickets->link = &t->next;
	net->tickets = t;
	if (transfer != NULL)
		t->header = (data_header){ .seal = ddp_ucx_seal(net, peer), .envelope = transfer->envelope };
	return t;
}

/* The request has ended. */
static void redeem(ticket *t, ucs_status_t status)
{
	ddp_transfer *transfer = t->transfer;

	if (transfer != NULL && status == UCS_OK)
		transfer->done = true;
	else if (transfer != NULL && transfer->net->peers[transfer->peer].lost == UCS_OK)
		transfer->net->peers[transfer->peer].lost = status;
	*t->link = t->next;
	if (t->next != NULL)
		t->next->link = t->link;
	free(t);
}

void ddp_ucx_begun(ticket *t, void *request)
{
	if (request == NULL)
		redeem(t, UCS_OK);
	else if (UCS_PTR_IS_ERR(request))
		redeem(t, UCS_PTR_STATUS(request));
}

void ddp_ucx_received(void *request, ucs_status_t status, size_t length, void *user)
{
	(void)length;
	redeem(user, status);
	ucp_request_free(request);
}

void ddp_ucx_sent(void *request, ucs_status_t status, void *user)
{
	redeem(user, status);
	ucp_request_free(request);
}

bool ddp_ucx_notify(ddp_net *net, int peer, unsigned int id, const void *header, size_t bytes)
{
	const connection *c = &net->peers[peer];
	ticket *t = c->settled && c->lost == UCS_OK && c->ep != NULL ? ddp_ucx_ticket(net, NULL, peer) : NULL;

	if (t == NULL)
		return false;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = ddp_ucx_sent, .user_data = t, .flags = UCP_AM_SEND_FLAG_EAGER,
	};
	memcpy(&t->header, header, bytes);
	t->header.seal = ddp_ucx_seal(net, peer);
	ddp_ucx_begun(t, ucp_am_send_nbx(c->ep, id, &t->header, bytes, NULL, 0, &param));
	return true;
}
