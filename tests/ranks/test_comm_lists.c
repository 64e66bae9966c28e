/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 10 */
/* Operations on a list of buffers, one for each rank. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/core/comm.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

/* The thread sanitizer is ten times slower, and the threads are the same in the other layouts. */
enum { RANKS = 4, LAYOUTS = SANITIZER ? 2 : 4 };

static void run(int (*body)(ddp_comm *, void *))
{
	static const int two_nodes[] = { 0, 1, 1, 0 }, all_apart[] = { 0, 1, 2, 3 }, uneven[] = { 0, 0, 0, 1 };
	const int *const layouts[] = { NULL, two_nodes, all_apart, uneven };

	for (int i = 0; i < LAYOUTS; i++)
		RUN_WORLD(.ranks = RANKS, .node_of = layouts[i], .timeout_ms = 20000, .body = body);
	const test_world alone = { .ranks = 1, .timeout_ms = 20000, .body = body };
	assert_int_equal(test_world_run(&alone), 0);
}

/* What `from` gives `to`. */
static int32_t value_of(int from, int to, size_t i)
{
	return from * 1000003 + to * 1009 + (int32_t)i;
}

/* A block for each rank, of its own memory, or of memory that the node shares; in no order. */
typedef struct blocks {
	int32_t *of[RANKS];
	size_t counts[RANKS];
	char *shared;
} blocks;

/* by_counts: block r has some elements more for each r, and one has none. */
static void blocks_make(blocks *b, ddp_comm *comm, size_t count, bool by_counts, bool shared)
{
	const int size = ddp_comm_size(comm);
	size_t most = count + 100;
	void *memory = NULL;

	*b = (blocks){ .shared = NULL };
	if (shared) {
		CHECK_OK(ddp_mem_alloc(comm, most * sizeof(int32_t) * RANKS, &memory));
		b->shared = memory;
	}
	for (int r = 0; r < size; r++) {
		b->counts[r] = !by_counts ? count : r == 2 ? 0 : count + 7 * (size_t)r;
		b->of[r] = shared ? (int32_t *)memory + (size_t)(size - 1 - r) * most : calloc(most, sizeof(int32_t));
		CHECK(b->of[r] != NULL);
		for (size_t i = 0; i < most; i++)
			b->of[r][i] = -1;
	}
}

static void blocks_free(blocks *b, ddp_comm *comm)
{
	for (int r = 0; r < ddp_comm_size(comm) && b->shared == NULL; r++)
		free(b->of[r]);
	if (b->shared != NULL)
		CHECK_OK(ddp_mem_free(comm, b->shared));
}

/* The values are those that `from` gave `to`, and nothing behind them was written. */
static void check_block(const int32_t *block, size_t count, int from, int to)
{
	for (size_t i = 0; i < count; i++)
		CHECK(block[i] == value_of(from, to, i));
	CHECK(block[count] == -1);
}

static void fill(int32_t *block, size_t count, int from, int to)
{
	for (size_t i = 0; i < count; i++)
		block[i] = value_of(from, to, i);
}

typedef struct form {
	size_t count;
	bool by_counts, shared;
} form;

static void gather(ddp_comm *comm, const form *f, ddp_operation_kind kind, bool in_place)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm), root = size - 1;
	blocks in, out;

	blocks_make(&in, comm, f->count, f->by_counts, f->shared);
	blocks_make(&out, comm, f->count, f->by_counts, f->shared);
	const bool receives = kind == DDP_ALL_GATHER || rank == root;
	int32_t *own = in_place && receives ? out.of[rank] : in.of[rank];
	fill(own, out.counts[rank], rank, 0);
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = kind, .send = in_place && receives ? NULL : own,
	                                          .recv_list = receives ? (void *const *)out.of : NULL, .type = DDP_I32,
	                                          .count = f->by_counts ? 0 : f->count,
	                                          .counts = f->by_counts ? out.counts : NULL, .root = root }));
	for (int r = 0; r < size && receives; r++)
		check_block(out.of[r], out.counts[r], r, 0);
	blocks_free(&in, comm);
	blocks_free(&out, comm);
}

