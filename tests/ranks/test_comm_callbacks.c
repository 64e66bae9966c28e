/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* Operations that call back when they end. */
#include <stdatomic.h>
#include <stdint.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1, 1 };

static void run_both(int (*body)(ddp_comm *, void *))
{
	for (int layout = 0; layout < 2; layout++)
		RUN_WORLD(.ranks = 3, .node_of = layout == 0 ? NULL : two_nodes, .timeout_ms = 20000, .body = body);
}

/* What a callback knows, and tells. */
typedef struct chain {
	ddp_comm *comm;
	pthread_t program;
	int64_t values[2], sent[64];
	int left;            /* operations that are to follow */
	atomic_int calls;
	bool awaited;        /* the program waits for the request, and may run the operation itself */
	ddp_status status;
	char reason[256];
	sem_t ended;
} chain;

static void chain_init(chain *c, ddp_comm *comm)
{
	*c = (chain){ .comm = comm, .program = pthread_self() };
	CHECK(sem_init(&c->ended, 0, 0) == 0);
}

static void note_end(void *user, ddp_status status)
{
	chain *c = user;

	CHECK(c->awaited || pthread_equal(pthread_self(), c->program) == 0);
	c->status = status;
	strncpy(c->reason, status == DDP_OK ? "" : ddp_last_error(), sizeof(c->reason) - 1);
	atomic_fetch_add(&c->calls, 1);
	CHECK(sem_post(&c->ended) == 0);
}

/* ---- one operation starts the next ------------------------------------------------------ */

enum { LENGTH = 50 };

static void sum_again(void *user, ddp_status status)
{
	chain *c = user;

	CHECK_OK(status);
	if (c->left-- == 0) {
		note_end(user, status);
		return;
	}
	c->values[0] = c->values[1] / ddp_comm_size(c->comm) + 1;
	CHECK_OK(ddp_issue(c->comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .send = &c->values[0],
	                                               .recv = &c->values[1], .count = 1, .type = DDP_I64,
	                                               .on_complete = sum_again, .user = c }, NULL));
}

static int sum_in_a_chain(ddp_comm *comm, void *argument)
{
	chain c;

	chain_init(&c, comm);
	c.left = LENGTH;
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .on_complete = sum_again,
	                                            .user = &c }, NULL));
	CHECK(sem_wait(&c.ended) == 0);
	CHECK(c.values[1] == (int64_t)LENGTH * ddp_comm_size(comm));
	return 0;
}

TEST_RUNS(a_callback_issues_the_next_operation, run_both(sum_in_a_chain));

/* A ball goes round the ranks: each waits for it all the time, and the callback sends it
   on and waits again. */
static void pass_on(void *user, ddp_status status)
{
	chain *c = user;
	int rank = ddp_comm_rank(c->comm), size = ddp_comm_size(c->comm);

	CHECK_OK(status);
	int64_t *ball = &c->sent[c->left];
	*ball = c->values[0] + 1;
	if (c->left-- > 0)
		CHECK_OK(ddp_issue(c->comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &c->values[0], .count = 1,
		                                               .type = DDP_I64, .root = (rank + size - 1) % size,
		                                               .on_complete = pass_on, .user = c }, NULL));
	if (rank != 0 || c->left >= 0)
		CHECK_OK(ddp_issue(c->comm, &(ddp_operation){ .kind = DDP_SEND, .send = ball, .count = 1,
		                                               .type = DDP_I64, .root = (rank + 1) % size,
		                                               .on_complete = note_end, .user = c }, NULL));
	else
		note_end(user, status);
}

static int pass_a_ball(ddp_comm *comm, void *argument)
{
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	int64_t first = 1;
	chain c;

	chain_init(&c, comm);
	c.left = LENGTH - 1;
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &c.values[0], .count = 1,
	                                            .type = DDP_I64, .root = (rank + size - 1) % size,
	                                            .on_complete = pass_on, .user = &c }, NULL));
	if (rank == 0)
		CHECK_OK(ddp_send(comm, &first, 1, DDP_I64, 1, 0));
	for (int i = 0; i < LENGTH; i++)
		CHECK(sem_wait(&c.ended) == 0);
	CHECK(c.values[0] == (int64_t)(LENGTH - 1) * size + (rank == 0 ? size : rank));
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(a_callback_sends_what_another_waits_for, run_both(pass_a_ball));

/* ---- when it is called --------------------------------------------------------------------- */

static void take_long(void *user, ddp_status status)
{
	usleep(20000);
	note_end(user, status);
}

