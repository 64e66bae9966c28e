/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/outbox.h"

#include <string.h>

#include "comm/p2p/match.h"
#include "comm/request.h"
#include "device/device.h"

static ddp_status make_copies(ddp_outbox *made)
{
	ddp_device *device = made->place.device;
	void *memory = NULL;

	ddp_status status = ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &made->queue);
	if (status == DDP_OK)
		status = ddp_device_event_create(device, &made->from);
	for (int i = 0; i < made->states && status == DDP_OK; i++) {
		status = ddp_place_alloc_host(&made->place, ((size_t)made->count + 1) * sizeof(float), &memory);
		made->copies[i] = status == DDP_OK ? memory : NULL;
	}
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "a copy of the optimizer's state for its buddy");
}

ddp_status ddp_outbox_open(ddp_comm *comm, const ddp_place *place, const ddp_optim *optim, int buddy, int64_t count,
                           ddp_outbox *outbox)
{
	*outbox = (ddp_outbox){ .comm = comm, .place = *place, .buddy = buddy, .states = optim->state_count, .count = count };
	for (int i = 0; i < optim->state_count; i++)
		outbox->state[i] = optim->state[i];
	return place->device != NULL ? make_copies(outbox) : DDP_OK;
}

void ddp_outbox_close(ddp_outbox *outbox)
{
	ddp_device *device = outbox->place.device;

	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++)
		ddp_place_free_host(&outbox->place, outbox->copies[i]);
	if (device != NULL) {
		(void)ddp_device_event_free(device, outbox->from);
		(void)ddp_device_queue_free(device, outbox->queue);
	}
	*outbox = (ddp_outbox){ 0 };
}

/* A device's queue calls this, too. */
static void issue(void *argument)
{
	ddp_outbox *o = argument;
	ddp_operation message = { .kind = DDP_SEND, .type = DDP_F32, .tag = ddp_match_own_tag(DDP_BUDDY_NUMBER),
	                          .root = o->buddy, .count = (size_t)o->count };
	ddp_status status = DDP_OK;

	for (int i = 0; i < o->states && status == DDP_OK; i++) {
		message.send = o->copies[i] != NULL ? o->copies[i] : o->state[i];
		status = ddp_comm_issue_own(o->comm, &message, &o->sends[i]);
	}
	ddp_error_keep(&o->error, status);
}

ddp_status ddp_outbox_send(ddp_outbox *outbox)
{
	const size_t bytes = (size_t)outbox->count * sizeof(float);

	if (outbox->queue == NULL) {
		issue(outbox);
		return ddp_error_return(&outbox->error);
	}
	ddp_status status = ddp_outbox_begin_copies(outbox);
	for (int i = 0; i < outbox->states && status == DDP_OK; i++)
		status = ddp_outbox_copy(outbox, outbox->copies[i], outbox->state[i], bytes);
	if (status == DDP_OK)
		status = ddp_device_launch(outbox->place.device, outbox->queue, issue, outbox);
	return status;
}

ddp_status ddp_outbox_begin_copies(ddp_outbox *outbox)
{
	ddp_device *device = outbox->place.device;

	if (outbox->queue == NULL)
		return DDP_OK;
	const ddp_status status = ddp_device_event_record(device, outbox->from, outbox->place.stream);
	return status == DDP_OK ? ddp_device_queue_wait(device, outbox->queue, outbox->from) : status;
}

ddp_status ddp_outbox_copy(ddp_outbox *outbox, void *to, const void *from, size_t bytes)
{
	if (outbox->queue != NULL)
		return ddp_device_copy(outbox->place.device, outbox->queue, to, from, bytes);
	memcpy(to, from, bytes);
	return DDP_OK;
}

ddp_status ddp_outbox_rest(const ddp_outbox *outbox)
{
	return outbox->queue != NULL ? ddp_device_queue_sync(outbox->place.device, outbox->queue) : DDP_OK;
}

ddp_status ddp_outbox_end(ddp_outbox *outbox)
{
	ddp_status status = ddp_outbox_rest(outbox);

	if (status == DDP_OK)
		status = ddp_error_return(&outbox->error);
	const ddp_status sent = ddp_outbox_end_requests(outbox->sends);
	return status == DDP_OK ? sent : status;
}

ddp_status ddp_outbox_end_requests(ddp_request *requests[DDP_OPTIM_STATES_MAX])
{
	ddp_status status = DDP_OK;

	for (int i = 0; i < DDP_OPTIM_STATES_MAX; i++) {
		const ddp_status ended = requests[i] != NULL ? ddp_wait(requests[i]) : DDP_OK;
		requests[i] = NULL;
		status = status == DDP_OK ? ended : status;
	}
	return status;
}
