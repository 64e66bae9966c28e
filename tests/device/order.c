/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/order.h"

#include <stdlib.h>

static void merge(gpu_clock *into, const gpu_clock *from)
{
	for (int i = 0; i < FAKE_GPU_STREAMS; i++) {
		if (into->at[i] < from->at[i])
			into->at[i] = from->at[i];
	}
}

int fake_gpu_order_add(gpu_order *order)
{
	for (int i = 0; i < FAKE_GPU_STREAMS; i++) {
		if (!order->taken[i]) {
			order->taken[i] = true;
			return i;
		}
	}
	return -1;
}

void fake_gpu_order_remove(gpu_order *order, int stream)
{
	order->taken[stream] = false;
}

void fake_gpu_order_close(gpu_order *order)
{
	free(order->accesses);
}

gpu_clock fake_gpu_order_next(gpu_order *order, int stream)
{
	gpu_clock *clock = &order->streams[stream];

	merge(clock, &order->host);
	clock->at[stream]++;
	return *clock;
}

void fake_gpu_order_waits(gpu_order *order, int stream, const gpu_clock *clock)
{
	merge(&order->streams[stream], clock);
}

/* `clock` is of something that surely comes after this access. */
static bool before(const gpu_access *access, const gpu_clock *clock)
{
	return clock->at[access->stream] >= access->clock.at[access->stream];
}

void fake_gpu_order_host_knows(gpu_order *order, const gpu_clock *clock)
{
	merge(&order->host, clock);
}

void fake_gpu_order_meet(gpu_clock *clock, const gpu_clock *other)
{
	for (int i = 0; i < FAKE_GPU_STREAMS; i++) {
		if (clock->at[i] > other->at[i])
			clock->at[i] = other->at[i];
	}
}

void fake_gpu_order_prune(gpu_order *order, const gpu_clock *common)
{
	size_t kept = 0;

	for (size_t i = 0; i < order->count; i++) {
		if (!before(&order->accesses[i], common))
			order->accesses[kept++] = order->accesses[i];
	}
	order->count = kept;
}

static bool overlap(const gpu_access *access, const void *address, size_t bytes)
{
	return (uintptr_t)access->address < (uintptr_t)address + bytes &&
	       (uintptr_t)address < (uintptr_t)access->address + access->bytes;
}

void fake_gpu_order_forget(gpu_order *order, const void *address, size_t bytes)
{
	size_t kept = 0;

	for (size_t i = 0; i < order->count; i++) {
		if (!overlap(&order->accesses[i], address, bytes))
			order->accesses[kept++] = order->accesses[i];
	}
	order->count = kept;
}

static bool conflict(const gpu_access *one, const gpu_access *other)
{
	return one->stream != other->stream && (one->writes || other->writes) &&
	       overlap(one, other->address, other->bytes) &&
	       !before(one, &other->clock) && !before(other, &one->clock);
}

/* Does the new access say all that the old one says? Whoever comes after it comes after both. */
static bool replaces(const gpu_access *new, const gpu_access *old)
{
	return new->stream == old->stream && new->address == old->address && new->bytes == old->bytes &&
	       new->writes >= old->writes && before(old, &new->clock);
}

static gpu_access *new_place(gpu_order *order)
{
	if (order->count == order->room) {
		const size_t room = order->room == 0 ? 64 : 2 * order->room;
		gpu_access *grown = realloc(order->accesses, room * sizeof(*grown));
		if (grown == NULL)
			return NULL;
		order->accesses = grown;
		order->room = room;
	}
	return &order->accesses[order->count++];
}

bool fake_gpu_order_note(gpu_order *order, const gpu_access *access, gpu_access *other)
{
	gpu_access *place = NULL;

	for (size_t i = 0; i < order->count; i++) {
		gpu_access *noted = &order->accesses[i];
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
