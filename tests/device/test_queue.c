/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/test_queue.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "base/thread.h"

static _Thread_local ddp_test_running running;

const ddp_test_running *ddp_test_running_here(void)
{
	return running.queue != NULL ? &running : NULL;
}

ddp_status ddp_test_break_locked(ddp_test_device *device, ddp_status status, const char *format, ...)
{
	va_list arguments;

	if (device->broken == DDP_OK) {
		device->broken = status;
		va_start(arguments, format);
		vsnprintf(device->reason, sizeof(device->reason), format, arguments);
		va_end(arguments);
		pthread_cond_broadcast(&device->changed);
	}
	return ddp_fail(device->broken, "device test is broken: %s", device->reason);
}

void ddp_test_mark_release_locked(ddp_test_mark *mark)
{
	if (mark != NULL && --mark->references == 0)
		free(mark);
}

ddp_status ddp_test_access_locked(ddp_device_queue *queue, const ddp_order_clock *clock,
                                  const char *what, const void *address, size_t bytes, bool writes)
{
	ddp_test_device *device = queue->device;
	const ddp_order_access access = {
		.address = address, .bytes = bytes, .writes = writes, .queue = queue->number, .what = what,
		.clock = *clock,
	};
	ddp_order_access other;

	if (!device->options.check_order || ddp_order_note(&device->order, &access, &other))
		return DDP_OK;
	return ddp_test_break_locked(device, DDP_ERR_STATE, "queue %d's %s %s %zu bytes at %p, queue %d's "
	                             "%s %s %zu bytes at %p, and no event puts one before the other",
	                             access.queue, what, writes ? "writes" : "reads", bytes, address,
	                             other.queue, other.what, other.writes ? "writes" : "reads",
	                             other.bytes, other.address);
}

void ddp_test_host_knows_locked(ddp_test_device *device, const ddp_order_clock *clock)
{
	ddp_order_host_knows(&device->order, clock);
	ddp_order_clock common = device->order.host;
	for (const ddp_device_queue *queue = device->queues; queue != NULL; queue = queue->next) {
		for (const ddp_test_work *work = queue->first; work != NULL; work = work->next) {
			if (work->kind == DDP_TEST_LAUNCH)
				ddp_order_meet(&common, &work->clock);
		}
	}
	ddp_order_prune(&device->order, &common);
}

/* ---- the queue's thread ---- */

/* Half of the time none, so that queues get far ahead of each other. */
static void delay(ddp_device_queue *queue)
{
	const uint64_t longest_ns = 1000u * (uint64_t)queue->device->options.delay_us;
	const uint64_t drawn = ddp_random_next(&queue->random);

	if (longest_ns == 0 || drawn % 2 == 0)
		return;
	const uint64_t ns = drawn / 2 % longest_ns;
	const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000u),
	                               .tv_nsec = (long)(ns % 1000000000u) };
	nanosleep(&time, NULL);
}

static void do_work(ddp_device_queue *queue, const ddp_test_work *work)
{
	const ddp_test_memory *memory = &queue->device->memory;
	const size_t half = work->bytes / 2;
	unsigned char *to = ddp_test_memory_view(memory, work->to);
	const unsigned char *from = ddp_test_memory_view(memory, work->from);

	delay(queue);
	if (work->kind == DDP_TEST_COPY) {
		memcpy(to, from, half);
		delay(queue);
		memcpy(to + half, from + half, work->bytes - half);
	} else if (work->kind == DDP_TEST_FILL) {
		memset(to, work->value, half);
		delay(queue);
		memset(to + half, work->value, work->bytes - half);
	} else {
		running = (ddp_test_running){ .queue = queue, .work = work };
		work->function(work->argument);
		running.queue = NULL;
	}
}

