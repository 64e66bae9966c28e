/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/test_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/wait.h"
#include "tests/device/host_kernels.h"
#include "tests/device/services.h"
#include "tests/device/test_capture.h"
#include "tests/device/test_queue.h"

static ddp_status broken_locked(ddp_test_device *device)
{
	if (device->broken == DDP_OK)
		return DDP_OK;
	return ddp_fail(device->broken, "device test is broken: %s", device->reason);
}

static const char allocates[] = "memory is allocated, which ends CUDA's captures";
static const char frees[] = "memory is freed, which ends CUDA's captures";
static const char waits[] = "the host asks or waits for a queue, which ends CUDA's captures";
static const char works[] = "a queue is given work by the device's own functions, and the graph will lack that";
static const char joins[] = "a queue waits for an event, or records one, and the graph will not";

/* Locks, and tells whether the call may go on; if not, it is unlocked again. `captured`: what is wrong
   with it in a capture. */
static ddp_status enter(ddp_test_device *device, const char *captured)
{
	if (ddp_test_running_here() != NULL)
		return ddp_fail(DDP_ERR_STATE, "a function that a queue runs must not call the device");
	ddp_status status = ddp_test_refuse_in_capture(captured);
	if (status != DDP_OK)
		return status;
	pthread_mutex_lock(&device->lock);
	status = broken_locked(device);
	if (status != DDP_OK)
		pthread_mutex_unlock(&device->lock);
	return status;
}

static ddp_status leave(ddp_test_device *device, ddp_status status)
{
	pthread_mutex_unlock(&device->lock);
	return status;
}

/* The same for calls with a queue, NULL being the default one. */
static ddp_status enter_queue(ddp_test_device *device, ddp_device_queue **queue, const char *captured)
{
	if (*queue == NULL)
		*queue = device->standard;
	if ((*queue)->device != device)
		return ddp_fail(DDP_ERR_INVALID, "this is a queue of another device");
	return enter(device, captured);
}

static ddp_status check_event(const ddp_test_device *device, const ddp_device_event *event)
{
	if (event->device != device)
		return ddp_fail(DDP_ERR_INVALID, "this is an event of another device");
	return DDP_OK;
}

/* The same for calls with an event, and with a queue, unless `queue` is NULL. */
static ddp_status enter_event(ddp_test_device *device, const ddp_device_event *event, ddp_device_queue **queue,
                              const char *captured)
{
	const ddp_status status = check_event(device, event);

	if (status != DDP_OK)
		return status;
	return queue != NULL ? enter_queue(device, queue, captured) : enter(device, captured);
}

/* ---- device ---- */

