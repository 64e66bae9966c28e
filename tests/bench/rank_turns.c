/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_turns.h"

#include <stdio.h>
#include <stdlib.h>

#include "rank.h"

enum { RANKS_MAX = 1024, RUNS_UP = 3 };

void turns_check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "%s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(1);
}

void turns_read(struct turns *turns, int argc, char **argv, int rounds, int rounds_most)
{
	*turns = (struct turns){ .ranks = 2, .rounds = rounds };
	if (argc > 3) {
		fprintf(stderr, "usage: %s [RANKS [ROUNDS]]\n", argv[0]);
		exit(2);
	}
	if (argc > 1)
		turns->ranks = (int)rank_number("RANKS", argv[1], 1, RANKS_MAX);
	if (argc > 2)
		turns->rounds = (int)rank_number("ROUNDS", argv[2], 1, rounds_most);
}

void turns_open(struct turns *turns, size_t bytes)
{
	ddp_spawn_result spawned;

	turns_check(ddp_spawn(turns->ranks, &spawned));
	if (!spawned.is_rank)
		exit(spawned.exit_code);
	turns_check(ddp_init(NULL, &turns->context));
	turns->comm = ddp_world(turns->context);
	turns_check(ddp_mem_alloc(turns->comm, bytes, &turns->memory));
	for (int way = 0; way < TURNS_WAYS_MAX; way++) {
		turns->times[way] = calloc((size_t)turns->rounds, sizeof(double));
		if (turns->times[way] == NULL) {
			perror("rank_turns");
			exit(1);
		}
	}
}

void turns_close(struct turns *turns)
{
	for (int way = 0; way < TURNS_WAYS_MAX; way++)
		free(turns->times[way]);
	turns_check(ddp_mem_free(turns->comm, turns->memory));
	turns_check(ddp_finalize(turns->context));
}

static int compare(const void *left, const void *right)
{
	const double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

void turns_run(struct turns *turns, int ways, turns_measure *measure, const void *argument)
{
	for (int round = -RUNS_UP; round < turns->rounds; round++) {
		for (int turn = 0; turn < ways; turn++) {
			const int way = (turn + round + RUNS_UP) % ways;
			const double time = measure(turns, way, argument);
			if (round >= 0)
				turns->times[way][round] = time;
		}
	}
	for (int way = 0; way < ways; way++)
		qsort(turns->times[way], (size_t)turns->rounds, sizeof(double), compare);
}

double turns_median(const struct turns *turns, int way)
{
	return turns->times[way][turns->rounds / 2];
}

double turns_least(const struct turns *turns, int way)
{
	return turns->times[way][0];
}

double turns_most(const struct turns *turns, int way)
{
	return turns->times[way][turns->rounds - 1];
}
