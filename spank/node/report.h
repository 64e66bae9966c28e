/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sentence about a task that failed. It runs as root and reads a page to which the task may have written
 * anything, so it checks each value. Pure.
 */
#ifndef SPANK_REPORT_H
#define SPANK_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/node/supervise.h"
#include "watch/progress.h"

/* The line about a step in a node's own log: what has run there, and how that ended. Pure. */

/* "step 7.0: ranks 2 to 3 of 4 on n1: rank 3 exited with code 7 first, and 1 more did not end
   well; plugin 0.2". Printable bytes only, and nothing that a user chose. */
void journal_step(const struct supervise *supervise, uint32_t job_id, uint32_t step_id,
                  const char *version, char *text, size_t bytes);

/*
 * What this node knows of those of its ranks for which other ranks have waited: they still run, or they have
 * ended without a report.
 */

/* Whether `rank` is one of the node's. */
bool blame_is_local(const struct supervise *supervise, uint32_t rank);

/* Says what `rank` does, or how it had ended (see blame_describe()). False: it is
   not of this node, or its end has a report of its own. */
bool blame_local(const struct supervise *supervise, uint32_t rank, uint64_t now_ns, char *text,
                 size_t bytes);

/* Says which task of the node had ended with code 0. False: none. */
bool blame_early_end(const struct supervise *supervise, uint64_t now_ns, char *text, size_t bytes);

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

#endif
