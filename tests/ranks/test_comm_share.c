/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan; takes: 6 */
/* What the communicators of a process share: UCX's worker and its connections, the doorbell, threads. A further one
   costs next to nothing, and what ends one leaves the others as they are. And those that are made by their members
   alone. */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/group/build.h"
#include "comm/request.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

enum { GROUPS = 20, LARGE = 24 << 20, STAGED = 8 << 20, STAGED_GROUPS = 3 };

static const int two_nodes[] = { 0, 0, 1, 1 };

/* On one node, and four ranks on two. */
static void run(int ranks_of_one, int (*body)(ddp_comm *, void *))
{
	RUN_WORLD(.ranks = ranks_of_one, .body = body);
	RUN_WORLD(.ranks = 4, .node_of = two_nodes, .body = body);
}

static void expect_sum(ddp_comm *comm)
{
	int32_t sum = ddp_comm_rank(comm) + 1, size = ddp_comm_size(comm);

	CHECK_OK(ddp_all_reduce(comm, NULL, &sum, 1, DDP_I32, DDP_SUM));
	CHECK(sum == size * (size + 1) / 2);
}

/* ---- what a further one costs ---------------------------------------------------------------- */

/* A rank's part of the ranks' memory, on the average: what several have touched counts once. NAN:
   the kernel does not tell. */
static double memory_kib(ddp_comm *comm)
{
	double kib = NAN;
	char line[128];

	CHECK_OK(ddp_barrier(comm));
	FILE *file = fopen("/proc/self/smaps_rollup", "re");
	while (file != NULL && fgets(line, sizeof(line), file) != NULL && sscanf(line, "Pss: %lf", &kib) != 1)
		continue;
	if (file != NULL)
		fclose(file);
	CHECK_OK(ddp_all_reduce(comm, NULL, &kib, 1, DDP_F64, DDP_AVG));
	return kib;
}

/* Groups keep what a sum of `memory` needed that went by way of their own memory. */
static void sum_in_groups(ddp_comm *comm, ddp_comm **groups)
{
	static float memory[STAGED / sizeof(float)];
	const double limit_kib = 1024 + 4 * (double)comm->node.stage_bytes / 1024; /* it has four slots */

	/* What the world and UCX take for the first such sum is not the groups'. */
	memset(memory, 0, sizeof(memory));
	CHECK_OK(ddp_all_reduce(comm, NULL, memory, STAGED / sizeof(float), DDP_F32, DDP_SUM));
	const double before_kib = memory_kib(comm);
	for (int i = 0; i < STAGED_GROUPS; i++)
		CHECK_OK(ddp_all_reduce(groups[i], NULL, memory, STAGED / sizeof(float), DDP_F32, DDP_SUM));
	const double each_kib = (memory_kib(comm) - before_kib) / STAGED_GROUPS;
	if (ddp_comm_rank(comm) == 0)
		printf("# after a sum of %d MiB of a rank's own memory: %.0f KiB more\n", STAGED >> 20, each_kib);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* they keep more, and what was freed */
	(void)limit_kib;
#else
	CHECK(!(each_kib >= limit_kib));
#endif
}

