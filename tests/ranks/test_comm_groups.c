/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* Groups of ranks, and messages between single ranks, on one and on two nodes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net/net.h"
#include "tests/support/comm_cases.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1, 0, 1, 1 };

static void run(int ranks, const int *node_of, int (*body)(ddp_comm *, void *))
{
	RUN_WORLD(.ranks = ranks, .node_of = node_of, .body = body);
}

static void run_both(int on_one_node, int on_two, int (*body)(ddp_comm *, void *))
{
	run(on_one_node, NULL, body);
	run(on_two, two_nodes, body);
}

/* ---- groups -------------------------------------------------------------------- */

static int split_by_parity(ddp_comm *comm, void *argument)
{
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *part, *none;

	/* The key turns the order round. */
	CHECK_OK(ddp_comm_split(comm, rank % 2, -rank, &part));
	CHECK(part != NULL);
	int members = (size - rank % 2 + 1) / 2;
	CHECK(ddp_comm_size(part) == members);
	CHECK(ddp_comm_rank(part) == members - 1 - rank / 2);
	float sum = (float)rank, expected = 0;
	for (int r = rank % 2; r < size; r += 2)
		expected += (float)r;
	CHECK_OK(ddp_all_reduce(part, NULL, &sum, 1, DDP_F32, DDP_SUM));
	CHECK(sum == expected);
	test_run_batches(part, 99u + (unsigned int)rank % 2, 5, 20000);
	CHECK_OK(ddp_comm_split(comm, rank == 0 ? -1 : 7, 0, &none));
	CHECK((none == NULL) == (rank == 0));
	CHECK_OK(ddp_comm_free(none));
	CHECK_OK(ddp_comm_free(part));
	return 0;
}

TEST_RUNS(split_orders_ranks_by_key, run_both(5, 5, split_by_parity));

static int group_by_list(ddp_comm *comm, void *argument)
{
	static const int list[] = { 3, 0, 1 };
	static const int twice[] = { 0, 0 };
	ddp_comm *part;
	int rank = ddp_comm_rank(comm);

	CHECK(ddp_comm_group(comm, twice, 2, &part) == DDP_ERR_INVALID);
	CHECK_OK(ddp_comm_group(comm, list, 3, &part));
	CHECK((part != NULL) == (rank != 2));
	if (part != NULL) {
		CHECK(list[ddp_comm_rank(part)] == rank);
		int32_t from = rank;
		CHECK_OK(ddp_broadcast(part, &from, 1, DDP_I32, 0));
		CHECK(from == 3);
	}
	/* The world goes on beside it. */
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_comm_free(part));
	CHECK(ddp_comm_free(comm) == DDP_ERR_INVALID);
	return 0;
}

TEST_RUNS(group_takes_the_order_of_its_list, run_both(4, 4, group_by_list));

