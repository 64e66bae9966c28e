/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_order: is work of two queues that uses the same memory ordered, or is it so by luck?
 * Each queue, and the host, has a vector clock (Fidge 1988, Mattern 1989): how much of each
 * queue's work surely comes before what it does next. Of two accesses to the same bytes,
 * one of them a write, one must come surely before the other. The caller locks.
 */
#ifndef TESTS_DEVICE_TEST_ORDER_H
#define TESTS_DEVICE_TEST_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DDP_ORDER_QUEUES = 32 };

typedef struct ddp_order_clock {
	uint64_t at[DDP_ORDER_QUEUES]; /* pieces of work of each queue */
} ddp_order_clock;

typedef struct ddp_order_access {
	const void *address;
	size_t bytes;
	bool writes;
	int queue;
	const char *what;      /* "copy": for messages; a constant */
	ddp_order_clock clock; /* of the work that accesses */
} ddp_order_access;

typedef struct ddp_order {
	ddp_order_clock host, queues[DDP_ORDER_QUEUES];
	bool taken[DDP_ORDER_QUEUES];
	ddp_order_access *accesses; /* with which others may still conflict */
	size_t count, room;
} ddp_order;

/* A number for a new queue; -1: all are taken. */
int ddp_order_add_queue(ddp_order *order);
void ddp_order_remove_queue(ddp_order *order, int queue); /* whose work the host knows to be over */
void ddp_order_close(ddp_order *order);

/* The clock of the next piece of work of a queue. */
ddp_order_clock ddp_order_next(ddp_order *order, int queue);

/* The queue's next work comes after what this clock stands for. */
void ddp_order_queue_waits(ddp_order *order, int queue, const ddp_order_clock *clock);

/* The host knows that what this clock stands for is over: all that it enqueues now comes
   after that. */
void ddp_order_host_knows(ddp_order *order, const ddp_order_clock *clock);

/* What two clocks have in common. */
void ddp_order_meet(ddp_order_clock *clock, const ddp_order_clock *other);

/* Forgets accesses that come before all work that may yet note some: `common` is what the
   host's clock has in common with those of the work enqueued already. */
void ddp_order_prune(ddp_order *order, const ddp_order_clock *common);

/* These bytes are freed: who gets them next has nothing to do with who had them. */
void ddp_order_forget(ddp_order *order, const void *address, size_t bytes);

/* Notes an access. If one is noted that is not ordered with it, copies that to *other
   and returns false. Also true if there is no memory to note it. */
bool ddp_order_note(ddp_order *order, const ddp_order_access *access, ddp_order_access *other);

#endif
