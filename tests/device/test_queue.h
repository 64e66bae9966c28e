/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_queue: the test device's queues, and the threads that do their work. What ends in
 * _locked is called with the device's lock held; the others must not be.
 */
#ifndef TESTS_DEVICE_TEST_QUEUE_H
#define TESTS_DEVICE_TEST_QUEUE_H

#include <pthread.h>

#include "device/device.h"
#include "tests/device/test_memory.h"
#include "tests/device/test_order.h"

/* A record of an event: it stands while the event or somebody who waits needs it. */
typedef struct ddp_test_mark {
	int references;
	bool reached;
	uint64_t reached_ns;
	ddp_order_clock clock;
} ddp_test_mark;

typedef enum ddp_test_kind {
	DDP_TEST_COPY, DDP_TEST_FILL, DDP_TEST_LAUNCH, DDP_TEST_RECORD, DDP_TEST_WAIT,
} ddp_test_kind;

typedef struct ddp_test_work {
	ddp_test_kind kind;
	unsigned char value;
	void *to;
	const void *from;
	size_t bytes;
	ddp_device_function function;
	void *argument;
	ddp_test_mark *mark;   /* RECORD, WAIT: one of its references is ours */
	ddp_order_clock clock;
	struct ddp_test_work *next;
} ddp_test_work;

typedef struct ddp_test_device {
	pthread_mutex_t lock; /* of all that follows, and of queues, events and marks */
	pthread_cond_t changed;
	ddp_device_options options;
	ddp_test_memory memory;
	ddp_order order;
	ddp_device_queue *queues, *standard;
	ddp_status broken; /* DDP_OK: it is not */
	char reason[512];
} ddp_test_device;

struct ddp_device_queue {
	ddp_test_device *device;
	int number; /* in device->order */
	pthread_t thread;
	ddp_test_work *first, **last; /* the first is being done */
	uint64_t given, done;         /* pieces of work, so far */
	bool closing;
	bool working;                 /* outside the lock */
	uint64_t random;
	ddp_device_queue *next;
};

struct ddp_device_event {
	ddp_test_device *device;
	bool timed;
	ddp_test_mark *mark; /* NULL: never recorded */
};

/* What the calling thread runs for a queue; NULL: it is not a queue's. */
typedef struct ddp_test_running {
	ddp_device_queue *queue;
	const ddp_test_work *work;
} ddp_test_running;
const ddp_test_running *ddp_test_running_here(void);

ddp_status ddp_test_queue_create(ddp_test_device *device, ddp_device_queue **queue);

/* When all its work is done. */
void ddp_test_queue_free(ddp_device_queue *queue);

/* Enqueues a copy of `work`. */
ddp_status ddp_test_queue_give_locked(ddp_device_queue *queue, const ddp_test_work *work);

/* Until so many pieces of work are done, or the device is broken. */
void ddp_test_queue_wait_locked(ddp_device_queue *queue, uint64_t given);

void ddp_test_mark_release_locked(ddp_test_mark *mark);

/* All work from now on, and what was to come, is left undone. Returns `status`. */
ddp_status ddp_test_break_locked(ddp_test_device *device, ddp_status status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The host knows that what this clock stands for is over. */
void ddp_test_host_knows_locked(ddp_test_device *device, const ddp_order_clock *clock);

/* Notes what a piece of work of a queue reads or writes; if that is not ordered with other
   work, the device is broken. */
ddp_status ddp_test_access_locked(ddp_device_queue *queue, const ddp_order_clock *clock,
                                  const char *what, const void *address, size_t bytes, bool writes);

#endif
