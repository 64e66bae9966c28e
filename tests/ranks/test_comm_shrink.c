/* SPDX-License-Identifier: Apache-2.0 */
/* runs: tsan; all: unit asan; takes: 9 */
/* Those that are left of a broken communicator go on. */
#include <limits.h>
#include <stdatomic.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "tests/support/comm_shrink.h"
#include "tests/support/hung.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1, 0, 1 };

/* ---- after each kind of error ---------------------------------------------------------- */

static int go_on_without_the_dead(ddp_comm *comm, void *argument)
{
	ddp_status status = DDP_OK;
	ddp_comm *survivors;
	static float x[30000];

	CHECK(ddp_comm_shrink(comm, &survivors) == DDP_ERR_STATE);
	for (int i = 0; i < 1000 && status == DDP_OK; i++) {
		if (ddp_comm_rank(comm) == 1 && i == 3)
			kill(getpid(), SIGKILL);
		status = ddp_all_reduce(comm, NULL, x, 30000, DDP_F32, DDP_SUM);
	}
	CHECK(status == DDP_ERR_PEER);
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(comm, 1, 1)));
	return 0;
}

TEST(survivors_go_on)
{
	test_run_shrinking(2, NULL, 0, go_on_without_the_dead, NULL);
	test_run_shrinking(4, NULL, 0, go_on_without_the_dead, NULL);
	test_run_shrinking(3, two_nodes, 0, go_on_without_the_dead, NULL);
	test_run_shrinking(4, two_nodes, 0, go_on_without_the_dead, NULL);
}

static int shrink_with_all_alive(ddp_comm *comm, void *argument)
{
	const ddp_status *status = argument;

	test_break(comm, *status);
	ddp_comm *again = test_shrink_to_all_but(comm, 0, 0);
	/* What came of it may break, too. */
	test_break(again, *status);
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(again, 0, 0)));
	CHECK_OK(ddp_comm_free(again));
	return 0;
}

TEST(shrink_works_after_every_kind_of_error)
{
	static ddp_status kinds[] = { DDP_ERR_ABORTED, DDP_ERR_MISMATCH, DDP_ERR_TIMEOUT };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		test_run_shrinking(3, NULL, 0, shrink_with_all_alive, &kinds[i]);
		test_run_shrinking(3, two_nodes, 0, shrink_with_all_alive, &kinds[i]);
	}
}

/* Who never wants to give up gives the longest deadline there is. */
TEST(the_longest_deadline_does_not_pass_at_once)
{
	static ddp_status aborted = DDP_ERR_ABORTED;

	test_run_shrinking(3, NULL, INT_MAX, shrink_with_all_alive, &aborted);
	test_run_shrinking(3, two_nodes, INT_MAX, shrink_with_all_alive, &aborted);
}

static int leave_and_shrink(ddp_comm *comm, void *argument)
{
	test_ranks_together(); /* one that still opened would miss it there */
	if (ddp_comm_rank(comm) == 1)
		return 0;
	CHECK(ddp_barrier(comm) == DDP_ERR_PEER);
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(comm, 1, 1)));
	return 0;
}

TEST_RUNS(who_has_left_does_not_count, test_run_shrinking(3, NULL, 0, leave_and_shrink, NULL));

/* ---- a rank that stays away -------------------------------------------------------------- */

static void await(atomic_int *done, int count)
{
	while (atomic_load(done) < count)
		usleep(1000);
}

/* Ranks that come when the others have gone on are told so; who has gone on stays until then, as
   they must still find the others' word. `done` counts both. */
static void go_on_without_the_late(ddp_comm *comm, atomic_int *done, int first, int out, const char *told)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *survivors;

	if (rank >= first && rank < first + out) {
		await(done, size - out);
		CHECK_FAILS(ddp_comm_shrink(comm, &survivors), DDP_ERR_PEER, told);
		atomic_fetch_add(done, 1);
		return;
	}
	survivors = test_shrink_to_all_but(comm, first, out);
	atomic_fetch_add(done, 1);
	await(done, size);
	CHECK_OK(ddp_comm_free(survivors));
}

/* The ranks that shrink begin at different times, and so wait for the one that
   does not until different times. */
static int shrink_without_the_last(ddp_comm *comm, void *done)
{
	/* Not while another rank is still opening it. */
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_barrier(comm));
		ddp_comm_abort(comm, "the test wants it");
	}
	while (ddp_barrier(comm) == DDP_OK)
		continue;
	usleep(ddp_comm_rank(comm) == 1 ? 300000 : 0);
	go_on_without_the_late(comm, done, 2, 1, "went on without rank 2");
	return 0;
}

TEST(live_rank_that_stays_away_is_left_out_by_all)
{
	static const int apart[] = { 0, 0, 1 }, three[] = { 0, 1, 2 };
	const int *const layouts[] = { NULL, two_nodes, apart, three };
	/* Less, and a rank that a busy machine keeps waiting would be left out, and those
	   that wait for it here would hang. */
	const int timeout_ms = 1500 * test_slowness();

	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		atomic_int *done = test_share(sizeof(*done));
		test_run_shrinking(3, layouts[i], timeout_ms, shrink_without_the_last, done);
		test_unshare(done, sizeof(*done));
	}
}

