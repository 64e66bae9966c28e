/* SPDX-License-Identifier: Apache-2.0 */
/*
 * If a rank gives up because of another rank, that other rank is the cause, and the sentence begins with
 * it. It still runs, or it had ended without a report. Pure; report.h says how the page is read.
 */
#ifndef SPANK_BLAME_H
#define SPANK_BLAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/sink.h"
#include "watch/progress.h"

#define BLAME_NOBODY UINT32_MAX

/* Whether the page says that the rank has not gone on after an error of libddp. */
bool blame_ends_in_error(const struct ddp_progress *page);

/* Whether the page says that the rank gave up because of another one. One that all others miss, as
   it came too late or called ddp_finalize() too early, has a failure of its own. */
bool blame_is_of_peer(const struct ddp_progress *page, uint32_t own_rank);

/* Whether it failed with an error that another rank has met, such as a full disk: that one's node
   tells of it. */
bool blame_is_shared(const struct ddp_progress *page, uint32_t own_rank);

/* That other one's rank; BLAME_NOBODY: the page does not name it, or names its own. */
uint32_t blame_of(const struct ddp_progress *page, uint32_t own_rank);

/* Whether the error is that another rank did not come in time. */
bool blame_is_timeout(const struct ddp_progress *page);

struct blamed {
	uint32_t rank, world_size;
	const char *node;
	bool runs;
	bool stopped;                 /* by a signal or a debugger */
	int wait_status;              /* of one that has ended, */
	double seconds_ago;           /* so long ago; below 0: to be said by somebody else */
	struct ddp_progress progress; /* of one that runs; a copy */
	uint64_t now_ns;              /* CLOCK_MONOTONIC */
};

/*
 * "rank 3 of 4 on n1 was still running (or: was stopped by a signal or a debugger), in forward of step 4 for 8.1 s", or "rank 3
 * of 4 on n1 had ended with code 0, 4.2 s before". False for one that failed: that
 * has its own report.
 */
bool blame_describe(const struct blamed *blamed, char *text, size_t bytes);

/* How a sentence goes on that begins with such a rank, where only others tell of it. */
#define BLAME_LATE " did not come; "
#define BLAME_LOST " was lost; "

/* Adds "rank 3 of 4 on n1 did not come; " or "... was lost; ", as the page of a rank that gave up
   tells; nothing if the page names no other rank. */
void blame_add_culprit(const struct ddp_progress *page, uint32_t own_rank, uint32_t world_size,
                       struct sink *sink);

/* Where "on n1" is missing in a sentence that begins so, as ranks that have never met do not know each
   other's nodes, and of which rank it is; NULL: nowhere. */
const char *blame_place_of_node(const char *text, uint32_t *rank);

#endif
