/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence about a task that failed. It runs as root and reads a page to which the task may have written
   anything, so it checks each value. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "watch/progress.h"

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
