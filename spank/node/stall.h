/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ranks of a node stall: none has made progress for some time, and none
   is in a phase that may take any time. Pure, but for program_of(): the caller brings what
   it sees of the ranks, and the time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/wire/relay.h"
#include "watch/progress.h"

enum stall_end { STALL_NO_END, STALL_GOOD_END, STALL_BAD_END };

/* One rank, as its node sees it. */
struct stall_rank {
	uint32_t rank;       /* UINT32_MAX: not known yet */
	enum stall_end end;
	bool stopped;        /* by a signal or a debugger */
	bool is_task;        /* the process that writes the page is the task itself, not its child */
	uint64_t changed_ns; /* when any of it last changed; CLOCK_MONOTONIC; 0: not looked at */
	uint64_t closed_ns;  /* when it was first seen to have called ddp_finalize(); 0: it was not */
	uint64_t seen_ns;    /* the last look, */
	uint64_t cpu_ms;     /* and the processor time that the task had used by then */
	struct ddp_progress page;
};

/* Takes what is there now: a copy of the rank's page, how its task has ended, and whether
   it is stopped. */
void stall_see(struct stall_rank *rank, const struct ddp_progress *page, enum stall_end end,
               bool stopped, uint64_t now_ns);

/* A rank that has called ddp_finalize() tells no more of what it does, such as writing a result:
   until it exits, the processor time that its task uses is its progress. `pid` is the task's. */
void stall_see_task(struct stall_rank *rank, uint32_t pid, uint64_t cpu_ms, uint64_t now_ns);

/* Nobody looked for so long, as when the step is suspended: that time does not count. */
void stall_forget_time(struct stall_rank *ranks, uint32_t count, uint64_t lost_ns);

/* Whether nothing of the rank has changed for so many seconds. */
bool stall_is_quiet(const struct stall_rank *rank, uint32_t seconds, uint64_t now_ns);

struct stall_node {
	const char *name;
	uint32_t world_size;
	uint32_t seconds; /* of stall= */
	const struct stall_rank *ranks;
	uint32_t count;
};

/* The node stalls when all its ranks are quiet and have ended or have a page of
   libddp, and none that runs is in a checkpoint or an evaluation. A rank that has called
   ddp_finalize() and does not exit is at work, too. */
void stall_judge_node(const struct stall_node *node, uint64_t now_ns, struct stall_note *note);

/* A rank of another node that waits asks often, and gives up at last. */
#define STALL_WANTED_NS 6000000000ull

/* Whatever stall= says: one of the node's ranks keeps others waiting, as far as the node can see. It was
   stopped before the last look already, or others have asked after it and it waits for nobody. The
   note tells of that rank, and does not count as a stall. False: there is no such rank. */
bool stall_judge_late(const struct stall_node *node, uint64_t now_ns, struct stall_note *note);

/* Whatever stall= says: the node is blocked, and told to stall, when each of its ranks has ended
   with code 0 and without ddp_init(), or waits there for the others. If all nodes are, the waiting
   ranks wait for ever. False: it is not, and never will be. */
bool stall_judge_start(const struct stall_node *node, uint64_t now_ns, struct stall_note *note);

/* ---- whether stall=, watch= or python= see nothing of what a node's ranks do. A program may start for any time, so
   that nothing is said before the times below; who sees nothing says so in time, and not only when it is too late.
   ---- */

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
enum {
	UNSEEN_PYTHON_MS = 20000, UNSEEN_PAGE_MS = 120000, UNSEEN_START_MS = 600000,
	UNSEEN_STALLS = 20, UNSEEN_LEAST_MS = 20000,
};

/* True: the note tells of ranks that are not seen. */
bool unseen_judge(const struct unseen_watch *watch, const struct stall_node *node, struct stall_note *note);
