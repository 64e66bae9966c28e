/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan bare no-ucx no-pmix no-blas; all: unit */
/* ddp_init() and ddp_finalize(): from nothing to a communicator, and back. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/hier/algorithms.h"
#include "context.h"
#include "ddp.h"
#include "device/device.h"
#include "job/spawn.h"
#include "tests/support/context_ranks.h"
#include "tests/support/device_checks.h"
#include "tests/support/hung.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "watch/page.h"
#include "watch/watch.h"

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
