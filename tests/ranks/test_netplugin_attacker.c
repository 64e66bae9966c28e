/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET */
/* Another user of the host connects to the sockets at which libnccl-net-ddpucx.so and UCX listen for it, while the
   kernel takes no socket filters. No process's end comes of what this user sends, root's neither, and no peer waits for
   the connections of a flood. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/attacker.h"
#include "tests/support/flood.h"
#include "tests/support/hung.h"
#include "tests/support/netplugin_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

enum { MESSAGES = 120, SECONDS = 40 };
static const int attacks[ATTACKER_PHASES] = { 10, 30, 5 }; /* that are waited for */

static attacker *s;

static int stream_under_attack(int rank, void *argument)
{
	nccl_driver d;

	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	atomic_store(&s->phase, 1);
	if (rank == SENDER)
		stream_out(&d, connection, MESSAGES);
	else
		stream_in(&d, connection, MESSAGES);
	atomic_store(&s->phase, 2);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static bool has_all(void)
{
	for (int phase = 0; phase < ATTACKER_PHASES; phase++) {
		if (atomic_load(&s->sent[phase]) < attacks[phase])
			return false;
	}
	return true;
}

static int be_attacked(void)
{
	const uint64_t start_ns = ddp_now_ns();

	while (!has_all()) {
		atomic_store(&s->phase, 0);
		if (run_board(stream_under_attack, 12, over_tcp) != 0)
			return 1;
		if (ddp_seconds_since(start_ns) > SECONDS * test_slowness()) {
			fprintf(stderr, "attacks: %d, %d, %d\n", s->sent[0], s->sent[1], s->sent[2]);
			return 2;
		}
	}
	return 0;
}

static void attack(uid_t victim)
{
	int end;

	s = test_share(sizeof(*s));
	const pid_t pid = attacker_begin(s, victim);
	const pid_t attacked = fork();
	assert_true(attacked >= 0);
	if (attacked == 0) {
		if (victim != getuid())
			attacker_be_victim();
		_exit(be_attacked());
	}
	assert_int_equal(waitpid(attacked, &end, 0), attacked);
	attacker_end(s, pid);
	assert_int_equal(end, 0);
	assert_true(atomic_load(&s->refused));
	assert_true(atomic_load(&s->copied) > 0);
	test_unshare(s, sizeof(*s));
}

TEST_RUNS(bytes_of_an_attacker_end_no_users_process, attack(attacker_victim()));

TEST(bytes_of_an_attacker_end_no_process_of_root)
{
	if (getuid() != 0)
		skip();
	attack(0);
}

/* ---- a UCX whose functions cannot be replaced ---------------------------------------------------- */

static bool lacking; /* in this process */

/* Stands before the C library's. */
__attribute__((visibility("default"))) int dladdr1(const void *address, Dl_info *info, void **extra, int flags)
{
	int (*look)(const void *, Dl_info *, void **, int);

	*(void **)&look = dlsym(RTLD_NEXT, "dladdr1");
	return lacking ? 0 : look(address, info, extra, flags);
}

static int exchange_unguarded(int rank, void *argument)
{
	nccl_driver d;

	lacking = true;
	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	if (rank == SENDER)
		stream_out(&d, connection, MESSAGES);
	else
		stream_in(&d, connection, MESSAGES);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* Only the receiver's UCX is a known one. */
static int do_not_meet(int rank, void *argument)
{
	unsigned char handle[NET_HANDLE_BYTES];
	void *listener = NULL, *connection = NULL, *offload = NULL;
	net_result result = NET_SUCCESS;
	nccl_driver d;

	lacking = rank == SENDER;
	set_up(&d, argument, rank);
	if (rank == RECEIVER) {
		CHECK(nccl_listen(&d, 0, shared->handle[0], &listener) == NET_SUCCESS);
		atomic_store(&shared->ready[0], 1);
		while (atomic_load(&shared->stage) == 0) {
			result = d.accept(listener, &connection, &offload);
			CHECK(connection == NULL);
			nap();
		}
		CHECK(d.close_listener(listener) == NET_SUCCESS);
		CHECK(nccl_finalize(&d) == NET_SUCCESS);
		return 0;
	}
	while (atomic_load(&shared->ready[0]) == 0)
		nap();
	memcpy(handle, shared->handle[0], sizeof(handle));
	while (result == NET_SUCCESS) {
		result = nccl_connect(&d, 0, handle, &connection);
		CHECK(connection == NULL);
		nap();
	}
	reach(1);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(ucx_that_cannot_be_guarded_is_used_on_both_sides_only)
{
	assert_int_equal(run_board(exchange_unguarded, 12, over_tcp), 0);
	assert_int_equal(run_board(do_not_meet, 12, over_tcp), 0);
	heard_once("let all nodes have the same UCX");
}

/* ---- connections that never prove the step's key ------------------------------------------- */

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
