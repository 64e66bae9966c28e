/* SPDX-License-Identifier: Apache-2.0 */
/* If a rank gives up because of another rank, that other rank is the cause, and the sentence begins with
   it. It still runs, or it had ended without a report. Pure; report.h says how the page is read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "watch/progress.h"

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
