/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; needs: UCX */
/* The network between nodes: which message is whose, and what becomes of one that nobody asks for. */
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net/ucx.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1 };

static void run(int timeout_ms, int (*body)(ddp_comm *, void *), void *argument)
{
	RUN_WORLD(.ranks = 2, .node_of = two_nodes, .timeout_ms = timeout_ms, .body = body, .argument = argument);
}

/* ---- order ------------------------------------------------------------------------ */

enum { ORDERED = 1 << 20 };

/* Two messages with the same tag, the first of which UCX announces, as it does
   large ones, between their receivers' coming. */
static int receive_in_order(ddp_comm *comm, void *argument)
{
	const ddp_envelope envelope = {
		.tag = DDP_NET_P2P_TAG | 5, .source = ddp_comm_rank(comm),
		.operation = { .kind = DDP_SEND, .type = DDP_F32, .count = ORDERED },
	};
	static float x[2][ORDERED];
	ddp_transfer transfers[2];

	CHECK_OK(ddp_barrier(comm));
	pthread_mutex_lock(&comm->run.lock);
	comm->run.operation = &(const ddp_operation){ .kind = DDP_BARRIER };
	comm->run.deadline_ns = 0;
	for (int i = 0; i < 2; i++) {
		if (ddp_comm_rank(comm) == 1) {
			x[i][0] = (float)(1 + i);
			CHECK_OK(ddp_net_send(comm, 0, &envelope, x[i], sizeof(x[i]), &transfers[i]));
			continue;
		}
		ddp_net_recv(comm, 1, &envelope, x[i], sizeof(x[i]), &transfers[i]);
		for (int n = 0; i == 0 && n < 1000 && atomic_load(&comm->net->unexpected) == 0 && !transfers[0].done; n++) {
			pthread_mutex_lock(&comm->net->worker->lock);
			ucp_worker_progress(comm->net->worker->worker);
			pthread_mutex_unlock(&comm->net->worker->lock);
			usleep(1000);
		}
	}
	CHECK_OK(ddp_await_transfers(comm, transfers, 2));
	pthread_mutex_unlock(&comm->run.lock);
	CHECK(x[0][0] == 1 && x[1][0] == 2);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(messages_are_taken_in_the_order_of_their_receivers, run(0, receive_in_order, NULL));

/* ---- what is kept ------------------------------------------------------------------ */

static int send_unasked(ddp_comm *comm, void *argument)
{
	static char data[4096];

	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 0) {
		pthread_mutex_lock(&comm->net->worker->lock);
		comm->net->worker->kept_bytes += ((size_t)1 << 30) + ((size_t)2 << 20) - sizeof(data);
		pthread_mutex_unlock(&comm->net->worker->lock);
	}
	ddp_status status = ddp_barrier(comm);
	if (status == DDP_OK && ddp_comm_rank(comm) == 1)
		status = ddp_send(comm, data, sizeof(data), DDP_U8, 0, 7);
	while (status == DDP_OK)
		status = ddp_barrier(comm);
	CHECK_FAILS(status, DDP_ERR_NOMEM, "rank 1 on n1 sent more");
	return 0;
}

TEST_RUNS(messages_nobody_asks_for_are_bounded, run(0, send_unasked, NULL));

/* ---- what must not be overlooked -------------------------------------------------------- */

/* Lets the peer's message come in, unless the progress thread was faster. */
static void take_in(ddp_comm *comm)
{
	uint64_t start = ddp_now_ns();

	pthread_mutex_lock(&comm->run.lock);
	while (atomic_load(&comm->net->unexpected) == 0 && !ddp_comm_broken(comm) && ddp_seconds_since(start) < 10)
		(void)ddp_net_progress(comm);
	pthread_mutex_unlock(&comm->run.lock);
}

/* Each takes itself for the root, and is through; then comes what waits for
   nobody, until the mistake is older than what a rank remembers. */
static int hurry_on(ddp_comm *comm, void *argument)
{
	const bool *came_in_time = argument;
	float x[5] = { 0 };

	CHECK_OK(ddp_barrier(comm));
	uint64_t start = ddp_now_ns();
	ddp_status status = ddp_broadcast(comm, x, 5, DDP_F32, ddp_comm_rank(comm));
	if (*came_in_time)
		take_in(comm);
	for (int i = 0; i < 2 * DDP_PAST && status == DDP_OK; i++)
		status = ddp_broadcast(comm, x, 0, DDP_F32, 0);
	while (status == DDP_OK && ddp_seconds_since(start) < 20)
		status = ddp_barrier(comm);
	CHECK_FAILS(status, DDP_ERR_MISMATCH, "operation #2 differs");
	return 0;
}

TEST(mistake_is_noticed_however_fast_operations_follow)
{
	static bool came_in_time[] = { true, false };

	for (int i = 0; i < 2; i++)
		run(0, hurry_on, &came_in_time[i]);
}

/* A message of the barrier whose number is high, and which comes before it is
   asked for, is no question about the barrier. */
static int send_a_high_number(ddp_comm *comm, void *argument)
{
	const ddp_operation barrier = { .kind = DDP_BARRIER };
	char byte = (char)(7 * ddp_comm_rank(comm));
	ddp_transfer transfer;

	CHECK_OK(ddp_barrier(comm));
	pthread_mutex_lock(&comm->run.lock);
	comm->run.operation = &barrier;
	comm->run.deadline_ns = 0;
	if (ddp_comm_rank(comm) == 1) {
		CHECK_OK(ddp_message_send(comm, 0, ddp_message_tag(comm, 0xfffffe), &byte, 1, &transfer));
	} else {
		while (atomic_load(&comm->net->unexpected) == 0)
			(void)ddp_net_progress(comm);
		CHECK_OK(ddp_message_check(comm, DDP_NOBODY));
		ddp_message_recv(comm, 1, ddp_message_tag(comm, 0xfffffe), &byte, 1, &transfer);
	}
	CHECK_OK(ddp_await_transfers(comm, &transfer, 1));
	pthread_mutex_unlock(&comm->run.lock);
	CHECK(byte == 7);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(no_message_is_taken_for_a_question, run(5000, send_a_high_number, NULL));
