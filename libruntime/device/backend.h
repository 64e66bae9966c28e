/* SPDX-License-Identifier: Apache-2.0 */
/* backend: what a kind of device is made of: the table behind device.h, whose words hold
   for each function here. device.c has checked the arguments: no pointer is NULL but a
   queue that is the default one, no size is 0, and what is freed is not NULL.

   A module exports its table as `ddp_device_module`. It is compiled with this header of
   one release, and used by a libddp of maybe another: `version` and `bytes` stay first.
   It calls nothing of libddp but what `open` is given. */
#pragma once

#include "device/device.h"

/* Grows with each change of this header, or of the types of device.h. */
enum { DDP_DEVICE_VERSION = 9 };

#define DDP_DEVICE_MODULE_SYMBOL "ddp_device_module"

/* ddp_fail() */
typedef ddp_status (*ddp_device_fail)(ddp_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

typedef struct ddp_device_request {
	int index;
	ddp_device_fail fail;
} ddp_device_request;

typedef struct ddp_device_backend {
	uint32_t version; /* DDP_DEVICE_VERSION */
	uint32_t bytes;   /* of this table */
	const char *kind;

	/* Fills *info but for kind and index. */
	ddp_status (*open)(const ddp_device_request *request, ddp_device_info *info, void **self);
	void (*close)(void *self);
	ddp_status (*error)(void *self);
	ddp_status (*within)(void *self, ddp_device_function function, void *argument);

	ddp_status (*alloc)(void *self, size_t bytes, void **memory);
	ddp_status (*free)(void *self, void *memory);
	ddp_status (*host_alloc)(void *self, size_t bytes, void **memory);
	ddp_status (*host_free)(void *self, void *memory);
	bool (*owns)(void *self, const void *address);

	ddp_status (*queue_create)(void *self, ddp_device_priority priority,
	                           ddp_device_queue **queue);
	ddp_status (*queue_free)(void *self, ddp_device_queue *queue);
	ddp_status (*queue_query)(void *self, ddp_device_queue *queue, bool *done);
	ddp_status (*queue_sync)(void *self, ddp_device_queue *queue);
	ddp_status (*queue_wait)(void *self, ddp_device_queue *queue, ddp_device_event *event);
	ddp_status (*copy)(void *self, ddp_device_queue *queue, void *to, const void *from,
	                   size_t bytes);
	ddp_status (*fill)(void *self, ddp_device_queue *queue, void *to, unsigned char value,
	                   size_t bytes);
	ddp_status (*launch)(void *self, ddp_device_queue *queue, ddp_device_function function,
	                     void *argument);

	ddp_status (*event_create)(void *self, bool timed, ddp_device_event **event);
	ddp_status (*event_free)(void *self, ddp_device_event *event);
	ddp_status (*event_record)(void *self, ddp_device_event *event, ddp_device_queue *queue);
	ddp_status (*event_query)(void *self, ddp_device_event *event, bool *done);
	ddp_status (*event_sync)(void *self, ddp_device_event *event);
	ddp_status (*event_seconds)(void *self, ddp_device_event *from, ddp_device_event *to, double *seconds);
} ddp_device_backend;

/* The host as a device (device/cpu.c): memory is the host's, and work is done when it is enqueued. */
extern const ddp_device_backend ddp_device_cpu;
