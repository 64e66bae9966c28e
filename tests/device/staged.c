/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/staged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/agree.h"
#include "comm/core/comm.h"
#include "comm/core/futex.h"
#include "comm/host.h"
#include "comm/on_device.h"
#include "comm/ops/names.h"
#include "comm/request.h"
#include "device/device.h"
#include "tests/device/services.h"

enum { SLOTS = 4, SLOT_BYTES = 512 * 1024, QUEUES = 5 };

/* Memory of the host that chunks use one after the other, and what orders its use. */
typedef struct slot {
	char *input, *output;
	ddp_device_event *filled, *combined, *emptied;
} slot;

typedef struct staged {
	ddp_comm *comm;
	ddp_comm *twin;             /* runs the host's part */
	ddp_device *device;
	ddp_device_queue *down, *work, *up;
	ddp_device_queue *messages, *received; /* of sends and receives; NULL before the first */
	ddp_device_event *begun;    /* what the program's queue holds at issue */
	slot slots[SLOTS];
	unsigned int next;          /* slot */
	size_t slot_bytes;          /* of each of its two sides */
	bool spoilt;                /* an operation was enqueued in part */
} staged;

/* An operation under way. */
typedef struct operation {
	staged *staged;
	ddp_operation c;
	ddp_sides sides;
	bool begun;                 /* something of it is enqueued, */
	bool partial;               /* but not all: it has failed */
	ddp_device_event *end;      /* behind all that the device does for it; until a receive's
	                               copy is enqueued, what it has to come after */
	struct chunk *chunks;
	size_t *counts;             /* of all chunks */
	char *buffers[2];           /* of one that is not cut; malloc'd */
	bool issued;                /* issue_message() is enqueued; */
	bool copied, on_stream;     /* the copy of a receive; on a queue of the program's: */
	ddp_device_queue *stream;
	struct operation *next;     /* of those left behind */
	_Atomic uint32_t told;      /* futex: a send or receive is over on the host */
	atomic_bool failed;         /* by the first error, */
	atomic_int status;          /* which is here, with its sentence, when all has ended */
	char message[DDP_FAILURE_TEXT];
	uint64_t start_ns;          /* when the host came to its first chunk */
} operation;

typedef struct chunk {
	operation *operation;
	ddp_operation c;           /* on the host's memory */
} chunk;

/* ---- the host's part: in a queue's thread ------------------------------------------------------ */

/* The first error counts. The calling thread's last error is its sentence. */
static void note_error(operation *o, ddp_status status)
{
	if (status == DDP_OK || atomic_exchange(&o->failed, true))
		return;
	snprintf(o->message, sizeof(o->message), "%s", ddp_last_error());
	atomic_store(&o->status, status);
}

static void run_chunk(void *argument)
{
	chunk *k = argument;
	operation *o = k->operation;
	ddp_comm *twin = o->staged->twin;

	if (atomic_load(&o->failed))
		return;
	if (o->start_ns == 0)
		o->start_ns = ddp_now_ns();
	const ddp_status status = ddp_comm_run(twin, &k->c);
	note_error(o, status);
	/* The other ranks are not to wait for this one's next chunk. */
	if (status != DDP_OK)
		(void)ddp_comm_break(twin, status, twin->rank, "%s", ddp_last_error());
}

static void tell_end(operation *o)
{
	atomic_store(&o->told, 1);
	ddp_futex_wake_all(&o->told);
}

static void end_message(void *user, ddp_status status)
{
	note_error(user, status);
	tell_end(user);
}

static void issue_message(void *argument)
{
	chunk *k = argument;

	k->c.on_complete = end_message;
	k->c.user = k->operation;
	k->operation->start_ns = ddp_now_ns();
	const ddp_status status = ddp_comm_issue(k->operation->staged->twin, &k->c, NULL);
	if (status != DDP_OK)
		end_message(k->operation, status);
}

static void await_message(void *argument)
{
	operation *o = argument;

	while (atomic_load(&o->told) == 0)
		ddp_futex_wait(&o->told, 0, 1000000000);
}

