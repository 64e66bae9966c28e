/* SPDX-License-Identifier: Apache-2.0 */
/* recorder: writes the flight recorder's ring (watch/record.h) of a slot. Any thread; nothing here fails. */
#pragma once

#include <stddef.h>

#include "watch/record.h"

/* `head` NULL: nothing is recorded. */
typedef struct ddp_recorder {
	struct ddp_record_head *head;
	struct ddp_record_entry *entries;
} ddp_recorder;

/* An operation that was begun; `entry` NULL: it was not recorded. */
typedef struct ddp_recorded {
	struct ddp_record_entry *entry;
	uint64_t sequence;
} ddp_recorded;

/* Maps the ring that belongs to slot number `slot` of task `task`, and empties it. `file` is that of the progress
   pages. Without a ring in the file, nothing is recorded. */
ddp_recorder ddp_recorder_map(int file, int task, int slot);
void ddp_recorder_unmap(ddp_recorder *recorder);

#define DDP_RECORD_SET(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)
#define DDP_RECORD_GET(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/* An operation that lasts keeps its place, unless so many do so in a row. */
enum { DDP_RECORD_KEPT_MAX = 8 };

/* The place for another operation, which is this thread's alone until DDP_RECORD_ENTRIES more have begun. */
static inline ddp_recorded ddp_record_take(const ddp_recorder *recorder)
{
	ddp_recorded taken;

	for (int i = 0; ; i++) {
		taken.sequence = __atomic_add_fetch(&recorder->head->next, 1, __ATOMIC_RELAXED);
		taken.entry = &recorder->entries[taken.sequence % DDP_RECORD_ENTRIES];
		if (DDP_RECORD_GET(taken.entry->sequence) == 0 || DDP_RECORD_GET(taken.entry->end_ns) != 0 ||
		    i == DDP_RECORD_KEPT_MAX - 1)
			break;
	}
	DDP_RECORD_SET(taken.entry->sequence, 0);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	return taken;
}

/* Begins an operation. Of `what` all fields in front of `name` count, except sequence, end_ns and state. */
static inline ddp_recorded ddp_record_begin(const ddp_recorder *recorder, const struct ddp_record_entry *what)
{
	if (recorder == NULL || recorder->head == NULL)
		return (ddp_recorded){ NULL, 0 };
	const ddp_recorded taken = ddp_record_take(recorder);
	struct ddp_record_entry *e = taken.entry;

	DDP_RECORD_SET(e->end_ns, 0);
	DDP_RECORD_SET(e->number, what->number);
	DDP_RECORD_SET(e->group, what->group);
	DDP_RECORD_SET(e->count, what->count);
	DDP_RECORD_SET(e->begin_ns, what->begin_ns);
	DDP_RECORD_SET(e->peer, what->peer);
	DDP_RECORD_SET(e->ranks, what->ranks);
	DDP_RECORD_SET(e->kind, what->kind);
	DDP_RECORD_SET(e->type, what->type);
	DDP_RECORD_SET(e->op, what->op);
	DDP_RECORD_SET(e->lane, what->lane);
	DDP_RECORD_SET(e->flags, what->flags);
	DDP_RECORD_SET(e->state, 0);
	DDP_RECORD_SET(e->tag, what->tag);
	__atomic_store_n(&e->sequence, taken.sequence, __ATOMIC_RELEASE);
	return taken;
}

/* The operation has ended, with a ddp_status. Its place may be another operation's by now. */
static inline void ddp_record_end(ddp_recorded recorded, int state, uint64_t now_ns)
{
	struct ddp_record_entry *e = recorded.entry;

	if (e == NULL || DDP_RECORD_GET(e->sequence) != recorded.sequence)
		return;
	DDP_RECORD_SET(e->state, (uint8_t)state);
	DDP_RECORD_SET(e->end_ns, now_ns);
}
