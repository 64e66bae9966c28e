/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* training: how it ends, and goes on. Asked to stop, all ranks do so after the same step, with a
   checkpoint; what diverges goes back to one. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "reduce/model.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "tests/support/training.h"
#include "watch/page.h"
#include "watch/watch.h"

static const setup plain = { .bucket_bytes = 512, .accumulate = 1 };

/* ---- stopping ------------------------------------------------------------------- */

enum { SIGNALLED_BATCH = 7 }; /* the second of step 4's two */

/* A run that goes on where it ended, beside one that does not end. */
typedef struct runs {
	float whole[MLP_ELEMENTS], resumed[MLP_ELEMENTS];
	ddp_shard shard;
	bool in_loss; /* what is not finite */
} runs;

static void expect_the_same_bits(rank_body body)
{
	runs *shared = test_share(sizeof(*shared));

	for (int i = 0; i < 3 * SHARDS; i++) {
		shared->shard = shards[i / 3];
		shared->in_loss = i % 2 == 0;
		assert_int_equal(folder_empty(NULL), 0);
		assert_int_equal(run_ranks(1 + i % 3, body, shared), 0);
		assert_memory_equal(shared->whole, shared->resumed, sizeof(shared->whole));
	}
	test_unshare(shared, sizeof(*shared));
}

static int batches_until_signal;

static ddp_status signalled_batch(void *user, ddp_model *model, const ddp_batch *batch,
                                  double *weight, double *loss_sum)
{
	if (--batches_until_signal == 0)
		raise(SIGUSR1);
	return mlp_batch(user, model, batch, weight, loss_sum);
}

/* The last rank alone gets the signal. */
static int stop_body(ddp_context *context, void *user)
{
	runs *shared = user;
	const ddp_job *job = ddp_get_job(context);
	setup with = { .bucket_bytes = 512, .shard = shared->shard, .accumulate = 2,
	               .steps = STEPS };
	const ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS,
		.steps = STEPS, .accumulate = 2, .checkpoint_dir = test_folder, .stop_signal = SIGUSR1,
	};
	float scratch[MLP_ELEMENTS];
	ddp_summary summary;
	struct sigaction now;
	int64_t step;

	train(context, &with, job->rank == 0 ? shared->whole : scratch);
	const training t = start(context, &with);
	batches_until_signal = job->rank == job->world_size - 1 ? SIGNALLED_BATCH : -1;
	CHECK_OK(ddp_train(t.model, t.loader, signalled_batch, &options, &summary));
	CHECK(summary.stopped && summary.steps == 4);
	/* As if this rank's had been on its way for longer. */
	CHECK(raise(SIGUSR1) == 0);
	CHECK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step) == DDP_OK && step == 4);
	/* The stop was heard: the loop may be entered again. */
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(!summary.stopped && summary.steps == STEPS);
	CHECK(sigaction(SIGUSR1, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
	mlp_pack(t.model, job->rank == 0 ? shared->resumed : scratch);
	finish(t);
	return 0;
}

TEST_RUNS(signal_stops_all_ranks_in_one_step_with_a_checkpoint, expect_the_same_bits(stop_body));

/* The signal comes as soon as there is a handler. */
static bool raise_at_once;

int __real_sigaction(int number, const struct sigaction *action, struct sigaction *before);
int __wrap_sigaction(int number, const struct sigaction *action, struct sigaction *before);

int __wrap_sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	int result = __real_sigaction(number, action, before);

	if (result == 0 && action != NULL && raise_at_once && number == SIGUSR1) {
		raise_at_once = false;
		raise(SIGUSR1);
	}
	return result;
}

static ddp_status signal_behind_the_last_step(void *user, const ddp_step_stats *stats)
{
	if (*(const bool *)user && stats->step == 4)
		raise(SIGUSR1);
	return DDP_OK;
}