static int wait_for_callbacks(ddp_comm *comm, void *argument)
{
	const ddp_operation ways[] = {
		{ .kind = DDP_BARRIER, .on_complete = take_long },
		{ .kind = DDP_SEND, .root = ddp_comm_rank(comm), .on_complete = take_long },
		{ .kind = DDP_RECV, .root = ddp_comm_rank(comm), .on_complete = take_long },
	};

	for (int by_test = 0; by_test < 2; by_test++) {
		ddp_request *requests[3];
		chain chains[3];
		for (int i = 0; i < 3; i++) {
			ddp_operation operation = ways[i];
			chain_init(&chains[i], comm);
			chains[i].awaited = !by_test;
			operation.user = &chains[i];
			CHECK_OK(ddp_issue(comm, &operation, &requests[i]));
		}
		for (int i = 0; i < 3; i++) {
			bool done = false;
			while (by_test && !done)
				CHECK_OK(ddp_test(requests[i], &done));
			if (!by_test)
				CHECK_OK(ddp_wait(requests[i]));
			CHECK(atomic_load(&chains[i].calls) == 1 && chains[i].status == DDP_OK);
		}
	}
	return 0;
}

TEST_RUNS(the_callback_has_returned_when_the_wait_does, run_both(wait_for_callbacks));

/* Operations that are waited for in the order of their issue, or the other way round. */
enum { ROUNDS = 200, OPEN = 3 };

typedef struct sum {
	int64_t value;
	pthread_t thread; /* that has called back */
	int number, *calls;
} sum;

static void note_sum(void *user, ddp_status status)
{
	sum *s = user;

	CHECK_OK(status);
	s->thread = pthread_self();
	s->number = (*s->calls)++;
}

static int wait_for_sums(ddp_comm *comm, void *argument)
{
	const int size = ddp_comm_size(comm);
	int here = 0;

	for (int round = 0; round < ROUNDS; round++) {
		ddp_request *requests[OPEN];
		sum sums[OPEN];
		int calls = 0;
		for (int i = 0; i < OPEN; i++) {
			sums[i] = (sum){ .value = i + round, .calls = &calls };
			CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = &sums[i].value, .count = 1,
			                                            .type = DDP_I64, .on_complete = note_sum, .user = &sums[i] },
			                   &requests[i]));
		}
		for (int i = 0; i < OPEN; i++) {
			const int next = round % 2 == 0 ? i : OPEN - 1 - i;
			CHECK_OK(ddp_wait(requests[next]));
			CHECK(sums[next].value == (int64_t)(next + round) * size && sums[next].number == next);
			here += pthread_equal(sums[next].thread, pthread_self()) != 0;
		}
	}
	CHECK(here > 0);
	return 0;
}

TEST_RUNS(a_wait_runs_the_operation, run_both(wait_for_sums));

/* Callbacks that take their time. Some issue messages whose callbacks do, too. */
typedef struct turns {
	ddp_comm *comm;
	atomic_int inside;
	atomic_bool overlap;
	char sent, got;
	sem_t begun, ended;
} turns;

static void take_turn(void *user, ddp_status status)
{
	turns *t = user;

	CHECK_OK(status);
	if (atomic_fetch_add(&t->inside, 1) != 0)
		atomic_store(&t->overlap, true);
	CHECK(sem_post(&t->begun) == 0);
	for (int ms = 0; ms < 20 && !atomic_load(&t->overlap); ms++)
		usleep(1000);
	atomic_fetch_sub(&t->inside, 1);
	CHECK(sem_post(&t->ended) == 0);
}

static void send_and_take_turn(void *user, ddp_status status)
{
	turns *t = user;
	ddp_operation message = { .kind = DDP_SEND, .send = &t->sent, .recv = &t->got, .count = 1, .type = DDP_U8,
		                  .root = ddp_comm_rank(t->comm), .on_complete = take_turn, .user = t };

	CHECK_OK(ddp_issue(t->comm, &message, NULL));
	message.kind = DDP_RECV;
	CHECK_OK(ddp_issue(t->comm, &message, NULL));
	take_turn(user, status);
}

