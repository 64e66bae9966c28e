/* SPDX-License-Identifier: Apache-2.0 */
/* place: where a model's arenas lie, and where its work runs: on the host, at once, or on a device
   (device/device.h), on the program's queue. All of a model's work goes to that one queue, so it
   runs after the work that the program enqueued before it called the model. Only communication has
   queues of its own. */
#pragma once

#include "context.h"
#include "ddp.h"
#include "kernels.h"

typedef struct ddp_place {
	struct ddp_device *device; /* NULL: the host, and the rest is 0 */
	void *stream;              /* the program's queue */
	dk_queue *kernels;         /* on it */
	void *staging;             /* of the host, for copies */
} ddp_place;

/* DDP_ERR_STATE: no device. DDP_ERR_UNSUPPORTED, DDP_ERR_NOMEM. */
ddp_status ddp_place_open(const ddp_context *context, ddp_memory memory, void *stream,
                          ddp_place *place);
/* No work of the queue may be under way. */
void ddp_place_close(ddp_place *place);

/* The kind of memory that a communicator's operations name for buffers there. */
static inline ddp_memory ddp_place_memory(const ddp_place *place)
{
	return place->device != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
}

/* Waits until the queue's work is done; then, how the work has failed, if it has. */
ddp_status ddp_place_sync(const ddp_place *place);

/* These copy between the place's memory and the host's. On a device each call waits for what the queue holds,
   then for the copy. Any thread may call them, one at a time. */
ddp_status ddp_place_read(const ddp_place *place, void *to, const void *from, size_t bytes);
ddp_status ddp_place_write(const ddp_place *place, void *to, const void *from, size_t bytes);
/* Copies within the place's memory; on a device, in the order of its queue. */
ddp_status ddp_place_copy(const ddp_place *place, void *to, const void *from, size_t bytes);

/* Sets the place's memory to 0; on a device, in the order of its queue. */
ddp_status ddp_place_clear(const ddp_place *place, void *memory, size_t bytes);

/* Memory of this rank's own, zeroed in that way. */
ddp_status ddp_place_alloc(const ddp_place *place, size_t bytes, void **memory);
void ddp_place_free(const ddp_place *place, void *memory);

/* Memory of the host to which a device copies fast. Not initialised. */
ddp_status ddp_place_alloc_host(const ddp_place *place, size_t bytes, void **memory);
void ddp_place_free_host(const ddp_place *place, void *memory);
