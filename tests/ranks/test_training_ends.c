/*
 * training: how it ends. Asked to stop, all ranks do so after the same step,
 * with a checkpoint; what goes wrong on one rank ends all of them.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "reduce/model.h"
#include "tests/support/folder.h"
#include "tests/support/training.h"

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
		.size = sizeof(options),
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

static void signal_stops_all_ranks_in_one_step_with_a_checkpoint(void **state)
{
	(void)state;
	expect_the_same_bits(stop_body);
}

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
		.size = sizeof(options),
		.steps = 4, .stop_signal = SIGUSR1, .on_step = signal_behind_the_last_step, .user = &odd,
	};
	ddp_summary summary;

	(void)user;
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

static void signal_is_heard_at_any_moment(void **state)
{
	(void)state;
	assert_int_equal(run_ranks(1, odd_moments_body, NULL), 0);
	assert_int_equal(run_ranks(2, odd_moments_body, NULL), 0);
}

static ddp_status stop_at_once(void *user, const ddp_step_stats *stats)
{
	(void)stats;
	ddp_request_stop(user);
	return DDP_OK;
}

static bool is_left_alone(int number)
{
	struct sigaction now;

	return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_DFL;
}

static int two_signals_body(ddp_context *context, void *user)
{
	ddp_train_options options = { .size = sizeof(options), .steps = 4, .stop_signal = SIGUSR1,
	                              .on_step = stop_at_once };
	ddp_summary summary;

	(void)user;
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

static void a_stopped_loops_signal_is_given_back_by_the_next(void **state)
{
	(void)state;
	assert_int_equal(run_ranks(1, two_signals_body, NULL), 0);
}

static int infinite_batches;

static ddp_status infinite_batch(void *user, ddp_model *model, const ddp_batch *batch,
                                 double *weight, double *loss_sum)
{
	const ddp_status status = mlp_batch(user, model, batch, weight, loss_sum);

	if (infinite_batches-- > 0)
		*loss_sum = INFINITY;
	return status;
}

static int skipping_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 512, .accumulate = 1, .scaled = true };
	const ddp_train_options options = { .size = sizeof(options), .steps = 4, .checkpoint_every = 2,
	                                    .checkpoint_dir = test_folder };
	char path[128];

	(void)user;
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

static void skipped_step_makes_no_checkpoint_due(void **state)
{
	(void)state;
	assert_int_equal(run_ranks(2, skipping_body, NULL), 0);
}

static double schedule(void *user, int64_t step)
{
	(void)user;
	return step < 3 ? 0.005 * (double)step : 0.01;
}

/* ---- failures ------------------------------------------------------------------- */

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
		return ddp_fail(DDP_ERR_IO, "the sensor is unplugged");
	return status;
}

static ddp_status troubled_step(void *user, const ddp_step_stats *stats)
{
	(void)user;
	(void)stats;
	return now_is_the_time(STEP_CALLBACK_FAILS) ? DDP_ERR_IO : DDP_OK;
}

static double troubled_schedule(void *user, int64_t step)
{
	bool wrong = local.what == RATE_DIFFERS && local.own_rank == local.rank && step == 6;

	return schedule(user, step) * (wrong ? 2 : 1);
}

static int trouble_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 64, .shard = seen->shard, .accumulate = 1 };
	const ddp_train_options options = {
		.size = sizeof(options),
		.steps = STEPS, .schedule = troubled_schedule, .on_step = troubled_step,
	};
	int rank = ddp_get_job(context)->rank;

	(void)user;
	/* ddp_spawn() ends the others when one is killed; they are to speak first. */
	signal(SIGTERM, SIG_IGN);
	local = *seen;
	local.own_rank = rank;
	const training t = start(context, &with);
	seen->status[rank] = ddp_train(t.model, t.loader, troubled_batch, &options, NULL);
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

static void failing_callback_ends_all_ranks_with_its_reason(void **state)
{
	(void)state;
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
		assert_non_null(strstr(seen->message[ranks - 1], "it gave no reason"));
	}
}