static int take_turns(ddp_comm *comm, void *argument)
{
	ddp_request *first, *second, *third;

	for (int round = 0; round < 5; round++) {
		turns t = { .comm = comm };
		ddp_operation barrier = { .kind = DDP_BARRIER, .on_complete = take_turn, .user = &t };
		CHECK(sem_init(&t.begun, 0, 0) == 0 && sem_init(&t.ended, 0, 0) == 0);
		CHECK_OK(ddp_issue(comm, &barrier, &first));
		CHECK_OK(ddp_issue(comm, &barrier, &second));
		CHECK(sem_wait(&t.begun) == 0);
		CHECK_OK(ddp_wait(second));
		CHECK_OK(ddp_wait(first));
		barrier.on_complete = send_and_take_turn;
		CHECK_OK(ddp_issue(comm, &barrier, &third));
		CHECK_OK(ddp_wait(third));
		for (int i = 0; i < 5; i++)
			CHECK(sem_wait(&t.ended) == 0);
		CHECK(!atomic_load(&t.overlap));
	}
	return 0;
}

TEST_RUNS(one_thread_calls_back_at_a_time, run_both(take_turns));

/* A thread of the program issues and waits on one communicator while another one closes a part of it. */
static void *keep_on(void *argument)
{
	ddp_comm *comm = argument;

	for (int i = 0; i < ROUNDS; i++) {
		int64_t value = 1;
		ddp_request *request;
		CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = &value, .count = 1, .type = DDP_I64 },
		                   &request));
		CHECK_OK(ddp_wait(request));
		CHECK(value == ddp_comm_size(comm));
	}
	return NULL;
}

static int close_behind_a_wait(ddp_comm *comm, void *argument)
{
	pthread_t thread;
	ddp_comm *part;

	for (int i = 0; i < 5; i++) {
		CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
		CHECK(pthread_create(&thread, NULL, keep_on, part) == 0);
		(void)keep_on(comm);
		CHECK(pthread_join(thread, NULL) == 0);
		ddp_request *last;
		CHECK_OK(ddp_issue(part, &(ddp_operation){ .kind = DDP_BARRIER }, &last));
		CHECK_OK(ddp_wait(last));
		CHECK_OK(ddp_comm_free(part));
	}
	return 0;
}

TEST_RUNS(a_communicator_is_closed_behind_a_wait, run_both(close_behind_a_wait));

/* A callback sends what rank 0 waits for before it comes to the collective that runs. */
static void answer(void *user, ddp_status status)
{
	chain *c = user;

	CHECK_OK(status);
	c->sent[0] = c->values[0] + 1;
	CHECK_OK(ddp_issue(c->comm, &(ddp_operation){ .kind = DDP_SEND, .send = &c->sent[0], .count = 1,
	                                               .type = DDP_I64, .on_complete = note_end, .user = c }, NULL));
}

static int answer_during_a_collective(ddp_comm *comm, void *argument)
{
	const bool issues = *(const bool *)argument;
	const ddp_operation barrier = { .kind = DDP_BARRIER };
	int64_t word = 6;
	ddp_request *request;
	chain c;

	chain_init(&c, comm);
	if (ddp_comm_rank(comm) == 0) {
		test_await_state((pid_t)comm->roster->peers[1].pid, 'S');
		CHECK_OK(ddp_send(comm, &word, 1, DDP_I64, 1, 0));
		CHECK_OK(ddp_recv(comm, &word, 1, DDP_I64, 1, 0));
		CHECK(word == 7);
	}
	if (ddp_comm_rank(comm) == 1)
		CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &c.values[0], .count = 1,
		                                            .type = DDP_I64, .on_complete = answer, .user = &c }, NULL));
	if (issues) {
		CHECK_OK(ddp_issue(comm, &barrier, &request));
		CHECK_OK(ddp_wait(request));
	} else {
		CHECK_OK(ddp_run(comm, &barrier));
	}
	if (ddp_comm_rank(comm) == 1)
		CHECK(sem_wait(&c.ended) == 0);
	return 0;
}

TEST(a_callback_does_not_wait_for_a_collective)
{
	static bool issues[] = { false, true };

	for (int i = 0; i < 4; i++) {
		RUN_WORLD(.ranks = 3, .node_of = i < 2 ? NULL : two_nodes, .timeout_ms = 20000, .body = answer_during_a_collective,
		          .argument = &issues[i % 2]);
	}
}

/* ---- errors ------------------------------------------------------------------------------ */

