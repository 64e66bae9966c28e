/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET */
/* libnccl-net-ddpucx.so: how connections end. A process dies, closes early or with what its
   peer has not heard of, or gives up messages that are under way. */
#include <stdint.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "nccl_plugins/net/connection.h"
#include "tests/support/hung.h"
#include "tests/support/netplugin_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

/* Sends or receives without end; what the plugin says when it fails. */
static net_result stream_on(const nccl_driver *d, void *connection, bool sends, int messages)
{
	enum { AT_ONCE = 6 };
	static unsigned char data[AT_ONCE][LONG];
	void *requests[AT_ONCE] = { NULL };
	net_result result = NET_SUCCESS;

	for (int i = 0; (messages == 0 || i < messages) && result == NET_SUCCESS; i++) {
		const int slot = i % AT_ONCE;
		int done = requests[slot] == NULL, tag = 5;
		size_t bytes = LONG;
		void *at = data[slot], *none = NULL;
		while (done == 0 && result == NET_SUCCESS)
			result = d->test(requests[slot], &done, NULL);
		if (result != NET_SUCCESS)
			break;
		result = sends ? nccl_send(d, connection, at, length_of(i), 5, NULL, &requests[slot]) :
		         nccl_receive(d, connection, 1, &at, &bytes, &tag, &none, &requests[slot]);
		if (sends && i == 50)
			reach(1);
	}
	return result;
}

