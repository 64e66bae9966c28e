/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit bare */
/* What goes wrong among ranks: every one of them gets an error that says why. */
#include <stdatomic.h>
#include <stdint.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/wait/await.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/hung.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1, 0, 1 };

static void run(int ranks, const int *node_of, int timeout_ms, int (*body)(ddp_comm *, void *))
{
	RUN_WORLD(.ranks = ranks, .node_of = node_of, .timeout_ms = timeout_ms, .body = body, .expect_deaths = true);
}

static void run_both(int on_one_node, int on_two, int (*body)(ddp_comm *, void *))
{
	run(on_one_node, NULL, 0, body);
	run(on_two, two_nodes, 0, body);
}

/* By two ranks, and by four. */
static void run_each(int (*body)(ddp_comm *, void *))
{
	if (test_takes(0))
		run_both(2, 4, body);
	if (test_takes(1))
		run_both(4, 2, body);
}

/* On one node and on two; the argument is a counter that the ranks share. */
static void run_counting(int ranks, int (*body)(ddp_comm *, void *))
{
	for (int nodes = 1; nodes <= 2; nodes++) {
		atomic_int *counter = test_share(sizeof(*counter));
		RUN_WORLD(.ranks = ranks, .node_of = nodes == 1 ? NULL : two_nodes, .body = body, .argument = counter);
		test_unshare(counter, sizeof(*counter));
	}
}

/* After a failure every call gives it again, at once. */
static void expect_broken(ddp_comm *comm, ddp_status status)
{
	uint64_t start = ddp_now_ns();
	float x = 0;

	CHECK(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_SUM) == status);
	CHECK(ddp_barrier(comm) == status);
	CHECK(ddp_seconds_since(start) < 5);
}

/* Ranks meet; the failure to come may overtake what they meet by. */
static void meet(ddp_comm *comm, ddp_status failure)
{
	ddp_status status = ddp_barrier(comm);

	CHECK(status == DDP_OK || status == failure);
}

/* ---- mismatch -------------------------------------------------------------------- */

static int issue_different_kinds(ddp_comm *comm, void *argument)
{
	float x[100] = { 0 };

	meet(comm, DDP_ERR_MISMATCH);
	ddp_status status = ddp_comm_rank(comm) == 1
		? ddp_broadcast(comm, x, 100, DDP_F32, 0)
		: ddp_all_reduce(comm, NULL, x, 100, DDP_F32, DDP_SUM);
	/* Between nodes one may be through before the other is known. */
	if (status == DDP_OK)
		status = ddp_barrier(comm);
	CHECK_FAILS(status, DDP_ERR_MISMATCH, "broadcast f32[100] root 0");
	CHECK_SAYS("all_reduce f32[100] sum");
	/* Who is wrong; and one rank tells the user. */
	CHECK(ddp_last_error_is_told() == (ddp_comm_rank(comm) != 0));
	CHECK_SAYS("rank 1 on n");
	CHECK_SAYS(ddp_comm_size(comm) == 4 ? " issued broadcast f32[100] root 0, but the 3 others issued "
	                                         : " issued broadcast f32[100] root 0, but rank 0 on n0 issued ");
	expect_broken(comm, DDP_ERR_MISMATCH);
	return 0;
}

TEST_RUNS(different_kinds_are_named, run_each(issue_different_kinds));

static int issue_different_counts(ddp_comm *comm, void *argument)
{
	size_t count = ddp_comm_rank(comm) == 0 ? 70000 : 70001;
	float *x = calloc(count, sizeof(*x));

	test_ranks_together(); /* one that still opened would fail to */
	CHECK_FAILS(ddp_all_reduce(comm, NULL, x, count, DDP_F32, DDP_MAX), DDP_ERR_MISMATCH, "f32[70000] max");
	CHECK_SAYS("f32[70001] max");
	free(x);
	return 0;
}

TEST(different_counts_are_named)
{
	static const int three_nodes[] = { 0, 1, 2 };

	run(2, NULL, 0, issue_different_counts);
	run(2, two_nodes, 0, issue_different_counts);
	/* The network is measured meanwhile. */
	run(3, three_nodes, 0, issue_different_counts);
}

