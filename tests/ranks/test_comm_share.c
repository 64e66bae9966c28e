/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* What the communicators of a process share: UCX's worker and its connections, the
   doorbell, threads. A further one costs next to nothing, and what ends one leaves
   the others as they are. */
#include <math.h>
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

static void run(int ranks, const int *node_of, int (*body)(ddp_comm *, void *))
{
	RUN_WORLD(.ranks = ranks, .node_of = node_of, .body = body);
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

TEST(further_group_costs_no_thread_and_no_descriptor)
{
	run(3, NULL, open_many);
	run(4, two_nodes, open_many);
}

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

TEST(communicators_work_side_by_side)
{
	run(4, NULL, run_side_by_side);
	run(4, two_nodes, run_side_by_side);
}

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

TEST(end_of_a_group_leaves_the_world)
{
	run(3, NULL, abort_group);
	run(4, two_nodes, abort_group);
}

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

TEST(end_of_the_world_leaves_a_group)
{
	run(3, NULL, abort_world);
	run(4, two_nodes, abort_world);
}

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

TEST_RUNS(who_leaves_a_group_is_missed, run(4, two_nodes, leave_group));
#endif
