/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "device/backend.h"
#include "device/module.h"

enum { INDEX_MAX = 1023 };

struct ddp_device {
	const ddp_device_backend *backend;
	void *self; /* the backend's */
	ddp_device_info info;
	atomic_int users;
	/* What the program has of it. */
	atomic_int allocations, host_allocations, queues, events;
	ddp_device *next;
};

/* All that are open, for ddp_device_of(). */
static ddp_device *open_devices;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

/* "cuda:1": kind and index. */
static ddp_status parse_name(const char *name, char *kind, size_t kind_bytes, int *index)
{
	const char *colon = strchr(name, ':');
	const char *of_job = getenv("DDP_LOCAL_DEVICE");
	int64_t number = 0;

	snprintf(kind, kind_bytes, "%.*s", (int)(colon != NULL ? colon - name : (long)strlen(name)), name);
	if (colon != NULL) {
		if (!ddp_parse_int64(colon + 1, 0, INDEX_MAX, &number))
			return ddp_fail(DDP_ERR_INVALID, "device '%s': what follows the colon is no index "
			                "from 0 to %d", name, INDEX_MAX);
	} else if (of_job != NULL && strcmp(kind, "cpu") != 0) {
		if (!ddp_parse_int64(of_job, 0, INDEX_MAX, &number))
			return ddp_fail(DDP_ERR_JOB, "DDP_LOCAL_DEVICE is '%s', which is no index of a "
			                "device; srun --ddp sets it", of_job);
	}
	*index = (int)number;
	return DDP_OK;
}

static ddp_status find_backend(const char *name, const char *kind,
                               const ddp_device_backend **backend)
{
	if (strcmp(kind, "cpu") == 0)
		*backend = &ddp_device_cpu;
	else if (strcmp(kind, "cuda") == 0)
		return ddp_device_cuda(backend);
	else
		return ddp_fail(DDP_ERR_INVALID, "there is no device '%s'; the kinds are cpu and cuda", name);
	return DDP_OK;
}

