/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* ddp_spawn(): local ranks, their exit codes, and their wire-up. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "job/job.h"
#include "job/spawn.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"
#include "wireup/agreement.h"
#include "wireup/wireup.h"

static const uint64_t patience_ns = 60000000000u;

/* Runs `body` in `ranks` ranks; its value is the rank's exit code. */
static ddp_spawn_result run(int ranks, int (*body)(const ddp_job *, const ddp_key *))
{
	ddp_spawn_result result;
	ddp_job job;
	ddp_key key;

	assert_int_equal(ddp_spawn(ranks, &result), DDP_OK);
	if (result.is_rank) {
		if (ddp_job_discover(&job, &key) != DDP_OK)
			_exit(99);
		_exit(body(&job, &key));
	}
	return result;
}

/* What ranks and the test tell each other. */
static struct board {
	atomic_int ready;  /* ranks that have got as far as the test wants them */
	atomic_int waited; /* ranks that nothing has ended */
} *board;

static int set_up_board(void **state)
{
	board = test_share(sizeof(*board));
	return 0;
}

static int take_board_down(void **state)
{
	test_unshare(board, sizeof(*board));
	return 0;
}

/* Until so many ranks are ready; a test that waits in vain runs out of time. */
static void await_ready(int ranks)
{
	const struct timespec pause = { .tv_nsec = 1000000 };

	while (atomic_load(&board->ready) < ranks)
		nanosleep(&pause, NULL);
}

/* A rank that is to be ended waits for it. */
static int await_end(void)
{
	const struct timespec minute = { .tv_sec = 60 };

	nanosleep(&minute, NULL);
	atomic_fetch_add(&board->waited, 1);
	return 0;
}

static int exchange_twice(const ddp_job *job, const ddp_key *key)
{
	uint64_t deadline_ns = ddp_now_ns() + patience_ns;
	char blob[64];
	void *blobs[1024];
	size_t sizes[1024];
	ddp_wireup *wireup;
	ddp_job own = *job;

	if (ddp_wireup_open(job, key, NULL, deadline_ns, &wireup) != DDP_OK)
		return 1;
	if (ddp_agree(wireup, &own, deadline_ns) != DDP_OK)
		return 2;
	for (int round = 0; round < 2; round++) {
		size_t bytes = (size_t)snprintf(blob, sizeof(blob), "round %d of rank %d", round, job->rank);
		if (wireup->ops->exchange(wireup, blob, bytes, deadline_ns, blobs, sizes) != DDP_OK)
			return 3;
		for (int r = 0; r < job->world_size; r++) {
			char expected[64];
			size_t length = (size_t)snprintf(expected, sizeof(expected), "round %d of rank %d", round, r);
			if (sizes[r] != length || memcmp(blobs[r], expected, length) != 0)
				return 4;
		}
		ddp_blobs_free(blobs, job->world_size);
	}
	wireup->ops->close(wireup);
	return 0;
}

TEST(ranks_exchange_blobs)
{
	static const int worlds[] = { 1, 2, 3, 8, 33 };

	for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
		ddp_spawn_result result = run(worlds[i], exchange_twice);
		assert_false(result.is_rank);
		assert_int_equal(result.failed_rank, -1);
		assert_int_equal(result.exit_code, 0);
	}
}

/* A connection to where the ranks met, after they have; rank 0 no longer listens there. */
static int visit_between_join_and_exchange(const ddp_job *job, const ddp_key *key)
{
	const ddp_spawned *spawned = ddp_spawned_get();
	const int visitor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint64_t deadline_ns = ddp_now_ns() + patience_ns;
	void *blobs[2];
	size_t sizes[2];
	ddp_wireup *wireup;

	if (ddp_wireup_open(job, key, NULL, deadline_ns, &wireup) != DDP_OK)
		return 1;
	if (job->rank == 1 && connect(visitor, (const struct sockaddr *)&spawned->rendezvous,
	                              spawned->rendezvous_bytes) < 0)
		return 2;
	for (int round = 0; round < 2; round++) {
		if (wireup->ops->exchange(wireup, "blob", 4, deadline_ns, blobs, sizes) != DDP_OK)
			return 3;
		ddp_blobs_free(blobs, 2);
	}
	wireup->ops->close(wireup);
	close(visitor);
	return 0;
}

TEST_RUNS(late_visitor_does_not_disturb_rank_0, assert_int_equal(run(2, visit_between_join_and_exchange).exit_code, 0));

