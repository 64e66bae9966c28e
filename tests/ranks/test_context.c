/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan bare no-ucx no-pmix no-blas; all: unit */
/* ddp_init() and ddp_finalize(): from nothing to a communicator, and back; and ddp_spawn(), whose ranks they serve. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/hier/algorithms.h"
#include "context.h"
#include "ddp.h"
#include "device/device.h"
#include "job/job.h"
#include "job/spawn.h"
#include "tests/support/context_ranks.h"
#include "tests/support/device_checks.h"
#include "tests/support/hung.h"
#include "tests/support/options.h"
#include "tests/support/ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"
#include "watch/page.h"
#include "watch/watch.h"
#include "wireup/agreement.h"
#include "wireup/wireup.h"

static int clean_environment(void **state)
{
	static const char *const names[] = { "RANK", "WORLD_SIZE", "DDP_TIMEOUT", "DDP_KEY",
	                                     "PMIX_NAMESPACE", "SLURM_JOB_ID", "DDP_TRACE_DIR",
	                                     "MASTER_ADDR", "MASTER_PORT", "DDP_ALGORITHM" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	return 0;
}

TEST_WITH(world_of_one_opens_and_closes_again_and_again, clean_environment, NULL)
{
	ddp_context *context;

	for (int i = 0; i < 3; i++) {
		float value = 3;
		assert_int_equal(ddp_init(NULL, &context), DDP_OK);
		assert_int_equal(ddp_get_job(context)->world_size, 1);
		assert_int_equal(ddp_comm_size(ddp_world(context)), 1);
		assert_int_equal(ddp_all_reduce(ddp_world(context), NULL, &value, 1, DDP_F32, DDP_SUM), DDP_OK);
		assert_true(value == 3);
		assert_int_equal(ddp_finalize(context), DDP_OK);
	}
}

TEST_WITH(wrong_options_are_refused, clean_environment, NULL)
{
	ddp_options negative = { DDP_OPTIONS_FIELDS, .timeout_ms = -2 }, unknown = { DDP_OPTIONS_FIELDS, .wireup = "carrier pigeon" };
	ddp_context *context;

	assert_int_equal(ddp_init(&negative, &context), DDP_ERR_INVALID);
	FAILS(ddp_init(&unknown, &context), DDP_ERR_INVALID, "\"carrier pigeon\" is not known");
	ddp_options nowhere = { DDP_OPTIONS_FIELDS, .device = "abacus" };
	FAILS(ddp_init(&nowhere, &context), DDP_ERR_INVALID, "there is no device 'abacus'");
}

/* The context's device, whose default queue orders what follows. */
TEST_WITH(operations_use_the_device_of_the_options, clean_environment, NULL)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .device = "cuda" };
	const float half[2] = { 0.5f, 1 };
	float result[2] = { 0, 0 };
	ddp_context *context;
	void *memory;

	assert_int_equal(ddp_init(&options, &context), DDP_OK);
	ddp_comm *world = ddp_world(context);
	assert_int_equal(ddp_mem_alloc_on(world, DDP_MEMORY_DEVICE, sizeof(half), &memory), DDP_OK);
	assert_int_equal(ddp_device_copy(context->device, NULL, memory, half, sizeof(half)), DDP_OK);
	assert_int_equal(ddp_run(world, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = memory, .count = 2,
	                                                   .memory = DDP_MEMORY_DEVICE, .scaled = true,
	                                                   .scale = 4 }), DDP_OK);
	assert_int_equal(ddp_device_copy(context->device, NULL, result, memory, sizeof(result)), DDP_OK);
	assert_int_equal(ddp_device_queue_sync(context->device, NULL), DDP_OK);
	assert_true(result[0] == 2 && result[1] == 4);
	assert_int_equal(ddp_mem_free(world, memory), DDP_OK);
	assert_int_equal(ddp_finalize(context), DDP_OK);
}

TEST_WITH(timeout_of_the_environment_is_read_strictly, clean_environment, NULL)
{
	static const char *const wrong[] = { "0", "-5", "5s", "1.5", "604801", " 5" };
	ddp_context *context;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		setenv("DDP_TIMEOUT", wrong[i], 1);
		FAILS(ddp_init(NULL, &context), DDP_ERR_INVALID, "DDP_TIMEOUT");
	}
	setenv("DDP_TIMEOUT", "5", 1);
	assert_int_equal(ddp_init(NULL, &context), DDP_OK);
	ddp_finalize(context);
}

