/* SPDX-License-Identifier: Apache-2.0 */
/* room: memory for a copy of a model, which a thread of its own may fill with pages. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Begins as zeros. */
typedef struct ddp_room {
	float *memory; /* [elements], or NULL */
	int64_t elements;
	pthread_t thread;
	bool fills; /* the thread is not joined yet */
} ddp_room;

/* Makes room for at least so many elements. What was in it may be lost. Afterwards no thread writes there. False: there
   is no memory, and no room any more. */
bool ddp_room_take(ddp_room *room, int64_t elements);

/* Lets a thread write the pages of memory that nobody has written yet. A page of new memory costs its first writer the
   time until the system has found and cleared it, which on virtual machines may be a second for each 300 MB. If no
   thread can be started, the pages come later. */
void ddp_room_fill(ddp_room *room);

void ddp_room_free(ddp_room *room);
