/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan bare; takes: 12 */
/* Random collectives against a plain reference: ranks 1 .. 8
   on a node, and on 2 .. 4 pretend nodes, which know each other by UCX only.
   DDP_TEST_SEED and DDP_TEST_BATCHES make it another or a longer run. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/comm_cases.h"
#include "tests/support/test.h"

#ifdef __SANITIZE_THREAD__ /* ten times slower; races do not need as many */
enum { BATCHES = 4, BATCHES_BETWEEN_NODES = 2, EACH_LAYOUT = 2 };
#elif defined(__SANITIZE_ADDRESS__) /* twice as slow; and other builds compare as many */
enum { BATCHES = 8, BATCHES_BETWEEN_NODES = 4, EACH_LAYOUT = 2 };
#else
enum { BATCHES = 40, BATCHES_BETWEEN_NODES = 8, EACH_LAYOUT = 1 };
#endif

static void run_with(int ranks, const int *node_of, int (*body)(ddp_comm *, void *))
{
	const test_cases cases = { .seed = 1000, .batches = node_of == NULL ? BATCHES : BATCHES_BETWEEN_NODES,
	                           .most = 200000 };

	assert_int_equal(test_run_world(cases, ranks, node_of, body), 0);
}

static void run(int ranks, const int *node_of) { run_with(ranks, node_of, test_run_cases); }

TEST_RUNS(one_rank_agrees_with_the_reference, run(1, NULL));

TEST(ranks_of_a_node_agree_with_the_reference)
{
	for (int ranks = 2; ranks <= 8; ranks += EACH_LAYOUT)
		run(ranks, NULL);
}

TEST(ranks_of_several_nodes_agree_with_the_reference)
{
	static const int layouts[][8] = {
		{ 0, 1 }, { 0, 0, 1 }, { 0, 1, 0, 1 }, { 0, 1, 2 }, { 0, 0, 1, 1, 2, 2 },
		{ 0, 1, 2, 3, 0, 1, 2, 3 }, { 0, 1, 1, 1, 2, 3, 3 },
	};
	static const int ranks[] = { 2, 3, 4, 3, 6, 8, 7 };

	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i += EACH_LAYOUT)
		run(ranks[i], layouts[i]);
}

static int run_recursively(ddp_comm *comm, void *cases)
{
	static const char recursive[] = "recursive_";
	ddp_comm_info info;

	if (test_run_cases(comm, cases) != 0)
		return 1;
	CHECK_OK(ddp_comm_describe(comm, &info));
	CHECK(strncmp(info.algorithm, recursive, sizeof(recursive) - 1) == 0);
	return 0;
}

/* That would not be chosen for so few nodes. */
TEST(recursive_halving_agrees_with_the_reference)
{
	static const int five_nodes[] = { 0, 1, 2, 3, 4, 0 }, four_nodes[] = { 0, 0, 1, 2, 1, 3, 2, 3 };

	setenv("DDP_ALGORITHM", "recursive_halving,recursive_doubling", 1);
	run_with(6, five_nodes, run_recursively);
	run_with(8, four_nodes, run_recursively);
	unsetenv("DDP_ALGORITHM");
}

/* A list none of whose algorithms an operation can take ends the communicator, in words. */
static int ask_for_the_impossible(ddp_comm *comm, void *argument)
{
	float x[16] = { 0 };
	const char *said = "cannot be done by what DDP_ALGORITHM names: add one that can to it, with a comma (";

	CHECK_FAILS(ddp_all_reduce(comm, NULL, x, 16, DDP_F32, DDP_SUM), DDP_ERR_INVALID, said);
	CHECK(strstr(ddp_last_error(), ddp_comm_size(comm) == 2 ? "(direct)" : "(direct, recursive_doubling") != NULL);
	return 0;
}

TEST(impossible_algorithms_are_refused)
{
	static const int nodes[] = { 0, 1, 2 };

	setenv("DDP_ALGORITHM", "scatter_gather,recursive_halving", 1);
	for (int ranks = 2; ranks <= 3; ranks++)
		RUN_WORLD(.ranks = ranks, .node_of = nodes, .body = ask_for_the_impossible);
	unsetenv("DDP_ALGORITHM");
}

/* The same sum by each kind, in memory that is shared by all ranks, by some, or
   by none: rank `rank` leaves its part of every result in `sums`. */
enum { WAYS = 5, WAYS_COUNT = 12000 };

static int sum_in_many_ways(ddp_comm *comm, void *argument)
{
	float (*sums)[WAYS_COUNT] = argument;
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	size_t part = WAYS_COUNT / (size_t)size;
	static float private[2][WAYS_COUNT];
	void *memory;

	CHECK_OK(ddp_mem_alloc(comm, 2 * sizeof(private[0]), &memory));
	float *shared = memory;
	for (int way = 0; way < WAYS; way++) {
		bool own = way == 0 || (way == 2 && rank % 2 == 0);
		float *input = own ? private[0] : shared, *result = own ? private[1] : shared + WAYS_COUNT;
		for (size_t i = 0; i < WAYS_COUNT; i++)
			input[i] = 1.0f / (float)(1 + (i * 7 + (size_t)rank * 13) % 1000);
		if (way < 3) {
			CHECK_OK(ddp_all_reduce(comm, input, result, WAYS_COUNT, DDP_F32, DDP_SUM));
			memcpy(&sums[way][(size_t)rank * part], &result[(size_t)rank * part], part * sizeof(float));
		} else if (way == 3) {
			CHECK_OK(ddp_reduce(comm, input, result, WAYS_COUNT, DDP_F32, DDP_SUM, size - 1));
			if (rank == size - 1)
				memcpy(sums[way], result, WAYS_COUNT * sizeof(float));
		} else {
			CHECK_OK(ddp_reduce_scatter(comm, input, result, part, DDP_F32, DDP_SUM));
			memcpy(&sums[way][(size_t)rank * part], result, part * sizeof(float));
		}
	}
	CHECK_OK(ddp_mem_free(comm, memory));
	return 0;
}

TEST(all_kinds_and_memories_give_the_same_bits)
{
	static const int nodes[] = { 0, 1, 2, 0, 1 };
	const int *const layouts[] = { NULL, nodes };
	size_t bytes = WAYS * WAYS_COUNT * sizeof(float);

	for (int i = 0; i < 2; i++) {
		float (*sums)[WAYS_COUNT] = test_share(bytes);

		RUN_WORLD(.ranks = 5, .node_of = layouts[i], .body = sum_in_many_ways, .argument = sums);
		for (int way = 1; way < WAYS; way++)
			assert_memory_equal(sums[way], sums[0], sizeof(sums[0]));
		test_unshare(sums, bytes);
	}
}

int main(void)
{
	test_trap_floats();
	return test_run(NULL, NULL);
}
