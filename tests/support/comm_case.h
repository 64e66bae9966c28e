/* SPDX-License-Identifier: Apache-2.0 */
/* comm_case: one random operation of comm_cases: its sizes, buffers and values, and what it
   must give. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"
#include "tests/support/comm_ranks.h"

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

/* What a rank draws cases from, and runs them on. */
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