static int lists_differ(ddp_comm *comm, void *argument)
{
	const int list[] = { 0, ddp_comm_rank(comm) == 0 ? 1 : 2 };
	ddp_comm *part;

	CHECK(ddp_comm_group(comm, list, 2, &part) == DDP_ERR_MISMATCH);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(differing_lists_are_an_error_on_all, run(3, NULL, lists_differ));

static int group_works_in_the_worlds_memory(ddp_comm *comm, void *argument)
{
	enum { COUNT = 50000 };
	void *memory;
	ddp_comm *part;
	int rank = ddp_comm_rank(comm);

	CHECK_OK(ddp_mem_alloc(comm, COUNT * sizeof(float), &memory));
	CHECK_OK(ddp_comm_split(comm, rank / 2, 0, &part));
	float *x = memory;
	for (int i = 0; i < COUNT; i++) {
		CHECK(x[i] == 0);
		x[i] = (float)(rank + i % 7);
	}
	CHECK_OK(ddp_all_reduce(part, NULL, x, COUNT, DDP_F32, DDP_SUM));
	for (int i = 0; i < COUNT; i++)
		CHECK(x[i] == (float)(rank / 2 * 4 + 1 + 2 * (i % 7)));
	CHECK_OK(ddp_comm_free(part));
	CHECK_OK(ddp_mem_free(comm, memory));
	CHECK(ddp_mem_free(comm, &rank) == DDP_ERR_INVALID);
	return 0;
}

TEST_RUNS(groups_reduce_in_memory_of_the_world, run(4, NULL, group_works_in_the_worlds_memory));

/* ---- send and recv -------------------------------------------------------------- */

enum { MESSAGES = 40 };

typedef struct message {
	int from, to, tag;
	size_t count;
	unsigned char *data;
	ddp_request *request;
} message;

static unsigned int roll(unsigned int *state, unsigned int sides)
{
	*state = *state * 1664525u + 1013904223u;
	return (*state >> 8) % sides;
}

/* Many messages in all directions, issued in another order by each rank,
   beside collectives. */
static int storm(ddp_comm *comm, void *argument)
{
	unsigned int common = 5, own = 17u * (unsigned int)ddp_comm_rank(comm);
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	message messages[MESSAGES];

	for (int i = 0; i < MESSAGES; i++) {
		message *m = &messages[i];
		*m = (message){ .from = (int)roll(&common, (unsigned int)size),
		                .to = (int)roll(&common, (unsigned int)size), .tag = i };
		m->count = roll(&common, 4) == 0 ? roll(&common, 300000) : roll(&common, 200);
		m->data = malloc(m->count + 1);
		memset(m->data, rank == m->from ? i + 1 : 0, m->count + 1);
	}
	for (int i = MESSAGES - 1; i > 0; i--) {
		int k = (int)roll(&own, (unsigned int)i + 1);
		message other = messages[i];
		messages[i] = messages[k];
		messages[k] = other;
	}
	for (int i = 0; i < MESSAGES; i++) {
		message *m = &messages[i];
		ddp_operation c = { .send = m->data, .recv = m->data, .count = m->count, .type = DDP_U8,
		                     .tag = m->tag };
		/* A message to oneself would need two buffers. */
		if (m->from == m->to || (m->from != rank && m->to != rank))
			continue;
		c.kind = m->from == rank ? DDP_SEND : DDP_RECV;
		c.root = m->from == rank ? m->to : m->from;
		CHECK_OK(ddp_issue(comm, &c, &m->request));
	}
	int32_t one = 1;
	for (int i = 0; i < 3; i++)
		CHECK_OK(ddp_all_reduce(comm, NULL, &one, 1, DDP_I32, DDP_SUM));
	CHECK(one == size * size * size);
	for (int i = 0; i < MESSAGES; i++) {
		message *m = &messages[i];
		if (m->request != NULL)
			CHECK_OK(ddp_wait(m->request));
		for (size_t k = 0; k < m->count && m->request != NULL; k++)
			CHECK(m->data[k] == m->tag + 1);
		free(m->data);
	}
	return 0;
}

TEST_RUNS(messages_find_their_receivers, run_both(4, 5, storm));

static int to_oneself(ddp_comm *comm, void *argument)
{
	double sent = 2.5, got = 0;
	ddp_request *request;

	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_SEND, .send = &sent, .count = 1,
	                                            .type = DDP_F64, .root = 0 }, &request));
	CHECK_OK(ddp_recv(comm, &got, 1, DDP_F64, 0, 0));
	CHECK_OK(ddp_wait(request));
	CHECK(got == 2.5);
	return 0;
}

TEST_RUNS(rank_sends_to_itself, run(1, NULL, to_oneself));

/* Two messages with one tag; the second comes while the first, which nobody had
   asked for, is kept, and the request that reads it is older than theirs. */
static int overtaken(ddp_comm *comm, void *argument)
{
	int32_t values[3] = { 1, 2, 9 }, got[3] = { 0, 0, 0 };
	ddp_request *others, *first, *second;

	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_send(comm, &values[0], 1, DDP_I32, 1, 5));
		CHECK_OK(ddp_barrier(comm));
		CHECK_OK(ddp_barrier(comm));
		CHECK_OK(ddp_send(comm, &values[1], 1, DDP_I32, 1, 5));
		CHECK_OK(ddp_send(comm, &values[2], 1, DDP_I32, 1, 9));
		return 0;
	}
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &got[2], .count = 1,
	                                            .type = DDP_I32, .root = 0, .tag = 9 }, &others));
	CHECK_OK(ddp_barrier(comm));
	CHECK(ddp_wait_for(others, 50) == DDP_ERR_TIMEOUT);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &got[0], .count = 1,
	                                            .type = DDP_I32, .root = 0, .tag = 5 }, &first));
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &got[1], .count = 1,
	                                            .type = DDP_I32, .root = 0, .tag = 5 }, &second));
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_wait(first));
	CHECK_OK(ddp_wait(second));
	CHECK_OK(ddp_wait(others));
	CHECK(got[0] == 1 && got[1] == 2 && got[2] == 9);
	return 0;
}

TEST_RUNS(messages_with_one_tag_keep_their_order_also_if_kept, run_both(2, 2, overtaken));

/* A receive between ranks of one node of two is issued, and a collective takes
   the network's turn at once: the progress thread goes on with it afterwards. */
static int issue_then_collect(ddp_comm *comm, void *argument)
{
	int rank = ddp_comm_rank(comm);

	for (int32_t i = 0; i < 200; i++) {
		int32_t value = i, got = -1;
		ddp_request *request = NULL;
		if (rank == 1)
			CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &got, .count = 1,
			                                            .type = DDP_I32, .root = 0, .tag = 1 }, &request));
		CHECK_OK(ddp_barrier(comm));
		if (rank == 0)
			CHECK_OK(ddp_send(comm, &value, 1, DDP_I32, 1, 1));
		if (rank == 1) {
			CHECK_OK(ddp_wait(request));
			CHECK(got == i);
		}
	}
	return 0;
}

