/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_ticket.h"

#include <string.h>

#include "comm/net/ucx_memory.h"
#include "comm/net/ucx_seal.h"

ticket *ddp_ucx_ticket(ticket **list, connection *c, ddp_transfer *transfer, size_t header_bytes)
{
	ticket *t = ddp_ucx_memory(c->worker, sizeof(*t) + header_bytes);

	if (t == NULL)
		return NULL;
	t->next = *list;
	t->link = list;
	t->transfer = transfer;
	t->to = c;
	t->of_data = transfer != NULL;
	if (t->next != NULL)
		t->next->link = &t->next;
	*list = t;
	return t;
}

/* The request has ended. One that the receiver refused, whose communicator is broken
   or closed, was cancelled: nothing is wrong with the connection. */
static void redeem(ticket *t, ucs_status_t status)
{
	int none = UCS_OK;

	if (t->transfer != NULL && status != UCS_OK && status != UCS_ERR_CANCELED)
		atomic_compare_exchange_strong(&t->to->lost, &none, status);
	if (t->transfer != NULL) {
		ddp_ucx_news(t->transfer->net);
		if (status == UCS_OK)
			atomic_store(&t->transfer->done, true);
	}
	*t->link = t->next;
	if (t->next != NULL)
		t->next->link = t->link;
	ddp_ucx_memory_free(t->to->worker, t);
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

bool ddp_ucx_notify(ticket **list, connection *c, unsigned int id, const void *header, size_t bytes)
{
	const bool able = atomic_load(&c->settled) && atomic_load(&c->lost) == UCS_OK && c->ep != NULL;
	ticket *t = able ? ddp_ucx_ticket(list, c, NULL, bytes) : NULL;

	if (t == NULL)
		return false;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = ddp_ucx_sent, .user_data = t, .flags = UCP_AM_SEND_FLAG_EAGER,
	};
	const seal own = ddp_ucx_seal(c);
	memcpy(t->header, header, bytes);
	memcpy(t->header, &own, sizeof(own));
	ddp_ucx_begun(t, ucp_am_send_nbx(c->ep, id, t->header, bytes, NULL, 0, &param));
	return true;
}
