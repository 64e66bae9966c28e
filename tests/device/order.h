/* SPDX-License-Identifier: Apache-2.0 */
/* order: is work of two streams that uses the same memory ordered, or is it so by luck?
   Each stream, and the host, has a vector clock (Fidge 1988, Mattern 1989): how much of each
   stream's work surely comes before what it does next. Of two accesses to the same bytes,
   one of them a write, one must come surely before the other. The caller locks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_GPU_STREAMS = 32 };

typedef struct gpu_clock {
	uint64_t at[FAKE_GPU_STREAMS]; /* pieces of work of each stream */
} gpu_clock;

typedef struct gpu_access {
	const void *address;
	size_t bytes;
	bool writes;
	int stream;
	const char *what;      /* "copy": for messages; a constant */
	gpu_clock clock; /* of the work that accesses */
} gpu_access;

typedef struct gpu_order {
	gpu_clock host, streams[FAKE_GPU_STREAMS];
	bool taken[FAKE_GPU_STREAMS];
	gpu_access *accesses; /* with which others may still conflict */
	size_t count, room;
} gpu_order;

/* A number for a new stream; -1: all are taken. */
int fake_gpu_order_add(gpu_order *order);
void fake_gpu_order_remove(gpu_order *order, int stream); /* whose work the host knows to be over */
void fake_gpu_order_close(gpu_order *order);

/* The clock of the next piece of work of a stream. */
gpu_clock fake_gpu_order_next(gpu_order *order, int stream);

/* The stream's next work comes after what this clock stands for. */
void fake_gpu_order_waits(gpu_order *order, int stream, const gpu_clock *clock);

/* The host knows that what this clock stands for is over: all that it enqueues now comes
   after that. */
void fake_gpu_order_host_knows(gpu_order *order, const gpu_clock *clock);

/* What two clocks have in common. */
void fake_gpu_order_meet(gpu_clock *clock, const gpu_clock *other);

/* Forgets accesses that come before all work that may yet note some: `common` is what the
   host's clock has in common with those of the work enqueued already. */
void fake_gpu_order_prune(gpu_order *order, const gpu_clock *common);

/* These bytes are freed: who gets them next has nothing to do with who had them. */
void fake_gpu_order_forget(gpu_order *order, const void *address, size_t bytes);

/* Notes an access. If one is noted that is not ordered with it, copies that to *other
   and returns false. Also true if there is no memory to note it. */
bool fake_gpu_order_note(gpu_order *order, const gpu_access *access, gpu_access *other);
