/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* Communicators while no further thread can be started, and what a thread does while a callback runs. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "comm/execute.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

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

static void run(int (*body)(ddp_comm *, void *))
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

TEST_RUNS(what_needs_a_thread_is_refused_at_issue, run(work_without_threads));

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

TEST_RUNS(issued_operations_end_without_a_further_thread, run(strand_operations));

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

TEST_RUNS(no_thread_spins_while_a_callback_runs, run(call_back_for_long));