TEST(receive_goes_on_after_a_collective)
{
	static const int nodes[] = { 0, 0, 1 };

	run(3, nodes, issue_then_collect);
}

/* Where nodes have one rank or two, those without a channel cut as the others. With an argument,
   the first two ranks' data are in memory of the library's. */
static int large_sum(ddp_comm *comm, void *argument)
{
	enum { COUNT = 1500000 };
	int size = ddp_comm_size(comm);
	float *own = malloc(COUNT * sizeof(*own)), *data = own;
	void *shared = NULL;
	ddp_comm_info info;

	CHECK(own != NULL);
	if (argument != NULL)
		CHECK_OK(ddp_mem_alloc(comm, COUNT * sizeof(*data), &shared));
	if (argument != NULL && ddp_comm_rank(comm) < 2)
		data = shared;
	for (int i = 0; i < COUNT; i++)
		data[i] = (float)(i % 1000 + ddp_comm_rank(comm));
	CHECK_OK(ddp_all_reduce(comm, NULL, data, COUNT, DDP_F32, DDP_SUM));
	for (int i = 0; i < COUNT; i++)
		CHECK(data[i] == (float)(size * (i % 1000) + size * (size - 1) / 2));
	CHECK_OK(ddp_comm_describe(comm, &info));
	CHECK(getenv("DDP_ALGORITHM") == NULL || strcmp(info.algorithm, "recursive_halving") == 0);
	if (argument != NULL)
		CHECK_OK(ddp_mem_free(comm, shared));
	free(own);
	return 0;
}

TEST(ranks_of_many_uneven_nodes_cut_alike)
{
	static const int nodes[] = { 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10 };

	run(16, nodes, large_sum);
}

/* Nodes with one rank, or with memory of the library's, work there; others by way of their
   segments, in windows. */
TEST(halving_ends_whatever_memory_nodes_have)
{
	static const int uneven[] = { 0, 0, 1, 2 }, even[] = { 0, 0, 1, 1, 2, 2 };
	static bool shared = true;
	const test_world world = { .ranks = 6, .node_of = even, .body = large_sum, .argument = &shared };

	assert_int_equal(setenv("DDP_ALGORITHM", "recursive_halving,recursive_doubling", 1), 0);
	run(4, uneven, large_sum);
	assert_int_equal(test_world_run(&world), 0);
	assert_int_equal(unsetenv("DDP_ALGORITHM"), 0);
}

/* ---- more ranks than connect with each other at the beginning ------------------------------ */

enum { MANY = 40, MANY_NODES = 8 };
_Static_assert((int)MANY > (int)DDP_NET_FEW_RANKS, "these connect when they need it");

/* Each hears from the one that is `apart` before it. */
static void pass_on(ddp_comm *comm, int apart)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	int value = rank, got = -1;
	ddp_request *request;

	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &got, .count = 1, .type = DDP_I32,
	                                            .root = (rank + size - apart) % size }, &request));
	CHECK_OK(ddp_send(comm, &value, 1, DDP_I32, (rank + apart) % size, 0));
	CHECK_OK(ddp_wait(request));
	CHECK(got == (rank + size - apart) % size);
}

static void expect_sum(ddp_comm *comm, size_t count)
{
	const int size = ddp_comm_size(comm);
	float *data = malloc(count * sizeof(*data));

	CHECK(data != NULL);
	for (size_t i = 0; i < count; i++)
		data[i] = (float)(i % 100 + (size_t)ddp_comm_rank(comm));
	CHECK_OK(ddp_all_reduce(comm, NULL, data, count, DDP_F32, DDP_SUM));
	for (size_t i = 0; i < count; i++)
		CHECK(data[i] == (float)(size * (int)(i % 100) + size * (size - 1) / 2));
	free(data);
}

static int use_many(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *part, *again;

	expect_sum(comm, 1);
	expect_sum(comm, 100000);
	pass_on(comm, 1);
	pass_on(comm, 3 * size / MANY_NODES + 1); /* no partner in any collective */
	CHECK_OK(ddp_comm_split(comm, rank % 3, rank, &part));
	expect_sum(part, 1000);
	CHECK_OK(ddp_comm_free(part));
	if (rank == size - 1)
		ddp_comm_abort(comm, "the test wants it");
	while (ddp_barrier(comm) == DDP_OK)
		continue;
	CHECK_OK(ddp_comm_shrink(comm, &again));
	CHECK(ddp_comm_size(again) == size);
	expect_sum(again, 1000);
	CHECK_OK(ddp_comm_free(again));
	return 0;
}

TEST(many_ranks_work_and_shrink)
{
	int nodes[MANY];

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* each process is dear */
#endif
	for (int r = 0; r < MANY; r++)
		nodes[r] = r * MANY_NODES / MANY;
	run(MANY, nodes, use_many);
}
