/*
 * Another user of the host connects to the sockets at which libnccl-net-ddpucx.so and UCX listen for it, while the
 * kernel takes no socket filters. No process's end comes of what this user sends, root's neither.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/hung.h"
#include "tests/support/netplugin_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/stranger.h"

enum { MESSAGES = 120, SECONDS = 40 };
static const int attacks[STRANGER_PHASES] = { 10, 30, 5 }; /* that are waited for */

static stranger *s;

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
	for (int phase = 0; phase < STRANGER_PHASES; phase++) {
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
	const pid_t pid = stranger_begin(s, victim);
	const pid_t attacked = fork();
	assert_true(attacked >= 0);
	if (attacked == 0) {
		if (victim != getuid())
			stranger_be_victim();
		_exit(be_attacked());
	}
	assert_int_equal(waitpid(attacked, &end, 0), attacked);
	stranger_end(s, pid);
	assert_int_equal(end, 0);
	assert_true(atomic_load(&s->refused));
	assert_true(atomic_load(&s->copied) > 0);
	test_unshare(s, sizeof(*s));
}

static void bytes_of_a_stranger_end_no_users_process(void **state)
{
	(void)state;
	attack(stranger_victim());
}

static void bytes_of_a_stranger_end_no_process_of_root(void **state)
{
	(void)state;
	if (getuid() != 0)
		skip();
	attack(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_of_a_stranger_end_no_users_process),
		cmocka_unit_test(bytes_of_a_stranger_end_no_process_of_root),
	};
	shared = test_share(sizeof(*shared));
	setenv("DDP_KEY", KEY, 1);
	int failures = cmocka_run_group_tests(tests, NULL, NULL);
	test_unshare(shared, sizeof(*shared));
	return failures;
}
