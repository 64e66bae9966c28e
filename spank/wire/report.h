/* SPDX-License-Identifier: Apache-2.0 */
/* A failure in words: as one line of KEY=VALUE for programs, and as a sentence for people. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/wire/judge.h"
#include "watch/progress.h"

/* ---- for programs ---- */

/* The line is for a node's log and for the job's comment. spank_ddp(8) lists the keys. Programs read such lines weeks
   later, so a key keeps its name and its meaning as long as `v` stays the same. */
enum {
	EVENT_VERSION = 1,
	EVENT_TEXT_MAX = 320, /* of the sentence, with what escapes its quotes */
	EVENT_LINE_MAX = 768,
	EVENT_NONE = UINT32_MAX, /* a number that is not known */
};

enum event_kind {
	EVENT_NOTHING,
	EVENT_EXIT,      /* a rank ended with an exit code */
	EVENT_CRASH,     /* by a signal such as SIGSEGV */
	EVENT_KILLED,    /* by SIGKILL, and neither by Slurm nor for want of memory */
	EVENT_MEMORY,    /* the kernel killed it for want of memory */
	EVENT_STOPPED,   /* by SIGTERM or SIGINT, which Slurm did not send */
	EVENT_PEER,      /* it gave up because of another rank, of which its node knows nothing */
	EVENT_UNSTARTED, /* tasks ended before their program began */
	EVENT_STALL,     /* no rank made progress for the time of stall= */
	EVENT_SILENCE,   /* srun has heard nothing of the node */
	EVENT_NODE,      /* Slurm says that the node has failed */
	EVENT_RESTARTS,  /* the step could not be restarted any more (restart=) */
};

/* Numbers may be EVENT_NONE, and texts NULL or "". */
struct event {
	enum event_kind kind;
	uint32_t job_id, step_id, uid;
	const char *node;
	uint32_t rank, world_size;
	int wait_status;        /* of the task; 0: not known */
	double seconds;         /* since the program began; below 0: not known */
	uint64_t training_step; /* 0: not known */
	uint32_t generation;    /* with restart=; 0: none */
	uint32_t peer;          /* the rank because of which it gave up */
	uint32_t stalls;        /* how many; EVENT_NONE: not told */
	int64_t time;           /* seconds since 1970 */
	const char *text;       /* the sentence that the user sees */
};

/* Returns the kind that follows from the facts. */
enum event_kind event_kind_of(const struct end_facts *facts);

/* An event of which nothing is known. */
struct event event_begin(enum event_kind kind);

/* Writes "failure v=1 kind=crash job=12 ... text="..."", with the keys that are known. The text comes last. It is cut,
   and a user who chose it cannot end the quotes or the line: what is not printable becomes '?'. */
void event_write(const struct event *event, char *text, size_t bytes);

/* Writes the job's comment with a note of the event: the comment, in which an earlier such note gives way, and "[ddp:
   failure v=1 ...]". A note for requeue= stays behind it. False if there is no room. */
bool event_comment(const struct event *event, const char *comment, char *text, size_t bytes);

/* ---- for people ---- */

/* A task that failed. Root reads its page, to which the task may have written anything, so each value is checked. */
struct failure {
	uint32_t rank, world_size;
	const char *node;             /* printed with '?' for what is not printable */
	uint32_t node_tasks;          /* of which all were killed; 0: it is about the rank */
	bool launcher;                /* the task is the launcher of its node */
	bool out_of_memory;           /* the kernel has killed for want of memory */
	int wait_status;              /* as wait(2) gives it */
	double seconds;               /* since its program began */
	struct ddp_progress progress; /* a copy; zeroed if there is none */
	uint64_t now_ns;              /* CLOCK_MONOTONIC */
};

/* Writes the sentence, cut to `bytes` if need be; printable bytes only. */
void report_failure(const struct failure *failure, char *text, size_t bytes);

/* The sentence about `count` of a node's tasks that ended before their program began. */
void report_unstarted(const char *node, uint32_t count, uint32_t tasks, int wait_status, char *text,
                      size_t bytes);

/* The sentence for when slurmstepd, with the node's tasks in its care, is gone. */
void report_slurmstepd(const char *node, uint32_t tasks, uint32_t world_size, char *text,
                       size_t bytes);
