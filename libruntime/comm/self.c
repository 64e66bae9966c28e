/* SPDX-License-Identifier: Apache-2.0 */
/* comm/self: the backend for a device's memory of a communicator of one rank, where NCCL does not run
   operations. There is nothing to send: an operation copies within the device's memory, behind what the
   program's queue holds. The host scales, and makes 0 and 1 of bool, on a copy. A message of the rank to
   itself ends when both sides have been issued, as it does with NCCL. */
#include <stdlib.h>

#include "base/error.h"
#include "comm/core/backend.h"
#include "comm/core/comm.h"
#include "comm/on_device.h"
#include "comm/ops/kernels.h"
#include "device/device.h"

/* An operation under way. */
typedef struct operation {
	ddp_operation c;
	ddp_sides sides;
	size_t count;            /* elements */
	void *host;              /* a copy that the host works on; NULL: it does not */
	ddp_device_queue *queue; /* that it is on; NULL: a message that has not met its counterpart */
	ddp_device_event *begun; /* what the program's queue holds at issue */
	ddp_device_event *start, *end; /* timed */
	ddp_kept_error error;    /* it could not be enqueued as a whole: it ends when the queue has what was */
	struct operation *next;
} operation;

/* The follower's lock (comm/follow) is held while a lane is used. */
typedef struct lane {
	ddp_comm *comm;
	ddp_device *device;
	ddp_device_queue *collectives, *messages;
	operation *unmatched;    /* messages, in order of issue */
	bool aborted;
} lane;

/* ---- collectives ---------------------------------------------------------------------------- */

/* The queue calls this in its turn. */
static void combine(void *argument)
{
	operation *o = argument;
	const void *from = o->host;
	const ddp_combination alone = { .type = o->c.type, .op = o->c.op, .nsrc = 1, .src = &from, .ndst = 1, .dst = &o->host,
	                                .scale = o->c.scaled ? &o->c.scale : NULL };

	ddp_combine(&alone, 0, o->count);
}

static ddp_status copy_by_host(const lane *l, operation *o, void *to, const void *from, size_t bytes)
{
	ddp_status status = ddp_device_host_alloc(l->device, bytes, &o->host);

	if (status == DDP_OK)
		status = ddp_device_copy(l->device, o->queue, o->host, from, bytes);
	if (status == DDP_OK)
		status = ddp_device_launch(l->device, o->queue, combine, o);
	return status == DDP_OK ? ddp_device_copy(l->device, o->queue, to, o->host, bytes) : status;
}

/* The work that the program's queue held comes before the operation. */
static ddp_status begin(const lane *l, operation *o, ddp_device_queue *queue)
{
	o->queue = queue;
	const ddp_status status = ddp_device_queue_wait(l->device, queue, o->begun);
	return status == DDP_OK ? ddp_device_event_record(l->device, o->start, queue) : status;
}

static ddp_status enqueue(const lane *l, operation *o)
{
	const bool by_host = ddp_kind_reduces(o->c.kind) && (o->c.scaled || o->c.type == DDP_BOOL);
	void *to = o->sides.output.memory;
	const void *from = o->sides.input.memory;
	const size_t bytes = to != NULL && from != NULL ? o->count * o->sides.element : 0;

	ddp_status status = begin(l, o, l->collectives);
	if (status == DDP_OK && bytes > 0 && by_host)
		status = copy_by_host(l, o, to, from, bytes);
	else if (status == DDP_OK && bytes > 0 && to != from)
		status = ddp_device_copy(l->device, o->queue, to, from, bytes);
	return status == DDP_OK ? ddp_device_event_record(l->device, o->end, o->queue) : status;
}

/* ---- messages of the rank to itself ----------------------------------------------------------- */

static ddp_status copy_message(const lane *l, operation *send, operation *recv)
{
	if (send->c.type != recv->c.type || send->count != recv->count)
		return ddp_comm_break(l->comm, DDP_ERR_MISMATCH, l->comm->rank, "%s sent %zu elements of %s to itself by tag %d, "
		                      "but receives %zu of %s", ddp_rank_text(l->comm, l->comm->rank), send->count,
		                      ddp_type_name(send->c.type), send->c.tag, recv->count, ddp_type_name(recv->c.type));
	ddp_status status = begin(l, send, l->messages);
	if (status == DDP_OK)
		status = begin(l, recv, l->messages);
	if (status == DDP_OK && send->sides.input.memory != recv->sides.output.memory)
		status = ddp_device_copy(l->device, l->messages, recv->sides.output.memory, send->sides.input.memory,
		                         send->count * send->sides.element);
	if (status == DDP_OK)
		status = ddp_device_event_record(l->device, send->end, l->messages);
	return status == DDP_OK ? ddp_device_event_record(l->device, recv->end, l->messages) : status;
}

static void meet(lane *l, operation *o)
{
	operation **at = &l->unmatched;

	while (*at != NULL && ((*at)->c.kind == o->c.kind || (*at)->c.tag != o->c.tag))
		at = &(*at)->next;
	operation *other = *at;
	if (other == NULL) {
		*at = o;
		return;
	}
	*at = other->next;
	o->queue = other->queue = l->messages;
	const ddp_status status = o->c.kind == DDP_SEND ? copy_message(l, o, other) : copy_message(l, other, o);
	ddp_error_keep(&o->error, status);
	ddp_error_keep(&other->error, status);
}

