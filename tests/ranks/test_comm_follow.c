/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* Operations of a backend that does not compare what ranks issue are compared beside it. */
#include <pthread.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/follow.h"
#include "comm/request.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/hung.h"
#include "tests/support/test.h"

/* As a GPU's library is: its operations begin, and if ranks issue different ones they never
   end, until they are aborted. */
typedef struct endless {
	int issued, aborted;
	bool ends; /* or each ends at once */
} endless;

static ddp_status begin(void *self, ddp_request *request)
{
	((endless *)self)->issued++;
	return DDP_OK;
}

static ddp_status ask(void *self, ddp_request *request, bool *done)
{
	const endless *e = self;

	*done = e->aborted > 0 || e->ends;
	return e->aborted > 0 ? ddp_fail(DDP_ERR_INTERNAL, "aborted") : DDP_OK;
}

static void end_all(void *self)
{
	((endless *)self)->aborted++;
}

static const ddp_backend endless_backend = { .name = "endless", .issue = begin, .poll = ask, .abort = end_all };

/* Different operations are found out beside them, and what never ends is late. */
static int follow_an_endless_backend(ddp_comm *comm, void *argument)
{
	const int *by_deadline = argument;
	const int rank = ddp_comm_rank(comm);
	endless e = { .ends = true };
	const ddp_lane lane = { .backend = &endless_backend, .self = &e };
	struct ddp_follower *follower;
	ddp_request *requests[3];
	const uint64_t before_ns = ddp_now_ns();
	uint64_t start_ns = 0, end_ns = 0;
	float x[2];

	CHECK_OK(ddp_follower_open(comm, &lane, &follower));
	for (int i = 0; i < 3; i++) {
		const ddp_operation c = { .kind = DDP_ALL_REDUCE, .recv = x,
		                           .count = rank == 0 && i == 2 && !*by_deadline ? 2 : 1 };
		CHECK_OK(ddp_request_make(comm, &c, false, &requests[i]));
		CHECK_OK(ddp_follower_issue(follower, requests[i]));
		if (i > 0)
			continue;
		CHECK_OK(ddp_wait_timed(requests[i], &start_ns, &end_ns));
		CHECK(start_ns >= before_ns && end_ns >= start_ns);
		e.ends = false;
		test_ranks_together(); /* one that still waits would hear of the difference there */
	}
	CHECK(e.issued == 3);
	const ddp_status expected = *by_deadline ? DDP_ERR_TIMEOUT : DDP_ERR_MISMATCH;
	for (int i = 1; i < 3; i++) {
		CHECK(ddp_wait(requests[i]) == expected);
		CHECK_SAYS(*by_deadline ? "all_reduce f32[1] sum was issued by all ranks, but did not end"
		                                            : "all_reduce f32[2] sum");
	}
	ddp_follower_close(follower);
	CHECK(e.aborted == 1);
	CHECK(ddp_barrier(comm) == expected);
	return 0;
}

TEST(operations_of_a_backend_that_does_not_compare_are_compared)
{
	/* Less, and a rank that a busy machine keeps waiting would be late for what is to end. */
	const int timeout_ms = 1000 * test_slowness();
	for (int by_deadline = 0; by_deadline < 2; by_deadline++)
		RUN_WORLD(.ranks = 3, .timeout_ms = timeout_ms, .body = follow_an_endless_backend, .argument = &by_deadline);
}

/* No thread starts with a stack that is larger than the address space. */
static void refuse_threads(bool refuse)
{
	static size_t usual;
	pthread_attr_t attributes;

	CHECK(pthread_getattr_default_np(&attributes) == 0);
	if (refuse)
		CHECK(pthread_attr_getstacksize(&attributes, &usual) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, refuse ? (size_t)1 << 50 : usual) == 0);
	CHECK(pthread_setattr_default_np(&attributes) == 0);
	CHECK(pthread_attr_destroy(&attributes) == 0);
}

/* If a rank cannot follow, none does; then all can. */
static int follow_without_a_thread(ddp_comm *comm, void *argument)
{
	endless e = { .ends = true };
	const ddp_lane lane = { .backend = &endless_backend, .self = &e };
	const bool refused = ddp_comm_rank(comm) == 1;
	struct ddp_follower *follower;

	if (refused)
		refuse_threads(true);
	CHECK_FAILS(ddp_follower_open(comm, &lane, &follower), DDP_ERR_NOMEM, "rank 1");
	CHECK_SAYS("start the thread that follows operations");
	if (refused)
		refuse_threads(false);
	CHECK_OK(ddp_follower_open(comm, &lane, &follower));
	ddp_follower_close(follower);
	return 0;
}

TEST(followers_start_on_all_ranks_or_on_none)
{
	static const int two_nodes[] = { 0, 1, 1 };

	for (int i = 0; i < 2; i++)
		RUN_WORLD(.ranks = 3, .node_of = i == 0 ? NULL : two_nodes, .timeout_ms = 20000, .body = follow_without_a_thread);
}