static int odd_moments_body(ddp_context *context, void *user)
{
	const ddp_job *job = ddp_get_job(context);
	bool odd = job->rank == job->world_size - 1;
	ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS,
		.steps = 4, .stop_signal = SIGUSR1, .on_step = signal_behind_the_last_step, .user = &odd,
	};
	ddp_summary summary;

	const training t = start(context, &plain);
	raise_at_once = odd;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(summary.stopped && summary.steps == 1);
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(!summary.stopped && summary.steps == 4);
	/* All was done when it came; a loop that goes on hears it. */
	options.steps = 10;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(summary.stopped && summary.steps == 5);
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(!summary.stopped && summary.steps == 10);
	finish(t);
	return 0;
}

TEST(signal_is_heard_at_any_moment)
{
	assert_int_equal(run_ranks(1, odd_moments_body, NULL), 0);
	assert_int_equal(run_ranks(2, odd_moments_body, NULL), 0);
}

static ddp_status stop_at_once(void *user, const ddp_step_stats *stats)
{
	ddp_model_request_stop(user);
	return DDP_OK;
}

static bool is_left_alone(int number)
{
	struct sigaction now;

	return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_DFL;
}

static int two_signals_body(ddp_context *context, void *user)
{
	ddp_train_options options = { DDP_TRAIN_OPTIONS_FIELDS, .steps = 4, .stop_signal = SIGUSR1,
	                              .on_step = stop_at_once };
	ddp_summary summary;

	const training t = start(context, &plain);
	options.user = t.model;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(summary.stopped && !is_left_alone(SIGUSR1));
	options.stop_signal = SIGUSR2;
	options.on_step = NULL;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(!summary.stopped && is_left_alone(SIGUSR1) && is_left_alone(SIGUSR2));
	finish(t);
	return 0;
}

TEST_RUNS(a_stopped_loops_signal_is_given_back_by_the_next, assert_int_equal(run_ranks(1, two_signals_body, NULL), 0));

static int infinite_batches;

static ddp_status infinite_batch(void *user, ddp_model *model, const ddp_batch *batch,
                                 double *weight, double *loss_sum)
{
	const ddp_status status = mlp_batch(user, model, batch, weight, loss_sum);

	if (infinite_batches-- > 0)
		*loss_sum = INFINITY;
	return status;
}

/* Step 4 is skipped, and a rank is asked to stop in it. */
static ddp_status stopping_batch(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	if (ddp_model_step_count(model) == 3) {
		infinite_batches = 1;
		ddp_model_request_stop(model);
	}
	return infinite_batch(user, model, batch, weight, loss_sum);
}

static int stopped_skipping_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 512, .accumulate = 1, .scaled = true };
	const ddp_train_options options = { DDP_TRAIN_OPTIONS_FIELDS, .steps = 8, .checkpoint_every = 2,
	                                    .checkpoint_dir = test_folder };
	ddp_summary summary;
	int64_t step;

	const training t = start(context, &with);
	infinite_batches = 0;
	CHECK_OK(ddp_train(t.model, t.loader, stopping_batch, &options, &summary));
	CHECK(summary.stopped && summary.steps == 3 && summary.skipped == 1);
	CHECK_OK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step));
	CHECK(step == 3);
	finish(t);
	return 0;
}

static int skipping_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 512, .accumulate = 1, .scaled = true };
	const ddp_train_options options = { DDP_TRAIN_OPTIONS_FIELDS, .steps = 4, .checkpoint_every = 2,
	                                    .checkpoint_dir = test_folder };
	char path[128];

	const training t = start(context, &with);
	infinite_batches = 3;
	CHECK_OK(ddp_train(t.model, t.loader, infinite_batch, &options, NULL));
	snprintf(path, sizeof(path), "%s/step-00000004.safetensors", test_folder);
	CHECK(access(path, F_OK) == 0);
	snprintf(path, sizeof(path), "%s/step-00000000.safetensors", test_folder);
	CHECK(access(path, F_OK) != 0);
	finish(t);
	return 0;
}

TEST_RUNS_BEHIND(folder_empty, skipped_step_makes_no_checkpoint_due,
                 assert_int_equal(run_ranks(2, skipping_body, NULL), 0));

