/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the kernel has killed a process of a step's cgroups because its memory was used up. It is read as
   root, from the kernel's files only. If there is no such cgroup, or it is mounted elsewhere, the answer is not
   known. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { MEMORY_PATH_MAX = 512 };

struct memory_watch {
	char path[MEMORY_PATH_MAX]; /* of the file that counts; "": unknown */
	uint64_t kills;             /* so far */
};

/* Begins to watch the cgroup in which the process is: its step's, with all tasks, if SLURM has made one. */
void memory_start(struct memory_watch *watch, pid_t pid);

/* Whether there was a kill since. */
bool memory_ran_out(const struct memory_watch *watch);

/* From the text of /proc/PID/cgroup, the path of the file, for a kernel with
   memory of version 1 or 2; false if there is none, or it is too long. */
bool memory_find(const char *cgroups, char path[MEMORY_PATH_MAX]);

/* The number behind "oom_kill " at the start of a line; 0 without one. */
uint64_t memory_kills(const char *events);
