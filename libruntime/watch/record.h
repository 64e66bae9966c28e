/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder's memory: a ring of the last operations for each slot of a rank's progress page. It lies in the
   same memory file as the pages (watch/progress.h), so that it outlives the rank. Behind all tasks' pages the file
   has an area for each task, and its last page, the node's own, says for how many. A file of an older plugin does not
   say it, and then nothing is recorded.

   The SPANK plugin makes the file. libddp, the profiler plugin of NCCL's and slurm_ddp write the rings. The plugin
   and ddp-status read them and trust nothing there: spank/witness/rings.h. */
#pragma once

#include <stdint.h>

#include "watch/progress.h"

#define DDP_RECORD_MAGIC 0x72706464u /* "ddpr", little-endian */
#define DDP_RECORD_VERSION 1         /* of what is below; a reader leaves out rings of another version */
#define DDP_RECORD_ENTRIES 256
#define DDP_RECORD_ENTRY_BYTES 128
#define DDP_RECORD_HEADS_BYTES 4096  /* of a task's area: its heads, and behind them its rings */
#define DDP_RECORD_RING_BYTES (DDP_RECORD_ENTRIES * DDP_RECORD_ENTRY_BYTES)
#define DDP_RECORD_AREA_BYTES (DDP_RECORD_HEADS_BYTES + DDP_PROGRESS_SLOTS * DDP_RECORD_RING_BYTES)
#define DDP_RECORD_PLACE_BYTES 2048  /* half of the node's page: it begins with struct ddp_progress_node */

/* The area of a task in a file for so many tasks; the node's page; where that says so; and the file's size. */
#define DDP_RECORD_AREA_OFFSET(tasks, task) \
	((uint64_t)(tasks) * DDP_PROGRESS_BYTES + (uint64_t)(task) * DDP_RECORD_AREA_BYTES)
#define DDP_RECORD_NODE_OFFSET(tasks) DDP_RECORD_AREA_OFFSET(tasks, tasks)
#define DDP_RECORD_FILE_BYTES(tasks) (DDP_RECORD_NODE_OFFSET(tasks) + DDP_PROGRESS_BYTES)
#define DDP_RECORD_PLACE_OFFSET(tasks) (DDP_RECORD_FILE_BYTES(tasks) - DDP_RECORD_PLACE_BYTES)

/* The second half of the node's page begins with this. */
struct ddp_record_place {
	uint32_t magic, version;
	uint32_t tasks; /* of the node */
	uint32_t reserved;
};

struct ddp_record_head {
	uint32_t magic;   /* DDP_RECORD_MAGIC: who has the slot also writes the ring */
	uint32_t version;
	uint64_t next;    /* the sequence of the last entry that a thread has taken; grows by atomic additions */
	uint32_t reserved[12];
};

/* This kind or type says that `name` has it. */
enum { DDP_RECORD_NAMED = 255 };
/* This state, besides values of ddp_status, says that the operation's end is not known. */
enum { DDP_RECORD_UNKNOWN_END = 255 };

enum ddp_record_flags {
	DDP_RECORD_OF_ALL = 1,  /* the group has all ranks of the step, and their numbers */
	DDP_RECORD_DEVICE = 2   /* the buffers lie in a device's memory */
};

/* An operation. Its writer clears `sequence`, writes the other fields, and then writes `sequence` with release. Later
   it writes `state` and `end_ns`. A reader takes only entries that are the same in two copies, or have ended in
   between. */
struct ddp_record_entry {
	uint64_t sequence; /* from 1; it lies at sequence % DDP_RECORD_ENTRIES. 0: empty, or under way to be written */
	uint64_t number;   /* of a collective in its group and lane, from 1; 0: a message */
	uint64_t group;    /* the same on all its ranks */
	uint64_t count;    /* of elements */
	uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC, to some milliseconds; end_ns 0: it has not ended */
	int32_t peer;      /* root, or the other rank of a message, as a number in the group; -1: none */
	uint32_t ranks;    /* of the group */
	uint8_t kind;      /* ddp_operation_kind */
	uint8_t type;      /* ddp_type */
	uint8_t op;        /* ddp_op, of reductions; DDP_RECORD_NAMED: not told */
	uint8_t lane;
	uint8_t flags;     /* enum ddp_record_flags */
	uint8_t state;     /* ddp_status of the end */
	uint16_t tag;      /* of a message, its low 16 bits */
	/* libddp leaves these to others: */
	char name[24];     /* terminated: of a kind, or "kind type", that has no number */
	char where[40];    /* terminated: the program's line, such as "train.py:88"; "": not known */
};
