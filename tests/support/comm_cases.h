/* SPDX-License-Identifier: Apache-2.0 */
/* comm_cases: random collectives, by seed, and what they must give. Inputs
   are small integers, so that results are exact in any order of combination
   and the reference can be plain arithmetic in double. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"
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

/* ---- one of them (comm_case.c): its sizes, buffers and values, and what it must give ---- */

enum { CASE_GUARD = 64 /* bytes before and behind a buffer */, CASE_ARENA_BYTES = 16 << 20 };

/* The same on all ranks but for `shared` and buffers. */
typedef struct test_case {
	ddp_operation c;
	unsigned int seed;
	int size; /* of the communicator */
	bool in_place;
	bool vector;
	size_t counts[TEST_RANKS_MAX], recv_counts[TEST_RANKS_MAX];
	size_t pairs[TEST_RANKS_MAX][TEST_RANKS_MAX]; /* all_to_all's v-form: from, to */
	double scales[TEST_RANKS_MAX];
	unsigned char *send_block, *recv_block;       /* with guards */
	bool send_heap, recv_heap;
	size_t send_count, recv_count;
	void *send_device, *recv_device;              /* copies of the blocks; NULL: on the host */
	bool read_back;                               /* is enqueued */
	ddp_request *request;
} test_case;

/* A rank draws cases from this, and runs them on it. */
typedef struct bench {
	ddp_comm *comm;
	int rank, size;
	char *arena;
	size_t arena_used;
	unsigned int common, own; /* generators: the same on all ranks; this rank's */
	size_t most;
	int lanes; /* that operations are in */
	uint64_t given[DDP_MEMORY_DEVICE + 1][DDP_LANES]; /* operations to each memory's lanes */
	ddp_device *device;           /* NULL: none */
	ddp_device_queue *streams[2]; /* of the program */
	bool alone;                   /* its one rank goes without NCCL */
} bench;

/* Element i of a type; to be put is one that the type holds. */
void case_put(ddp_type type, void *memory, size_t i, double x);
double case_get(ddp_type type, const void *memory, size_t i);

unsigned int case_roll(unsigned int *state, unsigned int sides);
size_t case_random_count(bench *b);

/* Draws an operation, and fills its buffers in memory of the host. */
void case_make(bench *b, test_case *t);
/* Whether NCCL, if that runs what is on the device, does it; the same answer on all ranks. */
bool case_fits_nccl(const bench *b, const test_case *t);
/* Ends the rank if the buffers, back on the host, do not hold what the operation gives. */
void case_check(const bench *b, const test_case *t);
void case_free(test_case *t);