/* Behind an operation for which rank 0 does not come. */
static int abort_operations(ddp_comm *comm, void *argument)
{
	static char never[2];
	const ddp_operation ways[] = {
		{ .kind = DDP_RECV, .recv = &never[0], .count = 1, .type = DDP_U8, .root = 0 },
		{ .kind = DDP_BARRIER }, { .kind = DDP_BARRIER },
		{ .kind = DDP_SEND, .send = &never[1], .count = 1, .type = DDP_U8, .root = 0, .tag = 1 },
	};
	enum { COUNT = sizeof(ways) / sizeof(ways[0]) };
	chain chains[COUNT];
	ddp_request *request = NULL;

	for (int i = 0; i < COUNT && ddp_comm_rank(comm) != 0; i++) {
		ddp_operation operation = ways[i];
		chain_init(&chains[i], comm);
		operation.on_complete = note_end;
		operation.user = &chains[i];
		CHECK_OK(ddp_issue(comm, &operation, i == 1 ? &request : NULL));
	}
	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_comm_abort(comm, "enough"));
		return 0;
	}
	for (int i = 0; i < COUNT; i++) {
		CHECK(sem_wait(&chains[i].ended) == 0);
		/* A small message may have gone out before. */
		CHECK(chains[i].status == DDP_ERR_ABORTED || (i == 3 && chains[i].status == DDP_OK));
		CHECK(chains[i].status == DDP_OK || strstr(chains[i].reason, "enough") != NULL);
	}
	CHECK(ddp_wait(request) == DDP_ERR_ABORTED);
	for (int i = 0; i < COUNT; i++)
		CHECK(atomic_load(&chains[i].calls) == 1);
	return 0;
}

TEST_RUNS(each_operation_that_is_aborted_calls_back_once, run_both(abort_operations));

/* The one that closes may call back; nothing can be issued any more. */
static void try_to_go_on(void *user, ddp_status status)
{
	chain *c = user;

	c->status = status;
	strncpy(c->reason, ddp_last_error(), sizeof(c->reason) - 1);
	atomic_fetch_add(&c->calls, 1);
	CHECK_FAILS(ddp_issue(c->comm, &(ddp_operation){ .kind = DDP_BARRIER, .on_complete = try_to_go_on,
	                                                  .user = c }, NULL), DDP_ERR_STATE, "being closed");
	CHECK(ddp_issue(c->comm, &(ddp_operation){ .kind = DDP_SEND, .on_complete = try_to_go_on,
	                                            .user = c }, NULL) == DDP_ERR_STATE);
}

static int close_under_a_receive(ddp_comm *comm, void *argument)
{
	static char never;
	ddp_comm *part;
	chain c;

	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	chain_init(&c, part);
	CHECK_OK(ddp_issue(part, &(ddp_operation){ .kind = DDP_RECV, .recv = &never, .count = 1, .type = DDP_U8,
	                                            .root = ddp_comm_rank(comm), .tag = 3,
	                                            .on_complete = try_to_go_on, .user = &c }, NULL));
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_comm_free(part));
	CHECK(atomic_load(&c.calls) == 1 && c.status == DDP_ERR_STATE);
	CHECK(strstr(c.reason, "with tag 3") != NULL);
	return 0;
}

TEST_RUNS(closing_calls_back_for_what_is_open, run_both(close_under_a_receive));

/* ---- what a callback must not do ------------------------------------------------------------ */

typedef struct refusal {
	chain chain;
	ddp_comm *part;
	ddp_request *later;
} refusal;

static void wait_in_vain(void *user, ddp_status status)
{
	refusal *r = user;

	CHECK_OK(status);
	CHECK_FAILS(ddp_barrier(r->chain.comm), DDP_ERR_STATE, "callback");
	CHECK(ddp_wait(r->later) == DDP_ERR_STATE);
	CHECK(ddp_wait_for(r->later, 1) == DDP_ERR_STATE);
	CHECK(ddp_comm_free(r->part) == DDP_ERR_STATE);
	note_end(&r->chain, status);
}

static int wait_in_a_callback(ddp_comm *comm, void *argument)
{
	static char never;
	const ddp_operation barrier = { .kind = DDP_BARRIER, .on_complete = note_end };
	refusal r;

	chain_init(&r.chain, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &r.part));
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &never, .count = 1, .type = DDP_U8,
	                                            .root = ddp_comm_rank(comm) }, &r.later));
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .on_complete = wait_in_vain,
	                                            .user = &r }, NULL));
	CHECK(sem_wait(&r.chain.ended) == 0);
	CHECK_OK(ddp_send(comm, &never, 1, DDP_U8, ddp_comm_rank(comm), 0));
	CHECK_OK(ddp_wait(r.later));
	CHECK_OK(ddp_comm_free(r.part));
	CHECK(ddp_run(comm, &barrier) == DDP_ERR_INVALID);
	CHECK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER }, NULL) == DDP_ERR_INVALID);
	return 0;
}

TEST_RUNS(a_callback_may_not_wait, run_both(wait_in_a_callback));
