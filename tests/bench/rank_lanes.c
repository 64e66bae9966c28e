/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_lanes [RANKS [ROUNDS]]: how long an all_reduce of 1 KiB takes that is issued behind
 * one of 25 MiB, in its lane and in another; in turns with one by itself. Median,
 * least and most of the rounds, on rank 0.
 */
#include <ddp.h>
#include <stdio.h>

#include "base/clock.h"
#include "rank_turns.h"

enum { SMALL = 256, LARGE = 25 << 18, ROUNDS = 30, ROUNDS_MAX = 1000 };

enum way { ALONE, SAME_LANE, OTHER_LANE, WAYS };
static const char *const names[WAYS] = { "by itself", "behind 25 MiB, same lane", "behind 25 MiB, other lane" };

/* Microseconds from issue to end of the small one. */
static double measure(struct turns *turns, int way, const void *unused)
{
	float *small = turns->memory, *large = small + SMALL;
	const ddp_operation slow = { .kind = DDP_ALL_REDUCE, .recv = large, .count = LARGE };
	const ddp_operation quick = { .kind = DDP_ALL_REDUCE, .recv = small, .count = SMALL,
	                               .lane = way == OTHER_LANE };
	ddp_request *requests[2];

	(void)unused;
	turns_check(ddp_barrier(turns->comm));
	if (way != ALONE)
		turns_check(ddp_issue(turns->comm, &slow, &requests[0]));
	const uint64_t start_ns = ddp_now_ns();
	turns_check(ddp_issue(turns->comm, &quick, &requests[1]));
	turns_check(ddp_wait(requests[1]));
	const double seconds = ddp_seconds_since(start_ns);
	if (way != ALONE)
		turns_check(ddp_wait(requests[0]));
	return seconds * 1e6;
}

int main(int argc, char **argv)
{
	struct turns turns;

	turns_read(&turns, argc, argv, ROUNDS, ROUNDS_MAX);
	turns_open(&turns, (SMALL + LARGE) * sizeof(float));
	turns_run(&turns, WAYS, measure, NULL);
	for (int way = 0; way < WAYS && ddp_comm_rank(turns.comm) == 0; way++)
		printf("1 KiB %-26s %9.1f us (%.1f to %.1f)\n", names[way], turns_median(&turns, way), turns_least(&turns, way),
		       turns_most(&turns, way));
	turns_close(&turns);
	return 0;
}
