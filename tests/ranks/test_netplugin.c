/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET */
/* libnccl-net-ddpucx.so, called as NCCL calls it: two processes, over sockets and over
   shared memory, by the tables of all versions. */
#include <stdint.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/hung.h"
#include "tests/support/netplugin_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

enum { SLOTS = 40 };
/* Of stream_out() as often as length_of() has lengths nine times, and of groups_out(): 10 bytes and the tag. */
enum { STREAMED = 90, STREAM_BYTES = 9 * (1 + 64 + 1000 + 8192 + 9000 + LONG + 3 + 70000), GROUP_BYTES = 11 * 10 + 42 };
enum { NONCE_END = 40, FAMILY_AT = 60, PORT_AT = 62 }; /* in a handle */

/* ---- traffic ---------------------------------------------------------------------------------- */

/* Groups of receives, whose senders come in another order, and two of one tag. */
static const int group_tags[2][NET_RECEIVES_MAX] = { { 3, 1, 4, 2, 9, 5, 6, 7 }, { 1, 3, 1 } };
static const int group_sends[][2] = { { 0, 9 }, { 0, 7 }, { 1, 1 }, { 0, 3 }, { 0, 2 }, { 1, 1 }, { 0, 6 },
                                      { 0, 4 }, { 0, 5 }, { 1, 3 } };
/* Of tag 1, the first send is the first group's. */

static void groups_in(const nccl_driver *d, void *receiver)
{
	static unsigned char data[2][NET_RECEIVES_MAX][64];
	void *at[NET_RECEIVES_MAX], *requests[2], *none[NET_RECEIVES_MAX] = { NULL };
	size_t bytes[NET_RECEIVES_MAX];
	int sizes[NET_RECEIVES_MAX], tags[NET_RECEIVES_MAX];
	static const int counts[2] = { 8, 3 };

	for (int g = 0; g < 2; g++) {
		for (int k = 0; k < counts[g]; k++) {
			at[k] = data[g][k];
			bytes[k] = sizeof(data[g][k]);
			tags[k] = group_tags[g][k];
		}
		CHECK(nccl_receive(d, receiver, counts[g], at, bytes, tags, none, &requests[g]) == NET_SUCCESS);
		CHECK(requests[g] != NULL);
	}
	for (int g = 0; g < 2; g++) {
		finish(d, requests[g], sizes);
		for (int k = 0; k < counts[g]; k++)
			CHECK(sizes[k] == 10 + group_tags[g][k] && data[g][k][1] == group_tags[g][k]);
	}
	/* The sends of tag 1 were numbered: groups get them in order. */
	CHECK(data[0][1][0] == 0 && data[1][0][0] == 1 && data[1][2][0] == 2);
	CHECK(nccl_receive(d, receiver, NET_RECEIVES_MAX + 1, at, bytes, tags, none, &requests[0]) == NET_INTERNAL_ERROR);
}

static void groups_out(const nccl_driver *d, void *sender)
{
	static unsigned char data[16][64];
	void *requests[16];
	int count = (int)(sizeof(group_sends) / sizeof(group_sends[0])), of_tag_1 = 0;

	for (int i = 0; i <= count; i++) {
		/* 1 comes once more, for the second group. */
		const int tag = i < count ? group_sends[i][1] : 1;
		data[i][0] = tag == 1 ? (unsigned char)of_tag_1++ : 0;
		data[i][1] = (unsigned char)tag;
		requests[i] = begin_send(d, sender, data[i], (size_t)(10 + tag), tag, NULL);
		CHECK(requests[i] != NULL);
	}
	for (int i = 0; i <= count; i++)
		finish(d, requests[i], NULL);
}

/* More than there are: NULL, and no error; then they are there again. How many messages came. */
static int exhaust(const nccl_driver *d, void *receiver)
{
	static unsigned char data[SLOTS * 2][8];
	void *requests[SLOTS * 2];
	int begun = 0;

	while (begun < SLOTS * 2 && (requests[begun] = begin_receive(d, receiver, data[begun], 8, 5, NULL)) != NULL)
		begun++;
	CHECK(begun >= NET_REQUESTS_MAX && begun < SLOTS * 2);
	reach(1);
	for (int i = 0; i < begun; i++) {
		finish(d, requests[i], NULL);
		CHECK(data[i][0] == i);
	}
	CHECK((requests[0] = begin_receive(d, receiver, data[0], 8, 5, NULL)) != NULL);
	finish(d, requests[0], NULL);
	/* What was sent in vain stays behind when the connection closes. */
	await(2);
	return begun + 1;
}