static void scatter(ddp_comm *comm, const form *f)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm), root = size > 1;
	blocks in, out;

	blocks_make(&in, comm, f->count, f->by_counts, f->shared);
	blocks_make(&out, comm, f->count, f->by_counts, f->shared);
	for (int r = 0; r < size; r++)
		fill(in.of[r], in.counts[r], root, r);
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_SCATTER, .recv = out.of[rank], .type = DDP_I32, .root = root,
	                                          .send_list = rank == root ? (const void *const *)in.of : NULL,
	                                          .count = f->by_counts ? 0 : f->count,
	                                          .counts = f->by_counts ? in.counts : NULL }));
	check_block(out.of[rank], out.counts[rank], root, rank);
	blocks_free(&in, comm);
	blocks_free(&out, comm);
}

/* `lists`: which of send and receive goes by a list. */
static void all_to_all(ddp_comm *comm, const form *f, int lists)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	size_t received[RANKS], at = 0;
	blocks in, out;

	blocks_make(&in, comm, f->count, f->by_counts, f->shared);
	blocks_make(&out, comm, f->count, f->by_counts, f->shared);
	int32_t *flat = calloc((size_t)size * (f->count + 100), sizeof(*flat));
	CHECK(flat != NULL);
	for (int r = 0; r < size; r++) {
		received[r] = in.counts[rank];
		fill(in.of[r], in.counts[r], rank, r);
	}
	for (int r = 0; r < size && (lists & 1) == 0; at += in.counts[r++])
		memcpy(flat + at, in.of[r], in.counts[r] * sizeof(*flat));
	CHECK_OK(ddp_run(comm, &(ddp_operation){
		.kind = DDP_ALL_TO_ALL, .type = DDP_I32, .send = (lists & 1) != 0 ? NULL : flat,
		.send_list = (lists & 1) != 0 ? (const void *const *)in.of : NULL, .recv = (lists & 2) != 0 ? NULL : flat + (lists == 0),
		.recv_list = (lists & 2) != 0 ? (void *const *)out.of : NULL, .count = f->by_counts ? 0 : f->count,
		.counts = f->by_counts ? in.counts : NULL, .recv_counts = f->by_counts ? received : NULL }));
	for (int r = 0, begin = 0; r < size; begin += (int)received[r++]) {
		for (size_t i = 0; i < received[r]; i++)
			CHECK(((lists & 2) != 0 ? out.of[r] : flat + begin)[i] == value_of(r, rank, i));
	}
	free(flat);
	blocks_free(&in, comm);
	blocks_free(&out, comm);
}

static void reduce_scatter(ddp_comm *comm, const form *f, bool listed)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	blocks in, out;
	size_t at = 0;

	blocks_make(&in, comm, f->count, f->by_counts, f->shared);
	blocks_make(&out, comm, f->count, f->by_counts, f->shared);
	int32_t *flat = calloc((size_t)size * (f->count + 100), sizeof(*flat));
	CHECK(flat != NULL);
	for (int r = 0; r < size; at += in.counts[r++]) {
		fill(in.of[r], in.counts[r], rank, r);
		memcpy(flat + at, in.of[r], in.counts[r] * sizeof(*flat));
	}
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_REDUCE_SCATTER, .type = DDP_I32, .op = DDP_SUM,
	                                          .send = listed ? NULL : flat,
	                                          .send_list = listed ? (const void *const *)in.of : NULL,
	                                          .recv = out.of[rank], .count = f->by_counts ? 0 : f->count,
	                                          .counts = f->by_counts ? in.counts : NULL }));
	for (size_t i = 0; i < out.counts[rank]; i++) {
		int32_t sum = 0;
		for (int r = 0; r < size; r++)
			sum += value_of(r, rank, i);
		CHECK(out.of[rank][i] == sum);
	}
	CHECK(out.of[rank][out.counts[rank]] == -1);
	free(flat);
	blocks_free(&in, comm);
	blocks_free(&out, comm);
}

