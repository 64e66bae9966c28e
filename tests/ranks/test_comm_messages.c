/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 8 */
/* Sends and receives of any source, tag and size; requests that are let go of; timeouts of single operations. */
#include <limits.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/p2p/p2p.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

enum { RANKS = 4, LARGE = 800 * 1000 };

static void run(int timeout_ms, int (*body)(ddp_comm *, void *))
{
	static const int two_nodes[] = { 0, 1, 1, 0 }, all_apart[] = { 0, 1, 2, 3 };
	const int *const layouts[] = { NULL, two_nodes, all_apart };

	for (int i = 0; i < 3; i++)
		RUN_WORLD(.ranks = RANKS, .node_of = layouts[i], .timeout_ms = timeout_ms, .body = body);
}

static ddp_status receive(ddp_comm *comm, void *buffer, size_t count, int source, int tag, ddp_received *received)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = buffer, .count = count, .type = DDP_I32,
	                                        .root = source, .tag = tag, .received = received });
}

static ddp_request *begin_to_receive(ddp_comm *comm, void *buffer, size_t count, int source, int tag,
                                     ddp_received *received)
{
	ddp_request *request;

	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = buffer, .count = count, .type = DDP_I32,
	                                            .root = source, .tag = tag, .received = received }, &request));
	return request;
}

/* ---- from whom a message is ---------------------------------------------------------------- */

static int receive_from_all(ddp_comm *comm, void *argument)
{
	int32_t *x = calloc(LARGE, sizeof(*x));
	const int rank = ddp_comm_rank(comm);
	bool came[RANKS][2] = { { false } };

	CHECK(x != NULL);
	for (int i = 0; i < LARGE; i++)
		x[i] = rank * 1000000 + i;
	for (int large = 0; large < 2 && rank != 0; large++)
		CHECK_OK(ddp_send(comm, x, large ? LARGE - (size_t)rank : (size_t)rank, DDP_I32, 0, 100 * rank + large));
	for (int i = 0; i < 2 * (RANKS - 1) && rank == 0; i++) {
		ddp_received r = { .source = -7 };
		CHECK_OK(receive(comm, x, LARGE, DDP_ANY_SOURCE, DDP_ANY_TAG, &r));
		CHECK(r.source > 0 && r.source < RANKS);
		const int large = r.tag % 100;
		CHECK(r.tag == 100 * r.source + large && !came[r.source][large] && (large == 0 || came[r.source][0]));
		CHECK(r.count == (large == 1 ? LARGE - (size_t)r.source : (size_t)r.source));
		for (size_t k = 0; k < r.count; k++)
			CHECK(x[k] == r.source * 1000000 + (int32_t)k);
		came[r.source][large] = true;
	}
	CHECK_OK(ddp_barrier(comm));
	free(x);
	return 0;
}

TEST_RUNS(a_receive_tells_source_tag_and_count, run(20000, receive_from_all));

/* ---- order ----------------------------------------------------------------------------------- */

enum { MESSAGES = 30 };

/* Receives were issued before messages come, and after them. */
static int keep_order(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm);

	for (int late = 0; late < 2; late++) {
		int32_t x[MESSAGES] = { 0 };
		ddp_received told[MESSAGES] = { { 0 } };
		ddp_request *requests[MESSAGES];
		if (!late)
			CHECK_OK(ddp_barrier(comm));
		for (int i = 0; i < MESSAGES && rank == 1; i++) {
			const int32_t value = 10 * i;
			CHECK_OK(ddp_send(comm, &value, 1, DDP_I32, 0, i % 3));
		}
		if (late)
			CHECK_OK(ddp_barrier(comm));
		/* Tags 0 1 2 0 1 2 ... : the i-th of these gets the i-th message, whatever else it could take. */
		for (int i = 0; i < MESSAGES && rank == 0; i++)
			requests[i] = begin_to_receive(comm, &x[i], 1, i % 2 == 0 ? DDP_ANY_SOURCE : 1,
			                               i % 4 < 2 ? i % 3 : DDP_ANY_TAG, i % 5 == 0 ? NULL : &told[i]);
		if (!late)
			CHECK_OK(ddp_barrier(comm));
		for (int i = MESSAGES - 1; i >= 0 && rank == 0; i--) {
			CHECK_OK(ddp_wait(requests[i]));
			CHECK(x[i] == 10 * i);
			CHECK(i % 5 == 0 || (told[i].source == 1 && told[i].tag == i % 3 && told[i].count == 1));
		}
		CHECK_OK(ddp_barrier(comm));
	}
	return 0;
}