static int open_many(ddp_comm *comm, void *argument)
{
	ddp_comm *groups[GROUPS + 1];
	double shortest = 1e9, shortest_sum = 1e9;

	/* With it come the heap's first pages, and what the world's first use makes. */
	CHECK_OK(ddp_comm_split(comm, 0, 0, &groups[GROUPS]));
	expect_sum(groups[GROUPS]);
	const int descriptors = folder_count("/proc/self/fd", ""), threads = folder_count("/proc/self/task", "");
	CHECK(descriptors > 0 && threads > 0);
	const double before_kib = memory_kib(comm);
	for (int i = 0; i < GROUPS; i++) {
		uint64_t start = ddp_now_ns();
		CHECK_OK(ddp_comm_split(comm, 0, i % 2 == 0 ? ddp_comm_rank(comm) : -ddp_comm_rank(comm), &groups[i]));
		const double seconds = ddp_seconds_since(start);
		shortest = seconds < shortest ? seconds : shortest;
		start = ddp_now_ns();
		expect_sum(groups[i]);
		const double sum_seconds = ddp_seconds_since(start);
		shortest_sum = sum_seconds < shortest_sum ? sum_seconds : shortest_sum;
	}
	CHECK(folder_count("/proc/self/fd", "") == descriptors);
	CHECK(folder_count("/proc/self/task", "") == threads);
	const double each_kib = (memory_kib(comm) - before_kib) / GROUPS;
	if (ddp_comm_rank(comm) == 0)
		printf("# a further group: %.0f KiB, %.1f ms; a sum in one: %.3f ms\n", each_kib, shortest * 1e3,
		       shortest_sum * 1e3);
#ifndef __SANITIZE_THREAD__ /* it keeps several times what a program has */
	CHECK(!(each_kib >= 1024));
	/* 10 ms, and more where ranks wait for a core in each exchange, as in a sum. */
	CHECK(shortest < 0.01 + 20 * shortest_sum);
#endif
	sum_in_groups(comm, groups);
	for (int i = 0; i <= GROUPS; i++)
		CHECK_OK(ddp_comm_free(groups[i]));
	return 0;
}

TEST_RUNS(further_group_costs_no_thread_and_no_descriptor, run(3, open_many));

/* ---- side by side ---------------------------------------------------------------------------- */

enum { SIDES = 3, TIMES = 20, COUNT = 20000 };

/* Operations of several communicators are under way at the same time. */
static int run_side_by_side(ddp_comm *comm, void *argument)
{
	ddp_comm *side[SIDES];
	static float x[SIDES][TIMES][COUNT];
	ddp_request *requests[SIDES][TIMES];
	int rank = ddp_comm_rank(comm);

	CHECK_OK(ddp_comm_split(comm, 0, -rank, &side[0]));
	CHECK_OK(ddp_comm_split(comm, rank % 2, rank, &side[1]));
	side[2] = comm;
	for (int k = 0; k < SIDES * TIMES; k++) {
		/* In another order on each rank. */
		const int s = (k + rank) % SIDES, t = k / SIDES;
		for (int i = 0; i < COUNT; i++)
			x[s][t][i] = (float)(t + i % 5);
		CHECK_OK(ddp_issue(side[s], &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = x[s][t], .count = COUNT,
		                                               .type = DDP_F32, .op = DDP_SUM }, &requests[s][t]));
	}
	for (int s = 0; s < SIDES; s++) {
		for (int t = 0; t < TIMES; t++) {
			CHECK_OK(ddp_wait(requests[s][t]));
			for (int i = 0; i < COUNT; i++)
				CHECK(x[s][t][i] == (float)(ddp_comm_size(side[s]) * (t + i % 5)));
		}
	}
	CHECK_OK(ddp_comm_free(side[0]));
	CHECK_OK(ddp_comm_free(side[1]));
	return 0;
}

TEST_RUNS(communicators_work_side_by_side, run(4, run_side_by_side));

/* ---- the end of one ---------------------------------------------------------------------------- */

/* Rank 1 sends what nobody asks for, and rank 0 aborts: of the group nothing is left
   under way, and the world and another group go on. */
static int abort_group(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm), last = ddp_comm_size(comm) - 1;
	ddp_comm *part, *other, *rest;
	ddp_request *request = NULL;
	unsigned char *memory = malloc(LARGE);

	CHECK(memory != NULL);
	memset(memory, 1, LARGE);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	CHECK_OK(ddp_comm_split(comm, 0, -rank, &other));
	expect_sum(part);
	if (rank == last)
		CHECK_OK(ddp_issue(part, &(ddp_operation){ .kind = DDP_SEND, .send = memory, .count = LARGE,
		                                            .type = DDP_U8, .root = 0 }, &request));
	expect_sum(other);
	if (rank == 0)
		CHECK_OK(ddp_comm_abort(part, "the test wants it"));
	CHECK(ddp_barrier(part) == DDP_ERR_ABORTED);
	/* A message that was refused has ended for its sender, as one has that was kept. */
	if (rank == last) {
		const ddp_status sent = ddp_wait(request);
		CHECK(sent == DDP_ERR_ABORTED || sent == DDP_OK);
	}
	memset(memory, 2, LARGE);
	expect_sum(comm);
	expect_sum(other);
	/* What is left of it, all ranks, reach each other as before. */
	CHECK_OK(ddp_comm_shrink(part, &rest));
	CHECK(ddp_comm_size(rest) == ddp_comm_size(comm));
	expect_sum(rest);
	CHECK_OK(ddp_comm_free(part));
	expect_sum(rest);
	CHECK_OK(ddp_comm_free(rest));
	CHECK_OK(ddp_comm_free(other));
	expect_sum(comm);
	free(memory);
	return 0;
}

