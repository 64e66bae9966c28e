/* SPDX-License-Identifier: Apache-2.0 */
/* outbox: what a rank sends its buddy of the optimizer's state (reduce/buddy.h). From the host's memory the state is
   sent as it lies there. A device's state is first copied to memory of the host by a queue of its own, beside what
   the model's queue does next. Behind the copies that queue itself issues the messages, so neither host nor model's
   queue waits. */
#pragma once

#include "base/error.h"
#include "comm/api.h"
#include "optim/optim.h"
#include "reduce/place.h"

struct ddp_device_queue; /* device/device.h */
struct ddp_device_event;

typedef struct ddp_outbox {
	ddp_comm *comm;
	ddp_place place;
	int buddy, states;
	int64_t count; /* elements of each state */
	const float *state[DDP_OPTIM_STATES_MAX];
	float *copies[DDP_OPTIM_STATES_MAX]; /* of a device's state; or NULL */
	struct ddp_device_queue *queue; /* of a device; or NULL */
	struct ddp_device_event *from; /* what the model's queue held when the copies began; or NULL */
	ddp_request *sends[DDP_OPTIM_STATES_MAX];
	ddp_kept_error error; /* of issuing these */
} ddp_outbox;

/* The optimizer has its state, `count` elements each. Local. Close it after an error, too. DDP_ERR_NOMEM. */
ddp_status ddp_outbox_open(ddp_comm *comm, const ddp_place *place, const ddp_optim *optim, int buddy, int64_t count,
                           ddp_outbox *outbox);
/* Nothing is under way. */
void ddp_outbox_close(ddp_outbox *outbox);

/* Begins to send the state as it is when the model's queue comes here. What was sent before has ended. */
ddp_status ddp_outbox_send(ddp_outbox *outbox);

/* Copies from the model's memory, as it is when the model's queue comes to the first of these calls, to memory of
   ddp_place_alloc_host(). */
ddp_status ddp_outbox_begin_copies(ddp_outbox *outbox);
ddp_status ddp_outbox_copy(ddp_outbox *outbox, void *to, const void *from, size_t bytes);

/* Waits until all is copied; what was copied may then be written. After an error, nothing runs on the queue either. */
ddp_status ddp_outbox_rest(const ddp_outbox *outbox);
/* Waits until all is copied and sent. */
ddp_status ddp_outbox_end(ddp_outbox *outbox);

/* Waits for all requests that are not NULL. They become NULL. */
ddp_status ddp_outbox_end_requests(ddp_request *requests[DDP_OPTIM_STATES_MAX]);