/* Elements first .. first + most - 1 of a block, as far as it goes. */
static size_t part_of(size_t count, size_t first, size_t most)
{
	const size_t left = count > first ? count - first : 0;

	return left < most ? left : most;
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Elements first .. first + most - 1 of each block, to or from the host's `area`. */
static ddp_status copy_side(const operation *o, ddp_device_queue *queue, const ddp_side *side,
                            size_t first, size_t most, char *area, bool to_host)
{
	const size_t element = o->sides.element;
	char *block = side->memory;
	ddp_status status = DDP_OK;

	for (int b = 0; b < side->blocks && side->memory != NULL && status == DDP_OK; b++) {
		const size_t count = side->counts != NULL ? side->counts[b] : side->count;
		const size_t bytes = part_of(count, first, most) * element;
		char *at = block + (bytes > 0 ? first : 0) * element;
		status = ddp_device_copy(o->staged->device, queue, to_host ? area : at, to_host ? at : area, bytes);
		area += bytes;
		block += count * element;
	}
	return status;
}

/* `queue` goes on when `other` has come so far. */
static ddp_status order(ddp_device *device, ddp_device_queue *queue, ddp_device_event *event,
                        ddp_device_queue *other)
{
	ddp_status status = ddp_device_event_record(device, event, other);

	return status == DDP_OK ? ddp_device_queue_wait(device, queue, event) : status;
}

/* ---- what fails ---------------------------------------------------------------------------------- */

/* What a broken device may still work on, or begin to, whatever becomes of its queues. */
static _Atomic(operation *) left_behind;

static void leave_behind(operation *o)
{
	tell_end(o);
	o->next = atomic_load(&left_behind);
	while (!atomic_compare_exchange_weak(&left_behind, &o->next, o))
		continue;
}

/* It could not be enqueued as a whole: it ends when the device is through with what was.
   The last error says why. */
static void fail_partial(operation *o, ddp_status status)
{
	o->partial = o->staged->spoilt = true;
	note_error(o, status);
	(void)ddp_comm_break(o->staged->comm, status, o->staged->comm->rank, "%s", ddp_last_error());
	/* Nobody will tell of a message that is not issued. */
	if (!o->issued)
		tell_end(o);
}

/* Is the device through with all that it was given? */
static ddp_status query_queues(const operation *o, bool *done)
{
	const staged *s = o->staged;
	ddp_device_queue *const queues[QUEUES] = { s->down, s->work, s->up, s->messages, s->received };
	ddp_status status = DDP_OK;

	*done = true;
	for (int i = 0; i < QUEUES && status == DDP_OK && *done; i++) {
		if (queues[i] != NULL)
			status = ddp_device_queue_query(s->device, queues[i], done);
	}
	if (status == DDP_OK && *done && o->on_stream)
		status = ddp_device_queue_query(s->device, o->stream, done);
	return status;
}

/* ---- collectives --------------------------------------------------------------------------- */

/* The chunk's operation on the host's memory. */
static void describe_chunk(operation *o, size_t number, size_t first, size_t most, char *input, char *output)
{
	chunk *k = &o->chunks[number];
	const int ranks = o->staged->comm->size;

	k->operation = o;
	k->c = o->c;
	k->c.memory = DDP_MEMORY_HOST;
	k->c.stream = NULL;
	k->c.lane = 0;
	k->c.on_complete = NULL;
	k->c.scale = o->c.scaled ? o->c.scale : 0;
	k->c.send = o->c.kind == DDP_BROADCAST ? NULL : input;
	k->c.recv = output;
	if (o->sides.whole)
		return;
	k->c.count = part_of(o->c.count, first, most);
	if (o->c.counts == NULL)
		return;
	size_t *counts = o->counts + number * (size_t)ranks;
	for (int r = 0; r < ranks; r++)
		counts[r] = part_of(o->c.counts[r], first, most);
	k->c.counts = counts;
}

static ddp_status enqueue_chunk(operation *o, size_t number, size_t first, size_t most)
{
	staged *s = o->staged;
	slot *t = &s->slots[s->next];
	char *input = o->sides.whole ? o->buffers[0] : t->input;
	char *output = o->sides.whole ? o->buffers[1] : t->output;

	s->next = (s->next + 1) % SLOTS;
	describe_chunk(o, number, first, most, input, output);
	/* Nothing was recorded for the first. */
	ddp_status status = ddp_device_queue_wait(s->device, s->down, t->emptied);
	if (status == DDP_OK)
		status = copy_side(o, s->down, &o->sides.input, first, most,
		                   o->c.kind == DDP_BROADCAST ? output : input, true);
	if (status == DDP_OK)
		status = order(s->device, s->work, t->filled, s->down);
	if (status == DDP_OK)
		status = ddp_device_launch(s->device, s->work, run_chunk, &o->chunks[number]);
	if (status == DDP_OK)
		status = order(s->device, s->up, t->combined, s->work);
	if (status == DDP_OK)
		status = copy_side(o, s->up, &o->sides.output, first, most, output, false);
	return status == DDP_OK ? ddp_device_event_record(s->device, t->emptied, s->up) : status;
}

static size_t elements_per_chunk(const operation *o)
{
	const staged *s = o->staged;
	/* The most that a side of this kind has, the same on all ranks. */
	const int blocks = o->c.kind >= DDP_REDUCE_SCATTER && o->c.kind <= DDP_ALL_TO_ALL ? s->comm->size : 1;

	if (o->sides.whole || o->c.kind == DDP_BARRIER)
		return SIZE_MAX;
	return s->slot_bytes / ((size_t)blocks * o->sides.element);
}

static ddp_status enqueue_collective(operation *o, size_t chunks, size_t most)
{
	staged *s = o->staged;
	ddp_status status = order(s->device, s->down, s->begun, o->c.stream);

	o->begun = status == DDP_OK;
	for (size_t k = 0; k < chunks && status == DDP_OK; k++)
		status = enqueue_chunk(o, k, chunks > 1 ? k * most : 0, most);
	return status == DDP_OK ? ddp_device_event_record(s->device, o->end, s->up) : status;
}

/* ---- sends and receives ---------------------------------------------------------------------- */

static ddp_status make_message_queues(staged *s)
{
	ddp_status status = DDP_OK;

	if (s->messages == NULL)
		status = ddp_device_queue_create(s->device, DDP_DEVICE_HIGH, &s->messages);
	if (status == DDP_OK && s->received == NULL)
		status = ddp_device_queue_create(s->device, DDP_DEVICE_HIGH, &s->received);
	return status;
}

/* Copies what a receive has got, or will get, to where it belongs. */
static ddp_status enqueue_received(operation *o, ddp_device_queue *queue)
{
	staged *s = o->staged;
	ddp_status status = DDP_OK;

	if (atomic_load(&o->told) == 0) {
		status = ddp_device_queue_wait(s->device, queue, o->end);
		if (status == DDP_OK)
			status = ddp_device_launch(s->device, queue, await_message, o);
	}
	if (status != DDP_OK)
		return status;
	o->copied = true;
	status = copy_side(o, queue, &o->sides.output, 0, SIZE_MAX, o->buffers[1], false);
	if (status == DDP_OK)
		status = ddp_device_event_record(s->device, o->end, queue);
	if (status != DDP_OK)
		fail_partial(o, status);
	return status;
}

/* The end of a send is when its buffer has been copied. A receive is copied when it has
   come: until then it keeps no other one back. */
static ddp_status enqueue_message(operation *o)
{
	staged *s = o->staged;
	const bool send = o->c.kind == DDP_SEND;

	ddp_status status = make_message_queues(s);
	describe_chunk(o, 0, 0, SIZE_MAX, o->buffers[0], o->buffers[1]);
	if (status == DDP_OK)
		status = order(s->device, s->messages, o->end, o->c.stream);
	o->begun = status == DDP_OK;
	if (status == DDP_OK && send)
		status = copy_side(o, s->messages, &o->sides.input, 0, SIZE_MAX, o->buffers[0], true);
	if (status == DDP_OK && send)
		status = ddp_device_event_record(s->device, o->end, s->messages);
	if (status == DDP_OK)
		status = ddp_device_launch(s->device, s->messages, issue_message, &o->chunks[0]);
	o->issued = status == DDP_OK;
	return status;
}

/* ---- the backend ------------------------------------------------------------------------------- */

static void free_operation(operation *o)
{
	(void)ddp_device_event_free(o->staged->device, o->end);
	free(o->chunks);
	free(o->counts);
	free(o->buffers[0]);
	free(o->buffers[1]);
	free(o);
}

static ddp_status new_operation(staged *s, const ddp_operation *c, size_t chunks, operation *o)
{
	const size_t ranks = (size_t)s->comm->size;

	o->chunks = calloc(chunks, sizeof(*o->chunks));
	bool made = o->chunks != NULL;
	if (c->counts != NULL && !o->sides.whole)
		made = (o->counts = calloc(chunks * ranks, sizeof(*o->counts))) != NULL && made;
	if (o->sides.whole) {
		o->buffers[0] = malloc(ddp_side_count(&o->sides.input) * o->sides.element + 1);
		o->buffers[1] = malloc(ddp_side_count(&o->sides.output) * o->sides.element + 1);
		made = made && o->buffers[0] != NULL && o->buffers[1] != NULL;
	}
	if (!made)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for an operation of %zu chunks that is staged through the host",
		                chunks);
	return ddp_device_event_create(s->device, &o->end);
}