static void different_learning_rates_end_all_ranks(void **state)
{
	(void)state;
	for (int u = 0; u < SHARDS; u++) {
		make_trouble(RATE_DIFFERS, 2, shards[u]);
		for (int r = 0; r < 2; r++)
			expect_message(r, "step 6: ranks have different learning rates");
	}
}

static void lost_rank_is_an_error_on_the_others(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * SHARDS; i++) {
		make_trouble(i % 2 == 0 ? RANK_EXITS : RANK_IS_KILLED, 3, shards[i / 2]);
		for (int r = 0; r < 2; r++) {
			expect_message(r, "rank 2");
			assert_true(seen->status[r] == DDP_ERR_PEER || seen->status[r] == DDP_ERR_ABORTED);
		}
	}
}

static int no_place_body(ddp_context *context, void *user)
{
	ddp_train_options options = {
		.size = sizeof(options),
		.steps = 6, .checkpoint_dir = "/dev/null/nowhere", .checkpoint_every = 2,
	};
	ddp_summary summary;

	(void)user;
	const training t = start(context, &plain);
	CHECK(ddp_train(t.model, t.loader, mlp_batch, &options, NULL) == DDP_ERR_IO);
	CHECK(strstr(ddp_last_error(), "/dev/null/nowhere") != NULL);
	options.checkpoint_dir = NULL;
	options.checkpoint_every = 0;
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(summary.steps == 6);
	CHECK(fabs(summary.units_per_second * summary.seconds - (SAMPLES + GLOBAL_BATCH)) < 1e-6);
	finish(t);
	return 0;
}

static void failed_checkpoint_ends_all_ranks_but_not_the_model(void **state)
{
	(void)state;
	assert_int_equal(run_ranks(2, no_place_body, NULL), 0);
}

/* ---- a full disk ------------------------------------------------------------------- */

enum { FULL_FROM = 3 }; /* step */

static struct rlimit room;
static char told[2048];

/* Once rank 0 has said that it could not write, there is room again. */
static void keep_warnings(void *user, ddp_log_level level, const char *message)
{
	(void)user;
	(void)level;
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
		.size = sizeof(options), .steps = 7, .checkpoint_dir = test_folder, .checkpoint_every = 2,
		.on_step = fill_the_disk, .checkpoint_beside = *(const bool *)beside,
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
	CHECK(ddp_train(t.model, t.loader, mlp_batch, &options, NULL) == DDP_ERR_IO);
	CHECK(strstr(ddp_last_error(), "checkpoint of step 10 was not saved") != NULL);
	CHECK(setrlimit(RLIMIT_FSIZE, &room) == 0);
	CHECK_OK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step));
	CHECK(step == 7);
	finish(t);
	return 0;
}

static void full_disk_costs_a_checkpoint_and_not_the_training(void **state)
{
	(void)state;
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
		kept = ddp_param_data(model, 1)[0];
		ddp_param_data(model, 1)[0] = INFINITY;
	}
	return DDP_OK;
}

/* Before a step computes. */
static double heal_behind_it(void *model, int64_t step)
{
	if (step == 2)
		ddp_param_data(model, 1)[0] = kept;
	return 0.01;
}

static int bad_checkpoint_before_the_last_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 512, .accumulate = 1, .shard = DDP_SHARD_NONE };
	ddp_train_options options = {
		.size = sizeof(options), .steps = 2, .checkpoint_dir = test_folder, .checkpoint_every = 1,
		.on_step = poison_for_a_checkpoint, .schedule = heal_behind_it, .checkpoint_beside = true,
	};
	int64_t step;

	(void)user;
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

static void last_checkpoint_is_written_whatever_became_of_the_one_before(void **state)
{
	(void)state;
	assert_int_equal(run_ranks(2, bad_checkpoint_before_the_last_body, NULL), 0);
}

/* ---- what is not finite ---------------------------------------------------------- */

enum { POISONED_STEP = 6, SAVED_STEP = 4 };

