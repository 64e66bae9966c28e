/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 10 */
/* Where buffers lie. Input and output in one place: where MPI and NCCL allow it, results are those of buffers apart;
   any other overlap is refused on all ranks, in words, also if one rank alone has it. And a list of buffers is as
   one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/core/comm.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

enum { RANKS = 4, SMALL = 12, LARGE = 90000, ROOT = 2 };

/* How a kind's input may lie in its output. */
typedef enum position { AT_START, AT_OWN_BLOCK, RESULT_AT_OWN_BLOCK } position;

typedef struct form {
	ddp_operation_kind kind;
	position position;
	bool by_counts;
} form;

static const form forms[] = {
	{ DDP_ALL_REDUCE, AT_START, false },
	{ DDP_REDUCE, AT_START, false },
	{ DDP_REDUCE_SCATTER, AT_START, false },
	{ DDP_REDUCE_SCATTER, AT_START, true },
	{ DDP_REDUCE_SCATTER, RESULT_AT_OWN_BLOCK, false },
	{ DDP_REDUCE_SCATTER, RESULT_AT_OWN_BLOCK, true },
	{ DDP_ALL_GATHER, AT_OWN_BLOCK, false },
	{ DDP_ALL_GATHER, AT_OWN_BLOCK, true },
	{ DDP_GATHER, AT_OWN_BLOCK, false },
	{ DDP_GATHER, AT_OWN_BLOCK, true },
	{ DDP_SCATTER, AT_START, false },
	{ DDP_SCATTER, AT_START, true },
	{ DDP_SCATTER, RESULT_AT_OWN_BLOCK, false },
	{ DDP_SCATTER, RESULT_AT_OWN_BLOCK, true },
	{ DDP_ALL_TO_ALL, AT_START, false },
};

static size_t counts[RANKS];

static void set_counts(size_t each)
{
	for (int r = 0; r < RANKS; r++)
		counts[r] = each - (size_t)r * each / 8;
}

static size_t offset_of(const ddp_operation *c, int rank)
{
	size_t sum = 0;

	for (int r = 0; r < rank; r++)
		sum += c->counts != NULL ? c->counts[r] : c->count;
	return sum;
}

/* Elements of this rank's input and output. */
static void measure(const ddp_operation *c, int rank, size_t *input, size_t *output)
{
	const size_t own = offset_of(c, rank + 1) - offset_of(c, rank), all = offset_of(c, RANKS);

	*input = *output = own;
	if (c->kind == DDP_REDUCE_SCATTER || c->kind == DDP_ALL_TO_ALL || (c->kind == DDP_SCATTER && rank == ROOT))
		*input = all;
	if (c->kind == DDP_ALL_GATHER || c->kind == DDP_ALL_TO_ALL || (c->kind == DDP_GATHER && rank == ROOT))
		*output = all;
	if ((c->kind == DDP_GATHER || c->kind == DDP_REDUCE) && rank != ROOT)
		*output = 0;
	if (c->kind == DDP_SCATTER && rank != ROOT)
		*input = 0;
}

static void fill(int32_t *x, size_t count, int rank)
{
	for (size_t i = 0; i < count; i++)
		x[i] = (int32_t)(i * 7 % 1001) + 5000 * rank;
}

/* In `memory`, of the library's or of the program's. */
static void compare_with_apart(ddp_comm *comm, const form *f, size_t each, int32_t *memory, int32_t *apart)
{
	const int rank = ddp_comm_rank(comm);
	ddp_operation c = { .kind = f->kind, .count = f->by_counts ? 0 : each, .type = DDP_I32, .op = DDP_SUM,
	                     .root = ROOT };
	size_t input, output;

	set_counts(each);
	c.counts = f->by_counts ? counts : NULL;
	measure(&c, rank, &input, &output);
	const size_t own = offset_of(&c, rank);
	int32_t *from = apart, *to = apart + RANKS * LARGE;
	fill(from, input, rank);
	c.send = from;
	c.recv = to;
	CHECK_OK(ddp_run(comm, &c));

	int32_t *send = memory + (f->position == AT_OWN_BLOCK && output > 0 ? own : 0);
	int32_t *recv = memory + (f->position == RESULT_AT_OWN_BLOCK && input > 0 ? own : 0);
	fill(send, input, rank);
	c.send = input > 0 ? send : NULL;
	c.recv = recv;
	CHECK_OK(ddp_run(comm, &c));
	CHECK(memcmp(recv, to, output * sizeof(*to)) == 0);
}

static int try_positions(ddp_comm *comm, void *argument)
{
	const size_t bytes = (size_t)RANKS * LARGE * sizeof(int32_t);
	int32_t *apart = malloc(2 * bytes), *own = malloc(bytes);
	void *shared;

	CHECK(apart != NULL && own != NULL);
	CHECK_OK(ddp_mem_alloc(comm, bytes, &shared));
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		for (int large = 0; large < 2; large++) {
			compare_with_apart(comm, &forms[i], large ? LARGE : SMALL, own, apart);
			compare_with_apart(comm, &forms[i], large ? LARGE : SMALL, shared, apart);
		}
	}
	CHECK_OK(ddp_mem_free(comm, shared));
	free(own);
	free(apart);
	return 0;
}