static int use_lists(ddp_comm *comm, void *argument)
{
	static const size_t counts[] = { 5, 300, 3000, SANITIZER ? 40000 : 150000 };

	for (int i = 0; i < 16; i++) {
		const form f = { .count = counts[i / 4], .by_counts = i % 2 == 1, .shared = i % 4 >= 2 };
		gather(comm, &f, DDP_ALL_GATHER, false);
		gather(comm, &f, DDP_ALL_GATHER, true);
		gather(comm, &f, DDP_GATHER, false);
		gather(comm, &f, DDP_GATHER, true);
		scatter(comm, &f);
		for (int lists = 1; lists < 4; lists++)
			all_to_all(comm, &f, lists);
		reduce_scatter(comm, &f, true);
		/* A list is this rank's own matter. */
		reduce_scatter(comm, &f, ddp_comm_rank(comm) % 2 == 0);
	}
	return 0;
}

TEST_RUNS(lists_are_as_one_buffer, run(use_lists));

static int give_nonsense(ddp_comm *comm, void *argument)
{
	const int size = ddp_comm_size(comm);
	int32_t x[2 * RANKS] = { 0 }, y[RANKS] = { 0 };
	void *out[RANKS], *hole[RANKS] = { NULL };
	ddp_request *request;

	for (int r = 0; r < size; r++)
		out[r] = &x[r];
	const void *const *in = (const void *const *)out;
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .send_list = in, .recv = y, .count = 1,
	                                             .type = DDP_I32 }), DDP_ERR_INVALID,
	            "all_reduce: send_list is not for this kind of operation");
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_REDUCE_SCATTER, .send = x, .recv_list = out, .count = 1,
	                                             .type = DDP_I32 }), DDP_ERR_INVALID,
	            "reduce_scatter: recv_list is not for this kind");
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = y, .recv = x, .recv_list = out, .count = 1,
	                                             .type = DDP_I32 }), DDP_ERR_INVALID,
	            "a buffer and a list of buffers are given");
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = y, .recv_list = hole, .count = 1,
	                                             .type = DDP_I32 }), DDP_ERR_INVALID,
	            "all_gather: the list's buffer of rank 0 is NULL");
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_TO_ALL, .recv_list = out, .count = 1, .type = DDP_I32 })
	      == DDP_ERR_INVALID);
	CHECK_SAYS("it does not work in place with a list");
	CHECK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = y, .recv_list = out, .count = 1,
	                                         .type = DDP_I32, .memory = DDP_MEMORY_DEVICE }, &request)
	      == DDP_ERR_UNSUPPORTED);
	CHECK_SAYS("lists of buffers are for the host's memory");
	/* Nothing is in holes of which nothing is asked. */
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = y, .recv_list = hole, .type = DDP_I32 }));
	/* Only the root's list counts. */
	void *one[RANKS] = { y, y, y, y };
	const bool root = ddp_comm_rank(comm) == 0;
	y[0] = ddp_comm_rank(comm);
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_GATHER, .send = y, .recv_list = root ? out : one, .count = 1,
	                                          .type = DDP_I32 }));
	for (int r = 0; r < size && root; r++)
		CHECK(x[r] == r);
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_SCATTER, .send_list = root ? in : (const void *const *)one,
	                                          .recv = y, .count = 1, .type = DDP_I32 }));
	CHECK(y[0] == ddp_comm_rank(comm));
	CHECK_OK(ddp_barrier(comm));
	test_ranks_together();
	if (size > 1) {
		CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_REDUCE_SCATTER, .send_list = in, .recv = &x[1], .count = 1,
		                                             .type = DDP_I32 }), DDP_ERR_INVALID,
		            "reduce_scatter: recv and the list's buffer of rank 1 overlap: give buffers apart");
	}
	return 0;
}

TEST_RUNS(nonsense_is_refused, run(give_nonsense));