/* One rank gives other counts, in each of the v-forms. */
static int issue_different_v_counts(ddp_comm *comm, void *argument)
{
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	size_t counts[4] = { 3, 3, 3, 3 }, recv_counts[4] = { 3, 3, 3, 3 };
	float send[16] = { 0 }, recv[16];
	const ddp_operation_kind *kind = argument;
	const ddp_operation c = { .kind = *kind, .send = send, .recv = recv, .counts = counts,
	                           .recv_counts = *kind == DDP_ALL_TO_ALL ? recv_counts : NULL };

	meet(comm, DDP_ERR_MISMATCH);
	if (rank == 1)
		counts[size - 1] = 4;
	ddp_status status = ddp_run(comm, &c);
	if (status == DDP_OK)
		status = ddp_barrier(comm);
	CHECK_FAILS(status, DDP_ERR_MISMATCH, "rank 1 on n");
	CHECK_SAYS(ddp_kind_name(*kind));
	if (*kind == DDP_ALL_TO_ALL) {
		char receiver[32];
		snprintf(receiver, sizeof(receiver), "rank %d on n", size - 1);
		CHECK_SAYS(receiver);
	}
	expect_broken(comm, DDP_ERR_MISMATCH);
	return 0;
}

TEST(different_counts_of_v_forms_are_named)
{
	static const ddp_operation_kind kinds[] = { DDP_REDUCE_SCATTER, DDP_ALL_GATHER, DDP_GATHER, DDP_SCATTER,
	                                  DDP_ALL_TO_ALL };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		test_world world = { .ranks = 3, .body = issue_different_v_counts, .argument = (void *)(uintptr_t)&kinds[i] };
		assert_int_equal(test_world_run(&world), 0);
		world.node_of = two_nodes;
		world.ranks = 4; /* ranks 1 and 3 are on one, rank 0 on the other */
		if (test_takes(i))
			assert_int_equal(test_world_run(&world), 0);
		world.ranks = 3; /* ranks 1 and 2 are on different ones */
		if (test_takes(i + 1))
			assert_int_equal(test_world_run(&world), 0);
	}
}

/* Rank 0 frees its part of what rank 1 goes on to use. */
static int free_too_early(ddp_comm *comm, void *argument)
{
	enum { COUNT = 50000 };
	static float private[COUNT];
	float *data = private;
	void *memory;

	ddp_status status = ddp_mem_alloc(comm, COUNT * sizeof(float), &memory);
	if (status == DDP_OK && ddp_comm_rank(comm) == 0)
		CHECK_OK(ddp_mem_free(comm, memory));
	else if (status == DDP_OK)
		data = memory;
	/* On another node a rank may still be allocating when it is told. */
	if (status == DDP_OK)
		status = ddp_all_reduce(comm, NULL, data, COUNT, DDP_F32, DDP_SUM);
	CHECK_FAILS(status, DDP_ERR_STATE, "rank 0 on n0 has freed memory");
	CHECK_SAYS("that rank 1 on n");
	expect_broken(comm, DDP_ERR_STATE);
	return 0;
}

TEST(memory_that_a_rank_freed_too_early_is_named)
{
	static const int nodes[] = { 0, 0, 1 };

	run(2, NULL, 0, free_too_early);
	run(3, nodes, 0, free_too_early);
}

/* ---- absence ----------------------------------------------------------------------- */

static int come_too_late(ddp_comm *comm, void *argument)
{
	meet(comm, DDP_ERR_TIMEOUT);
	uint64_t start = ddp_now_ns();
	if (ddp_comm_rank(comm) == 1) {
		while (!ddp_comm_broken(comm))
			usleep(1000);
		CHECK(ddp_barrier(comm) == DDP_ERR_TIMEOUT);
	} else {
		CHECK_FAILS(ddp_barrier(comm), DDP_ERR_TIMEOUT, "rank 1 on n");
		CHECK(ddp_seconds_since(start) < 1e-3 * comm->timeout_ms + 9);
	}
	expect_broken(comm, DDP_ERR_TIMEOUT);
	return 0;
}

TEST(absent_rank_is_named_at_the_deadline)
{
	/* Less, and another that a busy machine keeps waiting would be named. */
	const int timeout_ms = 500 * test_slowness();

	run(3, NULL, timeout_ms, come_too_late);
	run(3, two_nodes, timeout_ms, come_too_late);
}