TEST_RUNS_BEHIND(folder_empty, a_stop_in_a_skipped_step_saves,
                 assert_int_equal(run_ranks(2, stopped_skipping_body, NULL), 0));

/* ---- what is not finite ---------------------------------------------------------- */

enum { POISONED_STEP = 6, SAVED_STEP = 4 };

static bool poison_loss, poison_gradient;

/* One rank's gradient, or its loss. */
static ddp_status poisoned_batch(void *user, ddp_model *model, const ddp_batch *batch,
                                 double *weight, double *loss_sum)
{
	if (poison_gradient && ddp_model_step_count(model) + 1 == POISONED_STEP)
		ddp_model_param_grad(model, 2)[3] = NAN;
	ddp_status status = mlp_batch(user, model, batch, weight, loss_sum);
	if (poison_loss && ddp_model_step_count(model) + 1 == POISONED_STEP)
		*loss_sum = INFINITY;
	return status;
}

/* The last rank diverges; all go back to the last checkpoint, in the same process. */
static int poisoned_body(ddp_context *context, void *user)
{
	runs *shared = user;
	const ddp_job *job = ddp_get_job(context);
	const setup with = { .bucket_bytes = 512, .shard = shared->shard, .accumulate = 2,
	                     .steps = STEPS };
	const ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS,
		.steps = STEPS, .accumulate = 2, .checkpoint_dir = test_folder,
		.checkpoint_every = SAVED_STEP,
	};
	float scratch[MLP_ELEMENTS];
	bool odd = job->rank == job->world_size - 1;
	int64_t step;

	train(context, &with, job->rank == 0 ? shared->whole : scratch);
	const training t = start(context, &with);
	poison_loss = odd && shared->in_loss;
	poison_gradient = odd && !shared->in_loss;
	CHECK_FAILS(ddp_train(t.model, t.loader, poisoned_batch, &options, NULL), DDP_ERR_NOT_FINITE, "step 6: ");
	CHECK_SAYS(shared->in_loss ? "the loss is not finite on rank"
	                                                : "the gradient of \"");
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_OPEN);
	poison_loss = poison_gradient = false;
	CHECK_OK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step));
	CHECK(step == SAVED_STEP);
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_PAST);
	CHECK_OK(ddp_train(t.model, t.loader, poisoned_batch, &options, NULL));
	mlp_pack(t.model, job->rank == 0 ? shared->resumed : scratch);
	finish(t);
	return 0;
}

TEST_RUNS(diverged_training_goes_back_in_the_same_process, expect_the_same_bits(poisoned_body));

/* ---- arguments ------------------------------------------------------------------- */

static int arguments_body(ddp_context *context, void *user)
{
	static struct { ddp_train_options options; const char *part; } bad[] = {
		{ { DDP_TRAIN_OPTIONS_FIELDS, .steps = 0 }, "steps is 0" },
		{ { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1, .accumulate = -2 }, "accumulate is -2" },
		{ { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1, .checkpoint_every = -1 }, "checkpoint_every -1" },
		{ { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1, .resume = true }, "resume needs checkpoint_dir" },
		{ { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1, .checkpoint_every = 5 }, "checkpoint_every needs checkpoint_dir" },
		{ { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1, .stop_signal = SIGKILL }, "stop_signal is 9, which cannot be caught" },
	};
	const ddp_train_options good = { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1 };

	const training t = start(context, &plain);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK_FAILS(ddp_train(t.model, t.loader, mlp_batch, &bad[i].options, NULL), DDP_ERR_INVALID, bad[i].part);
	}
	CHECK(ddp_train(t.model, NULL, mlp_batch, &good, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_train(t.model, t.loader, NULL, &good, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_train(t.model, t.loader, mlp_batch, NULL, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_train(NULL, t.loader, mlp_batch, &good, NULL) == DDP_ERR_INVALID);
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &good, NULL));
	finish(t);
	return 0;
}

TEST_RUNS(wrong_training_options_are_named, assert_int_equal(run_ranks(1, arguments_body, NULL), 0));

TEST_MAIN(folder_make, folder_remove)
