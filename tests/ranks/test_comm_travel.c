/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: tsan asan; needs: UCX; takes: 9 */
/* Reductions between nodes: a node's sums of 16-bit types and u8 travel in their own
   width, what several nodes have combined in accumulator form; and the bits of the result
   follow from inputs and ranks alone, whatever the algorithm, the kind of operation and the
   memory: each node's ranks are combined in f32 and rounded; nodes are combined in f32, in
   comm/ops/combine_nodes's order, and rounded. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/hier/algorithms.h"
#include "comm/net/net.h"
#include "comm/ops/kernels_table.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

enum { RANKS = 8, COUNT = 96000 };

static ddp_algorithm asked_for;

/* With others behind it, for operations that cannot take it. */
static void run_with(const char *algorithm, const test_world *world)
{
	char list[64];

	snprintf(list, sizeof(list), "%s,direct,scatter_gather", algorithm);
	asked_for = ddp_algorithm_named(algorithm);
	setenv("DDP_ALGORITHM", list, 1);
	int failures = test_world_run(world);
	unsetenv("DDP_ALGORITHM");
	assert_int_equal(failures, 0);
}

/* The last reduction took the algorithm that it was to take. */
static void check_taken(ddp_comm *comm, ddp_operation_kind kind, bool small)
{
	const bool possible = (ddp_algorithm_candidates(kind, small) >> asked_for & 1) != 0;
	const char *rest = kind == DDP_REDUCE_SCATTER ? "scatter_gather" : "direct";
	ddp_comm_info info;

	CHECK_OK(ddp_comm_describe(comm, &info));
	if (info.nodes > 1)
		CHECK(strcmp(info.algorithm, info.nodes > 2 && possible ? ddp_algorithm_of(asked_for)->name : rest) == 0);
	else
		CHECK(info.algorithm[0] == '\0');
}

/* ---- bytes ------------------------------------------------------------------------------ */

/* Bytes that each rank sent for an all_reduce. */
typedef struct traffic {
	uint64_t sent[DDP_AVG + 1][DDP_U8 + 1][RANKS];
} traffic;

static int count_bytes(ddp_comm *comm, void *argument)
{
	static double x[COUNT];
	traffic *t = argument;

	/* The network is measured at the first. */
	CHECK_OK(ddp_all_reduce(comm, NULL, x, COUNT, DDP_F32, DDP_SUM));
	for (ddp_op op = DDP_SUM; op <= DDP_AVG; op++) {
		for (ddp_type type = DDP_F32; type <= DDP_U8; type++) {
			const uint64_t before = ddp_net_sent_bytes(comm);
			CHECK_OK(ddp_all_reduce(comm, NULL, x, COUNT, type, op));
			t->sent[op][type][ddp_comm_rank(comm)] = ddp_net_sent_bytes(comm) - before;
			check_taken(comm, DDP_ALL_REDUCE, false);
		}
	}
	return 0;
}

static uint64_t sent_by_all(const traffic *t, ddp_op op, ddp_type type)
{
	uint64_t sum = 0;

	for (int r = 0; r < RANKS; r++)
		sum += t->sent[op][type][r];
	return sum;
}

/* Of an all_reduce by an algorithm, in the layouts from `first` on: `halves` halves of what is sent
   are nodes' sums or results, in the type's own width; the rest is as wide as f32. */
static void expect_bytes(const char *algorithm, size_t first, uint64_t halves)
{
	static const int layouts[][RANKS] = { { 0, 1 }, { 0, 0, 1, 1 }, { 0, 1, 2, 3 }, { 0, 0, 1, 1, 2, 2, 3, 3 },
	                                      { 0, 1, 2, 3, 4 } };
	static const int ranks[] = { 2, 4, 4, 8, 5 };
	traffic *t = test_share(sizeof(*t));

	for (size_t i = first; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
		const test_world world = { .ranks = ranks[i], .node_of = layouts[i], .body = count_bytes, .argument = t };
		memset(t, 0, sizeof(*t));
		run_with(algorithm, &world);
		for (ddp_op op = DDP_SUM; op <= DDP_AVG; op++) {
			const uint64_t f32 = sent_by_all(t, op, DDP_F32), wide = f32 * (2 - halves) / 2, own = f32 - wide;
			assert_true(f32 >= COUNT * sizeof(float));
			assert_int_equal(sent_by_all(t, op, DDP_BF16), wide + own / 2);
			assert_int_equal(sent_by_all(t, op, DDP_F16), wide + own / 2);
			if (op == DDP_SUM)
				assert_int_equal(sent_by_all(t, op, DDP_U8), wide + own / 4);
		}
	}
	test_unshare(t, sizeof(*t));
}

