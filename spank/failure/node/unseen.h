/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether stall=, watch= or python= see nothing of what a node's ranks do. A program may start for any time, so that
 * nothing is said before the times below; who sees nothing says so in time, and not only when it is too late. Pure,
 * except that the caller's function looks at a rank's program.
 */
#ifndef SPANK_UNSEEN_H
#define SPANK_UNSEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/failure/node/program.h"
#include "spank/failure/node/stall.h"

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
uint32_t unseen_page_ms(uint32_t stall_seconds);

/* True: the note tells of ranks that are not seen. */
bool unseen_judge(const struct unseen_watch *watch, const struct stall_node *node, struct stall_note *note);

#endif
