/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/message.h"

static void end(net_operation *o, ucs_status_t status)
{
	o->active = false;
	o->ucx = NULL;
	o->status = status;
}

static void sent(void *request, ucs_status_t status, void *operation)
{
	end(operation, status);
	ucp_request_free(request);
}

static void received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *operation)
{
	net_operation *o = operation;

	o->bytes = info->length;
	end(o, status);
	ucp_request_free(request);
}

/* UCX calls back later, or not at all if it has ended at once; a receive has called
   back by then. */
static void begun(net_operation *o, ucs_status_ptr_t request)
{
	if (!UCS_PTR_IS_PTR(request))
		end(o, UCS_PTR_STATUS(request));
	else if (o->active)
		o->ucx = request;
}

static void set_memory(ucp_request_param_t *param, const net_slice *slice)
{
	param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
	param->memory_type = slice->type;
	/* UCX 1.13 knows the field, but finds memory by its own cache. */
#if UCP_API_VERSION >= UCP_VERSION(1, 15)
	if (slice->handle != NULL) {
		param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
		param->memh = slice->handle;
	}
#endif
}

void net_send_begin(net_operation *o, ucp_ep_h ep, const net_slice *slice, ucp_tag_t tag)
{
	ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = sent, .user_data = o,
	};

	*o = (net_operation){ .active = true, .bytes = slice->bytes };
	set_memory(&param, slice);
	begun(o, ucp_tag_send_nbx(ep, slice->data, slice->bytes, tag, &param));
}

void net_word_send_begin(net_operation *o, ucp_ep_h ep, ucp_tag_t tag)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = sent, .user_data = o,
	};

	*o = (net_operation){ .active = true };
	begun(o, ucp_tag_send_sync_nbx(ep, o, 0, tag, &param));
}

void net_receive_begin(net_operation *o, ucp_worker_h worker, const net_slice *slice, ucp_tag_t tag)
{
	/* UCX 1.13 does not tell the length of what it receives without calling back. */
	ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
		.cb.recv = received, .user_data = o,
	};

	*o = (net_operation){ .active = true };
	set_memory(&param, slice);
	begun(o, ucp_tag_recv_nbx(worker, slice->data, slice->bytes, tag, UINT64_MAX, &param));
}

void net_receive_cancel(net_operation *o, ucp_worker_h worker)
{
	if (o->active)
		ucp_request_cancel(worker, o->ucx);
}

void net_get_begin(net_operation *o, ucp_ep_h ep, void *to, uint64_t from, ucp_rkey_h key)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = sent, .user_data = o,
	};

	*o = (net_operation){ .active = true };
	begun(o, ucp_get_nbx(ep, to, 1, from, key, &param));
}

void net_ep_close_begin(net_operation *o, ucp_ep_h ep, bool forced)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = sent, .user_data = o, .flags = forced ? UCP_EP_CLOSE_FLAG_FORCE : 0,
	};

	*o = (net_operation){ .active = true };
	begun(o, ucp_ep_close_nbx(ep, &param));
}