static int be_killed(ddp_comm *comm, void *argument)
{
	enum { COUNT = 1 << (SANITIZER ? 17 : 20) };
	static float x[COUNT];
	ddp_status status = DDP_OK;

	meet(comm, DDP_ERR_PEER);
	uint64_t start = ddp_now_ns();
	for (int i = 0; i < 100000 && status == DDP_OK; i++) {
		if (ddp_comm_rank(comm) == 1 && i == 5)
			kill(getpid(), SIGKILL);
		start = ddp_now_ns();
		status = ddp_all_reduce(comm, NULL, x, i % 2 == 0 ? COUNT : 10, DDP_F32, DDP_SUM);
	}
	CHECK_FAILS(status, DDP_ERR_PEER, "rank 1 on n");
	/* The bound is one second; a loaded machine may take longer. */
	CHECK(ddp_seconds_since(start) < 10);
	expect_broken(comm, DDP_ERR_PEER);
	return 0;
}

/* Rank 2 dies, and rank 0 closes a group because of that, before rank 1 looks: rank 1 is told of the dead one. */
static int close_after_death(ddp_comm *comm, void *argument)
{
	atomic_bool *closed = argument;
	ddp_comm *group;
	float x[10] = { 0 };

	CHECK_OK(ddp_comm_split(comm, 0, 0, &group));
	if (comm->rank == 2)
		kill(getpid(), SIGKILL);
	if (comm->rank == 0) {
		ddp_status status = DDP_OK;
		while (status == DDP_OK)
			status = ddp_all_reduce(comm, NULL, x, 10, DDP_F32, DDP_SUM);
		CHECK_SAYS("rank 2 on n");
		(void)ddp_comm_free(group);
		atomic_store(closed, true);
		return 0;
	}
	while (!atomic_load(closed))
		usleep(1000);
	CHECK_FAILS(ddp_all_reduce(group, NULL, x, 10, DDP_F32, DDP_SUM), DDP_ERR_PEER, "rank 2 on n");
	CHECK_SAYS("died");
	(void)ddp_comm_free(group);
	return 0;
}

TEST_RUNS(dead_rank_is_named_before_those_that_left,
          RUN_WORLD(.ranks = 3, .timeout_ms = 20000, .body = close_after_death, .expect_deaths = true,
                    .argument = test_share(sizeof(atomic_bool))));

/* On each node one of the ranks that are left tells the user. No rank that died with the first rank
   does. */
typedef struct telling {
	atomic_int met, tellers[3]; /* of all ranks, and by node */
} telling;

static int lose_the_first_ranks(ddp_comm *comm, void *argument)
{
	enum { LOST = 2 };
	telling *seen = argument;
	ddp_status status = DDP_OK;
	float x = 0;

	meet(comm, DDP_ERR_PEER);
	/* One of them that sees the other's death first would be the one to tell. */
	atomic_fetch_add(&seen->met, 1);
	while (atomic_load(&seen->met) < ddp_comm_size(comm))
		usleep(100);
	if (ddp_comm_rank(comm) < LOST)
		kill(getpid(), SIGKILL);
	while (status == DDP_OK)
		status = ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_SUM);
	CHECK(status == DDP_ERR_PEER);
	const bool told = ddp_last_error_is_told();
	expect_broken(comm, DDP_ERR_PEER);
	CHECK(ddp_last_error_is_told() == told);
	if (!told)
		atomic_fetch_add(&seen->tellers[comm->topology.node_of[ddp_comm_rank(comm)]], 1);
	return 0;
}

TEST(one_rank_of_each_node_that_is_left_tells)
{
#ifdef HAVE_UCX
	static const int nodes[] = { 0, 0, 1, 1, 2, 2 };
#endif
	static const struct { int ranks; const int *node_of; int tellers[3]; } cases[] = {
		{ 4, NULL, { 1 } },
#ifdef HAVE_UCX
		{ 4, nodes, { 0, 1 } }, { 6, nodes, { 0, 1, 1 } },
#endif
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		telling *seen = test_share(sizeof(*seen));

		RUN_WORLD(.ranks = cases[i].ranks, .node_of = cases[i].node_of, .expect_deaths = true, .body = lose_the_first_ranks,
		          .argument = seen, .measures = i == 1);
		for (int node = 0; node < 3; node++)
			assert_int_equal(atomic_load(&seen->tellers[node]), cases[i].tellers[node]);
		test_unshare(seen, sizeof(*seen));
	}
}

