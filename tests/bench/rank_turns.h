/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_turns: what benchmarks share whose ranks are forks of one program, and in which some ways to do the same take
 * turns: PROGRAM [RANKS [ROUNDS]]. An error ends the program with a message.
 */
#ifndef BENCH_RANK_TURNS_H
#define BENCH_RANK_TURNS_H

#include <ddp.h>
#include <stddef.h>

enum { TURNS_WAYS_MAX = 4 };

struct turns {
	int ranks, rounds;
	ddp_context *context;
	ddp_comm *comm;
	void *memory;                   /* of ddp_mem_alloc() */
	double *times[TURNS_WAYS_MAX];  /* [rounds] of each way in ascending order, after turns_run() */
};

/* Reads the arguments; 2 ranks and `rounds` rounds where they are missing. */
void turns_read(struct turns *turns, int argc, char **argv, int rounds, int rounds_most);

/* Forks the ranks and opens their world, with so many bytes of memory. The starter of the ranks exits here. */
void turns_open(struct turns *turns, size_t bytes);
void turns_close(struct turns *turns);

/* Each round measures all ways, another one first in each; some rounds before do not count. */
typedef double turns_measure(struct turns *turns, int way, const void *argument);
void turns_run(struct turns *turns, int ways, turns_measure *measure, const void *argument);

double turns_median(const struct turns *turns, int way);
double turns_least(const struct turns *turns, int way);
double turns_most(const struct turns *turns, int way);

void turns_check(ddp_status status);

#endif