TEST(sums_of_nodes_travel_in_their_own_width)
{
	expect_bytes("direct", 0, 2);
	expect_bytes("scatter_gather", 0, 2);
}

/* Two nodes have no rounds to choose. */
TEST_RUNS(recursive_halving_rounds_what_is_complete, expect_bytes("recursive_halving", 2, 1));

/* ---- bits -------------------------------------------------------------------------------- */

enum { SMALL = 1000, LARGE = 12000, WAYS = 6, FORMS = 4 };

typedef struct outcome {
	ddp_type type;
	ddp_op op;
	uint16_t small[SMALL];
	uint16_t large[WAYS][LARGE];
} outcome;

static uint16_t narrow(ddp_type type, float x)
{
	return type == DDP_F16 ? ddp_f16_from_float(x) : ddp_bf16_from_float(x);
}

static float wide(ddp_type type, uint16_t x)
{
	return type == DDP_F16 ? ddp_f16_to_float(x) : ddp_bf16_to_float(x);
}

/* Two ranks of this element have large numbers that cancel each other, also with rank 1's scale. What is added in
   between loses bits, so each other order of the tree has another result. */
static float cancelled(int rank, size_t i, float x)
{
	const int plus = (int)(i / 10 % 5), minus = (int)((i / 10 + 1 + i / 50 % 4) % 5);
	const float large = rank == 1 ? 4096 : 3072;

	return rank == plus ? large : rank == minus ? -large : x;
}

/* Of numbers that do not add exactly. In f16, sums of a node's are out of range in
   places, and the mean of all is not. */
static uint16_t input(ddp_type type, int rank, size_t i)
{
	const float x = 1.0f / (float)(1 + (i * 7 + (size_t)rank * 13) % 1000);

	if (i % 10 == 7)
		return narrow(type, cancelled(rank, i, x));
	return narrow(type, i % 10 == 3 ? 40000.0f + 20000.0f * x : x);
}

static float scale_of(int rank)
{
	return rank == 1 ? 0.75f : 1;
}

/* The same reduction by each kind and from each kind of memory; ranks leave their
   parts of the results. */
static void reduce_in_many_ways(ddp_comm *comm, outcome *o)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	const size_t part = LARGE / (size_t)size, first = (size_t)rank * part;
	static uint16_t private[2][LARGE];
	void *memory;

	CHECK_OK(ddp_mem_alloc(comm, sizeof(private), &memory));
	uint16_t *shared = memory;
	for (int way = 0; way <= WAYS; way++) {
		const bool own = way % 2 == 0 || (way == 1 && rank % 2 == 0);
		uint16_t *from = own ? private[0] : shared, *to = own ? private[1] : shared + LARGE;
		ddp_operation c = { .kind = DDP_ALL_REDUCE, .send = from, .recv = to, .count = LARGE, .type = o->type,
		                     .op = o->op, .scaled = rank == 1, .scale = rank == 1 ? 0.75 : 0, .root = size - 1 };
		for (size_t i = 0; i < LARGE; i++)
			from[i] = input(o->type, rank, i);
		c.kind = way < 3 || way == WAYS ? DDP_ALL_REDUCE : way == 3 ? DDP_REDUCE : DDP_REDUCE_SCATTER;
		c.count = way == WAYS ? SMALL : c.kind == DDP_REDUCE_SCATTER ? part : LARGE;
		if (way == 2) { /* in place */
			memcpy(to, from, sizeof(private[0]));
			c.send = NULL;
		}
		CHECK_OK(ddp_run(comm, &c));
		check_taken(comm, c.kind, way == WAYS);
		if (way == WAYS && rank == size - 1)
			memcpy(o->small, to, sizeof(o->small));
		else if (c.kind == DDP_ALL_REDUCE && way < WAYS)
			memcpy(&o->large[way][first], &to[first], part * sizeof(*to));
		else if (c.kind == DDP_REDUCE && rank == size - 1)
			memcpy(o->large[way], to, sizeof(private[0]));
		else if (c.kind == DDP_REDUCE_SCATTER)
			memcpy(&o->large[way][first], to, part * sizeof(*to));
	}
	CHECK_OK(ddp_mem_free(comm, memory));
}

