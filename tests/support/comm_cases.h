/* SPDX-License-Identifier: Apache-2.0 */
/* comm_cases: random collectives, by seed, and what they must give. Inputs
   are small integers, so that results are exact in any order of combination
   and the reference can be plain arithmetic in double. */
#pragma once

#include "tests/support/comm_ranks.h"

typedef struct test_cases {
	unsigned int seed;
	int batches;       /* each of 1 .. 4 operations in flight */
	size_t most;       /* elements of the largest operations */
	bool on_device;    /* half of them are in a GPU's memory, */
	bool alone;        /* whose one rank goes without NCCL, */
	int nccl_polls;    /* each of whose calls is in progress for so long, if the GPU is the fake one */
} test_cases;

/* A test_world body; the argument is a test_cases. */
int test_run_cases(ddp_comm *comm, void *cases);

/* Runs `body`, which is that or calls it, on such ranks; as test_world_run(), and says from which
   seed if they failed. Seeds differ by number of ranks; DDP_TEST_SEED and DDP_TEST_BATCHES make
   it another or a longer run. */
int test_run_world(test_cases cases, int ranks, const int *node_of, int (*body)(ddp_comm *, void *));

/* The same on a given communicator, from the given seed. */
void test_run_batches(ddp_comm *comm, unsigned int seed, int batches, size_t most);