static int identity_is_complete(const ddp_job *job, const ddp_key *key)
{
	bool right = job->world_size == 4 && job->local_world_size == 4 && job->nnodes == 1 &&
	             job->node_rank == 0 && job->local_rank == job->rank && job->pid == getpid() &&
	             job->identity_source == DDP_SOURCE_SPAWN && key->present && !job->plugin;

	return right ? 10 + job->rank : 1;
}

TEST(rank_knows_who_it_is_and_exit_codes_come_back)
{
	ddp_spawn_result result = run(4, identity_is_complete);
	assert_true(result.failed_rank >= 0 && result.failed_rank <= 3);
	assert_int_equal(result.exit_code, 10 + result.failed_rank);
}

static int third_fails_first(const ddp_job *job, const ddp_key *key)
{
	return job->rank == 2 ? 7 : await_end();
}

TEST_WITH(first_failure_ends_the_others, set_up_board, take_board_down)
{
	ddp_spawn_result result = run(4, third_fails_first);
	assert_int_equal(result.failed_rank, 2);
	assert_int_equal(result.exit_code, 7);
	assert_int_equal(atomic_load(&board->waited), 0);
}

static int second_dies_others_follow(const ddp_job *job, const ddp_key *key)
{
	if (job->rank == 1)
		raise(SIGKILL);
	return 0;
}

TEST(death_by_signal_is_128_plus_its_number)
{
	ddp_spawn_result result = run(2, second_dies_others_follow);
	assert_int_equal(result.failed_rank, 1);
	assert_int_equal(result.exit_code, 128 + SIGKILL);
}

static int ignore_term(const ddp_job *job, const ddp_key *key)
{
	if (job->rank == 0) {
		await_ready(1);
		return 3;
	}
	signal(SIGTERM, SIG_IGN);
	atomic_fetch_add(&board->ready, 1);
	return await_end();
}

TEST_WITH(rank_that_ignores_sigterm_is_killed, set_up_board, take_board_down)
{
	ddp_spawn_result result = run(2, ignore_term);
	assert_int_equal(result.exit_code, 3);
	assert_int_equal(atomic_load(&board->waited), 0);
}

static volatile sig_atomic_t got_term;

static void on_term(int number)
{
	got_term = 1;
}

static int leave_when_told(const ddp_job *job, const ddp_key *key)
{
	sigset_t term, before;

	/* The signal comes while sigsuspend() waits, not just before. */
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, &before);
	signal(SIGTERM, on_term);
	atomic_fetch_add(&board->ready, 1);
	while (!got_term)
		sigsuspend(&before);
	return 0;
}

TEST_WITH(signals_to_the_parent_are_passed_on, set_up_board, take_board_down)
{
	int status;

	pid_t parent = fork();
	assert_true(parent >= 0);
	if (parent == 0) {
		ddp_spawn_result result = run(2, leave_when_told);
		_exit(result.exit_code);
	}
	await_ready(2);
	kill(parent, SIGTERM);
	assert_int_equal(waitpid(parent, &status, 0), parent);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int spawn_again(const ddp_job *job, const ddp_key *key)
{
	ddp_spawn_result result;

	return ddp_spawn(2, &result) == DDP_ERR_STATE ? 0 : 1;
}

TEST_RUNS(spawn_within_a_rank_is_refused, assert_int_equal(run(1, spawn_again).exit_code, 0));

TEST(count_of_ranks_is_bounded)
{
	ddp_spawn_result result;

	assert_int_equal(ddp_spawn(0, &result), DDP_ERR_INVALID);
	assert_int_equal(ddp_spawn(-1, &result), DDP_ERR_INVALID);
	assert_int_equal(ddp_spawn(1025, &result), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "1 to 1024"));
}

TEST(parent_keeps_its_signals_and_descriptors)
{
	struct sigaction before, after;
	sigset_t mask_before, mask_after;

	signal(SIGCHLD, SIG_IGN);
	sigaction(SIGCHLD, NULL, &before);
	sigprocmask(SIG_BLOCK, NULL, &mask_before);
	int next = dup(0);
	close(next);
	assert_int_equal(run(2, second_dies_others_follow).exit_code, 128 + SIGKILL);
	int next_after = dup(0);
	close(next_after);
	sigaction(SIGCHLD, NULL, &after);
	sigprocmask(SIG_BLOCK, NULL, &mask_after);
	assert_int_equal(next_after, next);
	assert_ptr_equal(after.sa_handler, before.sa_handler);
	assert_int_equal(sigismember(&mask_after, SIGCHLD), sigismember(&mask_before, SIGCHLD));
	assert_int_equal(sigismember(&mask_after, SIGTERM), sigismember(&mask_before, SIGTERM));
	signal(SIGCHLD, SIG_DFL);
}
