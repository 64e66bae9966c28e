/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder's memory of one task (watch/record.h), copied and checked. The task may have written anything
   there, and may be writing now: indices, lengths and texts are not trusted. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/base/text.h"
#include "watch/record.h"

/* A copy of a task's page, and two copies of the rings that are used. */
struct rings {
	struct ddp_progress slots[DDP_PROGRESS_SLOTS];
	int count;                        /* of rings */
	struct ring {
		int slot;
		const struct ddp_record_entry *first, *second; /* [DDP_RECORD_ENTRIES]: the earlier and the later copy */
	} ring[DDP_PROGRESS_SLOTS];
	void *memory;                     /* what they are copied to */
	size_t bytes;
};

/* The memory file of a node's progress pages: open, or mapped. */
struct rings_source {
	int file;                    /* -1: it is mapped */
	const unsigned char *memory;
	uint64_t bytes;              /* of the file */
	uint32_t tasks;              /* of the node; 0: not known, and the file says it */
};

/* Copies what the task has written. False: the file has no such page. A file without rings, or a system without
   memory for the copies, gives none. */
bool rings_copy(struct rings *rings, const struct rings_source *source, uint32_t task);
void rings_free(struct rings *rings);

/* The entry at an index of a ring, checked, with terminated texts. False: there is none, or it is being written. */
bool rings_entry(const struct ring *ring, uint32_t index, struct ddp_record_entry *entry);

/* ---- what the flight recorder writes of one rank: a line of JSON, which ddp-report reads (`ddp-report --record`).
   ddp-report(1) describes the format. ---- */

/* Room for the longest line, with stacks of RECORD_STACKS_MAX bytes before they are escaped. */
enum { RECORD_TEXT_MAX = 3 << 20, RECORD_STACKS_MAX = 65536 };

struct record_rank {
	const char *reason;      /* "stall", "failure", "end", "asked"; a constant */
	uint32_t job, step, generation; /* generation 0: the step has no restart= */
	uint32_t rank, world_size;
	const char *node;        /* printed with '?' for what is not printable */
	int64_t pid;             /* 0: not known */
	const char *end;         /* how its program has ended, such as "signal 9"; NULL: it runs, or is not known */
	uint64_t now_ns;         /* CLOCK_MONOTONIC, and the same moment by */
	uint64_t real_ns;        /* CLOCK_REALTIME */
	const char *threads;     /* lines of its threads' states and stacks; NULL: nobody asked. Not trusted */
	const struct rings *rings;
};

/* Adds the line with its newline. If it does not fit, sink->full is set. */
void record_text(struct sink *sink, const struct record_rank *rank);
