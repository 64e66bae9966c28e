/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* state/checkpoint: saving and loading with all ranks of a job. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "context.h"
#include "reduce/model_state.h"
#include "reduce/strategy_node.h"
#include "state/leader.h"
#include "state/lock.h"
#include "state/safetensors.h"
#include "state/store.h"
#include "tests/support/checkpoint_jobs.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

/* ---- tests --------------------------------------------------------------------- */

/* Begins a step: gradients that a load has to forget, and, apart from rank 0,
   announcements of which the first buckets are reduced already. */
static void begin_a_step(ddp_context *context, struct job job)
{
	CHECK(ddp_model_set_sync(job.model, false) == DDP_OK);
	for (int p = 0; p < 2; p++)
		for (int64_t i = 0; i < ddp_model_param_count(job.model, p); i++)
			ddp_model_param_grad(job.model, p)[i] += 100;
	if (context->job.rank == 0)
		return;
	CHECK(ddp_model_set_sync(job.model, true) == DDP_OK);
	CHECK(ddp_model_grad_ready(job.model, 1) == DDP_OK);
	if (context->job.rank > 1)
		CHECK(ddp_model_grad_ready(job.model, 0) == DDP_OK);
}

static void go_back_within_a_step(ddp_context *context)
{
	static const ddp_model_options ways[] = {
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .bucket_mb = 64.0 / (1 << 20) },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .bucket_mb = 64.0 / (1 << 20) }, /* after backward */
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_GRADIENTS, .bucket_mb = 64.0 / (1 << 20) },
	};
	int64_t step;

	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		test_measure(w == 1 ? "no-overlap" : NULL);
		struct job straight = make_job_with(context, WIDTH, 3, &ways[w]);
		struct job job = make_job_with(context, WIDTH, 3, &ways[w]);

		train(straight, 5);
		train(job, 2);
		CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
		train(job, 1);
		begin_a_step(context, job);
		CHECK(ddp_checkpoint_load(job.model, job.loader, dir, &step) == DDP_OK && step == 2);
		train(job, 1);
		CHECK(ddp_model_grad_ready(job.model, 1) == DDP_OK);
		CHECK(ddp_checkpoint_load(job.model, job.loader, dir, &step) == DDP_OK && step == 2);
		train(job, 3);
		CHECK(same_parameters(straight, job));
		free_job(straight);
		free_job(job);
	}
}

TEST_WITH(going_back_forgets_the_step_under_way, folder_empty, NULL)
{
	for (int ranks = 1; ranks <= 4; ranks *= 2)
		on_ranks(ranks, 0, go_back_within_a_step);
}

enum { STRETCHES = 3, EPOCHS = 3 };
/* Updates of 8 samples on 4 ranks end within epoch 1, those of 6 on 3 ranks too, and 5 ranks finish epochs 1 and 2. */
static const struct { int ranks, steps; } stretches[STRETCHES] = { { 4, 7 }, { 3, 2 }, { 5, 11 } };
static _Atomic int (*samples_seen)[SAMPLES]; /* of each epoch, by all ranks and stretches together */
static int stretch;

static ddp_status see_samples(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	for (int64_t i = 0; i < batch->samples; i++)
		samples_seen[batch->epoch][lrintf(((const float *)batch->data)[i] * SAMPLES)]++;
	*weight += (double)batch->samples;
	return DDP_OK;
}

static void go_on_for_a_stretch(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	ddp_train_options options = { DDP_TRAIN_OPTIONS_FIELDS, .checkpoint_dir = dir, .resume = true };

	for (int s = 0; s <= stretch; s++)
		options.steps += stretches[s].steps;
	CHECK_OK(ddp_train(job.model, job.loader, see_samples, &options, NULL));
	free_job(job);
}

/* No number of ranks divides the place of the one before. */
TEST_WITH(each_sample_is_seen_once_while_the_ranks_change, folder_empty, NULL)
{
	samples_seen = test_share(EPOCHS * sizeof(*samples_seen));
	for (stretch = 0; stretch < STRETCHES; stretch++)
		on_ranks(stretches[stretch].ranks, 0, go_on_for_a_stretch);
	for (int e = 0; e < EPOCHS; e++)
		for (int i = 0; i < SAMPLES; i++)
			assert_int_equal(samples_seen[e][i], 1);
	test_unshare((void *)(uintptr_t)samples_seen, EPOCHS * sizeof(*samples_seen));
}

