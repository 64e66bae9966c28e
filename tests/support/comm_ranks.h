/* SPDX-License-Identifier: Apache-2.0 */
/* comm_ranks: a test's ranks with a communicator. Blobs are
   exchanged through memory that the ranks share; ranks may be put on pretend
   nodes, which then reach each other through the network only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/api.h"
#include "tests/support/ranks.h"

typedef struct test_world {
	int ranks;
	const int *node_of;  /* [ranks]: pretend node; NULL: all on one */
	int timeout_ms;      /* of each operation once all have opened; 0: 60000 */
	/* These as in test_ranks. */
	int (*body)(ddp_comm *comm, void *argument);
	void *argument;
	void (*at_start)(const pid_t *pids, void *argument);
	bool expect_deaths;
	bool measures;       /* the network, also under a sanitizer */
	bool may_fail_to_open; /* for the death of a rank: such a rank ends without an error */
} test_world;

/* As test_ranks_run(). */
int test_world_run(const test_world *world);

/* For a case, which fails unless all ranks of such a world do well: RUN_WORLD(.ranks = 2, .body = body). */
#define RUN_WORLD(...) assert_int_equal(test_world_run(&(const test_world){ __VA_ARGS__ }), 0)

/* How many collectives have run on a lane other than 0 of the host's memory; 0 if it is not open. They have ended. */
uint64_t test_lane_count(ddp_comm *comm, int lane);

/* Some kernels refuse filters of sockets to users without privileges. libddp then ends UCX's listening sockets when all
   ranks are connected, so that nobody can connect to them. */
bool test_may_filter(void);

/* Waits until the main thread of a process is in a state as in proc(5): sleeps (S), is stopped (T). */
void test_await_state(pid_t pid, char awaited);