TEST_WITH(half_an_identity_is_an_error, clean_environment, NULL)
{
	ddp_context *context;

	setenv("RANK", "0", 1);
	FAILS(ddp_init(NULL, &context), DDP_ERR_JOB, "WORLD_SIZE is not set");
}

TEST_RUNS_BEHIND(clean_environment, finalize_takes_null, assert_int_equal(ddp_finalize(NULL), DDP_OK));

static int sum_ranks(void)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 };
	ddp_context *context;
	int32_t value;

	if (ddp_init(&options, &context) != DDP_OK)
		return 1;
	value = ddp_get_job(context)->rank + 1;
	if (ddp_all_reduce(ddp_world(context), NULL, &value, 1, DDP_I32, DDP_SUM) != DDP_OK)
		return 2;
	if (ddp_finalize(context) != DDP_OK)
		return 3;
	return value == 6 ? 0 : 4;
}

/* One world behind the other, and two at once. */
static int sum_ranks_in_several_worlds(void)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 };
	ddp_context *contexts[2];
	int32_t values[2];

	if (sum_ranks() != 0 || sum_ranks() != 0)
		return 1;
	for (int i = 0; i < 2; i++) {
		if (ddp_init(&options, &contexts[i]) != DDP_OK)
			return 2;
	}
	for (int i = 0; i < 2; i++) {
		values[i] = ddp_get_job(contexts[i])->rank + i;
		if (ddp_all_reduce(ddp_world(contexts[i]), NULL, &values[i], 1, DDP_I32, DDP_SUM) != DDP_OK)
			return 3;
		ddp_finalize(contexts[i]);
	}
	return values[0] == 3 && values[1] == 6 ? 0 : 4;
}

/* Three ranks, without a context; the exit code of the first that fails, or 0. */
static int spawn(int (*body)(void))
{
	ddp_spawn_result result;

	assert_int_equal(ddp_spawn(3, &result), DDP_OK);
	if (result.is_rank)
		_exit(body());
	return result.exit_code;
}

TEST_RUNS_BEHIND(clean_environment, spawned_ranks_sum, assert_int_equal(spawn(sum_ranks), 0));

TEST_RUNS_BEHIND(clean_environment, spawned_ranks_open_several_worlds,
                 assert_int_equal(spawn(sum_ranks_in_several_worlds), 0));

/* Less, and a rank that a busy machine keeps waiting would not have come either; on all ranks the
   same, or the first to give up is missed by the others. */
static int patience_ms;

static int wait_for_the_absent(void)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = patience_ms };
	ddp_context *context;

	if (ddp_spawned_get()->rank == 1)
		return 0;
	ddp_status status = ddp_init(&options, &context);
	char host[DDP_HOST_MAX] = "", words[DDP_HOST_MAX + 32];
	gethostname(host, sizeof(host) - 1);
	snprintf(words, sizeof(words), "rank 1 on %s did not come", host);
	bool named = strstr(ddp_last_error(), words) != NULL;
	return status == DDP_ERR_TIMEOUT && named ? 0 : 1;
}

TEST_WITH(rank_that_never_calls_init_is_named, clean_environment, NULL)
{
	patience_ms = 1000 * test_slowness();
	assert_int_equal(spawn(wait_for_the_absent), 0);
}

/* Rank 0 has had its world; the sentence is about the ranks of one node, not a network. */
static int wait_for_a_world_that_rank_0_does_not_open(void)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = patience_ms };
	ddp_context *context;

	if (sum_ranks() != 0)
		return 1;
	if (ddp_spawned_get()->rank == 0) {
		pause();
		return 0;
	}
	/* One that has ended would have the others ended. */
	signal(SIGTERM, SIG_IGN);
	ddp_status status = ddp_init(&options, &context);
	const bool said = strstr(ddp_last_error(), "rank 0 did not come to the socket of ddp_spawn()") != NULL &&
	                  strstr(ddp_last_error(), "Each ddp_init() is one of all ranks") != NULL;
	return status == DDP_ERR_TIMEOUT && said ? 7 : 2;
}

TEST_WITH(a_second_world_without_rank_0_is_explained, clean_environment, NULL)
{
	patience_ms = 300 * test_slowness();
	assert_int_equal(spawn(wait_for_a_world_that_rank_0_does_not_open), 7);
}

