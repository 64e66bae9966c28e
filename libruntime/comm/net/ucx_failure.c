#include "comm/net/ucx_failure.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/net/ucx_seal.h"

void ddp_ucx_finish_requests(ddp_net *net, void **requests, int count, uint64_t deadline_ns)
{
	for (int i = 0; i < count; i++) {
		if (requests[i] == NULL || UCS_PTR_IS_ERR(requests[i]))
			continue;
		while (ucp_request_check_status(requests[i]) == UCS_INPROGRESS && ddp_now_ns() < deadline_ns) {
			if (ucp_worker_progress(net->worker) == 0)
				usleep(20);
		}
		ucp_request_free(requests[i]);
	}
}

ucs_status_t ddp_ucx_failure_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_net *net = argument;
	failure_header came;

	(void)data;
	(void)bytes;
	(void)param;
	if (ddp_ucx_source(net, header, header_bytes, sizeof(came)) == DDP_NOBODY || net->failure_came)
		return UCS_OK;
	memcpy(&came, header, sizeof(came));
	net->failure = came.failure;
	net->failure.text[sizeof(net->failure.text) - 1] = '\0';
	if (net->failure.status <= DDP_OK || net->failure.status > DDP_ERR_INTERNAL)
		net->failure.status = DDP_ERR_PEER;
	if (net->failure.culprit < 0 || net->failure.culprit >= net->comm->size)
		net->failure.culprit = DDP_NOBODY;
	net->failure_came = true;
	return UCS_OK;
}

/* A new connection at this time
   is what UCX 1.13 asserts over; the node's first rank has one to each node,
   and learns of the failure, too. */
void ddp_ucx_tell_failure(ddp_net *net, uint64_t deadline_ns)
{
	ddp_comm *comm = net->comm;
	const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
	                                    .flags = UCP_AM_SEND_FLAG_EAGER };

	for (int r = 0; r < comm->size; r++) {
		const connection *c = &net->peers[r];
		failure_header *message = &net->failures[r]; /* a request may outlive this call */
		net->requests[r] = NULL;
		if (c->ep == NULL || c->lost != UCS_OK || !c->settled)
			continue;
		message->seal = ddp_ucx_seal(net, r);
		message->failure.status = atomic_load(&comm->failure.status);
		message->failure.culprit = comm->failure.culprit;
		memcpy(message->failure.text, comm->failure.text, sizeof(comm->failure.text));
		net->requests[r] = ucp_am_send_nbx(c->ep, DDP_AM_FAILURE, message, sizeof(*message), NULL, 0,
		                                   &param);
	}
	ddp_ucx_finish_requests(net, net->requests, comm->size, deadline_ns);
}
