/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_send.h"

#include "base/error.h"
#include "comm/net/ucx_credit.h"
#include "comm/net/ucx_header.h"
#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_ticket.h"

ddp_status ddp_ucx_begin_send(ddp_net *net, ddp_transfer *transfer)
{
	connection *c = ddp_ucx_connection(net, transfer->peer);
	ticket *t = ddp_ucx_ticket(&net->tickets, c, transfer, DDP_HEADER_MAX);

	if (t == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to send a message of %zu bytes", transfer->bytes);
	data_header header = { .seal = ddp_ucx_seal(c), .id = net->id, .envelope = transfer->envelope };
	const bool whole = ddp_ucx_charge(c, transfer, &header.charge);
	const size_t header_bytes = ddp_ucx_header_write(&header, t->header);
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = ddp_ucx_sent, .user_data = t, .flags = whole ? 0 : UCP_AM_SEND_FLAG_RNDV,
	};
	ddp_ucx_begun(t, ucp_am_send_nbx(c->ep, DDP_AM_DATA, t->header, header_bytes, transfer->data,
	                                 transfer->bytes, &param));
	return DDP_OK;
}
