/* SPDX-License-Identifier: Apache-2.0 */
/* A node's side of stall=: looks at the pages of its ranks at intervals, and tells srun when all of them stall
   and when one goes on. It runs in the node's witness, as the user, and for the last time in slurmstepd. libc
   only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/node/flight.h"
#include "spank/node/pace.h"
#include "spank/node/stall.h"
#include "spank/node/supervise.h"
#include "spank/node/unseen.h"
#include "spank/wire/relay.h"

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
