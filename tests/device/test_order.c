/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/test_order.h"

#include <stdlib.h>

static void merge(ddp_order_clock *into, const ddp_order_clock *from)
{
	for (int i = 0; i < DDP_ORDER_QUEUES; i++) {
		if (into->at[i] < from->at[i])
			into->at[i] = from->at[i];
	}
}

int ddp_order_add_queue(ddp_order *order)
{
	for (int i = 0; i < DDP_ORDER_QUEUES; i++) {
		if (!order->taken[i]) {
			order->taken[i] = true;
			return i;
		}
	}
	return -1;
}

void ddp_order_remove_queue(ddp_order *order, int queue)
{
	order->taken[queue] = false;
}

void ddp_order_close(ddp_order *order)
{
	free(order->accesses);
}

ddp_order_clock ddp_order_next(ddp_order *order, int queue)
{
	ddp_order_clock *clock = &order->queues[queue];

	merge(clock, &order->host);
	clock->at[queue]++;
	return *clock;
}

void ddp_order_queue_waits(ddp_order *order, int queue, const ddp_order_clock *clock)
{
	merge(&order->queues[queue], clock);
}

/* `clock` is of something that surely comes after this access. */
static bool before(const ddp_order_access *access, const ddp_order_clock *clock)
{
	return clock->at[access->queue] >= access->clock.at[access->queue];
}

void ddp_order_host_knows(ddp_order *order, const ddp_order_clock *clock)
{
	merge(&order->host, clock);
}

void ddp_order_meet(ddp_order_clock *clock, const ddp_order_clock *other)
{
	for (int i = 0; i < DDP_ORDER_QUEUES; i++) {
		if (clock->at[i] > other->at[i])
			clock->at[i] = other->at[i];
	}
}

void ddp_order_prune(ddp_order *order, const ddp_order_clock *common)
{
	size_t kept = 0;

	for (size_t i = 0; i < order->count; i++) {
		if (!before(&order->accesses[i], common))
			order->accesses[kept++] = order->accesses[i];
	}
	order->count = kept;
}

static bool overlap(const ddp_order_access *access, const void *address, size_t bytes)
{
	return (uintptr_t)access->address < (uintptr_t)address + bytes &&
	       (uintptr_t)address < (uintptr_t)access->address + access->bytes;
}

void ddp_order_forget(ddp_order *order, const void *address, size_t bytes)
{
	size_t kept = 0;

	for (size_t i = 0; i < order->count; i++) {
		if (!overlap(&order->accesses[i], address, bytes))
			order->accesses[kept++] = order->accesses[i];
	}
	order->count = kept;
}

static bool conflict(const ddp_order_access *one, const ddp_order_access *other)
{
	return one->queue != other->queue && (one->writes || other->writes) &&
	       overlap(one, other->address, other->bytes) &&
	       !before(one, &other->clock) && !before(other, &one->clock);
}

/* Does the new access say all that the old one says? Whoever comes after it comes after both. */
static bool replaces(const ddp_order_access *new, const ddp_order_access *old)
{
	return new->queue == old->queue && new->address == old->address && new->bytes == old->bytes &&
	       new->writes >= old->writes && before(old, &new->clock);
}

static ddp_order_access *new_place(ddp_order *order)
{
	if (order->count == order->room) {
		const size_t room = order->room == 0 ? 64 : 2 * order->room;
		ddp_order_access *grown = realloc(order->accesses, room * sizeof(*grown));
		if (grown == NULL)
			return NULL;
		order->accesses = grown;
		order->room = room;
	}
	return &order->accesses[order->count++];
}

bool ddp_order_note(ddp_order *order, const ddp_order_access *access, ddp_order_access *other)
{
	ddp_order_access *place = NULL;

	for (size_t i = 0; i < order->count; i++) {
		ddp_order_access *noted = &order->accesses[i];
		if (conflict(access, noted)) {
			*other = *noted;
			return false;
		}
		if (replaces(access, noted))
			place = noted;
	}
	if (place == NULL)
		place = new_place(order);
	if (place != NULL)
		*place = *access;
	return true;
}
