/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* Messages beside collectives: from other threads, behind queued ones, and at the end; communicators while no further
   thread can be started, and what a thread does while a callback runs. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/execute.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1, 1 };

/* So many ranks on one node, and on two; the argument is a counter that the ranks share. */
static void run(int on_one_node, int on_two, int (*body)(ddp_comm *, void *))
{
	for (int nodes = 1; nodes <= 2; nodes++) {
		atomic_int *counter = test_share(sizeof(*counter));
		RUN_WORLD(.ranks = nodes == 1 ? on_one_node : on_two, .node_of = nodes == 1 ? NULL : two_nodes,
		          .timeout_ms = 20000, .body = body, .argument = counter);
		test_unshare(counter, sizeof(*counter));
	}
}

/* A collective is queued; a receive that waits for a message which comes after
   it does not keep it from running. */
static int receive_behind_a_collective(ddp_comm *comm, void *argument)
{
	for (int32_t i = 0; i < 100; i++) {
		int32_t sum = 1, ball = i;
		ddp_request *request;
		const ddp_operation c = { .kind = DDP_ALL_REDUCE, .recv = &sum, .count = 1, .type = DDP_I32 };
		if (ddp_comm_rank(comm) == 0) {
			CHECK_OK(ddp_issue(comm, &c, &request));
			ball = -1;
			CHECK_OK(ddp_recv(comm, &ball, 1, DDP_I32, 1, 0));
			CHECK_OK(ddp_wait(request));
			CHECK(ball == i);
		} else {
			CHECK_OK(ddp_run(comm, &c));
			CHECK_OK(ddp_send(comm, &ball, 1, DDP_I32, 0, 0));
		}
		CHECK(sum == 2);
	}
	return 0;
}

TEST_RUNS(receive_lets_queued_collectives_run, run(2, 2, receive_behind_a_collective));

typedef struct receiver {
	ddp_comm *comm;
	bool waits_for_collective;
	atomic_int *received; /* receives that were called; shared with the other ranks */
} receiver;

/* The receive of another thread has been called. */
static void *tell_of_receive(void *argument)
{
	const receiver *r = argument;

	while (atomic_load(&r->comm->p2p.count) == 0)
		usleep(1000);
	atomic_fetch_add(r->received, 1);
	return NULL;
}

static bool is_held(ddp_comm *comm)
{
	if (pthread_mutex_trylock(&comm->run.lock) != 0)
		return true;
	pthread_mutex_unlock(&comm->run.lock);
	return false;
}

static void *receive_ball(void *argument)
{
	const receiver *r = argument;
	ddp_comm *comm = r->comm;
	int32_t ball = 0;

	while (r->waits_for_collective && !is_held(comm))
		usleep(1000);
	CHECK_OK(ddp_recv(comm, &ball, 1, DDP_I32, 1, 4));
	CHECK(ball == 7);
	return NULL;
}

/* The receive is called while a collective holds the communicator, or before
   it; the message is sent after it. */
static int receive_in_a_thread(ddp_comm *comm, void *argument)
{
	receiver r = { .comm = comm, .received = argument };
	const int32_t ball = 7;
	pthread_t thread, teller;

	for (int first = 0; first < 2; first++) {
		if (ddp_comm_rank(comm) != 0) {
			while (atomic_load(r.received) <= first)
				usleep(1000);
			CHECK_OK(ddp_barrier(comm));
			if (ddp_comm_rank(comm) == 1)
				CHECK_OK(ddp_send(comm, &ball, 1, DDP_I32, 0, 4));
			continue;
		}
		r.waits_for_collective = first == 0;
		CHECK(pthread_create(&teller, NULL, tell_of_receive, &r) == 0);
		CHECK(pthread_create(&thread, NULL, receive_ball, &r) == 0);
		while (first != 0 && atomic_load(r.received) < 2)
			usleep(1000);
		CHECK_OK(ddp_barrier(comm));
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(pthread_join(teller, NULL) == 0);
	}
	return 0;
}

TEST_RUNS(receive_of_another_thread_goes_on_beside_collectives, run(2, 3, receive_in_a_thread));

/* Both threads send and receive at once while a third runs collectives. */
typedef struct talker {
	ddp_comm *comm;
	int tag;
} talker;

static void *talk(void *argument)
{
	const talker *t = argument;
	int rank = ddp_comm_rank(t->comm), size = ddp_comm_size(t->comm);

	for (int32_t i = 0; i < 200; i++) {
		int32_t ball = i, got = -1;
		ddp_request *request;
		CHECK_OK(ddp_issue(t->comm, &(ddp_operation){ .kind = DDP_SEND, .send = &ball, .count = 1, .type = DDP_I32,
		                                               .root = (rank + 1) % size, .tag = t->tag }, &request));
		CHECK_OK(ddp_recv(t->comm, &got, 1, DDP_I32, (rank + size - 1) % size, t->tag));
		CHECK(got == i);
		CHECK_OK(ddp_wait(request));
	}
	return NULL;
}