/* The first receives are issued before the sender begins, which waits for that. */
static int keep_order_of_receives(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm);
	int32_t x[3] = { 0 };
	ddp_received told;
	ddp_request *requests[3];

	if (rank == 0) {
		requests[0] = begin_to_receive(comm, &x[0], 1, DDP_ANY_SOURCE, 7, &told);
		requests[1] = begin_to_receive(comm, &x[1], 1, 1, 7, NULL);
		requests[2] = begin_to_receive(comm, &x[2], 1, 1, 8, NULL);
	}
	CHECK_OK(ddp_barrier(comm));
	for (int32_t i = 1; i <= 3 && rank == 1; i++)
		CHECK_OK(ddp_send(comm, &i, 1, DDP_I32, 0, i == 1 ? 8 : 7));
	for (int i = 2; i >= 0 && rank == 0; i--)
		CHECK_OK(ddp_wait(requests[i]));
	CHECK(rank != 0 || (x[0] == 2 && x[1] == 3 && x[2] == 1 && told.source == 1));
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST(order_is_that_of_mpi)
{
	run(20000, keep_order);
	run(20000, keep_order_of_receives);
}

/* ---- what does not fit ------------------------------------------------------------------------- */

static int send_too_much(ddp_comm *comm, void *argument)
{
	int32_t x[4] = { 0 };
	ddp_received told;

	if (ddp_comm_rank(comm) == 1)
		(void)ddp_send(comm, x, 3, DDP_I32, 0, 5);
	if (ddp_comm_rank(comm) == 0) {
		CHECK_FAILS(receive(comm, x, 2, DDP_ANY_SOURCE, DDP_ANY_TAG, &told), DDP_ERR_MISMATCH, "rank 0");
		CHECK_SAYS("issued recv i32[2] from any rank with any tag, but rank 1");
		CHECK_SAYS("sent i32[3]");
	}
	return 0;
}

static int send_another_type(ddp_comm *comm, void *argument)
{
	int32_t x[4] = { 0 };
	ddp_received told;

	if (ddp_comm_rank(comm) == 1)
		(void)ddp_send(comm, x, 2, DDP_F32, 0, 5);
	if (ddp_comm_rank(comm) == 0) {
		CHECK_FAILS(receive(comm, x, 2, 1, 5, &told), DDP_ERR_MISMATCH,
		            "issued recv i32[2] from rank 1 with tag 5, but rank 1");
		CHECK_SAYS("sent f32[2]");
	}
	return 0;
}

/* Without `received` it is to be of that size. */
static int send_too_little(ddp_comm *comm, void *argument)
{
	int32_t x[4] = { 0 };

	if (ddp_comm_rank(comm) == 1)
		(void)ddp_send(comm, x, 1, DDP_I32, 0, 5);
	if (ddp_comm_rank(comm) == 0) {
		CHECK_FAILS(receive(comm, x, 2, DDP_ANY_SOURCE, 5, NULL), DDP_ERR_MISMATCH, "sent i32[1]");
	}
	return 0;
}

TEST(what_does_not_fit_is_refused)
{
	run(20000, send_too_much);
	run(20000, send_another_type);
	run(20000, send_too_little);
}

static int send_by_large_tags(ddp_comm *comm, void *argument)
{
	static const int tags[] = { 1, 65537, 1 << 24, 1 << 30, INT_MAX };
	const int rank = ddp_comm_rank(comm);

	for (int32_t i = 0; i < 5 && rank == 2; i++)
		CHECK_OK(ddp_send(comm, &i, 1, DDP_I32, 3, tags[i]));
	for (int32_t i = 4, x; i >= 0 && rank == 3; i--) {
		CHECK_OK(ddp_recv(comm, &x, 1, DDP_I32, 2, tags[i]));
		CHECK(x == i);
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

static int give_nonsense(ddp_comm *comm, void *argument)
{
	ddp_received told;
	ddp_request *request;
	int32_t x = 0;

	CHECK_FAILS(ddp_send(comm, &x, 1, DDP_I32, 1, -1), DDP_ERR_INVALID, "send: the tag must not be negative");
	CHECK(ddp_recv(comm, &x, 1, DDP_I32, 1, -2) == DDP_ERR_INVALID);
	CHECK_FAILS(ddp_send(comm, &x, 1, DDP_I32, DDP_ANY_SOURCE, 1), DDP_ERR_INVALID,
	            "send: rank -1 is not among the communicator's 4");
	CHECK(ddp_broadcast(comm, &x, 1, DDP_I32, DDP_ANY_SOURCE) == DDP_ERR_INVALID);
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_BROADCAST, .recv = &x, .count = 1, .type = DDP_I32,
	                                             .received = &told }), DDP_ERR_INVALID,
	            "broadcast: `received` belongs to a recv");
	CHECK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &x, .count = 1, .type = DDP_I32,
	                                         .memory = DDP_MEMORY_DEVICE, .root = DDP_ANY_SOURCE }, &request)
	      == DDP_ERR_UNSUPPORTED);
	CHECK_SAYS("DDP_ANY_SOURCE, DDP_ANY_TAG and `received` are for the host's memory");
	CHECK_FAILS(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .timeout_ms = -1 }), DDP_ERR_INVALID,
	            "barrier: a negative timeout_ms");
	ddp_request_free(NULL);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(tags_are_any_number_that_is_not_negative, run(20000, send_by_large_tags));

