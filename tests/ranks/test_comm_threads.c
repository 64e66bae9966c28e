/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* Messages beside collectives: from other threads, behind queued ones, and at the end. */
#include <stdatomic.h>
#include <stdint.h>
#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/comm.h"
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