static const int nodes[RANKS] = { 0, 0, 1, 2 }, one_and_three[RANKS] = { 0, 1, 1, 1 };
static const int *const layouts[] = { NULL, nodes, one_and_three };

static void run(int (*body)(ddp_comm *, void *))
{
	for (int i = 0; i < 3; i++)
		RUN_WORLD(.ranks = RANKS, .node_of = layouts[i], .body = body);
}

TEST_RUNS(inputs_may_lie_where_mpi_and_nccl_have_them, run(try_positions));

/* ---- what is refused ------------------------------------------------------------------------ */

/* Where send and recv begin in one buffer, in elements, on the rank that has it wrong. */
typedef struct mistake {
	ddp_operation_kind kind;
	int rank;
	int send, recv;
	bool by_counts;
} mistake;

static const mistake mistakes[] = {
	{ DDP_ALL_REDUCE, 1, 0, 1, false },
	{ DDP_ALL_REDUCE, 1, SMALL - 1, 0, false },
	{ DDP_REDUCE, ROOT, 1, 0, false },
	{ DDP_REDUCE_SCATTER, 3, 0, 1, false },
	{ DDP_REDUCE_SCATTER, 0, 1, 0, false },
	{ DDP_REDUCE_SCATTER, 2, 0, SMALL, true },
	{ DDP_ALL_GATHER, 1, 0, 0, false }, /* as on rank 0, where it is right */
	{ DDP_ALL_GATHER, 3, 0, 0, true },
	{ DDP_ALL_GATHER, 0, 1, 0, false },
	{ DDP_GATHER, ROOT, 0, 0, false },
	{ DDP_SCATTER, ROOT, 0, SMALL, false },
	{ DDP_SCATTER, ROOT, 1, 0, false },
	{ DDP_ALL_TO_ALL, 3, 0, 1, false },
	{ DDP_ALL_TO_ALL, 3, 0, 1, true },
};

/* By blocking operations and by requests. */
static ddp_status start(ddp_comm *comm, const ddp_operation *c, bool waits)
{
	ddp_request *request;

	if (waits)
		return ddp_run(comm, c);
	const ddp_status status = ddp_issue(comm, c, &request);
	return status == DDP_OK ? ddp_wait(request) : status;
}

static void be_refused(ddp_comm *comm, const mistake *m, bool waits)
{
	static int32_t apart[2][RANKS * SMALL], together[2 * RANKS * SMALL];
	const int rank = ddp_comm_rank(comm);
	ddp_operation c = { .kind = m->kind, .count = m->by_counts ? 0 : SMALL, .type = DDP_I32, .op = DDP_SUM,
	                     .root = ROOT, .send = apart[0], .recv = apart[1] };
	ddp_comm *part;
	char name[32];

	set_counts(SMALL);
	for (int r = 0; r < RANKS && m->kind == DDP_ALL_TO_ALL; r++)
		counts[r] = SMALL;
	c.counts = m->by_counts ? counts : NULL;
	c.recv_counts = m->by_counts && m->kind == DDP_ALL_TO_ALL ? counts : NULL;
	if (rank == m->rank) {
		c.send = together + m->send;
		c.recv = together + m->recv;
	}
	CHECK_OK(ddp_comm_split(comm, 0, rank, &part));
	/* An operation that is under way also ends, and does not wait for its deadline. */
	const ddp_status status = start(part, &c, waits);
	CHECK(status == DDP_ERR_INVALID || (m->kind == DDP_REDUCE && rank != ROOT && status == DDP_OK) ||
	      (m->kind == DDP_GATHER && rank != ROOT && status == DDP_OK));
	if (status == DDP_OK)
		CHECK(ddp_barrier(part) == DDP_ERR_INVALID);
	snprintf(name, sizeof(name), "rank %d on ", m->rank);
	CHECK_SAYS(name);
	CHECK_SAYS("send and recv overlap, send begins ");
	CHECK_SAYS("in place, ");
	CHECK_OK(ddp_comm_free(part));
	/* The communicator that it comes from goes on. */
	CHECK_OK(ddp_barrier(comm));
}

static int make_mistakes(ddp_comm *comm, void *argument)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++)
		be_refused(comm, &mistakes[i], i % 2 == 0);
	return 0;
}

TEST_RUNS(other_overlaps_are_refused_on_all_ranks, run(make_mistakes));