static int talk_in_threads(ddp_comm *comm, void *argument)
{
	talker talkers[2] = { { comm, 1 }, { comm, 2 } };
	pthread_t threads[2];
	int size = ddp_comm_size(comm);

	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, talk, &talkers[i]) == 0);
	for (int i = 0; i < 200; i++) {
		float x = 1;
		CHECK_OK(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_SUM));
		CHECK(x == (float)size);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	return 0;
}

TEST_RUNS(threads_talk_beside_collectives, run(3, 3, talk_in_threads));

static int close_with_an_open_receive(ddp_comm *comm, void *argument)
{
	bool one_node = comm->topology.nodes == 1;
	int32_t never[2] = { 0, 0 };
	ddp_request *requests[2];
	ddp_comm *part;

	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	if (ddp_comm_rank(comm) == 0) {
		for (int i = 0; i < 2; i++)
			CHECK_OK(ddp_issue(part, &(ddp_operation){ .kind = DDP_RECV, .recv = &never[i], .count = 1,
			                                            .type = DDP_I32, .root = 1, .tag = 3 }, &requests[i]));
		CHECK(ddp_wait_for(requests[0], 20) == DDP_ERR_TIMEOUT);
	}
	CHECK_OK(ddp_barrier(comm));
	/* On one node, a receive fails if its peer closes first; between nodes all
	   close together. */
	if (one_node && ddp_comm_rank(comm) == 1)
		CHECK_OK(ddp_barrier(comm));
	uint64_t start = ddp_now_ns();
	CHECK_OK(ddp_comm_free(part));
	/* The deadline is 20 s; a loaded machine is slow. */
	CHECK(ddp_seconds_since(start) < 10);
	if (one_node && ddp_comm_rank(comm) == 0)
		CHECK_OK(ddp_barrier(comm));
	for (int i = 0; i < 2 && ddp_comm_rank(comm) == 0; i++) {
		CHECK_FAILS(ddp_wait(requests[i]), DDP_ERR_STATE, "recv i32[1] from rank 1 with tag 3");
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(closing_ends_messages_that_nobody_answers, run(2, 2, close_with_an_open_receive));

/* ---- threads of the library ------------------------------------------------------------- */

static atomic_bool refuses_threads, holds_threads;

typedef struct start {
	void *(*body)(void *);
	void *argument;
} start;

static void *begin(void *argument)
{
	const start s = *(start *)argument;

	free(argument);
	while (atomic_load(&holds_threads))
		usleep(1000);
	return s.body(s.argument);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument)
{
	start *s = atomic_load(&refuses_threads) ? NULL : malloc(sizeof(*s));

	if (s == NULL)
		return EAGAIN;
	*s = (start){ body, argument };
	const int error = __real_pthread_create(thread, attributes, begin, s);
	if (error != 0)
		free(s);
	return error;
}

/* A thread of the program, which the test always gets. */
static pthread_t program_thread(void *(*body)(void *), void *argument)
{
	pthread_t thread;

	CHECK(__real_pthread_create(&thread, NULL, body, argument) == 0);
	return thread;
}

/* How often a thread has looked after messages. */
static atomic_int looks;

ddp_status __real_ddp_execute_p2p(ddp_comm *comm, const ddp_request *request);
ddp_status __wrap_ddp_execute_p2p(ddp_comm *comm, const ddp_request *request);

ddp_status __wrap_ddp_execute_p2p(ddp_comm *comm, const ddp_request *request)
{
	atomic_fetch_add(&looks, 1);
	return __real_ddp_execute_p2p(comm, request);
}

static void run_two(int (*body)(ddp_comm *, void *))
{
	atomic_int *stage = test_share(sizeof(*stage));

	RUN_WORLD(.ranks = 2, .timeout_ms = 20000, .body = body, .argument = stage);
	test_unshare(stage, sizeof(*stage));
}

/* ---- no thread at all --------------------------------------------------------------------- */

static void *receive(void *comm)
{
	static int32_t ball;

	CHECK_OK(ddp_recv(comm, &ball, 1, DDP_I32, 1, 0));
	return &ball;
}

static int work_without_threads(ddp_comm *comm, void *argument)
{
	int32_t ball = 7;
	ddp_request *request;
	void *received;

	atomic_store(&refuses_threads, true);
	CHECK_FAILS(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER }, &request), DDP_ERR_NOMEM,
	            "cannot start a progress thread (see ulimit -u)");
	/* Blocking calls need none, also a message beside collectives. */
	if (ddp_comm_rank(comm) == 0) {
		const pthread_t thread = program_thread(receive, comm);
		for (int i = 0; i < 100; i++)
			CHECK_OK(ddp_barrier(comm));
		CHECK(pthread_join(thread, &received) == 0);
		CHECK(*(int32_t *)received == 7);
	} else {
		for (int i = 0; i < 100; i++)
			CHECK_OK(ddp_barrier(comm));
		CHECK_OK(ddp_send(comm, &ball, 1, DDP_I32, 0, 0));
	}
	atomic_store(&refuses_threads, false);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER }, &request));
	CHECK_OK(ddp_wait(request));
	return 0;
}

