/* SPDX-License-Identifier: Apache-2.0 */
/* With log=, the process ddp-log of each node: what a task writes comes to it by a pipe, and it writes that to the
   task's file and, with the rank in front of each line, to where SLURM takes the task's output.

   slurmstepd forks it before the tasks. It becomes the user, and is not among the processes of the step, which SLURM
   kills: what is in a pipe when the tasks are killed reaches the file. A second process waits beside it, with the same
   descriptors and memory, and makes another one if somebody kills it. It ends when all pipes have ended and
   slurmstepd has called pump_end(). libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/child.h"
#include "spank/base/text.h"

enum { PUMP_LABEL_MAX = 160, PUMP_PATH_MAX = 1200, PUMP_BUFFER_BYTES = 65536 };

/* Of one stream of a task. */
struct pump_stream {
	char label[PUMP_LABEL_MAX]; /* in front of each line for SLURM; "": lines go there as they are */
	char who[PUMP_LABEL_MAX];   /* "rank 3 on n1", for messages */
	char path[PUMP_PATH_MAX];   /* of the file, for messages */
};

enum pump_fd { PUMP_IN, PUMP_OUT, PUMP_FILE, PUMP_SAY, PUMP_FDS };

/* Returns the descriptor by which streams are handed over. Tasks inherit it, and execve(2) closes it. -1, with a
   sentence. `tasks`: of the node. */
int pump_make(const struct owner *owner, uint32_t tasks, struct error *error);

/* In a task: hands a stream over, with descriptors, which the caller closes: what the task writes comes from
   fds[PUMP_IN]; SLURM takes output from fds[PUMP_OUT], and messages from fds[PUMP_SAY]; fds[PUMP_FILE] is a file of
   O_APPEND. Waits until ddp-log has them, for seconds at most. False, with a sentence. */
bool pump_add(int control, const struct pump_stream *stream, const int fds[PUMP_FDS], struct error *error);

/* Whether a process with such a /proc/PID/cgroup is in a control group of version 2 that SLURM has made for a step.
   With proctrack/cgroup, SLURM kills the processes of this group, or waits for them. */
bool pump_shares_group(const char *path);

/* In slurmstepd, behind all tasks: there are no more streams. ddp-log ends as soon as all pipes have ended. */
void pump_close(int control);

/* The same, and waits for so long at most until ddp-log has ended. */
void pump_end(int control, int ms);