/* Buffers that touch each other; and what an operation does not use. */
static int be_near(ddp_comm *comm, void *argument)
{
	static int32_t x[2 * RANKS * SMALL];
	const int rank = ddp_comm_rank(comm);

	CHECK_OK(ddp_all_reduce(comm, x, x + SMALL, SMALL, DDP_I32, DDP_SUM));
	CHECK_OK(ddp_all_reduce(comm, x + SMALL, x, SMALL, DDP_I32, DDP_SUM));
	CHECK_OK(ddp_all_gather(comm, x + RANKS * SMALL, x, SMALL, DDP_I32));
	CHECK_OK(ddp_all_to_all(comm, x, x + RANKS * SMALL, SMALL, DDP_I32));
	CHECK_OK(ddp_all_reduce(comm, x, x + 1, 0, DDP_I32, DDP_SUM));
	CHECK_OK(ddp_reduce(comm, x, rank == ROOT ? x + SMALL : x + 1, SMALL, DDP_I32, DDP_SUM, ROOT));
	CHECK_OK(ddp_gather(comm, x, rank == ROOT ? x + SMALL : x + 1, SMALL, DDP_I32, ROOT));
	CHECK_OK(ddp_scatter(comm, x, rank == ROOT ? NULL : x + 1, SMALL, DDP_I32, ROOT));
	return 0;
}

TEST_RUNS(buffers_may_touch, run(be_near));

/* ---- a list of buffers, one for each rank -------------------------------------------------- */

/* The thread sanitizer is ten times slower, and the threads are the same in the other layouts. */
enum { LAYOUTS = SANITIZER ? 2 : 4 };

static void run_lists(int (*body)(ddp_comm *, void *))
{
	static const int two_nodes[] = { 0, 1, 1, 0 }, all_apart[] = { 0, 1, 2, 3 }, uneven[] = { 0, 0, 0, 1 };
	const int *const placed[] = { NULL, two_nodes, all_apart, uneven };

	for (int i = 0; i < LAYOUTS; i++)
		RUN_WORLD(.ranks = RANKS, .node_of = placed[i], .timeout_ms = 20000, .body = body);
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

static void fill_block(int32_t *block, size_t count, int from, int to)
{
	for (size_t i = 0; i < count; i++)
		block[i] = value_of(from, to, i);
}

typedef struct block_form {
	size_t count;
	bool by_counts, shared;
} block_form;

static void gather(ddp_comm *comm, const block_form *f, ddp_operation_kind kind, bool in_place)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm), root = size - 1;
	blocks in, out;

	blocks_make(&in, comm, f->count, f->by_counts, f->shared);
	blocks_make(&out, comm, f->count, f->by_counts, f->shared);
	const bool receives = kind == DDP_ALL_GATHER || rank == root;
	int32_t *own = in_place && receives ? out.of[rank] : in.of[rank];
	fill_block(own, out.counts[rank], rank, 0);
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = kind, .send = in_place && receives ? NULL : own,
	                                          .recv_list = receives ? (void *const *)out.of : NULL, .type = DDP_I32,
	                                          .count = f->by_counts ? 0 : f->count,
	                                          .counts = f->by_counts ? out.counts : NULL, .root = root }));
	for (int r = 0; r < size && receives; r++)
		check_block(out.of[r], out.counts[r], r, 0);
	blocks_free(&in, comm);
	blocks_free(&out, comm);
}

static void scatter(ddp_comm *comm, const block_form *f)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm), root = size > 1;
	blocks in, out;

	blocks_make(&in, comm, f->count, f->by_counts, f->shared);
	blocks_make(&out, comm, f->count, f->by_counts, f->shared);
	for (int r = 0; r < size; r++)
		fill_block(in.of[r], in.counts[r], root, r);
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_SCATTER, .recv = out.of[rank], .type = DDP_I32, .root = root,
	                                          .send_list = rank == root ? (const void *const *)in.of : NULL,
	                                          .count = f->by_counts ? 0 : f->count,
	                                          .counts = f->by_counts ? in.counts : NULL }));
	check_block(out.of[rank], out.counts[rank], root, rank);
	blocks_free(&in, comm);
	blocks_free(&out, comm);
}

/* `lists`: which of send and receive goes by a list. */
static void all_to_all(ddp_comm *comm, const block_form *f, int lists)
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
		fill_block(in.of[r], in.counts[r], rank, r);
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

static void reduce_scatter(ddp_comm *comm, const block_form *f, bool listed)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	blocks in, out;
	size_t at = 0;

	blocks_make(&in, comm, f->count, f->by_counts, f->shared);
	blocks_make(&out, comm, f->count, f->by_counts, f->shared);
	int32_t *flat = calloc((size_t)size * (f->count + 100), sizeof(*flat));
	CHECK(flat != NULL);
	for (int r = 0; r < size; at += in.counts[r++]) {
		fill_block(in.of[r], in.counts[r], rank, r);
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
	static const size_t lengths[] = { 5, 300, 3000, SANITIZER ? 40000 : 150000 };

	for (int i = 0; i < 8; i++) {
		const block_form f = { .count = lengths[i / 2], .by_counts = (i + i / 2) % 2 == 1, .shared = i % 2 == 1 };
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

TEST_RUNS(lists_are_as_one_buffer, run_lists(use_lists));

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

TEST_RUNS(nonsense_is_refused, run_lists(give_nonsense));