TEST_RUNS(end_of_a_group_leaves_the_world, run(3, abort_group));

static int abort_world(ddp_comm *comm, void *argument)
{
	ddp_comm *part;

	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	expect_sum(part);
	if (ddp_comm_rank(comm) == 1)
		CHECK_OK(ddp_comm_abort(comm, "the test wants it"));
	CHECK(ddp_barrier(comm) == DDP_ERR_ABORTED);
	for (int i = 0; i < 5; i++)
		expect_sum(part);
	CHECK_OK(ddp_comm_free(part));
	return 0;
}

TEST_RUNS(end_of_the_world_leaves_a_group, run(3, abort_world));

#ifdef HAVE_UCX
/* Rank 3 is gone from the group, without a word and without the others; its
   connections are still there. */
static int leave_group(ddp_comm *comm, void *argument)
{
	ddp_comm *part;
	float x = 0;

	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	expect_sum(part);
	test_ranks_together(); /* a rank that is still in it would miss rank 3 there */
	if (ddp_comm_rank(comm) == 3) {
		ddp_comm_stop(part);
		ddp_comm_leave(part);
	} else {
		uint64_t start = ddp_now_ns();
		const ddp_status status = ddp_comm_rank(comm) == 0 ? ddp_recv(part, &x, 1, DDP_F32, 3, 0)
		                                                    : ddp_barrier(part);
		CHECK_FAILS(status, DDP_ERR_PEER, "closed its communicator");
		CHECK(ddp_seconds_since(start) < 30); /* of 60 */
		CHECK_OK(ddp_comm_free(part));
	}
	expect_sum(comm);
	return 0;
}

TEST_RUNS(who_leaves_a_group_is_missed, RUN_WORLD(.ranks = 4, .node_of = two_nodes, .body = leave_group));
#endif

/* ---- communicators that are made by their members alone ------------------------------------ */

enum { RANKS = 5 };

static void run_members(int timeout_ms, int (*body)(ddp_comm *, void *))
{
	static const int mixed[] = { 0, 1, 1, 0, 1 }, all_apart[] = { 0, 1, 2, 3, 4 };
	const int *const layouts[] = { NULL, mixed, all_apart };

	for (int i = 0; i < 3; i++)
		RUN_WORLD(.ranks = RANKS, .node_of = layouts[i], .timeout_ms = timeout_ms, .body = body);
}

/* Their sum of `value` is `sum`. */
static void check_sum(ddp_comm *comm, int64_t value, int64_t sum)
{
	CHECK_OK(ddp_all_reduce(comm, NULL, &value, 1, DDP_I64, DDP_SUM));
	CHECK(value == sum);
}

/* ---- members only ---------------------------------------------------------------------------- */

static int make_without_others(ddp_comm *comm, void *argument)
{
	static const int some[] = { 4, 0, 3 }, alone[] = { 2 };
	const int rank = ddp_comm_rank(comm);
	ddp_comm *part = NULL;

	/* The others come when these are through. */
	if (rank == 0 || rank >= 3) {
		for (int i = 0; i < 3; i++) {
			CHECK_OK(ddp_comm_create_group(comm, some, 3, i, &part));
			CHECK(ddp_comm_size(part) == 3 && ddp_comm_rank(part) == (rank == 4 ? 0 : rank == 0 ? 1 : 2));
			check_sum(part, 10 * rank, 70);
			check_sum(part, 1, 3);
			CHECK_OK(ddp_comm_free(part));
		}
	}
	test_ranks_together();
	if (rank == 2) {
		CHECK_OK(ddp_comm_create_group(comm, alone, 1, 0, &part));
		check_sum(part, 5, 5);
		CHECK_OK(ddp_comm_free(part));
	}
	check_sum(comm, 1, RANKS);
	return 0;
}

