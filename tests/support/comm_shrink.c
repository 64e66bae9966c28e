/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "tests/support/test.h"
#include "tests/support/comm_shrink.h"

enum { BREAK_MS = 300 };

void test_run_shrinking(int ranks, const int *node_of, int timeout_ms, int (*body)(ddp_comm *, void *),
                        void *argument)
{
	RUN_WORLD(.ranks = ranks, .node_of = node_of, .timeout_ms = timeout_ms, .body = body, .argument = argument,
	          .expect_deaths = true);
}

void test_expect_sum(ddp_comm *comm, int value, int expected)
{
	enum { COUNT = 30000 };
	static float x[COUNT];

	for (int i = 0; i < COUNT; i++)
		x[i] = (float)value;
	CHECK_OK(ddp_all_reduce(comm, NULL, x, COUNT, DDP_F32, DDP_SUM));
	for (int i = 0; i < COUNT; i++)
		CHECK(x[i] == (float)expected);
}

ddp_comm *test_shrink_to_all_but(ddp_comm *comm, int first, int out)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *survivors;

	CHECK_OK(ddp_comm_shrink(comm, &survivors));
	CHECK(ddp_comm_size(survivors) == size - out);
	CHECK(ddp_comm_rank(survivors) == (rank < first ? rank : rank - out));
	/* They do not measure the network once more. */
	CHECK(survivors->hier.link.measured || !comm->hier.link.measured || ddp_comm_nodes(survivors) == 1);
	test_expect_sum(survivors, rank, size * (size - 1) / 2 - out * first - out * (out - 1) / 2);
	return survivors;
}

static void set_timeout(ddp_comm *comm, int timeout_ms)
{
	pthread_mutex_lock(&comm->run.lock);
	comm->timeout_ms = timeout_ms;
	pthread_mutex_unlock(&comm->run.lock);
}

/* A short timeout is for this only: on a busy machine ranks shrink more slowly. */
void test_break(ddp_comm *comm, ddp_status status)
{
	int rank = ddp_comm_rank(comm);
	int timeout_ms = comm->timeout_ms;
	float x[8] = { 0 };
	ddp_status ended = DDP_OK;

	for (int i = 0; i < 3 && ended == DDP_OK; i++) {
		if (i == 1 && rank == 1 && status == DDP_ERR_ABORTED)
			ddp_comm_abort(comm, "the test wants it");
		if (i == 1 && rank != 1 && status == DDP_ERR_TIMEOUT)
			set_timeout(comm, BREAK_MS);
		while (i == 1 && rank == 1 && status == DDP_ERR_TIMEOUT && !ddp_comm_broken(comm))
			usleep(1000);
		ended = ddp_all_reduce(comm, NULL, x, i == 1 && status == DDP_ERR_MISMATCH && rank == 1 ? 7 : 8,
		                       DDP_F32, DDP_SUM);
	}
	CHECK(ended == status);
	set_timeout(comm, timeout_ms);
}