static void satisfy(const nccl_driver *d, void *sender)
{
	unsigned char data[SLOTS * 2];

	await(1);
	for (int i = 0; i < SLOTS * 2; i++) {
		data[i] = (unsigned char)i;
		finish(d, begin_send(d, sender, &data[i], 1, 5, NULL), NULL);
	}
	reach(2);
}

/* By its counters, as NCCL_DEBUG=INFO shows them. */
static void check_closed(const char *begin, unsigned long long messages, unsigned long long bytes, bool exhausted)
{
	const char *at = strstr(last_closed, begin);
	unsigned long long told[4];

	CHECK(at != NULL);
	CHECK(sscanf(strstr(at, ": "), ": %llu messages, %llu bytes, at most %llu under way, %llu times no request free",
	             &told[0], &told[1], &told[2], &told[3]) == 4);
	CHECK(told[0] == messages && told[1] == bytes && told[2] >= NET_REQUESTS_MAX && told[2] < SLOTS * 2);
	CHECK(told[3] > 0 || !exhausted);
}

static int exchange(int rank, void *argument)
{
	nccl_driver d;

	set_up(&d, argument, rank);
	if (rank == RECEIVER) {
		void *receiver = receive_from(&d, 0);
		stream_in(&d, receiver, STREAMED);
		groups_in(&d, receiver);
		const unsigned long long taken = (unsigned long long)exhaust(&d, receiver);
		CHECK(d.close_receiver(receiver) == NET_SUCCESS);
		check_closed("connection from rank 1", STREAMED + 11 + taken, STREAM_BYTES + GROUP_BYTES + taken, true);
	} else {
		void *sender = send_to(&d, 0);
		stream_out(&d, sender, STREAMED);
		groups_out(&d, sender);
		satisfy(&d, sender);
		CHECK(d.close_sender(sender) == NET_SUCCESS);
		check_closed("connection to rank 0", STREAMED + 11 + SLOTS * 2, STREAM_BYTES + GROUP_BYTES + SLOTS * 2, false);
		check_transports();
	}
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* ---- threads ---------------------------------------------------------------------------------- */

static nccl_driver of_threads;

/* Each opens and closes connections of its own while the others use theirs. */
static void *use_one(void *argument)
{
	const int first = (int)(intptr_t)argument;
	const bool receives = atomic_load(&shared->pids[RECEIVER]) == getpid();

	for (int i = first; i < CONNECTIONS * ROUNDS; i += CONNECTIONS) {
		if (receives) {
			void *receiver = receive_from(&of_threads, i);
			stream_in(&of_threads, receiver, 40);
			CHECK(of_threads.close_receiver(receiver) == NET_SUCCESS);
		} else {
			void *sender = send_to(&of_threads, i);
			stream_out(&of_threads, sender, 40);
			CHECK(of_threads.close_sender(sender) == NET_SUCCESS);
		}
	}
	return NULL;
}

static int use_several(int rank, void *argument)
{
	pthread_t threads[CONNECTIONS];

	set_up(&of_threads, argument, rank);
	for (intptr_t i = 0; i < CONNECTIONS; i++)
		CHECK(pthread_create(&threads[i], NULL, use_one, (void *)i) == 0);
	for (int i = 0; i < CONNECTIONS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(nccl_finalize(&of_threads) == NET_SUCCESS);
	return 0;
}

/* ---- connections without the key -------------------------------------------------------------- */

static int connect_raw(const unsigned char *handle)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint16_t family;

	memcpy(&family, handle + FAMILY_AT, sizeof(family));
	memcpy(&to.sin_addr, handle + NONCE_END, sizeof(to.sin_addr));
	memcpy(&to.sin_port, handle + PORT_AT, sizeof(to.sin_port));
	CHECK(family == AF_INET && fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	return fd;
}

/* One that says nothing, one that hangs up, and some that say anything. */
static void disturb(const unsigned char *handle)
{
	unsigned char noise[1000];

	(void)connect_raw(handle);
	close(connect_raw(handle));
	for (unsigned int seed = 1; seed < 4; seed++) {
		int fd = connect_raw(handle);
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (unsigned char)(rand_r(&seed) >> 8);
		CHECK(send(fd, noise, sizeof(noise), MSG_NOSIGNAL) > 0);
		/* Until it is turned away. */
		while (recv(fd, noise, sizeof(noise), 0) > 0)
			continue;
		close(fd);
	}
}

static net_result connect_with(const nccl_driver *d, const char *key, unsigned char *handle)
{
	void *sender = NULL;
	net_result result = NET_SUCCESS;

	CHECK(setenv("DDP_KEY", key, 1) == 0);
	while (sender == NULL && result == NET_SUCCESS) {
		result = nccl_connect(d, 0, handle, &sender);
		nap();
	}
	if (sender != NULL) {
		stream_out(d, sender, 3);
		CHECK(d->close_sender(sender) == NET_SUCCESS);
	}
	return result;
}

/* Neither they nor a wrong key keep the listener from the right peer. */
static int turn_away(int rank, void *argument)
{
	unsigned char handle[NET_HANDLE_BYTES], other[NET_HANDLE_BYTES] = "something else";
	nccl_driver d;
	void *sender = NULL;

	set_up(&d, argument, rank);
	if (rank == RECEIVER) {
		void *receiver = receive_from(&d, 0);
		stream_in(&d, receiver, 3);
		close_one(&d, rank, receiver);
		CHECK(nccl_finalize(&d) == NET_SUCCESS);
		return 0;
	}
	while (atomic_load(&shared->ready[0]) == 0)
		nap();
	memcpy(handle, shared->handle[0], sizeof(handle));
	CHECK(nccl_connect(&d, 0, other, &sender) == NET_INVALID_USAGE && sender == NULL);
	disturb(handle);
	CHECK(connect_with(&d, "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", handle) == NET_SYSTEM_ERROR);
	CHECK(connect_with(&d, KEY, handle) == NET_SUCCESS);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* Only a listener that takes connections, and drops them, is worth further tries. */
static int find_no_listener(int rank, void *argument)
{
	unsigned char handle[NET_HANDLE_BYTES];
	nccl_driver d;

	set_up(&d, argument, rank);
	if (rank == RECEIVER) {
		void *listener = NULL;
		CHECK(nccl_listen(&d, 0, shared->handle[0], &listener) == NET_SUCCESS);
		CHECK(d.close_listener(listener) == NET_SUCCESS);
		atomic_store(&shared->ready[0], 1);
	} else {
		while (atomic_load(&shared->ready[0]) == 0)
			nap();
		memcpy(handle, shared->handle[0], sizeof(handle));
		const uint64_t start_ns = ddp_now_ns();
		CHECK(connect_with(&d, KEY, handle) == NET_SYSTEM_ERROR);
		CHECK(ddp_seconds_since(start_ns) < 2 * test_slowness());
	}
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static int lack_key(int rank, void *argument)
{
	static const char *const keys[] = { "", "12", "step:zz" };
	nccl_driver d;

	CHECK(nccl_load(&d, rank == RECEIVER ? 12 : 8));
	for (int i = 0; i < 3; i++) {
		CHECK(setenv("DDP_KEY", keys[i], 1) == 0);
		CHECK(nccl_init(&d, hear) == NET_SYSTEM_ERROR);
	}
	return 0;
}

TEST_RUNS(v12_over_tcp, assert_int_equal(run_board(exchange, 12, over_tcp), 0));

TEST_RUNS(v11_over_memory, assert_int_equal(run_board(exchange, 11, over_memory), 0));

TEST_RUNS(v10_over_tcp, assert_int_equal(run_board(exchange, 10, over_tcp), 0));

TEST_RUNS(v8_over_memory, assert_int_equal(run_board(exchange, 8, over_memory), 0));

TEST(several_threads_open_use_and_close)
{
	assert_int_equal(run_board(use_several, 11, over_tcp), 0);
	assert_int_equal(run_board(use_several, 11, over_memory), 0);
}

TEST(connections_without_the_key_are_refused)
{
	assert_int_equal(run_board(turn_away, 11, over_tcp), 0);
	assert_non_null(strstr(shared->heard, "a listener refused a connection from 127."));
	heard_once("DDP_KEY must be the same");
}

TEST(listener_that_has_gone_is_an_error_at_once)
{
	assert_int_equal(run_board(find_no_listener, 11, over_tcp), 0);
	assert_non_null(strstr(shared->heard, "Connection refused"));
}

TEST(nothing_starts_without_a_key)
{
	assert_int_equal(run_board(lack_key, 12, over_tcp), 0);
	assert_non_null(strstr(shared->heard, "DDP_KEY is not set"));
	assert_non_null(strstr(shared->heard, "DDP_KEY has 2 characters"));
}