TEST_RUNS(what_needs_a_thread_is_refused_at_issue, run_two(work_without_threads));

/* ---- no further thread ---------------------------------------------------------------------- */

enum { STRANDED = 1 };

static void come_to(atomic_int *stage, int next)
{
	while (atomic_load(stage) < next)
		usleep(1000);
}

static void *wait_for(void *request)
{
	CHECK_OK(ddp_wait(request));
	return NULL;
}

static void post(void *user, ddp_status status)
{
	CHECK_OK(status);
	CHECK(sem_post(user) == 0);
}

static bool is_served(ddp_comm *comm)
{
	pthread_mutex_lock(&comm->queue.lock);
	const bool served = comm->queue.served;
	pthread_mutex_unlock(&comm->queue.lock);
	return served;
}

/* The thread that was started for the part's operations leaves, as the program runs the first one itself. Then a receive
   on the world wants a thread, and no other can be started. The second operation still needs the first thread. */
static void strand(ddp_comm *world, ddp_comm *part, atomic_int *stage)
{
	const ddp_operation barrier = { .kind = DDP_BARRIER };
	ddp_operation second = barrier;
	ddp_request *first, *receive_request = NULL;
	int32_t ball = 0;
	sem_t ended;

	CHECK(sem_init(&ended, 0, 0) == 0);
	second.on_complete = post;
	second.user = &ended;
	atomic_store(&holds_threads, true);
	CHECK_OK(ddp_issue(part, &barrier, &first));
	CHECK_OK(ddp_issue(part, &second, NULL));
	const pthread_t waiter = program_thread(wait_for, first);
	while (!atomic_load(&first->claimed_to_run))
		usleep(1000);
	atomic_store(&holds_threads, false);
	while (is_served(part))
		usleep(1000);
	atomic_store(&refuses_threads, true);
	const ddp_status issued = ddp_issue(world, &(ddp_operation){ .kind = DDP_RECV, .recv = &ball, .count = 1,
	                                                              .type = DDP_I32, .root = 1 }, &receive_request);
	CHECK(issued == DDP_OK || strstr(ddp_last_error(), "cannot start a progress thread (see ulimit -u)") != NULL);
	atomic_store(stage, STRANDED);
	CHECK(pthread_join(waiter, NULL) == 0);
	CHECK(sem_wait(&ended) == 0);
	CHECK(issued == DDP_ERR_NOMEM);
	CHECK_OK(ddp_recv(world, &ball, 1, DDP_I32, 1, 0));
	CHECK(ball == 7);
	atomic_store(&refuses_threads, false);
}

static int strand_operations(ddp_comm *comm, void *argument)
{
	atomic_int *stage = argument;
	const int32_t ball = 7;
	ddp_comm *part;

	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	if (ddp_comm_rank(comm) == 0) {
		strand(comm, part, stage);
	} else {
		come_to(stage, STRANDED);
		CHECK_OK(ddp_barrier(part));
		CHECK_OK(ddp_barrier(part));
		CHECK_OK(ddp_send(comm, &ball, 1, DDP_I32, 0, 0));
	}
	CHECK_OK(ddp_comm_free(part));
	return 0;
}

TEST_RUNS(issued_operations_end_without_a_further_thread, run_two(strand_operations));

/* ---- while a callback runs ------------------------------------------------------------------- */

enum { LOOKS_MAX = 200, WATCHED_MS = 20 };

static ddp_comm *watched;

/* The thread looks after an open receive meanwhile, and sleeps. */
static void take_long(void *user, ddp_status status)
{
	CHECK_OK(status);
	CHECK(pthread_equal(pthread_self(), *(pthread_t *)user) != 0);
	CHECK(atomic_load(&watched->queue.count) == 0);
	atomic_store(&holds_threads, false);
	while (atomic_load(&looks) == 0)
		usleep(1000);
	for (int ms = 0; ms < WATCHED_MS; ms++)
		usleep(1000);
	CHECK(atomic_load(&looks) <= LOOKS_MAX);
}

static int call_back_for_long(ddp_comm *comm, void *argument)
{
	const int self = ddp_comm_rank(comm);
	pthread_t program = pthread_self();
	ddp_request *open, *request;
	int32_t sent = 5, got = 0;

	watched = comm;
	atomic_store(&holds_threads, true);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &got, .count = 1, .type = DDP_I32, .root = self },
	                   &open));
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .on_complete = take_long, .user = &program }, &request));
	CHECK_OK(ddp_wait(request));
	CHECK_OK(ddp_send(comm, &sent, 1, DDP_I32, self, 0));
	CHECK_OK(ddp_wait(open));
	CHECK(got == 5);
	return 0;
}

TEST_RUNS(no_thread_spins_while_a_callback_runs, run_two(call_back_for_long));
