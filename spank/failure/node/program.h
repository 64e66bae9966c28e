/* SPDX-License-Identifier: Apache-2.0 */
/* Which program a task runs, says the kernel. The caller is the task's user. libc only. */
#ifndef SPANK_PROGRAM_H
#define SPANK_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/failure/stall_note.h"

struct program {
	char name[STALL_PROGRAM_MAX + 1]; /* its file, without the folder; "": not known */
	bool has_libddp;                  /* libddp is loaded, so that a page may come */
	uint32_t age_ms;
};

/* The process itself, or what a shell or another launcher has started for it: its first child, and that one's. */
void program_of(pid_t pid, struct program *program);

/* "python3.11": the interpreter of Python, by its name. */
bool program_is_python(const char *name);

#endif