/* A part has parts, which outlive it. */
static int make_of_a_part(ddp_comm *comm, void *argument)
{
	static const int all[] = { 0, 1, 2, 3, 4 }, ends[] = { 2, 0 };
	const int rank = ddp_comm_rank(comm);
	ddp_comm *first = NULL, *second = NULL;

	if (rank > 0)
		CHECK_OK(ddp_comm_create_group(comm, all + 1, 4, 3, &first));
	if (rank == 1 || rank == 3)
		CHECK_OK(ddp_comm_create_group(first, ends, 2, 3, &second));
	CHECK_OK(ddp_comm_free(first));
	if (second != NULL)
		check_sum(second, rank, 4);
	CHECK_OK(ddp_comm_free(second));
	check_sum(comm, 1, RANKS);
	return 0;
}

/* ---- at the same time -------------------------------------------------------------------------- */

typedef struct making {
	ddp_comm *comm, *part;
	const int *ranks;
	int count, tag;
} making;

static void *make_and_use(void *argument)
{
	making *m = argument;
	int64_t sum = 0;

	CHECK_OK(ddp_comm_create_group(m->comm, m->ranks, m->count, m->tag, &m->part));
	for (int i = 0; i < m->count; i++)
		sum += m->ranks[i] + 100 * m->tag;
	for (int i = 0; i < 20; i++)
		check_sum(m->part, ddp_comm_rank(m->comm) + 100 * m->tag, sum);
	return NULL;
}

