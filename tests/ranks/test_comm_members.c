/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 6 */
/* Communicators that are made by their members alone. */
#include <limits.h>
#include <pthread.h>
#include <stdint.h>

#include "comm/core/comm.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

enum { RANKS = 5 };

static void run(int timeout_ms, int (*body)(ddp_comm *, void *))
{
	static const int two_nodes[] = { 0, 1, 1, 0, 1 }, all_apart[] = { 0, 1, 2, 3, 4 };
	const int *const layouts[] = { NULL, two_nodes, all_apart };

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

TEST_RUNS(others_take_no_part, run(20000, make_without_others));

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

TEST_RUNS(parts_have_parts, run(20000, make_of_a_part));

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

TEST(tags_tell_those_apart_that_are_made_at_a_time)
{
	for (int i = 0; i < 3; i++)
		run(20000, make_at_the_same_time);
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

TEST_RUNS(receives_of_the_program_take_nothing_of_it, run(20000, receive_meanwhile));

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

	if (ddp_comm_rank(comm) < 2) {
		CHECK_FAILS(ddp_comm_create_group(comm, ranks, 3, 8, &part), DDP_ERR_TIMEOUT, "rank 2");
	}
	test_ranks_together();
	return 0;
}

TEST(wrong_lists_are_refused)
{
	run(20000, give_nonsense);
	run(20000, list_other_ranks);
	run(20000, list_more_ranks);
}

TEST_RUNS(a_member_that_does_not_come_is_named, run(600, miss_one));
