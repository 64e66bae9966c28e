/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* training: what a failure costs. One of a rank ends all of them, with its reason; one of a
   checkpoint costs no more than that checkpoint, unless it is the last. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "tests/support/training.h"
#include "watch/page.h"
#include "watch/watch.h"

static const setup plain = { .bucket_bytes = 512, .accumulate = 1 };

/* ---- failures of a rank ---------------------------------------------------------------------- */

typedef enum failure {
	BATCH_CALLBACK_FAILS, STEP_CALLBACK_FAILS, RATE_DIFFERS, RANK_EXITS, RANK_IS_KILLED
} failure;

typedef struct trouble {
	failure what;
	ddp_shard shard;
	int rank;               /* that makes it */
	int own_rank;           /* of the process that reads this */
	int batches;
	ddp_status status[RANKS_MAX];
	uint32_t error_state[RANKS_MAX]; /* of the progress page */
	char message[RANKS_MAX][1024];
} trouble;

static trouble *seen; /* shared by the test and its ranks */
/* Each rank has its own copy of what the callbacks get. */
static trouble local;

static bool now_is_the_time(failure what)
{
	return local.what == what && local.own_rank == local.rank && local.batches == 6;
}

static ddp_status troubled_batch(void *user, ddp_model *model, const ddp_batch *batch,
                                 double *weight, double *loss_sum)
{
	local.batches++;
	if (now_is_the_time(RANK_EXITS))
		_exit(0);
	if (now_is_the_time(RANK_IS_KILLED))
		raise(SIGKILL);
	/* In the middle of backward, with buckets under way. */
	ddp_status status = mlp_batch(user, model, batch, weight, loss_sum);
	if (status == DDP_OK && now_is_the_time(BATCH_CALLBACK_FAILS))
		ddp_set_error("the sensor is unplugged");
	return status == DDP_OK && now_is_the_time(BATCH_CALLBACK_FAILS) ? DDP_ERR_IO : status;
}

static ddp_status troubled_step(void *user, const ddp_step_stats *stats)
{
	return now_is_the_time(STEP_CALLBACK_FAILS) ? DDP_ERR_IO : DDP_OK;
}

static double troubled_schedule(void *user, int64_t step)
{
	bool wrong = local.what == RATE_DIFFERS && local.own_rank == local.rank && step == 6;

	return (step < 3 ? 0.005 * (double)step : 0.01) * (wrong ? 2 : 1);
}

static int trouble_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 64, .shard = seen->shard, .accumulate = 1 };
	const ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS,
		.steps = STEPS, .schedule_fn = troubled_schedule, .on_step = troubled_step,
	};
	int rank = ddp_get_job(context)->rank;

	/* ddp_spawn() ends the others when one is killed; they are to speak first. */
	signal(SIGTERM, SIG_IGN);
	local = *seen;
	local.own_rank = rank;
	const training t = start(context, &with);
	seen->status[rank] = ddp_train(t.model, t.loader, troubled_batch, &options, NULL);
	seen->error_state[rank] = ddp_watch_page(context->watch)->error_state;
	snprintf(seen->message[rank], sizeof(seen->message[rank]), "%s", ddp_last_error());
	finish(t);
	return 0;
}

static void make_trouble(failure what, int ranks, ddp_shard shard)
{
	if (seen == NULL)
		seen = test_share(sizeof(*seen));
	memset(seen, 0, sizeof(*seen));
	seen->what = what;
	seen->shard = shard;
	seen->rank = ranks - 1;
	int code = run_ranks(ranks, trouble_body, NULL);
	assert_int_equal(code, what == RANK_IS_KILLED ? 128 + SIGKILL : 0);
}

static void expect_message(int rank, const char *part)
{
	if (seen->status[rank] == DDP_OK || strstr(seen->message[rank], part) == NULL)
		fail_msg("rank %d: %s, \"%s\" does not say \"%s\"", rank,
		         ddp_status_name(seen->status[rank]), seen->message[rank], part);
}

TEST(failing_callback_ends_all_ranks_with_its_reason)
{
	for (int i = 0; i < 3 * SHARDS; i++) {
		int ranks = 1 + i % 3;
		make_trouble(BATCH_CALLBACK_FAILS, ranks, shards[i / 3]);
		for (int r = 0; r < ranks; r++)
			expect_message(r, "the sensor is unplugged");
		assert_int_equal(seen->status[ranks - 1], DDP_ERR_IO);
		assert_non_null(strstr(seen->message[ranks - 1], "step 6: the batch callback failed on rank"));

		make_trouble(STEP_CALLBACK_FAILS, ranks, shards[i / 3]);
		for (int r = 0; r < ranks; r++)
			expect_message(r, "the step callback failed on rank");
		for (int r = 0; r < ranks; r++)
			assert_int_equal(seen->error_state[r], DDP_ERROR_FINAL);
		assert_non_null(strstr(seen->message[ranks - 1], "it gave no reason"));
	}
}

TEST(different_learning_rates_end_all_ranks)
{
	for (int u = 0; u < SHARDS; u++) {
		make_trouble(RATE_DIFFERS, 2, shards[u]);
		for (int r = 0; r < 2; r++)
			expect_message(r, "step 6: ranks have different learning rates");
	}
}

TEST(lost_rank_is_an_error_on_the_others)
{
	for (int i = 0; i < 2 * SHARDS; i++) {
		make_trouble(i % 2 == 0 ? RANK_EXITS : RANK_IS_KILLED, 3, shards[i / 2]);
		for (int r = 0; r < 2; r++) {
			expect_message(r, "rank 2");
			assert_true(seen->status[r] == DDP_ERR_PEER || seen->status[r] == DDP_ERR_ABORTED);
		}
	}
}