TEST_RUNS(killed_rank_is_named, run_each(be_killed));

static int leave_early(ddp_comm *comm, void *argument)
{
	test_ranks_together(); /* one that still opened would miss it there */
	if (ddp_comm_rank(comm) == 1)
		return 0;
	CHECK_FAILS(ddp_barrier(comm), DDP_ERR_PEER, "rank 1 on n0 has closed its communicator");
	return 0;
}

TEST_RUNS(rank_that_left_is_named, run(3, NULL, 0, leave_early));

/* ---- abort --------------------------------------------------------------------------- */

static void *abort_it(void *comm)
{
	ddp_comm_abort(comm, "the test wants it");
	return NULL;
}

static int abort_from_a_thread(ddp_comm *comm, void *argument)
{
	atomic_int *waiting = argument;
	pthread_t thread;
	bool never_comes = ddp_comm_rank(comm) == 1;

	meet(comm, DDP_ERR_ABORTED);
	if (never_comes) {
		while (atomic_load(waiting) < 2)
			usleep(1000);
		test_await_state((pid_t)comm->roster->peers[0].pid, 'S');
		test_await_state((pid_t)comm->roster->peers[2].pid, 'S');
		CHECK(pthread_create(&thread, NULL, abort_it, comm) == 0);
		pthread_join(thread, NULL);
	}
	atomic_fetch_add(waiting, 1);
	CHECK_FAILS(ddp_barrier(comm), DDP_ERR_ABORTED, "rank 1 on n");
	CHECK_SAYS("aborted: the test wants it");
	expect_broken(comm, DDP_ERR_ABORTED);
	return 0;
}

TEST_RUNS(abort_ends_what_others_wait_for, run_counting(3, abort_from_a_thread));

