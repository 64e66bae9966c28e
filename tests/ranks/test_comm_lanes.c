/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* Operations that do not wait for each other. */
#include <semaphore.h>
#include <stdlib.h>

#include "comm/core/comm.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1, 1 };

static void run_both(int (*body)(ddp_comm *, void *))
{
	for (int layout = 0; layout < 2; layout++)
		RUN_WORLD(.ranks = 3, .node_of = layout == 0 ? NULL : two_nodes, .timeout_ms = 20000, .body = body);
}

/* ---- independence --------------------------------------------------------------------------- */

enum { LARGE = 1 << 20 };

static ddp_operation sum(float *x, size_t count, int lane)
{
	return (ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = x, .count = count, .lane = lane };
}

/* Rank 1 joins the large operation when it hears that rank 0 is through with the small ones. */
static int overtake(ddp_comm *comm, void *argument)
{
	float *large = calloc(LARGE, sizeof(*large)), small[DDP_LANES];
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	const ddp_operation slow = sum(large, LARGE, 0);
	ddp_request *request;
	bool done;

	CHECK(large != NULL);
	large[LARGE - 1] = 1;
	for (int lane = 0; lane < DDP_LANES; lane++) {
		small[lane] = (float)lane;
		CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = lane }));
	}
	if (rank != 1)
		CHECK_OK(ddp_issue(comm, &slow, &request));
	for (int lane = 1; lane < DDP_LANES; lane++) {
		const ddp_operation quick = sum(&small[lane], 1, lane);
		ddp_request *other;
		CHECK_OK(ddp_issue(comm, &quick, &other));
		CHECK_OK(ddp_wait(other));
		CHECK(small[lane] == (float)(lane * size));
		CHECK(test_lane_count(comm, lane) == 2); /* and a barrier */
	}
	const ddp_operation told = { .kind = rank == 0 ? DDP_SEND : DDP_RECV, .send = &rank, .recv = &rank,
	                              .count = 1, .type = DDP_I32, .root = rank == 0 ? 1 : 0, .lane = 1 };
	if (rank != 1) {
		CHECK_OK(ddp_test(request, &done));
		CHECK(!done);
	}
	if (rank < 2)
		CHECK_OK(ddp_run(comm, &told));
	if (ddp_comm_rank(comm) != 1)
		CHECK_OK(ddp_wait(request));
	else
		CHECK_OK(ddp_run(comm, &slow));
	CHECK(large[LARGE - 1] == (float)size && large[0] == 0);
	free(large);
	return 0;
}

TEST_RUNS(a_small_operation_overtakes_a_large_one, run_both(overtake));

/* ---- failing together ------------------------------------------------------------------------ */

static int abort_lanes(ddp_comm *comm, void *argument)
{
	float x[2] = { 1, 1 };
	const ddp_operation c[2] = { sum(&x[0], 1, 0), sum(&x[1], 1, 3) };
	ddp_request *requests[2];

	CHECK_OK(ddp_run(comm, &c[1]));
	CHECK(test_lane_count(comm, 3) == 1 && test_lane_count(comm, 1) == 0);
	for (int i = 0; i < 2 && ddp_comm_rank(comm) != 0; i++)
		CHECK_OK(ddp_issue(comm, &c[i], &requests[i]));
	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_comm_abort(comm, "enough"));
		return 0;
	}
	for (int i = 1; i >= 0; i--) {
		CHECK_FAILS(ddp_wait(requests[i]), DDP_ERR_ABORTED, "enough");
	}
	return 0;
}

/* What goes wrong in one lane ends the communicator. */
static int differ_in_a_lane(ddp_comm *comm, void *argument)
{
	float x[4] = { 1 };
	const ddp_operation c = sum(x, ddp_comm_rank(comm) == 0 ? 1 : 2, 2);

	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1 }));
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 2 }));
	CHECK(test_lane_count(comm, 1) == 1 && test_lane_count(comm, 2) == 1);
	test_ranks_together(); /* one that is still in it would hear of the difference there */
	CHECK(ddp_run(comm, &c) == DDP_ERR_MISMATCH);
	CHECK(ddp_barrier(comm) == DDP_ERR_MISMATCH);
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1 }) == DDP_ERR_MISMATCH);
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 3 }) == DDP_ERR_MISMATCH);
	return 0;
}

TEST(lanes_fail_together)
{
	run_both(abort_lanes);
	run_both(differ_in_a_lane);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static void use_a_new_lane(void *user, ddp_status status)
{
	ddp_comm *comm = ((void **)user)[0];

	CHECK_OK(status);
	CHECK_FAILS(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1, .on_complete = use_a_new_lane },
	                      NULL), DDP_ERR_STATE, "the first operation of a lane");
	CHECK(sem_post(((void **)user)[1]) == 0);
}

static int give_wrong_lanes(ddp_comm *comm, void *argument)
{
	sem_t called;
	void *user[2] = { comm, &called };
	ddp_request *request;

	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = DDP_LANES }) == DDP_ERR_INVALID);
	CHECK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = -1 }, &request) == DDP_ERR_INVALID);
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .stream = user }) == DDP_ERR_INVALID);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER }, &request));
	CHECK(ddp_wait_on(request, NULL) == DDP_ERR_UNSUPPORTED);
	CHECK_OK(ddp_wait(request));
	CHECK(sem_init(&called, 0, 0) == 0);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .on_complete = use_a_new_lane,
	                                            .user = user }, NULL));
	CHECK(sem_wait(&called) == 0);
	return 0;
}

TEST_RUNS(wrong_lanes_are_refused, run_both(give_wrong_lanes));