static ddp_status end_unmatched(lane *l, operation *o)
{
	operation **at = &l->unmatched;

	while (*at != o)
		at = &(*at)->next;
	*at = o->next;
	return ddp_fail(DDP_ERR_STATE, "%s had not met its counterpart when its communicator was closed",
	                ddp_kind_name(o->c.kind));
}

/* ---- the backend ------------------------------------------------------------------------------- */

static void free_operation(const lane *l, operation *o)
{
	(void)ddp_device_event_free(l->device, o->begun);
	(void)ddp_device_event_free(l->device, o->start);
	(void)ddp_device_event_free(l->device, o->end);
	(void)ddp_device_host_free(l->device, o->host);
	free(o);
}

static ddp_status make_events(const lane *l, operation *o)
{
	ddp_status status = ddp_device_event_create(l->device, &o->begun);

	if (status == DDP_OK)
		status = ddp_device_event_create_timed(l->device, &o->start);
	if (status == DDP_OK)
		status = ddp_device_event_create_timed(l->device, &o->end);
	return status == DDP_OK ? ddp_device_event_record(l->device, o->begun, o->c.stream) : status;
}

static ddp_status issue(void *self, ddp_request *request)
{
	lane *l = self;
	operation *o = calloc(1, sizeof(*o));

	if (o == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for an operation on a device");
	o->c = request->operation;
	o->sides = ddp_sides_of(l->comm, &o->c);
	o->count = ddp_side_count(&o->sides.input);
	ddp_status status = ddp_sides_check(l->comm, &o->sides, o->c.kind);
	if (status == DDP_OK)
		status = make_events(l, o);
	if (status != DDP_OK) {
		free_operation(l, o);
		return status;
	}
	request->work = o;
	if (ddp_kind_is_message(o->c.kind))
		meet(l, o);
	else
		ddp_error_keep(&o->error, enqueue(l, o));
	return DDP_OK;
}

static ddp_status query(const lane *l, const operation *o, ddp_request *request, bool *done)
{
	if (o->error.status != DDP_OK)
		return ddp_device_queue_query(l->device, o->queue, done);
	const ddp_status status = ddp_device_event_query(l->device, o->end, done);
	return status == DDP_OK && *done ? ddp_note_start(l->device, o->start, o->end, request) : status;
}

static ddp_status poll(void *self, ddp_request *request, bool *done)
{
	lane *l = self;
	operation *o = request->work;
	ddp_status status = ddp_device_error(l->device);

	*done = l->aborted;
	if (status == DDP_OK && o->queue != NULL)
		status = query(l, o, request, done);
	if (status != DDP_OK) {
		/* A broken device may still work on the operation's memory, so that stays. */
		*done = true;
		return ddp_comm_break(l->comm, status, l->comm->rank, "%s", ddp_last_error());
	}
	if (!*done)
		return DDP_OK;
	status = o->queue != NULL ? ddp_error_return(&o->error) : end_unmatched(l, o);
	free_operation(l, o);
	return status;
}

static bool is_enqueued(void *self, ddp_request *request)
{
	return ((lane *)self)->aborted || ((operation *)request->work)->queue != NULL;
}

static ddp_status wait_on(void *self, ddp_request *request, void *stream)
{
	const lane *l = self;
	const operation *o = request->work;
	const bool ends = o->queue != NULL && o->error.status == DDP_OK;

	return ends ? ddp_device_queue_wait(l->device, stream, o->end) : DDP_OK;
}

static ddp_status alloc(void *self, size_t bytes, void **memory)
{
	const lane *l = self;
	void *made = NULL;

	ddp_status status = ddp_device_alloc(l->device, bytes > 0 ? bytes : 1, &made);
	if (status == DDP_OK)
		status = ddp_device_fill(l->device, l->collectives, made, 0, bytes);
	if (status == DDP_OK)
		status = ddp_device_queue_sync(l->device, l->collectives);
	if (status == DDP_OK)
		*memory = made;
	else
		(void)ddp_device_free(l->device, made);
	return status;
}

static ddp_status free_memory(void *self, void *memory)
{
	return ddp_device_free(((lane *)self)->device, memory);
}

static void abort_messages(void *self)
{
	((lane *)self)->aborted = true;
}

static void close_lane(void *self)
{
	lane *l = self;

	(void)ddp_device_queue_free(l->device, l->collectives);
	(void)ddp_device_queue_free(l->device, l->messages);
	free(l);
}

static ddp_status open_lane(ddp_comm *comm, void **self)
{
	lane *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a lane on a device");
	l->comm = comm;
	l->device = comm->roster->device;
	ddp_status status = ddp_device_queue_create(l->device, DDP_DEVICE_HIGH, &l->collectives);
	if (status == DDP_OK)
		status = ddp_device_queue_create(l->device, DDP_DEVICE_HIGH, &l->messages);
	if (status == DDP_OK)
		*self = l;
	else
		close_lane(l);
	return status;
}

const ddp_backend ddp_backend_self = {
	.name = "self",
	.compares = true,
	.open = open_lane,
	.issue = issue,
	.poll = poll,
	.is_enqueued = is_enqueued,
	.wait_on = wait_on,
	.alloc = alloc,
	.free = free_memory,
	.abort = abort_messages,
	.close = close_lane,
};