/* What a rank finds out about itself alone. */
static int fail_alone(ddp_comm *comm, void *argument)
{
	meet(comm, DDP_ERR_NOMEM);
	if (ddp_comm_rank(comm) == 1)
		CHECK(ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory for 7 bytes") == DDP_ERR_NOMEM);
	CHECK_FAILS(ddp_barrier(comm), DDP_ERR_NOMEM, "rank 1 on n");
	CHECK_SAYS(": no memory for 7 bytes");
	CHECK(comm->failure.culprit == 1);
	return 0;
}

TEST_RUNS(others_are_told_whose_error_it_is, run_both(3, 4, fail_alone));

static int abort_requests(ddp_comm *comm, void *argument)
{
	atomic_int *waited = argument;
	ddp_request *requests[3];
	float x = 1;
	const ddp_operation c = { .kind = DDP_ALL_REDUCE, .recv = &x, .count = 1 };
	const ddp_operation receive = { .kind = DDP_RECV, .recv = &x, .count = 1, .root = 1 };

	meet(comm, DDP_ERR_ABORTED);
	if (ddp_comm_rank(comm) == 1) {
		while (atomic_load(waited) == 0)
			usleep(1000);
		CHECK_OK(ddp_comm_abort(comm, NULL));
		return 0;
	}
	CHECK_OK(ddp_issue(comm, &receive, &requests[0]));
	CHECK_OK(ddp_issue(comm, &c, &requests[1]));
	CHECK_OK(ddp_issue(comm, &c, &requests[2]));
	CHECK(ddp_wait_for(requests[2], 1) == DDP_ERR_TIMEOUT);
	atomic_store(waited, 1);
	for (int i = 0; i < 3; i++)
		CHECK(ddp_wait(requests[i]) == DDP_ERR_ABORTED);
	return 0;
}

TEST_RUNS(abort_ends_every_request, run_counting(2, abort_requests));

/* ---- leftovers -------------------------------------------------------------------------- */

static int open_parts(ddp_comm *comm, void *argument)
{
	void *memory;
	ddp_comm *part;

	int before = 0;
	for (int i = 0; i < 5; i++) {
		/* The first round opens what stays open: connections to other nodes. */
		if (i == 1)
			before = folder_count("/proc/self/fd", "");
		CHECK_OK(ddp_mem_alloc(comm, 1 << 16, &memory));
		CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
		CHECK_OK(ddp_barrier(part));
		CHECK_OK(ddp_comm_free(part));
		CHECK_OK(ddp_mem_free(comm, memory));
	}
	CHECK(folder_count("/proc/self/fd", "") == before);
	return 0;
}

TEST_RUNS(no_descriptor_is_left_open, run_both(2, 2, open_parts));

TEST(no_shared_memory_is_left_behind)
{
	const int before = folder_count("/dev/shm", "ddp");
	run(3, NULL, 0, be_killed);
	assert_int_equal(folder_count("/dev/shm", "ddp"), before);
}

/* ---- arguments --------------------------------------------------------------------------- */

static int give_nonsense(ddp_comm *comm, void *argument)
{
	float x[4] = { 0 };
	const size_t counts[2] = { SIZE_MAX / 2, SIZE_MAX / 2 };
	ddp_request *request;

	CHECK_FAILS(ddp_all_reduce(comm, NULL, NULL, 4, DDP_F32, DDP_SUM), DDP_ERR_INVALID, "all_reduce: recv is NULL");
	CHECK_FAILS(ddp_reduce(comm, NULL, NULL, 4, DDP_F32, DDP_SUM, 1 - ddp_comm_rank(comm)), DDP_ERR_INVALID,
	            "reduce: send is NULL, and so is recv, which has the input in place");
	CHECK_FAILS(ddp_send(comm, NULL, 4, DDP_F32, 1, 0), DDP_ERR_INVALID, "send: send is NULL");
	CHECK_FAILS(ddp_all_reduce(comm, x, x, 4, (ddp_type)77, DDP_SUM), DDP_ERR_INVALID, "77 is no ddp_type");
	CHECK_FAILS(ddp_all_reduce(comm, x, x, 4, DDP_F32, (ddp_op)77), DDP_ERR_INVALID, "77 is no ddp_op");
	CHECK(ddp_broadcast(comm, x, 4, DDP_F32, 2) == DDP_ERR_INVALID);
	CHECK(ddp_broadcast(comm, x, 4, DDP_F32, -1) == DDP_ERR_INVALID);
	CHECK(ddp_all_gather(comm, x, x, SIZE_MAX / 2, DDP_F32) == DDP_ERR_INVALID);
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = x, .recv = x,
	                                       .counts = counts }) == DDP_ERR_INVALID);
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = (ddp_operation_kind)99 }), DDP_ERR_INVALID,
	            "99 is no ddp_operation_kind");
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = DDP_LANES }), DDP_ERR_INVALID,
	            "there is no lane 4: lanes are 0 to 3");
	CHECK_FAILS(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = -1 }, &request), DDP_ERR_INVALID,
	            "there is no lane -1");
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .memory = (ddp_memory)7 }), DDP_ERR_INVALID,
	            "7 is no ddp_memory");
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = x, .count = 4, .type = DDP_I32,
	                                       .scaled = true, .scale = NAN }) == DDP_ERR_INVALID);
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = x, .count = 4,
	                                             .scale = 2 }), DDP_ERR_INVALID, "`scaled` is false");
	CHECK_FAILS(ddp_all_reduce(comm, x, x, 4, DDP_F32, DDP_BOR), DDP_ERR_INVALID,
	            "f32 has no bor, which integers and bool have");
	CHECK_FAILS(ddp_all_reduce(comm, x, x, 4, DDP_BOOL, DDP_AVG), DDP_ERR_INVALID, "bool has no avg");
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = x, .count = 4, .type = DDP_I32,
	                                             .op = DDP_BXOR, .scaled = true, .scale = 2 }), DDP_ERR_INVALID,
	            "bxor of i32 takes no scale");
	for (int i = 0; i < 4; i++) {
		ddp_operation later = { .kind = DDP_ALL_REDUCE, .recv = x, .count = 4 };
		later.reserved[i] = 1;
		CHECK_FAILS(ddp_run(comm, &later), DDP_ERR_INVALID, "all_reduce sets reserved[");
		CHECK(ddp_issue(comm, &later, &request) == DDP_ERR_INVALID);
	}
	CHECK(ddp_send(comm, x, 1, DDP_F32, 1, -1) == DDP_ERR_INVALID);
	CHECK(ddp_issue(comm, NULL, &request) == DDP_ERR_INVALID);
	CHECK(ddp_wait(NULL) == DDP_ERR_INVALID);
	CHECK(ddp_mem_alloc(comm, SIZE_MAX, (void **)&request) == DDP_ERR_INVALID);
	CHECK_SAYS("18446744073709551615 bytes; each of the node's 2 ranks");
	/* None of these has done any harm. */
	CHECK_OK(ddp_all_reduce(comm, NULL, x, 4, DDP_F32, DDP_SUM));
	CHECK_OK(ddp_all_reduce(comm, NULL, NULL, 0, DDP_F32, DDP_SUM));
	return 0;
}

