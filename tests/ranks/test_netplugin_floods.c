/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET */
/* libnccl-net-ddpucx.so: a peer connects while another process floods the listener with
   connections that never prove the step's key. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/flood.h"
#include "tests/support/hung.h"
#include "tests/support/netplugin_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

enum { ADDRESS_AT = 40, PORT_AT = 62 }; /* in a handle */
enum { DESCRIPTORS = 160, REPEATS = 5 };

/* Set before the ranks are forked. */
static struct {
	flood_kind kind;
	int count;
} planned;

static pid_t flood_listener(const unsigned char *handle)
{
	struct sockaddr_in to = { .sin_family = AF_INET };

	memcpy(&to.sin_addr, handle + ADDRESS_AT, sizeof(to.sin_addr));
	memcpy(&to.sin_port, handle + PORT_AT, sizeof(to.sin_port));
	return flood_start(&to, planned.kind, planned.count);
}

/* However many connect, other threads of this process still open files. */
static void *accept_beside_flood(const nccl_driver *d, void *listener)
{
	void *receiver = NULL, *offload = NULL;

	while (receiver == NULL) {
		CHECK(d->accept(listener, &receiver, &offload) == NET_SUCCESS);
		const int spare = dup(STDOUT_FILENO);
		CHECK(spare >= 0 && close(spare) == 0);
		nap();
	}
	return receiver;
}

static void be_victim(const nccl_driver *d)
{
	const struct rlimit limit = { DESCRIPTORS, DESCRIPTORS };
	void *listener = NULL;

	CHECK(nccl_listen(d, 0, shared->handle[0], &listener) == NET_SUCCESS && listener != NULL);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	atomic_store(&shared->ready[0], 1);
	for (int i = 0; i < REPEATS; i++) {
		void *receiver = accept_beside_flood(d, listener);
		CHECK(d->close_receiver(receiver) == NET_SUCCESS);
	}
	CHECK(d->close_listener(listener) == NET_SUCCESS);
}

static void be_peer(const nccl_driver *d)
{
	const int slowness = test_slowness();
	double longest = 0;

	while (atomic_load(&shared->ready[0]) == 0)
		nap();
	const pid_t flood = flood_listener(shared->handle[0]);
	for (int i = 0; i < REPEATS; i++) {
		const uint64_t start_ns = ddp_now_ns();
		void *sender = send_to(d, 0);
		const double seconds = ddp_seconds_since(start_ns);
		longest = seconds > longest ? seconds : longest;
		CHECK(d->close_sender(sender) == NET_SUCCESS);
	}
	flood_end(flood);
	printf("# kind %d, %d connections: a peer connects within %.3f s\n", (int)planned.kind, planned.count, longest);
	fflush(stdout);
	/* A flood without an end takes a part of the machine, too. */
	const int most = planned.kind == FLOOD_ENDLESS ? 10 : 1;
	CHECK(longest < most * slowness || longest < most * test_slowness());
}

static int connect_beside_flood(int rank, void *argument)
{
	nccl_driver d;

	set_up(&d, argument, rank);
	if (rank == RECEIVER)
		be_victim(&d);
	else
		be_peer(&d);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static void flood(flood_kind kind, int count)
{
	planned.kind = kind;
	planned.count = count;
	assert_int_equal(run_board(connect_beside_flood, 11, over_tcp), 0);
}

TEST(idle_connections_delay_no_peer)
{
	flood(FLOOD_IDLE, 100);
	flood(FLOOD_IDLE, 300);
	flood(FLOOD_IDLE, 2000);
}

TEST_RUNS(endless_connections_delay_no_peer, flood(FLOOD_ENDLESS, 200));

TEST_RUNS(slow_connections_delay_no_peer, flood(FLOOD_SLOW, 300));

int main(void)
{
	shared = test_share(sizeof(*shared));
	setenv("DDP_KEY", KEY, 1);
	int failures = test_run(NULL, NULL);
	test_unshare(shared, sizeof(*shared));
	return failures;
}
