/* SPDX-License-Identifier: Apache-2.0 */
/* A node's side of stall= and slow=: looks at the pages of its ranks at intervals, and tells srun when all of them
   stall, when one goes on, and how long each computes. It runs in the node's witness, as the user, and for the last
   time in slurmstepd. libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/node/flight.h"
#include "spank/node/stall.h"
#include "spank/node/supervise.h"
#include "spank/wire/relay.h"
#include "watch/progress.h"

/* ---- slow=: how long each rank of the node computes in a step, over windows of some steps. Each rank
   counts that on its progress page. The time in which the rank could run and had no processor, as the kernel counts
   it for each thread, is told apart: a rank that has to share its processors is not slow itself. ---- */

/* A window has so many steps, or as many as fit into a long one, and lasts so long at least; on many nodes longer, as
   each node sends a message for it. */
enum {
	PACE_STEPS = 50, PACE_LONG_STEPS = 5, PACE_LONG_MS = 300000,
	PACE_WINDOW_MS = 2000, PACE_NODE_MS = 10, PACE_LOOK_MS = 500,
};

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

/* ---- stall= ---- */

struct stall_watch {
	struct supervise_shared *shared;
	unsigned char *pages;       /* of the progress file, */
	struct ddp_progress_node *node; /* and the node's own behind them: any rank may write anything there */
	struct stall_rank *ranks;   /* by local task */
	uint32_t count, seconds;
	uint64_t opened_ns, looked_ns; /* 0: not yet */
	int period_ms;              /* from the last look to the next one */
	bool started;               /* none of its ranks waits in ddp_init() any more */
	bool stalls;                /* no rank has made progress for the time of stall= */
	bool told;                  /* srun was told that the node stalls, or waits in ddp_init(), */
	bool unanswered;            /* but may not have heard it, or not that it goes on */
	int again_ms;               /* so long until it is told again; 0: it was answered */
	bool late;                  /* srun was told of a rank that keeps others waiting */
	bool unseen_told;           /* srun was told of ranks that are not seen */
	struct unseen_wanted wanted; /* set by the caller; nothing: srun is told of none */
	uint32_t generation;        /* that the above is about */
	struct relay relay;
	const char *address;        /* of srun; numeric */
	struct flight flight;       /* of record= */
	struct pace_watch pace;     /* of slow=; made by the caller */
};

/* Looks for stall=`seconds` come this far apart: a stall is noticed that much later at most. */
int stall_watch_period_ms(uint32_t seconds);

/* With 0 seconds a node looks whether its ranks wait in ddp_init() for one that has ended. It does so
   until they are past it, or have not come to it for STALL_START_SECONDS: a program without libddp
   never does. The looks come further and further apart. */
enum { STALL_LATE_MIN_MS = 500, STALL_LATE_MAX_MS = 5000 }; /* see late_look_ms() */
enum { STALL_START_MS = 500, STALL_START_MAX_MS = 10000, STALL_START_SECONDS = 600 };

/* Maps what a look needs, so that a process may close the progress file afterwards.
   What it maps is small, and goes with the process. */
bool stall_watch_open(struct stall_watch *watch, const struct supervise *supervise, uint32_t seconds,
                      struct error *error);

/* `stopping`: Slurm has asked the step to stop, so that it no longer stalls. Gives the time until the
   next look; 0: no more looks are needed. */
int stall_watch_check(struct stall_watch *watch, bool stopping, uint64_t now_ns);

/* In a witness that goes on with another one's watch, before its first look: tells srun the node's state in
   any case. */
void stall_watch_begin_again(struct stall_watch *watch);

/* When nobody looks any more: srun takes the node's ranks for ones that go on. In the witness's keeper, and in
   slurmstepd. False: srun has not answered. */
bool stall_watch_give_up(const struct stall_watch *watch);
bool stall_tell_unwatched(const struct supervise *supervise, const struct relay *relay);

/* In slurmstepd, when the node's tasks have ended, and the witness is gone: only srun
   knows whether others wait for one of them. */
void stall_tell_end(const struct supervise *supervise, const struct relay *relay);