/* ---- fewer and more ranks, to the bit ---- */

enum { HALVES = 2, LEGS_UPDATE = 12, LEGS_WIDTH = 1000 };
static const int halves_end[HALVES] = { 6, 13 }; /* steps; an epoch has four, of which the last one is short */

typedef struct leg {
	ddp_shard shard;
	int64_t steps;
	double loss[14];
	float params[LEGS_WIDTH * 3];
} leg;

/* Sums of whole numbers are exact, so neither the number of ranks nor their order matters. */
static ddp_status add_whole_numbers(void *user, ddp_model *model, const ddp_batch *batch, double *weight,
                                    double *loss_sum)
{
	ddp_status status = DDP_OK;
	float sum = 0;

	for (int64_t i = 0; i < batch->samples; i++)
		sum += rintf(((const float *)batch->data)[i] * SAMPLES) - 17;
	for (int p = 1; p >= 0 && status == DDP_OK; p--) {
		float *grad = ddp_model_param_grad(model, p);
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			grad[i] += sum * (float)(i % 3 + 1);
		status = ddp_model_grad_ready(model, p);
	}
	*weight += (double)batch->samples;
	*loss_sum += sum;
	return status;
}

static ddp_status note_loss(void *user, const ddp_step_stats *stats)
{
	((leg *)user)->loss[stats->step] = stats->loss;
	return DDP_OK;
}

static int train_leg(ddp_context *context, void *user)
{
	leg *l = user;
	const ddp_model_options model = { DDP_MODEL_OPTIONS_FIELDS, .shard = l->shard, .bucket_mb = 512.0 / (1 << 20),
	                                  .learning_rate = 0.01, .weight_decay = 0.1 };
	const ddp_dataset dataset = { .size = SAMPLES, .sample_bytes = sizeof(float), .read = read_number };
	const ddp_loader_options loading = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = LEGS_UPDATE / context->job.world_size,
	                                     .seed = 3, .tail = DDP_TAIL_UNEVEN, .global_batch = LEGS_UPDATE };
	const ddp_train_options options = { DDP_TRAIN_OPTIONS_FIELDS, .steps = l->steps, .checkpoint_dir = dir, .resume = true,
	                                    .on_step = note_loss, .user = l };
	struct job job = make_job_with(context, LEGS_WIDTH, 3, &model);

	ddp_loader_free(job.loader);
	CHECK_OK(ddp_loader_create(context, &dataset, &loading, &job.loader));
	CHECK_OK(ddp_train(job.model, job.loader, add_whole_numbers, &options, NULL));
	CHECK_OK(ddp_model_param_wait(job.model, DDP_ALL_PARAMS));
	if (context->job.rank == 0)
		memcpy(l->params, ddp_model_param_data(job.model, 0), sizeof(l->params));
	free_job(job);
	return 0;
}

static void train_legs(leg *l, const int *node_of, ddp_shard shard, int first, int second)
{
	const int ranks[HALVES] = { first, second };

	folder_empty(NULL);
	memset(l, 0, sizeof(*l));
	l->shard = shard;
	for (int i = 0; i < HALVES; i++) {
		l->steps = halves_end[i];
		assert_int_equal(run_ranks_on(node_of, ranks[i], train_leg, l), 0);
	}
}

/* Whatever is spread over ranks: the position, parameters and state fit more ranks as well as fewer. */
TEST_WITH(a_training_shrinks_and_grows_bit_for_bit, folder_empty, NULL)
{
	static const struct { const int *node_of; ddp_shard shard; } ways[] = {
		{ NULL, DDP_SHARD_NONE }, { NULL, DDP_SHARD_STATE }, { NULL, DDP_SHARD_GRADIENTS },
		{ two_nodes, DDP_SHARD_AUTO }, { two_nodes, DDP_SHARD_STATE },
	};
	leg *l = test_share(sizeof(*l)), *straight = malloc(sizeof(*straight));

	train_legs(l, NULL, DDP_SHARD_NONE, 4, 4);
	memcpy(straight, l, sizeof(*l));
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		for (int first = 3; first <= 4; first++) {
			if (!test_takes(w + (size_t)first))
				continue;
			train_legs(l, ways[w].node_of, ways[w].shard, first, 7 - first);
			assert_memory_equal(l->loss, straight->loss, sizeof(l->loss));
			assert_memory_equal(l->params, straight->params, sizeof(l->params));
		}
	}
	free(straight);
	test_unshare(l, sizeof(*l));
}

