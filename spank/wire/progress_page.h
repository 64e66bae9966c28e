/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank's progress page says: what the rank is doing, from the slots of all contexts of its process, as a
   sentence; and which other rank it blames for its end. The rank may have written anything to the page, so each field
   is checked here. Pure; slurmstepd calls it as root. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "watch/progress.h"

/* ---- slots: each context writes one ---- */

/* Makes one description of a copy of the page. A rank waits if any of its contexts does, in what the oldest
   wait says; collectives have the numbers of the context of the step's ranks, so another context's wait
   is told without its number. Phase and step are those that changed last, the error is the one that is least
   over, and the rank has ended its part once all contexts have. Python's slot tells phase and step beside
   libddp's or NCCL's, which tell of collectives. */
void slots_read(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], struct ddp_progress *shown);

/* Whether the ranks go on if one of them dies. */
bool slots_survive(const struct ddp_progress *shown);

/* Whether the rank has gone on without ranks that have died. */
bool slots_have_survived(const struct ddp_progress *shown);

/* Gives the loss of the last step, which only programs of Python tell. False: it is not told. */
bool slots_loss(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], double *loss);

/* Gives how much of the last step the rank waited for gradients, from 0 to 1. False: it is not told. */
bool slots_exposed(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], double *ratio);

/* What a rank has computed: see struct ddp_progress. */
struct slots_compute {
	uint64_t ns, steps;
	uint32_t pid;
};

/* Of the context with most steps. False: none tells. */
bool slots_compute(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], struct slots_compute *compute);

/* ---- what the rank is doing ---- */

enum { PROGRESS_TEXT_MAX = 64, PROGRESS_ERROR_MAX = 256 };

/* This phase says that nothing is known except the program's NCCL operations. */
enum { PROGRESS_NCCL = 1000 };

enum progress_wait { PROGRESS_NO_WAIT, PROGRESS_WAITS_IN_COLLECTIVE, PROGRESS_WAITS_OTHERWISE };

struct progress_text {
	bool known;          /* there is a page of libddp; the rest is zero without one */
	bool closed;         /* ddp_finalize() was called */
	uint32_t phase;      /* enum ddp_phase, enum ddp_progress_phase, PROGRESS_NCCL, or more: unknown */
	int64_t step;        /* 0: none yet */
	int32_t bucket, buckets; /* "3 of 9"; 0 of 0: not told */
	double phase_seconds;    /* since the phase began; below 0: not told */
	uint64_t collective; /* 0: none yet */
	enum progress_wait wait;
	double wait_seconds; /* since the wait, or else the last collective, began; below 0: not told */
	char text[PROGRESS_TEXT_MAX + 1];   /* the collective or the wait; printable; "": not told */
	char error[PROGRESS_ERROR_MAX + 1]; /* printable; "": none */
	uint32_t status;     /* ddp_status of the error */
	uint32_t culprit;    /* the rank that the error is about; UINT32_MAX: none */
	double step_seconds, step_weight; /* of the last step; 0: not told */
	int64_t steps; /* that the training has when it ends; 0: not told */
};

/* `page` is a copy; now_ns is CLOCK_MONOTONIC. */
void progress_text_read(const struct ddp_progress *page, uint64_t now_ns, struct progress_text *progress);

/* "backward", "nccl"; never NULL. */
const char *progress_phase_name(uint32_t phase);

/* A checkpoint, an evaluation or a program's start, of which nobody knows how long it takes. */
bool progress_text_is_busy(const struct progress_text *progress);

/* A number that is lower the less far the rank has got: that of its last collective or, if it tells of
   none, one of its step, in which data comes first. */
uint64_t progress_text_place(const struct progress_text *progress);

/* Adds "in backward of step 12 for 3.2 s, bucket 3 of 9, waiting in collective
   #45 all_reduce f32[10] sum for 3.0 s"; nothing without a page. */
void progress_text_add(struct sink *sink, const struct progress_text *progress);

/* ---- blame: if a rank gives up because of another rank, that other rank is the cause, and the sentence begins with it.
   It still runs, or it had ended without a report. ---- */

#define BLAME_NOBODY UINT32_MAX

/* Whether the page says that the rank could not go on after an error of libddp. */
bool blame_ends_in_error(const struct ddp_progress *page);

/* Whether the page says that the rank gave up because of another rank. If all others wait in vain for this
   rank, because it came too late or called ddp_finalize() too early, the failure is its own. */
bool blame_is_of_peer(const struct ddp_progress *page, uint32_t own_rank);

/* Whether it failed with an error that happened on another rank, such as a full disk. That rank's node reports
   it. */
bool blame_is_shared(const struct ddp_progress *page, uint32_t own_rank);

/* The number of that other rank; BLAME_NOBODY: the page does not name it, or names its own rank. */
uint32_t blame_of(const struct ddp_progress *page, uint32_t own_rank);

/* Whether the error is that another rank did not come in time, or that it leaves. The end of its program may come
   much later than that of this one. */
bool blame_cause_is_late(const struct ddp_progress *page, uint32_t own_rank);

struct blamed {
	uint32_t rank, world_size;
	const char *node;
	bool runs;
	bool stopped;                 /* by a signal or a debugger */
	int wait_status;              /* if it has ended: how, */
	double seconds_ago;           /* and how long ago; below 0: another report says that */
	struct ddp_progress progress; /* if it runs: a copy of its page */
	uint64_t now_ns;              /* CLOCK_MONOTONIC */
};

/* "rank 3 of 4 on n1 was still running (or: was stopped by a signal or a debugger), in forward of step 4 for 8.1 s",
   or "rank 3 of 4 on n1 had ended with code 0, 4.2 s before". False if that rank failed, because its failure has its
   own report. */
bool blame_describe(const struct blamed *blamed, char *text, size_t bytes);

/* How a sentence goes on that begins with such a rank, where only others tell of it. */
#define BLAME_LATE " did not come; "
#define BLAME_LOST " was lost; "

/* Adds "rank 3 of 4 on n1 did not come; " or "... was lost; ", as the page of a rank that gave up
   tells; nothing if the page names no other rank. */
void blame_add_culprit(const struct ddp_progress *page, uint32_t own_rank, uint32_t world_size,
                       struct sink *sink);

/* Ranks that have never met do not know each other's nodes, so a sentence may begin with a rank without "on n1".
   Returns the place at which it is missing, and sets *rank; NULL: it is not missing. */
const char *blame_place_of_node(const char *text, uint32_t *rank);