/* ---- failures of a checkpoint ---------------------------------------------------------------- */

static int no_place_body(ddp_context *context, void *user)
{
	ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS,
		.steps = 6, .checkpoint_dir = "/dev/null/nowhere", .checkpoint_every = 2,
	};
	ddp_summary summary;

	const training t = start(context, &plain);
	CHECK_FAILS(ddp_train(t.model, t.loader, mlp_batch, &options, NULL), DDP_ERR_IO, "/dev/null/nowhere");
	options.checkpoint_dir = NULL;
	options.checkpoint_every = 0;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(summary.steps == 6);
	CHECK(fabs(summary.units_per_second * summary.seconds - (SAMPLES + GLOBAL_BATCH)) < 1e-6);
	finish(t);
	return 0;
}

TEST_RUNS(failed_checkpoint_ends_all_ranks_but_not_the_model, assert_int_equal(run_ranks(2, no_place_body, NULL), 0));

enum { FULL_FROM = 3 }; /* step */

static struct rlimit room;
static char told[2048];

/* Once rank 0 has said that it could not write, there is room again. */
static void keep_warnings(void *user, ddp_log_level level, const char *message)
{
	strncat(told, message, sizeof(told) - strlen(told) - 1);
	CHECK(setrlimit(RLIMIT_FSIZE, &room) == 0);
}

/* From the end of a step on, no file of this process can grow. */
static ddp_status fill_the_disk(void *model, const ddp_step_stats *stats)
{
	const struct rlimit none = { .rlim_cur = 1000, .rlim_max = room.rlim_max };

	if (stats->step == FULL_FROM) {
		CHECK_OK(ddp_checkpoint_wait(model)); /* the one before is not to fail */
		CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
	}
	return DDP_OK;
}

static int full_disk_body(ddp_context *context, void *beside)
{
	const bool leads = ddp_get_job(context)->rank == 0;
	ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS, .steps = 7, .checkpoint_dir = test_folder, .checkpoint_every = 2,
		.on_step = fill_the_disk, .checkpoint_async = *(const bool *)beside,
	};
	int64_t step;

	signal(SIGXFSZ, SIG_IGN);
	CHECK(getrlimit(RLIMIT_FSIZE, &room) == 0);
	ddp_set_log(keep_warnings, NULL, DDP_LOG_WARN);
	const training t = start(context, &plain);
	options.user = t.model;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, NULL));
	CHECK((strstr(told, "checkpoint of step 4 was not saved") != NULL) == leads);
	CHECK((strstr(told, "training goes on, and tries again after step 6: ") != NULL) == leads);
	CHECK(strstr(told, "step 2 ") == NULL && strstr(told, "step 6 ") == NULL);
	CHECK_OK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step));
	CHECK(step == 7);
	/* The last one is wanted; the one before is there. */
	options.steps = 10;
	options.checkpoint_every = 0;
	options.on_step = NULL;
	const struct rlimit none = { .rlim_cur = 1000, .rlim_max = room.rlim_max };
	CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
	CHECK_FAILS(ddp_train(t.model, t.loader, mlp_batch, &options, NULL), DDP_ERR_IO,
	            "checkpoint of step 10 was not saved");
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_OPEN);
	CHECK(setrlimit(RLIMIT_FSIZE, &room) == 0);
	/* Saved after all, the rank ends well. */
	CHECK_OK(ddp_checkpoint_save(t.model, t.loader, test_folder, 0));
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_PAST);
	CHECK_OK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step));
	CHECK(step == 10);
	finish(t);
	return 0;
}

TEST(full_disk_costs_a_checkpoint_and_not_the_training)
{
	for (int i = 0; i < 2; i++) {
		bool beside = i == 1;
		assert_int_equal(folder_empty(NULL), 0);
		assert_int_equal(run_ranks(2, full_disk_body, &beside), 0);
	}
}

static float kept; /* of the parameter that poison_for_a_checkpoint() changes */

static ddp_status poison_for_a_checkpoint(void *model, const ddp_step_stats *stats)
{
	if (stats->step == 1) {
		kept = ddp_model_param_data(model, 1)[0];
		ddp_model_param_data(model, 1)[0] = INFINITY;
	}
	return DDP_OK;
}

/* Before a step computes. */
static double heal_behind_it(void *model, int64_t step)
{
	if (step == 2)
		ddp_model_param_data(model, 1)[0] = kept;
	return 0.01;
}

static int bad_checkpoint_before_the_last_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 512, .accumulate = 1, .shard = DDP_SHARD_NONE };
	ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS, .steps = 2, .checkpoint_dir = test_folder, .checkpoint_every = 1,
		.on_step = poison_for_a_checkpoint, .schedule_fn = heal_behind_it, .checkpoint_async = true,
	};
	int64_t step;

	CHECK(getrlimit(RLIMIT_FSIZE, &room) == 0);
	ddp_set_log(keep_warnings, NULL, DDP_LOG_WARN);
	const training t = start(context, &with);
	options.user = t.model;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, NULL));
	CHECK((strstr(told, "checkpoint of step 1 was not saved: tensor fc1.bias holds an infinity") != NULL) ==
	      (ddp_get_job(context)->rank == 0));
	CHECK_OK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step));
	CHECK(step == 2);
	finish(t);
	return 0;
}

TEST_RUNS_BEHIND(folder_empty, last_checkpoint_is_written_whatever_became_of_the_one_before,
                 assert_int_equal(run_ranks(2, bad_checkpoint_before_the_last_body, NULL), 0));

TEST_MAIN(folder_make, folder_remove)