static void save_on_a_full_disk(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	struct rlimit before, small;

	train(job, 1);
	CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
	if (context->job.rank == 0) {
		small = (struct rlimit){ .rlim_cur = 1000, .rlim_max = before.rlim_max };
		signal(SIGXFSZ, SIG_IGN);
		CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	}
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_ERR_IO);
	CHECK(test_says("checkpoint of step 1 was not saved") && test_says("File too large"));
	CHECK((context->job.rank > 0) == test_says("rank 0: "));
	/* The plugin tells it of a rank that ends now. */
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_OPEN);
	CHECK(strstr(ddp_watch_page(context->watch)->error, "File too large") != NULL);
	CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
	train(job, 1); /* the job can go on */
	CHECK(ddp_watch_page(context->watch)->error_state == DDP_ERROR_PAST);
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, full_disk_of_rank_0_is_an_error_on_all_ranks, on_ranks(3, 0, save_on_a_full_disk));

static void save_what_is_not_finite(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	int64_t step;

	train(job, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	train(job, 1);
	float *shift = ddp_model_param_data(job.model, 1);
	shift[3] = INFINITY;
	CHECK_FAILS(ddp_checkpoint_save(job.model, job.loader, dir, 0), DDP_ERR_NOT_FINITE,
	            "tensor shift holds an infinity or a NaN");
	CHECK(ddp_checkpoint_load(job.model, job.loader, dir, &step) == DDP_OK && step == 1);
	train(job, 1); /* the job can go on */
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	free_job(job);
}

TEST_WITH(nothing_that_is_not_finite_is_saved, folder_empty, NULL)
{
	on_ranks(1, 0, save_what_is_not_finite);
	on_ranks(3, 0, save_what_is_not_finite);
}

/* A rank's memory has changed since the first step. */
static void save_what_differs(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);

	train(job, 1);
	float *shift = ddp_model_param_data(job.model, 1);
	const float kept = shift[1];
	if (context->job.rank == 2)
		shift[1] += 0.25f;
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_ERR_MISMATCH);
	CHECK(test_says("rank 2 on ") &&
	      test_says(" has other parameters than 3 of 4 ranks after step 1: its memory or processor is damaged"));
	shift[1] = kept;
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, ranks_that_drifted_apart_save_nothing, on_ranks(4, 0, save_what_differs));

/* The first goes back and takes another way; the second may not write there. */
static void leave_a_line(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	char path[sizeof(dir) + 64];
	int64_t step;

	for (int i = 0; i < 3; i++) {
		train(job, 1);
		CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	}
	snprintf(path, sizeof(path), "%s/step-00000001.safetensors", dir);
	CHECK(ddp_checkpoint_load(job.model, job.loader, path, &step) == DDP_OK && step == 1);
	ddp_model_set_learning_rate(job.model, 1e-4);
	train(job, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	struct job resumed = make_job(context, WIDTH, 3);
	CHECK(ddp_checkpoint_load(resumed.model, resumed.loader, dir, &step) == DDP_OK);
	CHECK(step == 2 && same_parameters(job, resumed));
	free_job(resumed);
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, steps_of_a_line_that_was_left_are_not_the_newest, on_ranks(2, 0, leave_a_line));

static void save_where_another_run_does(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);

	train(job, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_ERR_STATE);
	CHECK(test_says("is written to by another run; give each run a directory of its own"));
	train(job, 1);
	free_job(job);
}

TEST_WITH(two_runs_do_not_write_to_one_directory, folder_empty, NULL)
{
	ddp_store_lock *lock;

	assert_int_equal(ddp_store_lock_take(dir, &(ddp_store_writer){ .name = "another run" }, NULL, &lock), DDP_OK);
	on_ranks(2, 0, save_where_another_run_does);
	ddp_store_lock_release(lock);
	on_ranks(2, 0, save_after_seven_steps);
}

