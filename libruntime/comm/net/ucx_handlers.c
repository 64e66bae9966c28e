/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_handlers.h"

#include <string.h>

#include "comm/net/ucx_connect.h"
#include "comm/net/ucx_credit.h"
#include "comm/net/ucx_failure.h"
#include "comm/net/ucx_inquiry.h"
#include "comm/net/ucx_receive.h"
#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_silence.h"

static ucs_status_t control_arrived(void *argument, const void *header, size_t header_bytes, void *data,
                                    size_t bytes, const ucp_am_recv_param_t *param)
{
	const control *taker = argument;
	connection *c = ddp_ucx_source(taker->worker, header, header_bytes, taker->bytes);
	control_header aligned;

	(void)data;
	(void)bytes;
	(void)param;
	if (c == NULL)
		return UCS_OK;
	memcpy(&aligned, header, taker->bytes);
	taker->arrived(c, &aligned);
	return UCS_OK;
}

static ucs_status_t set_handler(ddp_worker *worker, unsigned int id, ucp_am_recv_callback_t fn, void *argument)
{
	const ucp_am_handler_param_t param = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
			UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
		.id = id, .flags = UCP_AM_FLAG_WHOLE_MSG, .cb = fn, .arg = argument,
	};

	return ucp_worker_set_am_recv_handler(worker->worker, &param);
}

/* The table of UCX 1.13 grows to an even size, and it calls whatever happens
   to be in places that nobody has set: all are set, the last one first. */
_Static_assert(DDP_AM_IDS % 2 == 0, "a place of the table would be left");

ucs_status_t ddp_ucx_set_handlers(ddp_worker *worker)
{
	const control controls[DDP_AM_IDS] = {
		[DDP_AM_FAILURE] = { worker, sizeof(failure_header), ddp_ucx_failure_arrived },
		[DDP_AM_HANDSHAKE] = { worker, sizeof(handshake_header), ddp_ucx_handshake_arrived },
		[DDP_AM_INQUIRY] = { worker, sizeof(inquiry_header), ddp_ucx_inquiry_arrived },
		[DDP_AM_CREDIT] = { worker, sizeof(credit_header), ddp_ucx_credit_arrived },
		[DDP_AM_CLOSED] = { worker, sizeof(closed_header), ddp_ucx_closed_arrived },
		[DDP_AM_SILENCE] = { worker, sizeof(silence_header), ddp_ucx_silence_arrived },
		[DDP_AM_UNUSED] = { worker, SIZE_MAX, NULL }, /* no message is so long */
	};
	ucs_status_t status = UCS_OK;

	memcpy(worker->controls, controls, sizeof(controls));
	for (unsigned int id = DDP_AM_IDS; id-- > 0 && status == UCS_OK;)
		status = id == DDP_AM_DATA ? set_handler(worker, id, ddp_ucx_data_arrived, worker)
		                           : set_handler(worker, id, control_arrived, &worker->controls[id]);
	return status;
}