TEST_RUNS(nonsense_is_refused, run(20000, give_nonsense));

/* ---- timeouts ------------------------------------------------------------------------------------ */

static ddp_status run_for(ddp_comm *comm, ddp_operation_kind kind, int32_t *x, int peer, int timeout_ms)
{
	return ddp_run(comm, &(ddp_operation){ .kind = kind, .recv = x, .count = 1, .type = DDP_I32, .root = peer,
	                                        .timeout_ms = timeout_ms });
}

static int wait_for_a_short_time(ddp_comm *comm, void *argument)
{
	const uint64_t start_ns = ddp_now_ns();
	int32_t x = 0;

	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		CHECK_FAILS(run_for(comm, DDP_ALL_REDUCE, &x, 0, 300), DDP_ERR_TIMEOUT, "did not come within 300 ms for all_reduce");
		CHECK(ddp_seconds_since(start_ns) >= 0.3 && ddp_seconds_since(start_ns) < 30);
	}
	test_ranks_together();
	return 0;
}

static int receive_for_a_short_time(ddp_comm *comm, void *argument)
{
	int32_t x[3] = { 0 };
	ddp_request *request;

	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		/* The one that is late is not the first. */
		request = begin_to_receive(comm, &x[1], 1, 1, 3, NULL);
		CHECK_FAILS(run_for(comm, DDP_RECV, x, DDP_ANY_SOURCE, 300), DDP_ERR_TIMEOUT,
		            "no rank sent a message within 300 ms for recv i32[1] from any rank");
		CHECK(ddp_wait(request) == DDP_ERR_TIMEOUT);
	}
	test_ranks_together();
	return 0;
}

/* That of the issued one is not the communicator's. */
static int issue_for_a_short_time(ddp_comm *comm, void *argument)
{
	int32_t x[3] = { 0 };
	ddp_request *first, *second;

	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		first = begin_to_receive(comm, &x[1], 1, 1, 3, NULL);
		CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = x, .count = 1, .type = DDP_I32, .root = 2,
		                                            .timeout_ms = 300 }, &second));
		CHECK_FAILS(ddp_wait(second), DDP_ERR_TIMEOUT, "within 300 ms for recv i32[1] from rank 2");
		CHECK(ddp_wait(first) == DDP_ERR_TIMEOUT);
	}
	test_ranks_together();
	return 0;
}

/* A message is late also while its rank waits for longer in another operation. */
static int be_late_beside_another(ddp_comm *comm, ddp_operation_kind kind)
{
	int32_t x[3] = { 0 };
	ddp_request *late;

	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		const uint64_t start_ns = ddp_now_ns();
		CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = x, .count = 1, .type = DDP_I32, .root = 2,
		                                            .timeout_ms = 300 }, &late));
		CHECK(run_for(comm, kind, &x[1], 1, 0) == DDP_ERR_TIMEOUT);
		CHECK(ddp_seconds_since(start_ns) >= 0.3 && ddp_seconds_since(start_ns) < 30);
		CHECK_SAYS("within 300 ms for recv i32[1] from rank 2");
		CHECK(ddp_wait(late) == DDP_ERR_TIMEOUT);
	}
	test_ranks_together();
	return 0;
}

static int be_late_beside_a_collective(ddp_comm *comm, void *argument)
{
	return be_late_beside_another(comm, DDP_ALL_REDUCE);
}

static int be_late_beside_a_message(ddp_comm *comm, void *argument)
{
	return be_late_beside_another(comm, DDP_RECV);
}

static int leave_time(ddp_comm *comm, void *argument)
{
	int32_t x = 1;

	if (ddp_comm_rank(comm) == 1)
		usleep(1500 * 1000);
	CHECK_OK(run_for(comm, DDP_ALL_REDUCE, &x, 0, 60000));
	CHECK(x == RANKS);
	return 0;
}

TEST(an_operation_has_its_own_timeout)
{
	run(60000, wait_for_a_short_time);
	run(60000, receive_for_a_short_time);
	run(60000, issue_for_a_short_time);
	run(60000, be_late_beside_a_collective);
	run(60000, be_late_beside_a_message);
	run(1000, leave_time);
}

/* ---- requests that are let go of ------------------------------------------------------------------ */

static void count_and_post(void *user, ddp_status status)
{
	CHECK_OK(status);
	CHECK(sem_post(user) == 0);
}

typedef struct own_request {
	ddp_request *request;
	sem_t issued, ended;
} own_request;

