/*
 * comm_cases: random collectives, by seed, and what they must give. Inputs
 * are small integers, so that results are exact in any order of combination
 * and the reference can be plain arithmetic in double.
 */
#ifndef TESTS_COMM_CASES_H
#define TESTS_COMM_CASES_H

#include "tests/support/comm_ranks.h"

typedef struct test_cases {
	unsigned int seed;
	int batches;       /* each of 1 .. 4 operations in flight */
	size_t most;       /* elements of the largest operations */
	const char *device; /* in whose memory half of them are; NULL: none */
	bool nccl;          /* by NCCL, on device "test" a stand-in for it, */
	int nccl_polls;     /* each of whose calls is in progress for so long */
} test_cases;

/* A test_world body; the argument is a test_cases. */
int test_run_cases(ddp_comm *comm, void *cases);

/* The same on a given communicator, from the given seed. */
void test_run_batches(ddp_comm *comm, unsigned int seed, int batches, size_t most);

#endif