/* The victim is killed while messages are under way. */
static int outlive(int rank, void *argument)
{
	nccl_driver d;

	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	if (rank == shared->victim)
		return stream_on(&d, connection, rank == SENDER, 0) == NET_SUCCESS;
	if (rank == SENDER)
		CHECK(stream_on(&d, connection, true, 60) == NET_SUCCESS);
	else
		CHECK(stream_on(&d, connection, false, 40) == NET_SUCCESS);
	CHECK(kill(atomic_load(&shared->pids[shared->victim]), SIGKILL) == 0);
	const uint64_t start_ns = ddp_now_ns();
	CHECK(stream_on(&d, connection, rank == SENDER, 0) == NET_SYSTEM_ERROR);
	CHECK(ddp_seconds_since(start_ns) < 5 * test_slowness());
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* UCX's versions differ in what they send, and call sent, before the receiver has asked for it. */
static void send_no_sooner_than_asked(void)
{
	CHECK(setenv("UCX_RNDV_THRESH", "8192", 1) == 0);
}

/* The victim closes while the other has requests under way that it will not answer. */
static int close_early(int rank, void *argument)
{
	static unsigned char data[4][LONG];
	nccl_driver d;
	void *requests[4];
	int done = 0;
	net_result result = NET_SUCCESS;

	send_no_sooner_than_asked();
	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	for (int i = 0; i < 4; i++) {
		requests[i] = rank == RECEIVER ? begin_receive(&d, connection, data[i], LONG, 5, NULL) :
		              begin_send(&d, connection, data[i], LONG, 6, NULL);
		CHECK(requests[i] != NULL);
	}
	atomic_fetch_add(&shared->stage, 1);
	await(2);
	for (int i = 0; i < 100; i++) /* some of it gets there */
		CHECK(d.test(requests[0], &done, NULL) == NET_SUCCESS && done == 0);
	atomic_fetch_add(&shared->stage, 1);
	await(4);
	if (rank != shared->victim) {
		while (result == NET_SUCCESS && done == 0)
			result = d.test(requests[0], &done, NULL);
		CHECK(result == NET_SYSTEM_ERROR);
		/* It stays so, and is told once. */
		CHECK(d.test(requests[1], &done, NULL) == NET_SYSTEM_ERROR);
	}
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* When the receiver's close notice comes to the sender. */
static enum arrival { IN_TIME, LATE, NEVER } notice_comes;

/* From now on the peer does not hear what the plugin says on the connection's control socket, nor
   that it closes it: that comes to the socket that is returned. *own is the way to the peer. */
static int hold_back(void *connection, int *own)
{
	const net_connection *c = connection;
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	*own = dup(c->fd);
	CHECK(*own >= 0 && dup2(pair[0], c->fd) == c->fd && close(pair[0]) == 0);
	return pair[1];
}

/* What was held back, late or never. */
static void let_through(int held, int own)
{
	unsigned char notice[sizeof(uint64_t)];

	CHECK(recv(held, notice, sizeof(notice), MSG_WAITALL) == sizeof(notice));
	await(3);
	if (notice_comes == LATE)
		CHECK(send(own, notice, sizeof(notice), 0) == sizeof(notice));
	else
		await(4);
	close(own);
	close(held);
}

/* Tests as if the receiver had only now been lost: what is to come in time does so on a slow
   machine, too. */
static net_result test_as_just_lost(const nccl_driver *d, net_connection *c, void *request, int *done)
{
	c->lost_ns = 0;
	return d->test(request, done, NULL);
}

/* UCX has lost the receiver, whose last word has not come yet. */
static void expect_to_wait(const nccl_driver *d, net_connection *c, void *request)
{
	const uint64_t start_ns = ddp_now_ns();
	net_result result = NET_SUCCESS;
	void *another;
	int done = 0;

	c->lost = UCS_ERR_CONNECTION_RESET;
	for (int i = 0; i < 100; i++)
		CHECK(test_as_just_lost(d, c, request, &done) == NET_SUCCESS && done == 0);
	c->lost_ns = 0;
	CHECK(nccl_send(d, c, &done, sizeof(done), 5, NULL, &another) == NET_SUCCESS && another == NULL);
	reach(3);
	if (notice_comes == LATE)
		return;
	while (result == NET_SUCCESS && done == 0)
		result = d->test(request, &done, NULL);
	CHECK(result == NET_SYSTEM_ERROR);
	CHECK(ddp_seconds_since(start_ns) < 5 * test_slowness());
	reach(4);
}

/* From now on the plugin asks another worker for what comes through UCX, which none does: as if it were
   lost. Ends by its second call. */
static void turn_deaf(net_connection *c, bool deaf)
{
	const ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED,
	};
	static ucp_worker_h own;

	if (deaf) {
		own = c->worker->ucx;
		CHECK(ucp_worker_create(c->worker->context, &params, &c->worker->ucx) == UCS_OK);
	} else {
		ucp_worker_destroy(c->worker->ucx);
		c->worker->ucx = own;
	}
}

/* The receiver has got all and is gone, and the sender has not heard so from UCX. */
static int close_unacknowledged(int rank, void *argument)
{
	enum { MESSAGES = 8 };
	static unsigned char data[MESSAGES][LONG];
	nccl_driver d;
	void *requests[MESSAGES], *memory = NULL;
	int held = -1, own = -1;

	send_no_sooner_than_asked();
	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	if (rank == SENDER) {
		CHECK(d.register_memory(connection, data, sizeof(data), NET_HOST, &memory) == NET_SUCCESS);
		for (int i = 0; i < MESSAGES; i++) {
			fill(data[i], LONG, i);
			requests[i] = begin_send(&d, connection, data[i], LONG, 5, memory);
		}
		turn_deaf(connection, true);
		reach(1);
		await(2);
		if (notice_comes != IN_TIME)
			expect_to_wait(&d, connection, requests[0]);
		for (int i = 0, done; i < MESSAGES && notice_comes != NEVER; i++)
			for (done = 0; done == 0;)
				CHECK(test_as_just_lost(&d, connection, requests[i], &done) == NET_SUCCESS);
		turn_deaf(connection, false);
		CHECK(d.deregister_memory(connection, memory) == NET_SUCCESS);
	} else {
		await(1);
		for (int i = 0; i < MESSAGES; i++) {
			finish(&d, begin_receive(&d, connection, data[i], LONG, 5, NULL), NULL);
			CHECK(holds(data[i], LONG, i));
		}
		if (notice_comes != IN_TIME)
			held = hold_back(connection, &own);
	}
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	if (rank == RECEIVER)
		reach(2);
	if (held >= 0)
		let_through(held, own);
	return 0;
}

/* More comes than there is room for. */
static int overflow(int rank, void *argument)
{
	static unsigned char data[100];
	nccl_driver d;
	int done = 0;
	net_result result = NET_SUCCESS;

	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	if (rank == SENDER) {
		finish(&d, begin_send(&d, connection, data, sizeof(data), 5, NULL), NULL);
	} else {
		void *request = begin_receive(&d, connection, data, 10, 5, NULL);
		while (result == NET_SUCCESS && done == 0)
			result = d.test(request, &done, NULL);
		CHECK(result == NET_INVALID_USAGE);
	}
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* What was sent for a receive that has been given up is not taken for another one. */
static void refuse_receive(const nccl_driver *d, void *connection)
{
	static unsigned char data[1000];
	size_t bytes = sizeof(data);
	void *to = data, *memory = NULL, *request;
	int tag = 5;

	CHECK(nccl_receive(d, connection, 1, &to, &bytes, &tag, &memory, &request) == NET_SYSTEM_ERROR);
}

/* The victim's memory is used by others before the message moves, and UCX goes on for
   another connection. */
static int take_back(int rank, void *argument)
{
	const size_t bytes = rank == RECEIVER ? 1000 : LONG;
	unsigned char peers[LONG];
	const bool victim = rank == shared->victim;
	nccl_driver d;
	void *memory;

	send_no_sooner_than_asked();
	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	void *other = rank == RECEIVER ? receive_from(&d, 1) : send_to(&d, 1);
	if (victim) {
		unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(data != MAP_FAILED);
		CHECK(d.register_memory(connection, data, bytes, NET_HOST, &memory) == NET_SUCCESS);
		CHECK((rank == RECEIVER ? begin_receive(&d, connection, data, bytes, 5, memory) :
		       begin_send(&d, connection, data, bytes, 5, memory)) != NULL);
		CHECK(d.deregister_memory(connection, memory) == NET_SUCCESS);
		CHECK(mmap(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == data);
		reach(1);
	} else {
		await(1);
		if (rank == RECEIVER)
			(void)begin_receive(&d, connection, peers, sizeof(peers), 5, NULL);
		else
			finish(&d, begin_send(&d, connection, peers, 1000, 5, NULL), NULL);
	}
	if (rank == RECEIVER)
		stream_in(&d, other, 90);
	else
		stream_out(&d, other, 90);
	if (victim && rank == RECEIVER)
		refuse_receive(&d, connection);
	close_one(&d, rank, connection);
	close_one(&d, rank, other);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* ---- what runs them --------------------------------------------------------------------------- */

TEST(a_killed_peer_is_noticed)
{
	assert_int_equal(run_with_victim(outlive, over_tcp, SENDER, true), 0);
	heard_once("the connection from rank 1 on");
	assert_int_equal(run_with_victim(outlive, over_tcp, RECEIVER, true), 0);
	heard_once("the connection to rank 0 on");
	assert_int_equal(run_with_victim(outlive, over_memory, SENDER, true), 0);
	heard_once("the connection from rank 1 on");
	assert_int_equal(run_with_victim(outlive, over_memory, RECEIVER, true), 0);
	heard_once("the connection to rank 0 on");
}

TEST(a_peer_that_closes_early_is_noticed)
{
	assert_int_equal(run_with_victim(close_early, over_tcp, SENDER, false), 0);
	assert_int_equal(run_with_victim(close_early, over_tcp, RECEIVER, false), 0);
	assert_int_equal(run_with_victim(close_early, over_memory, SENDER, false), 0);
	assert_int_equal(run_with_victim(close_early, over_memory, RECEIVER, false), 0);
	heard_once("the connection to rank 0 on");
}

/* Where UCX cannot read the sender's memory, the sender would have to take part. */
static void run_unacknowledged(enum arrival comes)
{
	char byte = 0, copy;
	const struct iovec from = { .iov_base = &byte, .iov_len = 1 }, to = { .iov_base = &copy, .iov_len = 1 };

	if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1)
		skip();
	notice_comes = comes;
	assert_int_equal(run_board(close_unacknowledged, 11, over_memory), 0);
}

TEST(what_was_received_counts_as_sent)
{
	run_unacknowledged(IN_TIME);
	assert_string_equal(shared->heard, "");
}

TEST(a_close_notice_that_comes_late_counts)
{
	run_unacknowledged(LATE);
	assert_string_equal(shared->heard, "");
}

TEST(a_close_notice_that_never_comes_is_not_waited_for_without_end)
{
	run_unacknowledged(NEVER);
	heard_once("the connection to rank 0 on");
	heard_once("it has not closed the connection, but UCX has lost it; UCX: ");
}

TEST(what_does_not_fit_is_an_error)
{
	assert_int_equal(run_board(overflow, 12, over_tcp), 0);
	heard_once("is longer than what it is to be received into");
}

TEST(memory_that_is_taken_back_is_left_alone)
{
	assert_int_equal(run_with_victim(take_back, over_tcp, RECEIVER, false), 0);
	assert_int_equal(run_with_victim(take_back, over_tcp, SENDER, false), 0);
	assert_int_equal(run_with_victim(take_back, over_memory, RECEIVER, false), 0);
	assert_int_equal(run_with_victim(take_back, over_memory, SENDER, false), 0);
}
