/* SPDX-License-Identifier: Apache-2.0 */
/* For slow=, in the witness: how long each rank of the node computes in a step, over windows of some steps. Each rank
   counts that on its progress page. The time in which the rank could run and had no processor, as the kernel counts
   it for each thread, is told apart: a rank that has to share its processors is not slow itself. libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/wire/notes.h"
#include "watch/progress.h"

/* A window has so many steps, or as many as fit into a long one, and lasts so long at least; on many nodes longer, as
   each node sends a message for it. */
enum { PACE_STEPS = 50, PACE_LONG_STEPS = 5, PACE_LONG_MS = 300000, PACE_WINDOW_MS = 2000, PACE_NODE_MS = 10, PACE_LOOK_MS = 500 };

/* One rank, as its node sees it. */
struct pace_rank {
	bool tells;         /* it counts on its page, and has not ended */
	uint32_t rank;
	pid_t pid;          /* that writes the page */
	uint64_t steps, ns; /* as it counts them */
	uint64_t began_steps, began_ns, began_wait_ns; /* at the window's beginning; began_steps 0: it has not begun */
};

struct pace_watch {
	struct pace_rank *ranks; /* by local task; NULL: nobody asked */
	uint32_t count;
	uint64_t window_ns;  /* when it began */
	uint32_t window_ms;  /* how long it is at least */
	uint32_t next;       /* in a window that is complete: the first rank that was not told; `count`: all were */
};

/* Gets memory. False: there is none. `nodes`: of the step. */
bool pace_open(struct pace_watch *watch, uint32_t count, uint32_t nodes);
void pace_forget(struct pace_watch *watch);

/* Takes a rank's page. `ended`: the rank no longer counts. */
void pace_add_page(struct pace_watch *watch, uint32_t local, uint32_t rank,
                   const struct ddp_progress slots[DDP_PROGRESS_SLOTS], bool ended);

/* Behind all pages: whether a note is to be told, which may be one of several. */
bool pace_next_note(struct pace_watch *watch, uint32_t world_size, uint64_t now_ns, struct pace_note *note);

/* How long a process could run and had no processor, by the thread for which that is longest; 0: the kernel does not
   tell. */
uint64_t pace_wait_ns(pid_t pid);
