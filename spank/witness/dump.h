/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the flight recorder's lines of a node's tasks to files of the user's, and asks Python for its stacks. The
   writer is a process of the user's: a child of slurmstepd's that becomes the user, a child of the witness's, or
   ddp-status. libc only. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/base/child.h"
#include "spank/base/text.h"
#include "spank/witness/rings.h"

enum { RECORD_DIR_MAX = 1024 };

/* Where a step's files are, and whose they are. */
struct record_place {
	char dir[RECORD_DIR_MAX]; /* of record=; "": nothing is written */
	bool is_site;             /* `dir` is the site's default, which no user may make */
	uint32_t job, step;
	struct owner owner;
};

struct record_task {
	uint32_t local_task;
	uint32_t rank;    /* UINT32_MAX: it has none, and is left out */
	pid_t pid;        /* 0: it has no process any more */
	char end[48];     /* how it has ended; "": it runs, or is not known */
};

struct record_order {
	const struct record_place *place;
	const char *reason;     /* a constant: "stall", "failure", "end" or "asked" */
	const char *node;
	uint32_t world_size, generation;
	const struct record_task *tasks;
	uint32_t count;
	struct error *lost;     /* in memory that the child shares: gets the first reason why a record is not written; NULL */
	_Atomic pid_t *writer;  /* in the same memory: the child while it is at work, otherwise 0; NULL */
	bool stacks;            /* ask the tasks' processes for their threads and stacks, which takes up to 1.5 s */
};

/* Writes a line for each task, in this process, which is the user's. False with the first error; the other tasks' lines
   are written all the same. */
bool record_dump(const struct record_order *order, const struct rings_source *source, struct error *error);

/* The same in a child, which becomes the user if this process is root. Returns the child, which the caller reaps; or
   -1. What the rings hold now is written: the memory is copied before this returns. The order's `lost` gets an error.
   */
pid_t record_dump_beside(const struct record_order *order, const struct rings_source *source);

/* Notes in `lost`, as in struct record_order, why a record is not written. */
void record_note_lost(struct error *lost, const char *reason);

/* "signal 9", "code 1". */
void record_end_text(int wait_status, char *text, size_t bytes);

/* The stacks of a process's Python threads, which slurm_ddp's faulthandler writes to a memory file when it
   gets a signal (libruntime/python/slurm_ddp/slurm_ddp/stack.py). The file's name tells the signal. A process without
   such a file, or without a handler, gets none. */
enum { STACK_TEXT_MAX = 12288, STACK_WAIT_MS = 1500 };

struct stack {
	int file;     /* -1: the process has none */
	off_t before; /* what the file held before */
};

/* Asks a process for its stacks. False: it has no such file; stack_take() must not be called. */
bool stack_ask(pid_t pid, struct stack *stack);
/* Waits until the process has written, at most until `deadline_ns` (ddp_now_ns()), and closes the file. Returns
   text of lines, to be freed; NULL: nothing came. */
char *stack_take(struct stack *stack, unsigned long long deadline_ns);

/* The signal in the target of a link such as "/memfd:ddp_stack-59 (deleted)"; 0: it is another file. */
int stack_signal(const char *link);