TEST_WITH(unknown_algorithms_are_refused, clean_environment, NULL)
{
	static const char *const wrong[] = { "ring", "direct,", ",direct", "Direct", "direct, scatter_gather",
	                                     "direct,direct,direct,direct,direct,direct,direct,direct,direct" };
	const char *names = "it must be one of direct, scatter_gather, ";
	ddp_context *context;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		setenv("DDP_ALGORITHM", wrong[i], 1);
		FAILS(ddp_init(NULL, &context), DDP_ERR_INVALID, names);
		for (ddp_algorithm a = 0; a < DDP_ALGORITHMS; a++)
			assert_non_null(strstr(ddp_last_error(), ddp_algorithm_of(a)->name));
	}
	setenv("DDP_ALGORITHM", "direct,scatter_gather", 1);
	assert_int_equal(ddp_init(NULL, &context), DDP_OK);
	ddp_finalize(context);
}

static int have_another_algorithm(void)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 };
	ddp_context *context;

	if (ddp_spawned_get()->rank == 1)
		setenv("DDP_ALGORITHM", "direct", 1);
	/* The first one to end would have the others ended. */
	signal(SIGTERM, SIG_IGN);
	const ddp_status status = ddp_init(&options, &context);
	return status == DDP_ERR_MISMATCH && strstr(ddp_last_error(), "DDP_ALGORITHM is \"direct\" on rank 1 and \"\" on "
	                                                   "the 2 others") != NULL ? 7 : 2;
}

TEST_RUNS_BEHIND(clean_environment, algorithms_must_be_the_same_on_all_ranks,
                 assert_int_equal(spawn(have_another_algorithm), 7));

static bool *named; /* [3], shared */

static int give_a_wrong_metrics_path(void)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .metrics_path = "/dev/null/metrics", .timeout_ms = 60000 };
	const int rank = ddp_spawned_get()->rank;
	const char *part = rank == 0 ? "/dev/null/metrics" : "could not open its device, or write its metrics";
	ddp_context *context;

	/* ddp_spawn() ends the others when one has failed; they are to speak first. */
	signal(SIGTERM, SIG_IGN);
	named[rank] = ddp_init(&options, &context) == DDP_ERR_IO && strstr(ddp_last_error(), part) != NULL &&
	              (rank == 0 || strstr(ddp_last_error(), "rank 0 on ") != NULL);
	return 1;
}

/* Only rank 0 opens the metrics; the others hear of it. */
TEST_WITH(wrong_metrics_path_is_an_error_on_all_ranks, clean_environment, NULL)
{
	named = test_share(3 * sizeof(*named));
	assert_int_equal(spawn(give_a_wrong_metrics_path), 1);
	for (int r = 0; r < 3; r++)
		assert_true(named[r]);
	test_unshare(named, 3 * sizeof(*named));
}

/* Makes a communicator fail on all its ranks; what the page then says of this one. */
static uint32_t abort_all(ddp_context *context, ddp_comm *comm)
{
	if (ddp_comm_rank(comm) == 0)
		ddp_comm_abort(comm, "the test wants it");
	while (ddp_barrier(comm) == DDP_OK)
		continue;
	return ddp_watch_page(context->watch)->error_state;
}

static int aborting_body(ddp_context *context, void *user)
{
	ddp_comm *world = ddp_world(context), *group, *survivors, *last;

	CHECK_OK(ddp_comm_split(world, 0, 0, &group));
	CHECK(abort_all(context, group) == DDP_ERROR_OPEN);
	CHECK_OK(ddp_comm_free(group));
	CHECK_OK(ddp_barrier(world));
	CHECK(abort_all(context, world) == DDP_ERROR_FINAL);
	CHECK_OK(ddp_comm_shrink(world, &survivors));
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_PAST);
	CHECK_OK(ddp_comm_split(survivors, 0, 0, &group));
	CHECK(abort_all(context, group) == DDP_ERROR_OPEN);
	CHECK_OK(ddp_comm_shrink(group, &last));
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_PAST);
	CHECK_OK(ddp_comm_free(last));
	CHECK_OK(ddp_comm_free(group));
	CHECK(abort_all(context, survivors) == DDP_ERROR_FINAL);
	CHECK_OK(ddp_comm_free(survivors));
	return 0;
}

TEST_RUNS(only_a_broken_world_is_the_ranks_end, assert_int_equal(run_ranks(2, aborting_body, NULL), 0));

/* ---- ddp_spawn(): local ranks, their exit codes, and their wire-up ------------------------- */

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

/* The thread sanitizer keeps a signal for a process until this begins something, which one with threads before a fork
   may never do. */
TEST_OF(signals_to_the_parent_are_passed_on, !THREAD_SANITIZER, set_up_board, take_board_down)
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