ddp_status ddp_device_open(const char *name, ddp_device **device)
{
	ddp_device_request request = { .fail = ddp_fail };
	char kind[16];

	if (name == NULL || device == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_device_open: no name, or nowhere to put the device");
	ddp_device *opened = calloc(1, sizeof(*opened));
	if (opened == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory for device %s", name);
	ddp_status status = parse_name(name, kind, sizeof(kind), &request.index);
	if (status == DDP_OK)
		status = find_backend(name, kind, &opened->backend);
	if (status == DDP_OK)
		status = opened->backend->open(&request, &opened->info, &opened->self);
	if (status != DDP_OK) {
		free(opened);
		return status;
	}
	opened->info.kind = opened->backend->kind;
	opened->info.index = request.index;
	atomic_store(&opened->users, 1);
	pthread_mutex_lock(&open_lock);
	opened->next = open_devices;
	open_devices = opened;
	pthread_mutex_unlock(&open_lock);
	*device = opened;
	return DDP_OK;
}

void ddp_device_keep(ddp_device *device)
{
	atomic_fetch_add(&device->users, 1);
}

ddp_status ddp_device_freed(ddp_device *device)
{
	const int allocations = device->allocations, host_allocations = device->host_allocations;
	const int queues = device->queues, events = device->events;

	if ((allocations | host_allocations | queues | events) == 0)
		return DDP_OK;
	return ddp_fail(DDP_ERR_STATE, "device %s:%d is still in use: %d pieces of memory and %d "
	                "of the host's, %d queues and %d events were not freed",
	                device->info.kind, device->info.index, allocations, host_allocations,
	                queues, events);
}

ddp_status ddp_device_close(ddp_device *device)
{
	if (device == NULL || atomic_fetch_sub(&device->users, 1) > 1)
		return DDP_OK;
	if (device->backend->error(device->self) == DDP_OK && ddp_device_freed(device) != DDP_OK) {
		atomic_store(&device->users, 1);
		return DDP_ERR_STATE;
	}
	pthread_mutex_lock(&open_lock);
	ddp_device **link = &open_devices;
	while (*link != device)
		link = &(*link)->next;
	*link = device->next;
	pthread_mutex_unlock(&open_lock);
	device->backend->close(device->self);
	free(device);
	return DDP_OK;
}

const ddp_device_info *ddp_device_describe(const ddp_device *device)
{
	return &device->info;
}

ddp_status ddp_device_error(ddp_device *device)
{
	return device->backend->error(device->self);
}

ddp_status ddp_device_within(ddp_device *device, ddp_device_function function, void *argument)
{
	return device->backend->within(device->self, function, argument);
}

/* ---- memory ---- */

static ddp_status missing(const char *call, const char *what)
{
	return ddp_fail(DDP_ERR_INVALID, "%s: %s", call, what);
}

static ddp_status counted(ddp_status status, atomic_int *count, int change)
{
	if (status == DDP_OK)
		atomic_fetch_add(count, change);
	return status;
}

ddp_status ddp_device_alloc(ddp_device *device, size_t bytes, void **memory)
{
	if (bytes == 0 || memory == NULL)
		return missing("ddp_device_alloc", "0 bytes, or nowhere to put the address");
	return counted(device->backend->alloc(device->self, bytes, memory), &device->allocations, 1);
}

ddp_status ddp_device_free(ddp_device *device, void *memory)
{
	if (memory == NULL)
		return DDP_OK;
	return counted(device->backend->free(device->self, memory), &device->allocations, -1);
}

ddp_status ddp_device_host_alloc(ddp_device *device, size_t bytes, void **memory)
{
	if (bytes == 0 || memory == NULL)
		return missing("ddp_device_host_alloc", "0 bytes, or nowhere to put the address");
	return counted(device->backend->host_alloc(device->self, bytes, memory),
	               &device->host_allocations, 1);
}

ddp_status ddp_device_host_free(ddp_device *device, void *memory)
{
	if (memory == NULL)
		return DDP_OK;
	return counted(device->backend->host_free(device->self, memory), &device->host_allocations, -1);
}

bool ddp_device_owns(ddp_device *device, const void *address)
{
	return device->backend->owns(device->self, address);
}

ddp_device *ddp_device_of(const void *address)
{
	pthread_mutex_lock(&open_lock);
	ddp_device *device = open_devices;
	while (device != NULL && !ddp_device_owns(device, address))
		device = device->next;
	pthread_mutex_unlock(&open_lock);
	return device;
}

/* ---- queues ---- */

ddp_status ddp_device_queue_create(ddp_device *device, ddp_device_priority priority,
                                   ddp_device_queue **queue)
{
	if (queue == NULL)
		return missing("ddp_device_queue_create", "nowhere to put the queue");
	return counted(device->backend->queue_create(device->self, priority, queue),
	               &device->queues, 1);
}

ddp_status ddp_device_queue_free(ddp_device *device, ddp_device_queue *queue)
{
	if (queue == NULL)
		return DDP_OK;
	return counted(device->backend->queue_free(device->self, queue), &device->queues, -1);
}

ddp_status ddp_device_queue_query(ddp_device *device, ddp_device_queue *queue, bool *done)
{
	if (done == NULL)
		return missing("ddp_device_queue_query", "nowhere to put the answer");
	return device->backend->queue_query(device->self, queue, done);
}

ddp_status ddp_device_queue_sync(ddp_device *device, ddp_device_queue *queue)
{
	return device->backend->queue_sync(device->self, queue);
}

ddp_status ddp_device_queue_wait(ddp_device *device, ddp_device_queue *queue,
                                 ddp_device_event *event)
{
	if (event == NULL)
		return missing("ddp_device_queue_wait", "no event");
	return device->backend->queue_wait(device->self, queue, event);
}

ddp_status ddp_device_copy(ddp_device *device, ddp_device_queue *queue, void *to,
                           const void *from, size_t bytes)
{
	if (bytes == 0)
		return DDP_OK;
	if (to == NULL || from == NULL)
		return missing("ddp_device_copy", "no address");
	if ((uintptr_t)to < (uintptr_t)from + bytes && (uintptr_t)from < (uintptr_t)to + bytes)
		return ddp_fail(DDP_ERR_INVALID, "ddp_device_copy: %zu bytes at %p and at %p overlap",
		                bytes, from, to);
	return device->backend->copy(device->self, queue, to, from, bytes);
}

ddp_status ddp_device_fill(ddp_device *device, ddp_device_queue *queue, void *to,
                           unsigned char value, size_t bytes)
{
	if (bytes == 0)
		return DDP_OK;
	if (to == NULL)
		return missing("ddp_device_fill", "no address");
	return device->backend->fill(device->self, queue, to, value, bytes);
}

ddp_status ddp_device_launch(ddp_device *device, ddp_device_queue *queue,
                             ddp_device_function function, void *argument)
{
	if (function == NULL)
		return missing("ddp_device_launch", "no function");
	return device->backend->launch(device->self, queue, function, argument);
}

/* ---- events ---- */

ddp_status ddp_device_event_create(ddp_device *device, ddp_device_event **event)
{
	if (event == NULL)
		return missing("ddp_device_event_create", "nowhere to put the event");
	return counted(device->backend->event_create(device->self, false, event), &device->events, 1);
}

ddp_status ddp_device_event_create_timed(ddp_device *device, ddp_device_event **event)
{
	if (event == NULL)
		return missing("ddp_device_event_create_timed", "nowhere to put the event");
	return counted(device->backend->event_create(device->self, true, event), &device->events, 1);
}

ddp_status ddp_device_event_free(ddp_device *device, ddp_device_event *event)
{
	if (event == NULL)
		return DDP_OK;
	return counted(device->backend->event_free(device->self, event), &device->events, -1);
}

ddp_status ddp_device_event_record(ddp_device *device, ddp_device_event *event,
                                   ddp_device_queue *queue)
{
	if (event == NULL)
		return missing("ddp_device_event_record", "no event");
	return device->backend->event_record(device->self, event, queue);
}

ddp_status ddp_device_event_query(ddp_device *device, ddp_device_event *event, bool *done)
{
	if (event == NULL || done == NULL)
		return missing("ddp_device_event_query", "no event, or nowhere to put the answer");
	return device->backend->event_query(device->self, event, done);
}

ddp_status ddp_device_event_sync(ddp_device *device, ddp_device_event *event)
{
	if (event == NULL)
		return missing("ddp_device_event_sync", "no event");
	return device->backend->event_sync(device->self, event);
}

ddp_status ddp_device_event_seconds(ddp_device *device, ddp_device_event *from, ddp_device_event *to,
                                    double *seconds)
{
	if (from == NULL || to == NULL || seconds == NULL)
		return missing("ddp_device_event_seconds", "no event, or nowhere to put the answer");
	return device->backend->event_seconds(device->self, from, to, seconds);
}