static ddp_status issue(void *self, ddp_request *request)
{
	staged *s = self;
	const bool message = request->operation.kind == DDP_SEND || request->operation.kind == DDP_RECV;

	if (s->spoilt)
		return ddp_comm_check(s->comm);
	operation *o = calloc(1, sizeof(*o));
	if (o == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for an operation that is staged through the host");
	o->staged = s;
	o->c = request->operation;
	o->sides = ddp_sides_of(s->comm, &o->c);
	o->sides.whole |= message;
	const size_t most = elements_per_chunk(o);
	const size_t chunks = o->sides.longest > most ? (o->sides.longest - 1) / most + 1 : 1;
	ddp_status status = ddp_sides_check(s->comm, &o->sides, o->c.kind);
	if (status == DDP_OK)
		status = new_operation(s, &o->c, chunks, o);
	if (status != DDP_OK) {
		free_operation(o);
		return status;
	}
	status = message ? enqueue_message(o) : enqueue_collective(o, chunks, most);
	if (status != DDP_OK && !o->begun) {
		(void)ddp_comm_break(s->comm, status, s->comm->rank, "%s", ddp_last_error());
		free_operation(o);
		return status;
	}
	if (status != DDP_OK)
		fail_partial(o, status);
	request->work = o;
	return DDP_OK;
}

/* Also where the device breaks before the host has a message. */
static ddp_status query_message(operation *o, bool *done)
{
	staged *s = o->staged;
	ddp_status status = ddp_device_error(s->device);

	*done = false;
	if (status != DDP_OK || atomic_load(&o->told) == 0)
		return status;
	if (o->c.kind == DDP_RECV && !o->copied && !o->partial)
		(void)enqueue_received(o, s->received);
	return o->partial ? query_queues(o, done) : ddp_device_event_query(s->device, o->end, done);
}

static ddp_status poll(void *self, ddp_request *request, bool *done)
{
	const staged *s = self;
	operation *o = request->work;
	ddp_status status;

	if (o->c.kind == DDP_SEND || o->c.kind == DDP_RECV)
		status = query_message(o, done);
	else
		status = o->partial ? query_queues(o, done) : ddp_device_event_query(s->device, o->end, done);
	if (status != DDP_OK) {
		status = ddp_comm_break(s->comm, status, s->comm->rank, "%s", ddp_last_error());
		leave_behind(o);
		*done = true;
		return status;
	}
	if (!*done)
		return DDP_OK;
	status = (ddp_status)atomic_load(&o->status);
	if (status != DDP_OK)
		(void)ddp_fail(status, "%s", o->message);
	else
		request->start_ns = o->start_ns;
	free_operation(o);
	return status;
}

/* Where functions run one at a time, one that awaits a receive's message would keep that of
   its send from running: the message comes first. */
static bool is_enqueued(void *self, ddp_request *request)
{
	const staged *s = self;
	operation *o = request->work;

	return o->c.kind != DDP_RECV || ddp_device_describe(s->device)->functions_may_wait || atomic_load(&o->told) != 0;
}

/* A queue that waits for what has not come copies it, and others wait for that. */
static ddp_status wait_on(void *self, ddp_request *request, void *stream)
{
	const staged *s = self;
	operation *o = request->work;

	if (o->partial)
		return DDP_OK; /* it has failed, and has no end */
	if (o->c.kind == DDP_RECV && !o->copied) {
		const ddp_status status = enqueue_received(o, stream);
		o->on_stream = o->copied;
		o->stream = stream;
		return status;
	}
	return ddp_device_queue_wait(s->device, stream, o->end);
}

static ddp_status alloc(void *self, size_t bytes, void **memory)
{
	staged *s = self;
	void *made = NULL;

	ddp_status status = ddp_device_alloc(s->device, bytes > 0 ? bytes : 1, &made);
	if (status == DDP_OK)
		status = ddp_device_fill(s->device, s->up, made, 0, bytes);
	if (status == DDP_OK)
		status = ddp_device_queue_sync(s->device, s->up);
	status = ddp_comm_agree(s->comm, status, "get its device's memory");
	if (status == DDP_OK)
		*memory = made;
	else
		(void)ddp_device_free(s->device, made);
	return status;
}

static ddp_status free_memory(void *self, void *memory)
{
	return ddp_device_free(((staged *)self)->device, memory);
}

/* Messages that nobody will take or give any more. */
static void abort_messages(void *self)
{
	(void)ddp_host_end(((staged *)self)->twin);
}

/* Without the twin. */
static void release(staged *s)
{
	ddp_device_queue *const queues[QUEUES] = { s->down, s->work, s->up, s->messages, s->received };

	for (int i = 0; i < QUEUES; i++)
		(void)ddp_device_queue_free(s->device, queues[i]);
	for (int i = 0; i < SLOTS; i++) {
		slot *t = &s->slots[i];
		(void)ddp_device_event_free(s->device, t->filled);
		(void)ddp_device_event_free(s->device, t->combined);
		(void)ddp_device_event_free(s->device, t->emptied);
		(void)ddp_device_host_free(s->device, t->input);
		(void)ddp_device_host_free(s->device, t->output);
	}
	(void)ddp_device_event_free(s->device, s->begun);
	free(s);
}

static void close_lane(void *self)
{
	staged *s = self;
	ddp_comm *twin = s->twin;

	release(s);
	ddp_host_close(twin);
}

static ddp_status make_slot(staged *s, slot *t)
{
	void *input = NULL, *output = NULL;

	ddp_status status = ddp_device_host_alloc(s->device, s->slot_bytes, &input);
	if (status == DDP_OK)
		status = ddp_device_host_alloc(s->device, s->slot_bytes, &output);
	t->input = input;
	t->output = output;
	if (status == DDP_OK)
		status = ddp_device_event_create(s->device, &t->filled);
	if (status == DDP_OK)
		status = ddp_device_event_create(s->device, &t->combined);
	return status == DDP_OK ? ddp_device_event_create(s->device, &t->emptied) : status;
}

static ddp_status make_parts(staged *s)
{
	ddp_device_queue **const queues[] = { &s->down, &s->work, &s->up };
	const size_t least = (size_t)s->comm->size * sizeof(double);
	ddp_status status = DDP_OK;

	s->slot_bytes = least > SLOT_BYTES ? least : SLOT_BYTES;
	for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]) && status == DDP_OK; i++)
		status = ddp_device_queue_create(s->device, DDP_DEVICE_HIGH, queues[i]);
	for (int i = 0; i < SLOTS && status == DDP_OK; i++)
		status = make_slot(s, &s->slots[i]);
	return status == DDP_OK ? ddp_device_event_create(s->device, &s->begun) : status;
}

static ddp_status open_lane(ddp_comm *comm, void **self)
{
	staged *s = calloc(1, sizeof(*s));
	ddp_status status = DDP_OK;

	if (s == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for a lane that is staged through the host");
	} else {
		s->comm = comm;
		s->device = comm->roster->device;
		status = make_parts(s);
	}
	status = ddp_comm_agree(comm, status, "open its device's queues");
	if (status == DDP_OK)
		status = ddp_twin_open(comm, &s->twin);
	if (status == DDP_OK)
		*self = s;
	else if (s != NULL)
		release(s);
	return status;
}

static const ddp_backend staged_backend = {
	.name = "staged",
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

const ddp_backend *ddp_test_operations(const ddp_comm_services *services)
{
	ddp_test_take_comm_services(services);
	return &staged_backend;
}
