/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET */
/* Another user of the host connects to the sockets at which libnccl-net-ddpucx.so and UCX listen for it, while the
   kernel takes no socket filters. No process's end comes of what this user sends, root's neither. */
#include <stdint.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/attacker.h"
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

int main(void)
{
	shared = test_share(sizeof(*shared));
	setenv("DDP_KEY", KEY, 1);
	int failures = test_run(NULL, NULL);
	test_unshare(shared, sizeof(*shared));
	return failures;
}