/* The models have equal shapes, so that a load of one model would take the other's file. */
static void save_two_models(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3), other = make_job(context, WIDTH, 4);
	char spelled[sizeof(dir) + 4], elsewhere[sizeof(dir) + 16];
	int64_t step;

	snprintf(spelled, sizeof(spelled), "%s/.", dir);
	snprintf(elsewhere, sizeof(elsewhere), "%s-other", dir);
	train(job, 2);
	train(other, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	for (int way = 0; way < 2; way++) {
		const char *same = way == 0 ? dir : spelled;
		CHECK(ddp_checkpoint_save(other.model, other.loader, same, 0) == DDP_ERR_STATE);
		CHECK(test_says("is written to by another model of this program; give each model a directory of its own"));
		CHECK(ddp_checkpoint_save_async(other.model, other.loader, same, 0) == DDP_ERR_STATE);
		CHECK(ddp_checkpoint_save(job.model, job.loader, same, 0) == DDP_OK);
	}
	CHECK(ddp_checkpoint_load(other.model, NULL, dir, &step) == DDP_OK && step == 2 && same_parameters(job, other));
	CHECK(ddp_checkpoint_save(other.model, other.loader, elsewhere, 0) == DDP_OK);
	/* Its files are there for the next, once it is freed. */
	free_job(job);
	CHECK(ddp_checkpoint_save(other.model, other.loader, dir, 0) == DDP_OK);
	free_job(other);
}

TEST_RUNS_BEHIND(folder_empty, two_models_do_not_write_to_one_directory, on_ranks(2, 0, save_two_models));

/* Each rank saves alone, and all may write where rank 0 does, but no model where another does. */
static void save_two_models_after_an_abort(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3), other = make_job(context, WIDTH, 4);
	char own[sizeof(dir) + 16];

	snprintf(own, sizeof(own), "%s/%d", dir, context->job.rank);
	train(job, 1);
	train(other, 1);
	test_ranks_together(); /* one that is still in it would hear of the abort there */
	CHECK(ddp_comm_abort(context->world, "the test wants it") == DDP_OK);
	CHECK(ddp_checkpoint_save(job.model, NULL, own, 0) == DDP_OK);
	CHECK_FAILS(ddp_checkpoint_save(other.model, NULL, own, 0), DDP_ERR_STATE,
	            "is written to by another model of this program");
	free_job(job);
	free_job(other);
}

TEST_RUNS_BEHIND(folder_empty, nor_do_they_after_the_world_broke, on_ranks(2, 0, save_two_models_after_an_abort));

/* Each rank has its own, of another length; the second has none. */
static size_t fill_state(int rank, unsigned char *state)
{
	for (int i = 0; i < 300 * rank + 10; i++)
		state[i] = (unsigned char)(i * 7 + rank);
	return rank == 1 ? 0 : (size_t)(300 * rank + 10);
}

