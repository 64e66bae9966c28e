/* SPDX-License-Identifier: Apache-2.0 */
/* Whether stall=, watch= or python= see nothing of what a node's ranks do. A program may start for any time, so that
   nothing is said before the times below; who sees nothing says so in time, and not only when it is too late. Pure,
   except that the caller's function looks at a rank's program. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/node/stall.h"
#include "spank/wire/notes.h"

/* Which program a task runs, says the kernel. The caller is the task's user. libc only. */
struct program {
	char name[STALL_PROGRAM_MAX + 1]; /* its file, without the folder; "": not known */
	bool has_libddp;                  /* libddp is loaded, so that a page may come */
	uint32_t age_ms;
};

/* The process itself, or what a shell or another launcher has started for it: its first child, and that one's. */
void program_of(pid_t pid, struct program *program);

/* "python3.11": the interpreter of Python, by its name. */
bool program_is_python(const char *name);

/* The step's keys ask for these. */
struct unseen_wanted {
	bool stall, watch, python;
};

struct unseen_watch {
	struct unseen_wanted wanted;
	uint32_t seconds; /* of stall= */
	uint32_t age_ms;  /* since the node's first program began */
	void (*look)(void *about, uint32_t local_task, struct program *program);
	void *about;
};

/* Python loads slurm_ddp as soon as it starts; a page of libddp, of NCCL or of slurm_ddp may come behind imports; and a
   start may read a large checkpoint. With a short stall=, as in trials, all are shorter. */
enum { UNSEEN_PYTHON_MS = 20000, UNSEEN_PAGE_MS = 120000, UNSEEN_START_MS = 600000, UNSEEN_STALLS = 20, UNSEEN_LEAST_MS = 20000 };

/* True: the note tells of ranks that are not seen. */
bool unseen_judge(const struct unseen_watch *watch, const struct stall_node *node, struct stall_note *note);
