/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* Input and output in one place: where MPI and NCCL allow it, results are those of buffers apart; any
   other overlap is refused on all ranks, in words, also if one rank alone has it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/comm_ranks.h"
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

static const int nodes[RANKS] = { 0, 0, 1, 2 };
static const int *const layouts[] = { NULL, nodes };

static void run(int (*body)(ddp_comm *, void *))
{
	for (int i = 0; i < 2; i++)
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