static void save_own_state(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	unsigned char state[2000];
	size_t bytes;

	CHECK(ddp_model_user_state(job.model, &bytes) == NULL && bytes == 0);
	CHECK(ddp_model_set_user_state(job.model, "before", 6) == DDP_OK);
	CHECK(ddp_model_set_user_state(job.model, state, fill_state(context->job.rank, state)) == DDP_OK);
	CHECK(ddp_model_set_user_state(job.model, state, DDP_USER_STATE_MAX + 1) == DDP_ERR_INVALID);
	train(job, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	free_job(job);
}

static void load_own_state(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	unsigned char state[2000];
	size_t bytes, wanted = context->job.rank < 3 ? fill_state(context->job.rank, state) : 0;
	int64_t step;

	CHECK(ddp_model_set_user_state(job.model, "another", 7) == DDP_OK);
	CHECK(ddp_checkpoint_load(job.model, NULL, dir, &step) == DDP_OK && step == 1);
	const void *loaded = ddp_model_user_state(job.model, &bytes);
	CHECK(bytes == wanted && (bytes == 0 || memcmp(loaded, state, bytes) == 0));
	free_job(job);
}

TEST_WITH(state_of_the_program_comes_back_by_rank, folder_empty, NULL)
{
	on_ranks(3, 0, save_own_state);
	for (int ranks = 1; ranks <= 4; ranks++)
		on_ranks(ranks, 0, load_own_state);
}

static void lose_the_directory(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	char other[sizeof(dir) + 16];

	ddp_set_log(collect, NULL, DDP_LOG_WARN);
	snprintf(other, sizeof(other), "%s-moved", dir);
	train(job, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	train(job, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	CHECK(warnings[0] == '\0' && ddp_barrier(context->world) == DDP_OK);
	if (context->job.rank == 0)
		CHECK(rename(dir, other) == 0);
	train(job, 1);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	CHECK((strstr(warnings, "removed, replaced or unmounted") != NULL) == (context->job.rank == 0));
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, directory_that_vanished_is_not_made_anew_without_a_word,
                 on_ranks(2, 0, lose_the_directory));

TEST_WITH(names_are_those_of_the_field, folder_empty, NULL)
{
	static const char *const names[] = {
		"scale", "shift", "optimizer.m.scale", "optimizer.m.shift",
		"optimizer.v.scale", "optimizer.v.shift",
	};
	ddp_safetensors file;
	char path[256];

	on_ranks(2, 0, save_after_seven_steps);
	snprintf(path, sizeof(path), "%s/step-00000007.safetensors", dir);
	assert_int_equal(ddp_safetensors_open(path, &file), DDP_OK);
	assert_int_equal(file.count, 6);
	for (int i = 0; i < 6; i++)
		assert_non_null(ddp_safetensors_find(&file, names[i]));
	assert_string_equal(ddp_safetensors_metadata(&file, "ddp.step"), "7");
	assert_string_equal(ddp_safetensors_metadata(&file, "ddp.loader.epoch"), "1");
	assert_string_equal(ddp_safetensors_metadata(&file, "ddp.loader.samples"), "16");
	ddp_safetensors_close(&file);
}

/* Longer than the deadline, by a third. */
static ddp_status sleep_long(void *argument)
{
	const ddp_context *context = argument;
	int ms = context->timeout_ms / 3 * 4;
	const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
	return ddp_fail(DDP_ERR_IO, "slept well");
}

static void wait_for_a_slow_leader(ddp_context *context)
{
	struct job job = make_job_with(context, WIDTH, 3, NULL);

	CHECK_FAILS(ddp_leader_run(job.model, sleep_long, context, NULL, 0), DDP_ERR_IO, "slept well");
	free_job(job);
}

static void do_nothing(ddp_context *context)
{
}

TEST_WITH(slow_disk_of_rank_0_passes_no_deadline, folder_empty, NULL)
{
	uint64_t start_ns = ddp_now_ns();
	on_ranks(2, 0, do_nothing);
	double plain_ms = ddp_seconds_since(start_ns) * 1e3;
	/* No rank's start or message takes ten times as long as all of that. */
	on_ranks(2, plain_ms < 100 ? 1000 : (int)(10 * plain_ms), wait_for_a_slow_leader);
}

static size_t read_checkpoint(const char *folder, char *bytes, size_t room)
{
	char path[sizeof(dir) + 64];

	snprintf(path, sizeof(path), "%s/step-00000002.safetensors", folder);
	FILE *file = fopen(path, "rb");
	CHECK(file != NULL);
	size_t length = fread(bytes, 1, room, file);
	CHECK(length > 0 && length < room);
	fclose(file);
	return length;
}

/* After step 2. */
static void expect_same_files(const char *folder, const char *other)
{
	static char bytes[2][65536];
	size_t length = read_checkpoint(folder, bytes[0], sizeof(bytes[0]));

	CHECK(read_checkpoint(other, bytes[1], sizeof(bytes[1])) == length);
	CHECK(memcmp(bytes[0], bytes[1], length) == 0);
}

/* Each saves what it has, in a place of its own. */
static void save_after_an_abort(ddp_context *context)
{
	const ddp_model_options replicated = { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE }, sharded = { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE };
	struct job job = make_job_with(context, WIDTH, 3, &replicated);
	struct job part = make_job_with(context, WIDTH, 3, &sharded);
	char own[sizeof(dir) + 16], other[sizeof(dir) + 32];

	snprintf(own, sizeof(own), "%s/%d", dir, context->job.rank);
	snprintf(other, sizeof(other), "%s/sharded", own);
	train(job, 2);
	train(part, 2);
	test_ranks_together(); /* one that is still in it would hear of the abort there */
	if (context->job.rank == 1)
		CHECK(ddp_comm_abort(context->world, "the test wants it") == DDP_OK);
	ddp_status status;
	while ((status = ddp_barrier(context->world)) == DDP_OK)
		continue;
	CHECK(status == DDP_ERR_ABORTED);
	CHECK(ddp_model_step(job.model, 1, 0, NULL) == DDP_ERR_ABORTED);
	CHECK(ddp_checkpoint_save(job.model, job.loader, own, 0) == DDP_OK);
	CHECK(ddp_checkpoint_save(job.model, job.loader, "/dev/null/x", 0) == DDP_ERR_IO);
	CHECK(ddp_model_step(part.model, 1, 0, NULL) == DDP_ERR_ABORTED);
	CHECK(ddp_checkpoint_save(part.model, part.loader, other, 0) == DDP_OK);
	expect_same_files(own, other);
	free_job(job);
	free_job(part);
}

static void load_both(ddp_context *context)
{
	struct job jobs[2];

	for (int rank = 0; rank < 2; rank++) {
		char own[sizeof(dir) + 16];
		int64_t step = 0;
		snprintf(own, sizeof(own), "%s/%d", dir, rank);
		jobs[rank] = make_job(context, WIDTH, 3);
		CHECK(ddp_checkpoint_load(jobs[rank].model, jobs[rank].loader, own, &step) == DDP_OK);
		CHECK(step == 2);
	}
	CHECK(same_parameters(jobs[0], jobs[1]));
	train(jobs[0], 1);
	for (int rank = 0; rank < 2; rank++)
		free_job(jobs[rank]);
}

TEST_WITH(each_rank_can_save_after_the_world_broke, folder_empty, NULL)
{
	on_ranks(2, 0, save_after_an_abort);
	on_ranks(1, 0, load_both);
}

/* A part of the optimizer's state was kept by the one that dies. */
static void lose_a_rank(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	char own[sizeof(dir) + 16], whole[sizeof(dir) + 16];

	snprintf(whole, sizeof(whole), "%s/whole", dir);
	snprintf(own, sizeof(own), "%s/%d", dir, context->job.rank);
	signal(SIGTERM, SIG_IGN); /* from the parent, since a rank has died */
	train(job, 2);
	CHECK(ddp_checkpoint_save(job.model, job.loader, whole, 0) == DDP_OK);
	test_ranks_together();
	if (context->job.rank == 1)
		raise(SIGKILL);
	CHECK(ddp_model_step(job.model, 1, 0, NULL) == DDP_ERR_PEER);
	CHECK(ddp_checkpoint_save(job.model, job.loader, own, 0) == DDP_OK);
	expect_same_files(whole, own);
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, survivors_save_what_a_dead_rank_kept, on_ranks_ending(3, 0, lose_a_rank, 128 + SIGKILL));

/* It dies in the middle of its update, so what the others have is of no step. */
static void lose_a_rank_that_updates(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	char own[sizeof(dir) + 16];

	snprintf(own, sizeof(own), "%s/%d", dir, context->job.rank);
	signal(SIGTERM, SIG_IGN);
	train(job, 2);
	test_ranks_together();
	if (context->job.rank == 1) {
		CHECK(ddp_node_strategy_begin(job.model, 3) == DDP_OK);
		raise(SIGKILL);
	}
	CHECK(ddp_model_step(job.model, 1, 0, NULL) == DDP_ERR_PEER);
	CHECK_FAILS(ddp_checkpoint_save(job.model, job.loader, own, 0), DDP_ERR_STATE, "rank 1 began to update");
	CHECK(ddp_node_strategy_begin(job.model, 3) == DDP_ERR_PEER);
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, nobody_saves_what_is_half_updated,
                 on_ranks_ending(3, 0, lose_a_rank_that_updates, 128 + SIGKILL));

TEST_MAIN(make_base, folder_remove)