/* Ranks 5 and 6 would carry what their node and the other one tell each other: all hear of it nevertheless. */
static int shrink_without_two_of_a_node(ddp_comm *comm, void *done)
{
	test_break(comm, DDP_ERR_ABORTED);
	go_on_without_the_late(comm, done, 5, 2, "went on without");
	return 0;
}

TEST(ranks_are_heard_though_those_who_would_carry_it_stay_away)
{
	static const int nodes[] = { 0, 0, 0, 0, 1, 1, 1, 1 };
	atomic_int *done = test_share(sizeof(*done));

	/* As above. */
	test_run_shrinking(8, nodes, 3000 * test_slowness(), shrink_without_two_of_a_node, done);
	test_unshare(done, sizeof(*done));
}

/* ---- a rank that is slow to see the failure ------------------------------------------------ */

enum { SLOW_COUNT = 300000, PAGE_ELEMENTS = 1024 };

static float *slow_page;
static atomic_bool *held; /* all ranks share it */
static const ddp_node *slow_node;

/* Rank 0's thread is held here, in the middle of its part of the sum, until each
   of the others has told the rest that it shrinks. */
static void let_the_others_shrink(int number)
{
	atomic_store(held, true);
	for (int i = 1; i < slow_node->size; i++) {
		while (atomic_load(&slow_node->shared->ranks[i].agreement) == 0)
			usleep(1000);
	}
	if (mprotect(slow_page, PAGE_ELEMENTS * sizeof(float), PROT_READ | PROT_WRITE) != 0)
		_exit(1);
}

static void *abort_when_held(void *comm)
{
	while (!atomic_load(held))
		usleep(1000);
	ddp_comm_abort(comm, "the test wants it");
	return NULL;
}

/* What it still writes to others must not touch what these tell each other. */
static int shrink_while_one_still_works(ddp_comm *comm, void *argument)
{
	const struct sigaction hold = { .sa_handler = let_the_others_shrink };
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	float *x = mmap(NULL, SLOW_COUNT * sizeof(float), PROT_READ | PROT_WRITE,
	                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;

	test_ranks_together(); /* the last aborts as soon as rank 0 is held */
	held = argument;
	slow_node = &comm->node;
	CHECK(x != MAP_FAILED);
	slow_page = x + 4 * PAGE_ELEMENTS;
	if (rank == 0) {
		CHECK(sigaction(SIGSEGV, &hold, NULL) == 0);
		CHECK(mprotect(slow_page, PAGE_ELEMENTS * sizeof(float), PROT_NONE) == 0);
	}
	if (rank == size - 1)
		CHECK(pthread_create(&thread, NULL, abort_when_held, comm) == 0);
	CHECK(ddp_all_reduce(comm, NULL, x, SLOW_COUNT, DDP_F32, DDP_SUM) == DDP_ERR_ABORTED);
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(comm, 0, 0)));
	if (rank == size - 1)
		CHECK(pthread_join(thread, NULL) == 0);
	return 0;
}

TEST(who_still_works_does_not_disturb_the_others)
{
	atomic_bool *flag = test_share(sizeof(*flag));

	test_run_shrinking(3, NULL, 0, shrink_while_one_still_works, flag);
	test_unshare(flag, sizeof(*flag));
}

/* ---- a rank that dies meanwhile ----------------------------------------------------------- */

static void *die_soon(void *delay_us)
{
	usleep(*(const useconds_t *)delay_us);
	kill(getpid(), SIGKILL);
	return NULL;
}

/* Whatever the moment, the others end up together. */
static int shrink_while_one_dies(ddp_comm *comm, void *argument)
{
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *now = comm, *next;
	pthread_t thread;

	while (ddp_barrier(comm) == DDP_OK) {
		if (rank == 0)
			ddp_comm_abort(comm, "the test wants it");
	}
	if (rank == 1)
		CHECK(pthread_create(&thread, NULL, die_soon, argument) == 0);
	/* It may still have been counted in: then the new one breaks. */
	ddp_status status = DDP_ERR_ABORTED;
	for (int i = 0; i < 3 && status != DDP_OK; i++) {
		CHECK_OK(ddp_comm_shrink(now, &next));
		if (now != comm)
			CHECK_OK(ddp_comm_free(now));
		now = next;
		while ((status = ddp_barrier(now)) == DDP_OK && ddp_comm_size(now) == size)
			continue;
		CHECK(status == DDP_OK || status == DDP_ERR_PEER);
	}
	CHECK(ddp_comm_size(now) == size - 1);
	test_expect_sum(now, rank, size * (size - 1) / 2 - 1);
	CHECK_OK(ddp_comm_free(now));
	return 0;
}

TEST(ranks_agree_although_one_dies_while_they_do)
{
	static const int three_of_three[] = { 0, 0, 0, 1, 1, 1, 2, 2, 2 };
	static useconds_t delays_us[] = { 0, 150, 300, 600, 1200, 2500, 5000, 12000, 30000 };

	for (size_t i = 0; i < sizeof(delays_us) / sizeof(delays_us[0]); i++) {
		if (test_takes(i))
			test_run_shrinking(4, NULL, 0, shrink_while_one_dies, &delays_us[i]);
		if (test_takes(i + 1))
			test_run_shrinking(4, two_nodes, 0, shrink_while_one_dies, &delays_us[i]);
	}
	test_run_shrinking(9, three_of_three, 0, shrink_while_one_dies, &delays_us[3]);
	test_run_shrinking(9, three_of_three, 0, shrink_while_one_dies, &delays_us[7]);
}