static int make_at_the_same_time(ddp_comm *comm, void *argument)
{
	static const int first[] = { 0, 1 }, second[] = { 1, 2, 3 }, all[] = { 4, 3, 2, 1, 0 }, same[] = { 0, 1 };
	const making wanted[] = {
		{ comm, NULL, first, 2, 1 }, { comm, NULL, second, 3, 2 }, { comm, NULL, all, 5, 3 }, { comm, NULL, same, 2, 4 },
	};
	making mine[4];
	pthread_t threads[4];
	const int rank = ddp_comm_rank(comm);
	int count = 0;

	/* Each rank begins with another. */
	for (int i = 0; i < 4; i++) {
		const making *m = &wanted[(i + rank) % 4];
		for (int k = 0; k < m->count; k++) {
			if (m->ranks[k] == rank)
				mine[count++] = *m;
		}
	}
	for (int i = 0; i < count; i++)
		CHECK(pthread_create(&threads[i], NULL, make_and_use, &mine[i]) == 0);
	for (int i = 0; i < count; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	/* One waits for its ranks: in the same order on all. */
	for (int tag = 1; tag <= 4; tag++) {
		for (int i = 0; i < count; i++) {
			if (mine[i].tag == tag)
				CHECK_OK(ddp_comm_free(mine[i].part));
		}
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* ---- beside the program's messages --------------------------------------------------------------- */

static int receive_meanwhile(ddp_comm *comm, void *argument)
{
	static const int all[] = { 0, 1, 2, 3, 4 };
	const int rank = ddp_comm_rank(comm);
	ddp_request *request;
	ddp_received told;
	ddp_comm *part;
	int32_t x = -1;

	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &x, .count = 1, .type = DDP_I32,
	                                            .root = DDP_ANY_SOURCE, .tag = DDP_ANY_TAG, .received = &told }, &request));
	CHECK_OK(ddp_comm_create_group(comm, all, 5, 0, &part));
	CHECK_OK(ddp_send(comm, &rank, 1, DDP_I32, (rank + 1) % RANKS, 0));
	CHECK_OK(ddp_wait(request));
	CHECK(x == (rank + RANKS - 1) % RANKS && told.source == x && told.tag == 0);
	check_sum(part, 1, RANKS);
	CHECK_OK(ddp_comm_free(part));
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* ---- refusals -------------------------------------------------------------------------------------- */

static int give_nonsense(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm), own[] = { rank }, other[] = { (rank + 1) % RANKS }, twice[] = { rank, rank },
	          beyond[] = { rank, RANKS };
	ddp_comm *part = comm;

	CHECK(ddp_comm_create_group(NULL, own, 1, 0, &part) == DDP_ERR_INVALID && part == NULL);
	CHECK(ddp_comm_create_group(comm, NULL, 1, 0, &part) == DDP_ERR_INVALID);
	CHECK(ddp_comm_create_group(comm, own, 0, 0, &part) == DDP_ERR_INVALID);
	CHECK(ddp_comm_create_group(comm, own, 1, 0, NULL) == DDP_ERR_INVALID);
	CHECK_FAILS(ddp_comm_create_group(comm, own, 1, -1, &part), DDP_ERR_INVALID,
	            "the tag is -1: it must be in 0 .. INT_MAX - 2");
	CHECK(ddp_comm_create_group(comm, own, 1, INT_MAX - 1, &part) == DDP_ERR_INVALID);
	CHECK_FAILS(ddp_comm_create_group(comm, other, 1, 0, &part), DDP_ERR_INVALID, "is not listed: only members call it");
	CHECK_FAILS(ddp_comm_create_group(comm, twice, 2, 0, &part), DDP_ERR_INVALID, "is listed twice");
	CHECK_FAILS(ddp_comm_create_group(comm, beyond, 2, 0, &part), DDP_ERR_INVALID,
	            "ddp_comm_create_group(): rank 5 is not among the communicator's 5");
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* Each of these leaves the world as it was: others take no part, parts have parts, tags tell those apart that are made
   at a time, receives of the program take nothing of the making, and wrong lists are refused. */
static int make_in_turn(ddp_comm *comm, void *argument)
{
	static int (*const bodies[])(ddp_comm *, void *) = { make_without_others, make_of_a_part, make_at_the_same_time,
		make_at_the_same_time, make_at_the_same_time, receive_meanwhile, give_nonsense };

	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
		CHECK(bodies[i](comm, NULL) == 0);
	return 0;
}

TEST_RUNS(members_alone_make_communicators, run_members(20000, make_in_turn));

static int list_other_ranks(ddp_comm *comm, void *argument)
{
	static const int one[] = { 0, 1, 2 }, another[] = { 0, 2, 1 };
	ddp_comm *part;

	if (ddp_comm_rank(comm) < 3) {
		CHECK_FAILS(ddp_comm_create_group(comm, ddp_comm_rank(comm) == 0 ? one : another, 3, 8, &part), DDP_ERR_MISMATCH,
		            "ddp_comm_create_group() or new_group(), tag 8: ");
		CHECK_SAYS("list different ranks");
		CHECK(part == NULL);
	}
	test_ranks_together();
	return 0;
}

static int list_more_ranks(ddp_comm *comm, void *argument)
{
	static const int ranks[] = { 0, 1, 2, 3, 4 };
	ddp_comm *part;

	CHECK(ddp_comm_create_group(comm, ranks, ddp_comm_rank(comm) == 4 ? 5 : 4 + (ddp_comm_rank(comm) == 0), 8, &part) != DDP_OK);
	CHECK_SAYS("list different ranks");
	test_ranks_together();
	return 0;
}

static int miss_one(ddp_comm *comm, void *argument)
{
	static const int ranks[] = { 0, 1, 2 };
	ddp_comm *part;

	if (ddp_comm_rank(comm) < 2)
		CHECK_FAILS(ddp_comm_create_group(comm, ranks, 3, 8, &part), DDP_ERR_TIMEOUT, "rank 2");
	test_ranks_together();
	return 0;
}

TEST(wrong_lists_are_refused)
{
	run_members(20000, list_other_ranks);
	run_members(20000, list_more_ranks);
}

TEST_RUNS(a_member_that_does_not_come_is_named, run_members(600, miss_one));