static int reduce_all_forms(ddp_comm *comm, void *argument)
{
	outcome *outcomes = argument;

	for (int form = 0; form < FORMS; form++)
		reduce_in_many_ways(comm, &outcomes[form]);
	return 0;
}

/* Nodes 2^k + e: the first 2e in pairs, then neighbours. */
static float in_order_of_nodes(float *parts, int nodes)
{
	int power = 1, left = 0;

	while (power * 2 <= nodes)
		power *= 2;
	for (int node = 0; node < nodes; left++) {
		const bool pair = left < nodes - power;
		parts[left] = pair ? parts[node] + parts[node + 1] : parts[node];
		node += pair ? 2 : 1;
	}
	for (; left > 1; left /= 2) {
		for (int i = 0; i < left / 2; i++)
			parts[i] = parts[2 * i] + parts[2 * i + 1];
	}
	return parts[0];
}

static uint16_t expected(const outcome *o, const test_world *world, size_t i)
{
	float parts[RANKS] = { 0 };
	int sizes[RANKS] = { 0 }, nodes = 0, power = 1;

	for (int r = 0; r < world->ranks; r++) {
		const int node = world->node_of[r];
		const float x = wide(o->type, input(o->type, r, i)) * scale_of(r);
		parts[node] = sizes[node]++ == 0 ? x : parts[node] + x;
		nodes = node >= nodes ? node + 1 : nodes;
		while (power < sizes[node])
			power *= 2;
	}
	for (int node = 0; node < nodes; node++)
		parts[node] = wide(o->type, narrow(o->type, o->op == DDP_AVG ? parts[node] / (float)power : parts[node]));
	const float sum = in_order_of_nodes(parts, nodes);
	return narrow(o->type, o->op == DDP_AVG ? sum / ((float)world->ranks / (float)power) : sum);
}

static void expect_bits(const outcome *o, const test_world *world, const char *algorithm)
{
	for (size_t i = 0; i < LARGE; i++) {
		const uint16_t want = expected(o, world, i);
		for (int way = 0; way < WAYS; way++) {
			if (o->large[way][i] != want)
				fail_msg("%s %s of %d ranks by %s, way %d, element %zu: %#x, not %#x", ddp_type_name(o->type),
				         ddp_op_name(o->op), world->ranks, algorithm, way, i, o->large[way][i], want);
		}
		if (i < SMALL && o->small[i] != want)
			fail_msg("%s %s of %d ranks by %s, few elements, %zu: %#x, not %#x", ddp_type_name(o->type),
			         ddp_op_name(o->op), world->ranks, algorithm, i, o->small[i], want);
	}
}

TEST(bits_follow_from_inputs_and_ranks)
{
	static const int layouts[][RANKS] = { { 0, 0, 1, 1 }, { 0, 1, 2, 0, 1 }, { 0, 1, 2, 3, 4 }, { 0, 0, 1, 2, 3, 3 } };
	static const int ranks[] = { 4, 5, 5, 6 };
	outcome *outcomes = test_share(FORMS * sizeof(*outcomes));

	for (int form = 0; form < FORMS; form++) {
		outcomes[form].type = form < 2 ? DDP_F16 : DDP_BF16;
		outcomes[form].op = form % 2 == 0 ? DDP_SUM : DDP_AVG;
	}
	for (size_t i = 0; i < 4 * (size_t)DDP_ALGORITHMS; i++) {
		const char *algorithm = ddp_algorithm_of((ddp_algorithm)(i % DDP_ALGORITHMS))->name;
		const test_world world = { .ranks = ranks[i / DDP_ALGORITHMS], .node_of = layouts[i / DDP_ALGORITHMS],
		                           .body = reduce_all_forms, .argument = outcomes };
		run_with(algorithm, &world);
		for (int form = 0; form < FORMS; form++)
			expect_bits(&outcomes[form], &world, algorithm);
	}
	test_unshare(outcomes, FORMS * sizeof(*outcomes));
}