static ddp_status test_open(const ddp_device_request *request, ddp_device_info *info, void **self)
{
	ddp_test_device *device = calloc(1, sizeof(*device));

	ddp_test_take_services(request);
	if (device == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory for device test");
	device->options = request->options;
	device->options.seed += (uint64_t)request->index << 40;
	ddp_status status = ddp_test_memory_open(&device->memory);
	if (status != DDP_OK) {
		free(device);
		return status;
	}
	pthread_mutex_init(&device->lock, NULL);
	pthread_cond_init(&device->changed, NULL);
	status = ddp_test_queue_create(device, &device->standard);
	if (status != DDP_OK) {
		pthread_cond_destroy(&device->changed);
		pthread_mutex_destroy(&device->lock);
		ddp_test_memory_close(&device->memory);
		free(device);
		return status;
	}
	snprintf(info->name, sizeof(info->name), "asynchronous test device");
	info->memory_bytes = device->memory.bytes;
	info->is_host_memory = false;
	*self = device;
	return DDP_OK;
}

static void test_close(void *self)
{
	ddp_test_device *device = self;

	while (device->queues != NULL)
		ddp_test_queue_free(device->queues);
	ddp_order_close(&device->order);
	ddp_test_memory_close(&device->memory);
	pthread_cond_destroy(&device->changed);
	pthread_mutex_destroy(&device->lock);
	free(device);
}

static ddp_status test_error(void *self)
{
	ddp_test_device *device = self;

	pthread_mutex_lock(&device->lock);
	return leave(device, broken_locked(device));
}

static _Thread_local void *within;

static ddp_status test_within(void *self, ddp_device_function function, void *argument)
{
	const ddp_status status = test_error(self);

	if (status != DDP_OK)
		return status;
	void *before = within;
	within = self;
	function(argument);
	within = before;
	return DDP_OK;
}

void *ddp_test_device_here(void)
{
	return within;
}

/* ---- memory ---- */

static ddp_status test_alloc(void *self, size_t bytes, void **memory)
{
	ddp_test_device *device = self;
	ddp_status status = enter(device, allocates);

	if (status != DDP_OK)
		return status;
	return leave(device, ddp_test_memory_alloc(&device->memory, bytes, memory));
}

static bool overlap(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
	return (uintptr_t)one < (uintptr_t)other + other_bytes &&
	       (uintptr_t)other < (uintptr_t)one + one_bytes;
}

/* The queue that still has to copy or fill some of these bytes; NULL: none. */
static const ddp_device_queue *user_of_locked(const ddp_test_device *device, const void *memory,
                                              size_t bytes)
{
	for (const ddp_device_queue *queue = device->queues; queue != NULL; queue = queue->next) {
		for (const ddp_test_work *work = queue->first; work != NULL; work = work->next) {
			if (overlap(work->to, work->bytes, memory, bytes) ||
			    overlap(work->from, work->bytes, memory, bytes))
				return queue;
		}
	}
	return NULL;
}

static ddp_status free_locked(ddp_test_device *device, void *memory)
{
	const size_t bytes = ddp_test_memory_size(&device->memory, memory);
	const ddp_device_queue *user = user_of_locked(device, memory, bytes);

	if (bytes == 0)
		return ddp_fail(DDP_ERR_INVALID, "%p is no memory that device test gave", memory);
	if (user != NULL && device->broken == DDP_OK)
		return ddp_fail(DDP_ERR_STATE, "memory at %p is freed while queue %d has work that uses it",
		                memory, user->number);
	ddp_order_forget(&device->order, memory, bytes);
	ddp_test_memory_free(&device->memory, memory);
	return DDP_OK;
}

static ddp_status test_free(void *self, void *memory)
{
	ddp_test_device *device = self;

	if (ddp_test_running_here() != NULL)
		return enter(device, frees);
	const ddp_status status = ddp_test_refuse_in_capture(frees);
	if (status != DDP_OK)
		return status;
	pthread_mutex_lock(&device->lock); /* also where it is broken */
	return leave(device, free_locked(device, memory));
}

static ddp_status test_host_alloc(void *self, size_t bytes, void **memory)
{
	const ddp_status status = ddp_test_refuse_in_capture(allocates);
	void *got = NULL;

	(void)self;
	if (status != DDP_OK)
		return status;
	if (posix_memalign(&got, DDP_DEVICE_ALIGNMENT, bytes) != 0)
		return ddp_fail(DDP_ERR_NOMEM, "the host is out of memory for %zu bytes", bytes);
	memset(got, 0xff, bytes);
	*memory = got;
	return DDP_OK;
}

static ddp_status test_host_free(void *self, void *memory)
{
	ddp_test_device *device = self;
	const ddp_status status = ddp_test_refuse_in_capture(frees);

	if (status != DDP_OK)
		return status;
	pthread_mutex_lock(&device->lock);
	const ddp_device_queue *user = user_of_locked(device, memory, 1);
	if (user != NULL && device->broken == DDP_OK)
		return leave(device, ddp_fail(DDP_ERR_STATE, "memory of the host at %p is freed while queue "
		                              "%d has work that uses it", memory, user->number));
	free(memory);
	return leave(device, DDP_OK);
}

static bool test_owns(void *self, const void *address)
{
	const ddp_test_device *device = self;

	return ddp_test_memory_owns(&device->memory, address);
}

static ddp_status view_locked(ddp_test_device *device, const ddp_test_running *running,
                              const void *address, size_t bytes, bool writes)
{
	if (!ddp_test_memory_owns(&device->memory, address))
		return DDP_OK;
	if (!ddp_test_memory_holds(&device->memory, address, bytes))
		return ddp_test_break_locked(device, DDP_ERR_IO, "a function of queue %d uses %zu bytes at %p, "
		                             "which are not all allocated", running->queue->number, bytes,
		                             address);
	return ddp_test_access_locked(running->queue, &running->work->clock, "function", address, bytes,
	                              writes);
}

static ddp_status test_view(void *self, const void *address, size_t bytes,
                            ddp_device_access access, void **view)
{
	ddp_test_device *device = self;
	const ddp_test_running *running = ddp_test_running_here();

	if (running == NULL || running->queue->device != device)
		return ddp_fail(DDP_ERR_STATE, "a view of device test's memory is for functions that its "
		                "queues run");
	pthread_mutex_lock(&device->lock);
	ddp_status status = view_locked(device, running, address, bytes, access == DDP_DEVICE_WRITES);
	pthread_mutex_unlock(&device->lock);
	if (status == DDP_OK)
		*view = ddp_test_memory_view(&device->memory, address);
	return status;
}

/* ---- queues ---- */

static ddp_status test_queue_create(void *self, ddp_device_priority priority,
                                    ddp_device_queue **queue)
{
	ddp_test_device *device = self;
	ddp_status status = enter(device, NULL);

	(void)priority; /* delays are what decides */
	if (status != DDP_OK)
		return status;
	pthread_mutex_unlock(&device->lock);
	return ddp_test_queue_create(device, queue);
}

static ddp_status test_queue_free(void *self, ddp_device_queue *queue)
{
	if (queue->device != self)
		return ddp_fail(DDP_ERR_INVALID, "this is a queue of another device");
	if (ddp_test_running_here() != NULL)
		return enter(self, waits);
	const ddp_status status = ddp_test_refuse_in_capture(waits);
	if (status == DDP_OK)
		ddp_test_queue_free(queue);
	return status;
}

static ddp_status test_queue_query(void *self, ddp_device_queue *queue, bool *done)
{
	ddp_test_device *device = self;
	ddp_status status = enter_queue(device, &queue, waits);

	if (status != DDP_OK)
		return status;
	*done = queue->done == queue->given;
	if (*done)
		ddp_test_host_knows_locked(device, &device->order.queues[queue->number]);
	return leave(device, DDP_OK);
}

static ddp_status test_queue_sync(void *self, ddp_device_queue *queue)
{
	ddp_test_device *device = self;
	ddp_status status = enter_queue(device, &queue, waits);

	if (status != DDP_OK)
		return status;
	const ddp_order_clock clock = device->order.queues[queue->number];
	ddp_test_queue_wait_locked(queue, queue->given);
	status = broken_locked(device);
	if (status == DDP_OK)
		ddp_test_host_knows_locked(device, &clock);
	return leave(device, status);
}

static ddp_status test_queue_wait(void *self, ddp_device_queue *queue, ddp_device_event *event)
{
	ddp_test_device *device = self;
	ddp_status status = enter_event(device, event, &queue, joins);

	if (status != DDP_OK)
		return status;
	ddp_test_mark *mark = event->mark;
	if (mark != NULL) {
		const ddp_test_work work = { .kind = DDP_TEST_WAIT, .mark = mark };
		status = ddp_test_queue_give_locked(queue, &work);
		if (status == DDP_OK) {
			mark->references++;
			ddp_order_queue_waits(&device->order, queue->number, &mark->clock);
		}
	}
	return leave(device, status);
}

/* One side of a copy or a fill. */
static ddp_status check_side_locked(ddp_device_queue *queue, const ddp_test_work *work,
                                    const char *what, const void *address, bool writes)
{
	const ddp_test_memory *memory = &queue->device->memory;

	if (ddp_test_memory_owns(memory, address) &&
	    !ddp_test_memory_holds(memory, address, work->bytes))
		return ddp_fail(DDP_ERR_INVALID, "%s: %zu bytes at %p are not all allocated on device test",
		                what, work->bytes, address);
	return ddp_test_access_locked(queue, &work->clock, what, address, work->bytes, writes);
}

static ddp_status test_copy(void *self, ddp_device_queue *queue, void *to, const void *from,
                            size_t bytes)
{
	ddp_test_device *device = self;
	ddp_status status = enter_queue(device, &queue, works);

	if (status != DDP_OK)
		return status;
	const ddp_test_work work = {
		.kind = DDP_TEST_COPY, .to = to, .from = from, .bytes = bytes,
		.clock = ddp_order_next(&device->order, queue->number),
	};
	status = check_side_locked(queue, &work, "copy", from, false);
	if (status == DDP_OK)
		status = check_side_locked(queue, &work, "copy", to, true);
	if (status == DDP_OK)
		status = ddp_test_queue_give_locked(queue, &work);
	return leave(device, status);
}

static ddp_status test_fill(void *self, ddp_device_queue *queue, void *to, unsigned char value,
                            size_t bytes)
{
	ddp_test_device *device = self;
	ddp_status status = enter_queue(device, &queue, works);

	if (status != DDP_OK)
		return status;
	const ddp_test_work work = {
		.kind = DDP_TEST_FILL, .to = to, .value = value, .bytes = bytes,
		.clock = ddp_order_next(&device->order, queue->number),
	};
	if (!ddp_test_memory_owns(&device->memory, to))
		status = ddp_fail(DDP_ERR_INVALID, "fill: %p is not memory of device test", to);
	else
		status = check_side_locked(queue, &work, "fill", to, true);
	if (status == DDP_OK)
		status = ddp_test_queue_give_locked(queue, &work);
	return leave(device, status);
}

static ddp_status test_launch(void *self, ddp_device_queue *queue, ddp_device_function function,
                              void *argument)
{
	ddp_test_device *device = self;
	ddp_status status = enter_queue(device, &queue, works);

	if (status != DDP_OK)
		return status;
	const ddp_test_work work = {
		.kind = DDP_TEST_LAUNCH, .function = function, .argument = argument,
		.clock = ddp_order_next(&device->order, queue->number),
	};
	return leave(device, ddp_test_queue_give_locked(queue, &work));
}

/* ---- events ---- */

static ddp_status test_event_create(void *self, bool timed, ddp_device_event **created)
{
	ddp_test_device *device = self;
	ddp_status status = enter(device, NULL);

	if (status != DDP_OK)
		return status;
	ddp_device_event *event = calloc(1, sizeof(*event));
	if (event == NULL)
		return leave(device, ddp_fail(DDP_ERR_NOMEM, "out of memory for an event"));
	event->device = device;
	event->timed = timed;
	*created = event;
	return leave(device, DDP_OK);
}

static ddp_status test_event_free(void *self, ddp_device_event *event)
{
	ddp_test_device *device = self;
	ddp_status status = check_event(device, event);

	if (status != DDP_OK)
		return status;
	if (ddp_test_running_here() != NULL)
		return enter(device, NULL);
	pthread_mutex_lock(&device->lock);
	ddp_test_mark_release_locked(event->mark);
	free(event);
	return leave(device, DDP_OK);
}

static ddp_status test_event_record(void *self, ddp_device_event *event, ddp_device_queue *queue)
{
	ddp_test_device *device = self;
	ddp_status status = enter_event(device, event, &queue, joins);

	if (status != DDP_OK)
		return status;
	ddp_test_mark *mark = calloc(1, sizeof(*mark));
	if (mark == NULL)
		return leave(device, ddp_fail(DDP_ERR_NOMEM, "out of memory for an event"));
	*mark = (ddp_test_mark){
		.references = 2, .clock = ddp_order_next(&device->order, queue->number),
	};
	const ddp_test_work work = { .kind = DDP_TEST_RECORD, .mark = mark, .clock = mark->clock };
	status = ddp_test_queue_give_locked(queue, &work);
	if (status != DDP_OK) {
		free(mark);
		return leave(device, status);
	}
	ddp_test_mark_release_locked(event->mark);
	event->mark = mark;
	return leave(device, DDP_OK);
}

static ddp_status test_event_query(void *self, ddp_device_event *event, bool *done)
{
	ddp_test_device *device = self;
	ddp_status status = enter_event(device, event, NULL, waits);

	if (status != DDP_OK)
		return status;
	*done = event->mark == NULL || event->mark->reached;
	if (event->mark != NULL && *done)
		ddp_test_host_knows_locked(device, &event->mark->clock);
	return leave(device, DDP_OK);
}

static ddp_status test_event_sync(void *self, ddp_device_event *event)
{
	ddp_test_device *device = self;
	ddp_status status = enter_event(device, event, NULL, waits);

	if (status != DDP_OK)
		return status;
	ddp_test_mark *mark = event->mark;
	if (mark == NULL)
		return leave(device, DDP_OK);
	mark->references++; /* the event may be recorded again, or freed, meanwhile */
	while (!mark->reached && device->broken == DDP_OK)
		pthread_cond_wait(&device->changed, &device->lock);
	status = broken_locked(device);
	if (status == DDP_OK)
		ddp_test_host_knows_locked(device, &mark->clock);
	ddp_test_mark_release_locked(mark);
	return leave(device, status);
}

static ddp_status test_event_seconds(void *self, ddp_device_event *from, ddp_device_event *to, double *seconds)
{
	ddp_test_device *device = self;
	ddp_status status = check_event(device, from);

	if (status == DDP_OK)
		status = enter_event(device, to, NULL, waits);
	if (status != DDP_OK)
		return status;
	if (!from->timed || !to->timed)
		status = ddp_fail(DDP_ERR_INVALID, "the time between events: they are not timed");
	else if (from->mark == NULL || to->mark == NULL || !from->mark->reached || !to->mark->reached)
		status = ddp_fail(DDP_ERR_INVALID, "the time between events: their queues have not come to both");
	else
		*seconds = (double)(int64_t)(to->mark->reached_ns - from->mark->reached_ns) * 1e-9;
	return leave(device, status);
}

const ddp_device_backend ddp_device_module = {
	.version = DDP_DEVICE_VERSION, .bytes = sizeof(ddp_device_module), .kind = "test",
	.open = test_open, .close = test_close, .error = test_error, .within = test_within,
	.alloc = test_alloc, .free = test_free,
	.host_alloc = test_host_alloc, .host_free = test_host_free,
	.owns = test_owns, .view = test_view,
	.queue_create = test_queue_create, .queue_free = test_queue_free,
	.queue_query = test_queue_query, .queue_sync = test_queue_sync, .queue_wait = test_queue_wait,
	.copy = test_copy, .fill = test_fill, .launch = test_launch,
	.event_create = test_event_create, .event_free = test_event_free,
	.event_record = test_event_record, .event_query = test_event_query,
	.event_sync = test_event_sync, .event_seconds = test_event_seconds, .kernels = ddp_host_kernels_open,
};