TEST_RUNS(wrong_arguments_break_nothing, run(2, NULL, 0, give_nonsense));

/* ---- a forked child ------------------------------------------------------------------------ */

/* If the library did not refuse a child, the child would act in the name of its parent. */
static void call_as_a_child(ddp_comm *comm, ddp_comm *group, ddp_request *request, void *kept)
{
	float x = 1001;
	void *memory;
	ddp_comm *made;

	CHECK_FAILS(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_SUM), DDP_ERR_STATE,
	            "all_reduce: this process is a child that rank 0 on ");
	CHECK(ddp_barrier(group) == DDP_ERR_STATE);
	CHECK(ddp_send(comm, &x, 1, DDP_F32, 1, 0) == DDP_ERR_STATE);
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1 }) == DDP_ERR_STATE);
	CHECK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER }, &(ddp_request *){ NULL }) == DDP_ERR_STATE);
	CHECK(ddp_wait(request) == DDP_ERR_STATE);
	CHECK(ddp_wait_for(request, 1) == DDP_ERR_STATE);
	CHECK(ddp_wait_on(request, NULL) == DDP_ERR_STATE);
	CHECK(ddp_mem_alloc(comm, 100, &memory) == DDP_ERR_STATE);
	CHECK(ddp_mem_free(comm, kept) == DDP_ERR_STATE);
	CHECK(ddp_comm_split(comm, 0, 0, &made) == DDP_ERR_STATE);
	CHECK(ddp_comm_create_group(comm, (int[]){ 0, 1 }, 2, 0, &made) == DDP_ERR_STATE);
	CHECK(ddp_comm_abort(comm, "a child") == DDP_ERR_STATE);
	CHECK(ddp_comm_shrink(comm, &made) == DDP_ERR_STATE);
	CHECK(ddp_comm_free(group) == DDP_ERR_STATE);
	CHECK(ddp_comm_close(comm) == DDP_ERR_STATE);
}

static int fork_a_child(ddp_comm *comm, void *argument)
{
	ddp_request *request;
	ddp_comm *group;
	float x = 1;
	void *memory;
	int state;

	CHECK_OK(ddp_comm_split(comm, 0, 0, &group));
	CHECK_OK(ddp_mem_alloc(comm, 100, &memory));
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .root = 1 - ddp_comm_rank(comm), .recv = &x, .count = 1 }, &request));
	if (ddp_comm_rank(comm) == 0) {
		const pid_t child = fork();
		if (child == 0) {
			call_as_a_child(comm, group, request, memory);
			_exit(0);
		}
		CHECK(waitpid(child, &state, 0) == child && state == 0);
	}
	/* The child is to see a request that is under way. */
	CHECK_OK(ddp_barrier(group));
	CHECK_OK(ddp_send(comm, &(float){ 2 }, 1, DDP_F32, 1 - ddp_comm_rank(comm), 0));
	CHECK_OK(ddp_wait(request));
	CHECK_OK(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_SUM));
	CHECK(x == 4);
	CHECK_OK(ddp_barrier(group));
	CHECK_OK(ddp_mem_free(comm, memory));
	CHECK_OK(ddp_comm_free(group));
	return 0;
}

TEST(a_forked_child_is_no_rank)
{
	run(2, NULL, 20000, fork_a_child);
	run(2, two_nodes, 20000, fork_a_child);
}