static bool poison_loss, poison_gradient;

/* One rank's gradient, or its loss. */
static ddp_status poisoned_batch(void *user, ddp_model *model, const ddp_batch *batch,
                                 double *weight, double *loss_sum)
{
	if (poison_gradient && ddp_model_step_count(model) + 1 == POISONED_STEP)
		ddp_param_grad(model, 2)[3] = NAN;
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
		.size = sizeof(options),
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
	CHECK(ddp_train(t.model, t.loader, poisoned_batch, &options, NULL) == DDP_ERR_NOT_FINITE);
	CHECK(strstr(ddp_last_error(), "step 6: ") != NULL);
	CHECK(strstr(ddp_last_error(), shared->in_loss ? "the loss is not finite on rank"
	                                                : "the gradient of \"") != NULL);
	poison_loss = poison_gradient = false;
	CHECK_OK(ddp_checkpoint_load(t.model, t.loader, test_folder, &step));
	CHECK(step == SAVED_STEP);
	CHECK_OK(ddp_train(t.model, t.loader, poisoned_batch, &options, NULL));
	mlp_pack(t.model, job->rank == 0 ? shared->resumed : scratch);
	finish(t);
	return 0;
}

static void diverged_training_goes_back_in_the_same_process(void **state)
{
	(void)state;
	expect_the_same_bits(poisoned_body);
}

/* ---- arguments ------------------------------------------------------------------- */

static int arguments_body(ddp_context *context, void *user)
{
	static struct { ddp_train_options options; const char *part; } bad[] = {
		{ { .steps = 0 }, "steps is 0" },
		{ { .steps = 1, .accumulate = -1 }, "must not be negative" },
		{ { .steps = 1, .checkpoint_every = -1 }, "must not be negative" },
		{ { .steps = 1, .resume = true }, "resume needs checkpoint_dir" },
		{ { .steps = 1, .checkpoint_every = 5 }, "checkpoint_every needs checkpoint_dir" },
		{ { .steps = 1, .stop_signal = SIGKILL }, "stop_signal is 9, which cannot be caught" },
	};
	const ddp_train_options good = { .size = sizeof(good), .steps = 1 };

	(void)user;
	const training t = start(context, &plain);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		bad[i].options.size = sizeof(bad[i].options);
		CHECK(ddp_train(t.model, t.loader, mlp_batch, &bad[i].options, NULL) == DDP_ERR_INVALID);
		CHECK(strstr(ddp_last_error(), bad[i].part) != NULL);
	}
	CHECK(ddp_train(t.model, NULL, mlp_batch, &good, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_train(t.model, t.loader, NULL, &good, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_train(t.model, t.loader, mlp_batch, NULL, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_train(NULL, t.loader, mlp_batch, &good, NULL) == DDP_ERR_INVALID);
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &good, NULL));
	finish(t);
	return 0;
}

static void wrong_training_options_are_named(void **state)
{
	(void)state;
	assert_int_equal(run_ranks(1, arguments_body, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signal_stops_all_ranks_in_one_step_with_a_checkpoint),
		cmocka_unit_test(signal_is_heard_at_any_moment),
		cmocka_unit_test(a_stopped_loops_signal_is_given_back_by_the_next),
		cmocka_unit_test_setup(skipped_step_makes_no_checkpoint_due, folder_empty),
		cmocka_unit_test(failing_callback_ends_all_ranks_with_its_reason),
		cmocka_unit_test(different_learning_rates_end_all_ranks),
		cmocka_unit_test(lost_rank_is_an_error_on_the_others),
		cmocka_unit_test(failed_checkpoint_ends_all_ranks_but_not_the_model),
		cmocka_unit_test(full_disk_costs_a_checkpoint_and_not_the_training),
		cmocka_unit_test_setup(last_checkpoint_is_written_whatever_became_of_the_one_before, folder_empty),
		cmocka_unit_test(diverged_training_goes_back_in_the_same_process),
		cmocka_unit_test(wrong_training_options_are_named),
	};
	return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