static void free_own(void *user, ddp_status status)
{
	own_request *own = user;

	CHECK_OK(status);
	CHECK(sem_wait(&own->issued) == 0);
	ddp_request_free(own->request);
	CHECK(sem_post(&own->ended) == 0);
}

static int let_go(ddp_comm *comm, void *argument)
{
	enum { COUNT = 100 };
	const int rank = ddp_comm_rank(comm);
	int32_t x[COUNT], y = 0;
	ddp_request *request;
	own_request own = { .request = NULL };
	sem_t ended;

	CHECK(sem_init(&ended, 0, 0) == 0 && sem_init(&own.issued, 0, 0) == 0 && sem_init(&own.ended, 0, 0) == 0);
	for (int i = 0; i < COUNT; i++) {
		x[i] = i;
		CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = &x[i], .count = 1, .type = DDP_I32,
		                                            .on_complete = i % 4 == 0 ? NULL : count_and_post, .user = &ended },
		                   &request));
		if (i % 4 < 2)
			ddp_request_free(request);
		else if (i % 4 == 2)
			CHECK_OK(ddp_wait(request));
		else {
			while (!ddp_request_done(request))
				usleep(100);
			ddp_request_free(request);
		}
	}
	for (int i = 0; i < COUNT; i++)
		CHECK(i % 4 == 0 || sem_wait(&ended) == 0);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .on_complete = free_own, .user = &own }, &own.request));
	CHECK(sem_post(&own.issued) == 0 && sem_wait(&own.ended) == 0);
	CHECK_OK(ddp_barrier(comm));
	for (int i = 0; i < COUNT; i++)
		CHECK(x[i] == RANKS * i);
	/* A message comes into the buffer of one that was let go of before. */
	if (rank == 0)
		ddp_request_free(begin_to_receive(comm, &y, 1, 1, 3, NULL));
	CHECK_OK(ddp_barrier(comm));
	if (rank == 1)
		CHECK_OK(ddp_send(comm, x + 1, 1, DDP_I32, 0, 3));
	CHECK_OK(ddp_barrier(comm));
	while (rank == 0 && ddp_p2p_pending(comm))
		usleep(1000);
	CHECK(rank != 0 || y == RANKS);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* Nobody has heard of the failure yet: closing tells, whether the request was let go of before or after it had
   failed. One that is let go of after that tells nobody. */
static int let_go_of_what_fails(ddp_comm *comm, void *argument)
{
	ddp_comm *part;
	int32_t x;

	for (int turn = 0; turn < 3; turn++) {
		CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
		if (ddp_comm_rank(comm) == 0) {
			ddp_request *request;
			CHECK_OK(ddp_issue(part, &(ddp_operation){ .kind = DDP_RECV, .recv = &x, .count = 1, .type = DDP_I32,
			                                            .root = 1, .timeout_ms = 200 }, &request));
			if (turn == 0)
				ddp_request_free(request);
			while (turn == 0 ? !ddp_comm_broken(part) : !ddp_request_done(request))
				usleep(1000);
			if (turn == 1)
				ddp_request_free(request);
			CHECK(ddp_comm_free(part) == (turn < 2 ? DDP_ERR_TIMEOUT : DDP_OK));
			if (turn < 2)
				CHECK_SAYS("within 200 ms for recv i32[1] from rank 1");
			else
				ddp_request_free(request);
		}
		test_ranks_together();
		if (ddp_comm_rank(comm) != 0)
			(void)ddp_comm_free(part);
		CHECK_OK(ddp_barrier(comm));
	}
	return 0;
}

TEST(the_library_ends_what_was_let_go_of)
{
	run(20000, let_go);
	run(20000, let_go_of_what_fails);
}

/* ---- many ranks on a node ------------------------------------------------------------------ */

enum { MANY = SANITIZER ? 12 : 40, LONG = 100000 };

static int pass_around(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm), next = (rank + 1) % MANY, before = (rank + MANY - 1) % MANY;
	static int32_t out[LONG], in[LONG];
	ddp_request *request;

	/* The rings of all pairs, and what ranks have each: 2 MiB are for sums where they outnumber cores. */
	CHECK(comm->node.shared_bytes < ((size_t)64 << 20) + MANY * ((size_t)3 << 20));
	for (int i = 0; i < LONG; i++)
		out[i] = rank + i;
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = in, .count = LONG, .type = DDP_I32, .root = before }, &request));
	CHECK_OK(ddp_send(comm, out, LONG, DDP_I32, next, 0));
	CHECK_OK(ddp_wait(request));
	for (int i = 0; i < LONG; i++)
		CHECK(in[i] == before + i);
	return 0;
}

TEST_RUNS(rings_of_many_ranks_take_bounded_memory, RUN_WORLD(.ranks = MANY, .body = pass_around));
