/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_lanes [RANKS [ROUNDS]]: how long an all_reduce of 1 KiB takes that is issued behind
 * one of 25 MiB, in its lane and in another; in turns with one by itself. Median,
 * least and most of the rounds, on rank 0.
 */
#include <ddp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

enum { SMALL = 256, LARGE = 25 << 18, ROUNDS_MAX = 1000, RUNS_UP = 3 };

enum way { ALONE, SAME_LANE, OTHER_LANE, WAYS };
static const char *const names[WAYS] = { "by itself", "behind 25 MiB, same lane", "behind 25 MiB, other lane" };

static void check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "%s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(1);
}

static int compare(const void *left, const void *right)
{
	const double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

/* Microseconds from issue to end of the small one. */
static double measure(ddp_comm *comm, enum way way, float *small, float *large)
{
	const ddp_operation slow = { .kind = DDP_ALL_REDUCE, .recv = large, .count = LARGE };
	const ddp_operation quick = { .kind = DDP_ALL_REDUCE, .recv = small, .count = SMALL,
	                               .lane = way == OTHER_LANE };
	ddp_request *requests[2];

	check(ddp_barrier(comm));
	if (way != ALONE)
		check(ddp_issue(comm, &slow, &requests[0]));
	const uint64_t start_ns = ddp_now_ns();
	check(ddp_issue(comm, &quick, &requests[1]));
	check(ddp_wait(requests[1]));
	const double seconds = ddp_seconds_since(start_ns);
	if (way != ALONE)
		check(ddp_wait(requests[0]));
	return seconds * 1e6;
}

int main(int argc, char **argv)
{
	static double times[WAYS][ROUNDS_MAX];
	const int ranks = argc > 1 ? atoi(argv[1]) : 2, rounds = argc > 2 ? atoi(argv[2]) : 30;
	ddp_spawn_result spawned;
	ddp_context *context;
	void *memory;

	if (rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: rank_lanes [RANKS [ROUNDS]], 1 to %d rounds\n", ROUNDS_MAX);
		return 2;
	}
	check(ddp_spawn(ranks, &spawned));
	if (!spawned.is_rank)
		return spawned.exit_code;
	check(ddp_init(NULL, &context));
	ddp_comm *comm = ddp_world(context);
	check(ddp_mem_alloc(comm, (SMALL + LARGE) * sizeof(float), &memory));
	for (int i = -RUNS_UP; i < rounds; i++) {
		for (int way = 0; way < WAYS; way++) {
			const double us = measure(comm, (enum way)way, memory, (float *)memory + SMALL);
			if (i >= 0)
				times[way][i] = us;
		}
	}
	for (int way = 0; way < WAYS && ddp_comm_rank(comm) == 0; way++) {
		qsort(times[way], (size_t)rounds, sizeof(double), compare);
		printf("1 KiB %-26s %9.1f us (%.1f to %.1f)\n", names[way], times[way][rounds / 2], times[way][0],
		       times[way][rounds - 1]);
	}
	check(ddp_mem_free(comm, memory));
	check(ddp_finalize(context));
	return 0;
}
