/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: asan; needs: UCX; takes: 8 */
/* A rank dies while ranks of several nodes connect with each other: the others get an error, and
   none of them is ended by UCX. */
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "comm/net/net.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

enum { RANKS = 6, ROUNDS = 50, LATEST_US = 25000 };

static const int six_nodes[RANKS] = { 0, 1, 2, 3, 4, 5 };
static int victim, delay_us; /* of the round */

ddp_status __real_ddp_net_connect(ddp_comm *comm, int peer);
ddp_status __wrap_ddp_net_connect(ddp_comm *comm, int peer);

static void die(int number)
{
	kill(getpid(), SIGKILL);
}

/* A while after it has begun to connect. */
ddp_status __wrap_ddp_net_connect(ddp_comm *comm, int peer)
{
	const struct itimerval death = { .it_value.tv_usec = delay_us };
	struct itimerval now;

	CHECK(getitimer(ITIMER_REAL, &now) == 0);
	if (comm->rank == victim && now.it_value.tv_usec == 0) {
		CHECK(signal(SIGALRM, die) != SIG_ERR);
		CHECK(setitimer(ITIMER_REAL, &death, NULL) == 0);
	}
	return __real_ddp_net_connect(comm, peer);
}

static int reduce_until_it_fails(ddp_comm *comm, void *argument)
{
	ddp_status status = DDP_OK;
	float x[64] = { 0 };

	while (status == DDP_OK)
		status = ddp_all_reduce(comm, NULL, x, 64, DDP_F32, DDP_SUM);
	CHECK(status == DDP_ERR_PEER);
	return 0;
}

TEST(death_of_a_rank_that_connects_ends_no_other)
{
	const test_world world = { .ranks = RANKS, .node_of = six_nodes, .body = reduce_until_it_fails,
	                           .expect_deaths = true, .may_fail_to_open = true };

	srandom(1);
	for (int i = 0; i < ROUNDS; i++) {
		victim = (int)(random() % RANKS);
		delay_us = 1 + (int)(random() % LATEST_US);
		assert_int_equal(test_world_run(&world), 0);
	}
}
