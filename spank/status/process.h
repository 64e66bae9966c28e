/* SPDX-License-Identifier: Apache-2.0 */
/* /proc tells this of one process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
	pid_t pid, parent;
	char name[32];
	uint64_t start;  /* in ticks since boot: tells a number's next owner */
	uint64_t cpu_ms; /* used so far, by all threads */
	char state;      /* of /proc/PID/stat; R or D if any thread is in that */
};

/* False if there is no such process, or not ours to look at. */
bool process_read(pid_t pid, struct process *process);

/* The real user of the process. The owner of /proc/PID does not tell it: the folder is root's if a user's process has
   made itself undumpable. False if there is no such process. */
bool process_owner(pid_t pid, uid_t *owner);

/* The value of a variable in the environment with which the process was started:
   false if it lacks it, or does not fit. `block` is of process_environment(). */
bool process_variable(const char *block, size_t block_bytes, const char *name, char *value, size_t bytes);
/* malloc'd, NUL after each variable; NULL if it cannot be read. */
char *process_environment(pid_t pid, size_t *bytes);

/* The kernel's function in which the process sleeps; "" if that is not told. */
void process_wait_channel(pid_t pid, char *text, size_t bytes);

const char *process_state_name(char state);
