/* SPDX-License-Identifier: Apache-2.0 */
#include "device/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/pages.h"

/* All queues and events are alike: they never have anything left to do. */
static char the_device, the_queue, the_event;

static size_t host_bytes(void)
{
	return (size_t)sysconf(_SC_PHYS_PAGES) * ddp_system_page_bytes();
}

static ddp_status cpu_open(const ddp_device_request *request, ddp_device_info *info, void **self)
{
	if (request->index != 0)
		return ddp_fail(DDP_ERR_INVALID, "there is no device cpu:%d; the host is cpu",
		                request->index);
	snprintf(info->name, sizeof(info->name), "host");
	info->memory_bytes = host_bytes();
	info->is_host_memory = true;
	*self = &the_device;
	return DDP_OK;
}

static void cpu_close(void *self)
{
	(void)self;
}

static ddp_status cpu_error(void *self)
{
	(void)self;
	return DDP_OK;
}

static ddp_status cpu_within(void *self, ddp_device_function function, void *argument)
{
	(void)self;
	function(argument);
	return DDP_OK;
}

static ddp_status cpu_alloc(void *self, size_t bytes, void **memory)
{
	(void)self;
	void *got = NULL;
	if (bytes > host_bytes() || posix_memalign(&got, DDP_DEVICE_ALIGNMENT, bytes) != 0)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory for %zu bytes", bytes);
	*memory = got;
	return DDP_OK;
}

static ddp_status cpu_free(void *self, void *memory)
{
	(void)self;
	free(memory);
	return DDP_OK;
}

static bool cpu_owns(void *self, const void *address)
{
	(void)self;
	(void)address;
	return false;
}

static ddp_status cpu_queue_create(void *self, ddp_device_priority priority,
                                   ddp_device_queue **queue)
{
	(void)self;
	(void)priority;
	*queue = (ddp_device_queue *)&the_queue;
	return DDP_OK;
}

static ddp_status cpu_queue(void *self, ddp_device_queue *queue)
{
	(void)self;
	(void)queue;
	return DDP_OK;
}

static ddp_status cpu_queue_query(void *self, ddp_device_queue *queue, bool *done)
{
	(void)self;
	(void)queue;
	*done = true;
	return DDP_OK;
}

static ddp_status cpu_queue_wait(void *self, ddp_device_queue *queue, ddp_device_event *event)
{
	(void)self;
	(void)queue;
	(void)event;
	return DDP_OK;
}

static ddp_status cpu_copy(void *self, ddp_device_queue *queue, void *to, const void *from,
                           size_t bytes)
{
	(void)self;
	(void)queue;
	memcpy(to, from, bytes);
	return DDP_OK;
}

static ddp_status cpu_fill(void *self, ddp_device_queue *queue, void *to, unsigned char value,
                           size_t bytes)
{
	(void)self;
	(void)queue;
	memset(to, value, bytes);
	return DDP_OK;
}

static ddp_status cpu_launch(void *self, ddp_device_queue *queue, ddp_device_function function,
                             void *argument)
{
	(void)self;
	(void)queue;
	function(argument);
	return DDP_OK;
}

/* A timed one is when it was recorded, which is when its queue came to it. */
static ddp_status cpu_event_create(void *self, bool timed, ddp_device_event **event)
{
	(void)self;
	*event = timed ? calloc(1, sizeof(uint64_t)) : (ddp_device_event *)&the_event;
	return *event != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "out of memory for an event");
}

static ddp_status cpu_event_free(void *self, ddp_device_event *event)
{
	(void)self;
	if (event != (ddp_device_event *)&the_event)
		free(event);
	return DDP_OK;
}

static ddp_status cpu_event(void *self, ddp_device_event *event)
{
	(void)self;
	(void)event;
	return DDP_OK;
}

static ddp_status cpu_event_record(void *self, ddp_device_event *event, ddp_device_queue *queue)
{
	(void)self;
	(void)queue;
	if (event != (ddp_device_event *)&the_event)
		*(uint64_t *)event = ddp_now_ns();
	return DDP_OK;
}

static ddp_status cpu_event_seconds(void *self, ddp_device_event *from, ddp_device_event *to, double *seconds)
{
	(void)self;
	if (from == (ddp_device_event *)&the_event || to == (ddp_device_event *)&the_event)
		return ddp_fail(DDP_ERR_INVALID, "the time between events: they are not timed");
	*seconds = (double)(int64_t)(*(uint64_t *)to - *(uint64_t *)from) * 1e-9;
	return DDP_OK;
}

static ddp_status cpu_event_query(void *self, ddp_device_event *event, bool *done)
{
	(void)self;
	(void)event;
	*done = true;
	return DDP_OK;
}

const ddp_device_backend ddp_device_cpu = {
	.version = DDP_DEVICE_VERSION, .bytes = sizeof(ddp_device_cpu), .kind = "cpu",
	.open = cpu_open, .close = cpu_close, .error = cpu_error, .within = cpu_within,
	.alloc = cpu_alloc, .free = cpu_free, .host_alloc = cpu_alloc, .host_free = cpu_free,
	.owns = cpu_owns,
	.queue_create = cpu_queue_create, .queue_free = cpu_queue, .queue_query = cpu_queue_query,
	.queue_sync = cpu_queue, .queue_wait = cpu_queue_wait,
	.copy = cpu_copy, .fill = cpu_fill, .launch = cpu_launch,
	.event_create = cpu_event_create, .event_free = cpu_event_free, .event_record = cpu_event_record,
	.event_query = cpu_event_query, .event_sync = cpu_event, .event_seconds = cpu_event_seconds,
};