static void start_locked(ddp_device_queue *queue, const ddp_test_work *work)
{
	ddp_test_device *device = queue->device;

	if (work->kind == DDP_TEST_WAIT) {
		while (!work->mark->reached && device->broken == DDP_OK)
			pthread_cond_wait(&device->changed, &device->lock);
		return;
	}
	if (work->kind == DDP_TEST_RECORD) {
		work->mark->reached = true;
		work->mark->reached_ns = ddp_now_ns();
		return;
	}
	if (work->kind == DDP_TEST_LAUNCH) {
		/* The function may tell the host of all before it. */
		ddp_order_clock earlier = work->clock;
		earlier.at[queue->number]--;
		ddp_test_host_knows_locked(device, &earlier);
	}
	queue->working = true;
	pthread_mutex_unlock(&device->lock);
	do_work(queue, work);
	pthread_mutex_lock(&device->lock);
	queue->working = false;
}

static void *serve(void *argument)
{
	ddp_device_queue *queue = argument;
	ddp_test_device *device = queue->device;

	prctl(PR_SET_TIMERSLACK, 1000); /* ns: delays are short */
	pthread_mutex_lock(&device->lock);
	for (;;) {
		ddp_test_work *work = queue->first;
		if (work == NULL && queue->closing)
			break;
		if (work == NULL) {
			pthread_cond_wait(&device->changed, &device->lock);
			continue;
		}
		if (device->broken == DDP_OK)
			start_locked(queue, work);
		queue->first = work->next;
		if (queue->first == NULL)
			queue->last = &queue->first;
		queue->done++;
		ddp_test_mark_release_locked(work->mark);
		free(work);
		pthread_cond_broadcast(&device->changed);
	}
	pthread_mutex_unlock(&device->lock);
	return NULL;
}

/* ---- what the device calls ---- */

ddp_status ddp_test_queue_create(ddp_test_device *device, ddp_device_queue **created)
{
	ddp_device_queue *queue = calloc(1, sizeof(*queue));

	if (queue == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory for a queue");
	queue->device = device;
	queue->last = &queue->first;
	pthread_mutex_lock(&device->lock);
	queue->number = ddp_order_add_queue(&device->order);
	pthread_mutex_unlock(&device->lock);
	if (queue->number < 0) {
		free(queue);
		return ddp_fail(DDP_ERR_NOMEM, "device test has %d queues, no more", DDP_ORDER_QUEUES);
	}
	queue->random = device->options.seed + ((uint64_t)queue->number << 32);
	int error = ddp_thread_start(&queue->thread, serve, queue);
	pthread_mutex_lock(&device->lock);
	if (error != 0) {
		ddp_order_remove_queue(&device->order, queue->number);
	} else {
		queue->next = device->queues;
		device->queues = queue;
	}
	pthread_mutex_unlock(&device->lock);
	if (error != 0) {
		free(queue);
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "cannot start a thread for a queue");
	}
	*created = queue;
	return DDP_OK;
}

void ddp_test_queue_free(ddp_device_queue *queue)
{
	ddp_test_device *device = queue->device;

	pthread_mutex_lock(&device->lock);
	queue->closing = true;
	pthread_cond_broadcast(&device->changed);
	pthread_mutex_unlock(&device->lock);
	pthread_join(queue->thread, NULL);
	pthread_mutex_lock(&device->lock);
	ddp_test_host_knows_locked(device, &device->order.queues[queue->number]);
	ddp_order_remove_queue(&device->order, queue->number);
	ddp_device_queue **link = &device->queues;
	while (*link != queue)
		link = &(*link)->next;
	*link = queue->next;
	pthread_mutex_unlock(&device->lock);
	free(queue);
}

ddp_status ddp_test_queue_give_locked(ddp_device_queue *queue, const ddp_test_work *work)
{
	ddp_test_work *copy = malloc(sizeof(*copy));

	if (copy == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory for a queue's work");
	*copy = *work;
	copy->next = NULL;
	*queue->last = copy;
	queue->last = &copy->next;
	queue->given++;
	pthread_cond_broadcast(&queue->device->changed);
	return DDP_OK;
}

void ddp_test_queue_wait_locked(ddp_device_queue *queue, uint64_t given)
{
	while (queue->done < given && (queue->device->broken == DDP_OK || queue->working))
		pthread_cond_wait(&queue->device->changed, &queue->device->lock);
}
