/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* state: a checkpoint that a thread writes while training goes on holds what the model was
   when it was begun, byte for byte; what goes wrong with it is told to all ranks. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/table.h"
#include "reduce/model_state.h"
#include "state/save.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

enum { COUNT = 700, BEGUN = 3 };

static char at_once[64], beside[64];

/* ---- holds the writing thread in its fsync() --------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool holds, arrived; /* under lock */

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
	pthread_mutex_lock(&lock);
	arrived = true;
	pthread_cond_broadcast(&changed);
	while (holds)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return __real_fsync(fd);
}

static void hold(bool wanted)
{
	pthread_mutex_lock(&lock);
	holds = wanted;
	arrived = false;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void await_writer(void)
{
	pthread_mutex_lock(&lock);
	while (!arrived)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

/* ---- training ------------------------------------------------------------------------------ */

static const ddp_param params[] = {
	{ .name = "a", .ndim = 2, .shape = { COUNT / 10, 10 } },
	{ .name = "b", .ndim = 1, .shape = { 11 } },
	{ .name = "mean", .ndim = 1, .shape = { 4 }, .kind = DDP_BUFFER_MEAN },
};

static ddp_model *make(ddp_context *context, ddp_shard shard, ddp_optimizer optimizer)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 1024.0 / (1 << 20),
	                                    .optimizer = optimizer, .shard = shard, .unused = DDP_UNUSED_SKIP };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, 3, &options, &model));
	for (int i = 0; i < COUNT; i++)
		ddp_model_param_data(model, 0)[i] = (float)(i % 17) / 16;
	return model;
}

/* Every other step is without "b". */
static void train(ddp_model *model, int steps)
{
	for (int s = 0; s < steps; s++) {
		for (int p = 0; p < 2; p++) {
			if (p == 1 && ddp_model_step_count(model) % 2 == 1)
				continue;
			for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
				ddp_model_param_grad(model, p)[i] = ddp_model_param_data(model, p)[i] - (float)i / COUNT;
			CHECK_OK(ddp_model_grad_ready(model, p));
		}
		ddp_model_param_data(model, 2)[0] += 1;
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	}
}

/* Of step BEGUN. */
static bool same_files(void)
{
	char command[256];

	snprintf(command, sizeof(command), "cmp %s/step-%08d.safetensors %s/step-%08d.safetensors", at_once, BEGUN,
	         beside, BEGUN);
	return system(command) == 0;
}

static bool is_there(int step)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/step-%08d.safetensors", beside, step);
	return access(path, F_OK) == 0;
}

static const struct { ddp_shard shard; ddp_optimizer optimizer; } ways[] = {
	{ DDP_SHARD_NONE, DDP_ADAMW }, { DDP_SHARD_STATE, DDP_ADAMW }, { DDP_SHARD_GRADIENTS, DDP_ADAMW },
	{ DDP_SHARD_NONE, DDP_ADAFACTOR },
};

static int train_on_body(ddp_context *context, void *user)
{
	const bool writes = ddp_get_job(context)->rank == 0;

	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		ddp_model *model = make(context, ways[w].shard, ways[w].optimizer);

		train(model, BEGUN);
		CHECK_OK(ddp_model_set_user_state(model, "state", 5));
		CHECK_OK(ddp_checkpoint_save(model, NULL, at_once, 0));
		hold(true);
		CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
		if (writes)
			await_writer();
		CHECK_OK(ddp_model_set_user_state(model, "other", 5));
		train(model, 2);
		hold(false);
		CHECK_OK(ddp_checkpoint_wait(model));
		CHECK_OK(ddp_checkpoint_wait(model)); /* of none */
		CHECK(!writes || same_files());
		/* The same memory takes the next one, which need not be waited for. */
		CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
		ddp_model_free(model);
		CHECK(!writes || is_there(BEGUN + 2));
		CHECK_OK(ddp_barrier(ddp_world(context)));
		int64_t step;
		model = make(context, ways[w].shard, ways[w].optimizer);
		CHECK_OK(ddp_checkpoint_load(model, NULL, beside, &step));
		CHECK(step == BEGUN + 2);
		ddp_model_free(model);
	}
	return 0;
}

static int start_empty(void **state)
{
	snprintf(at_once, sizeof(at_once), "%s/at-once", test_folder);
	snprintf(beside, sizeof(beside), "%s/beside", test_folder);
	return folder_empty(state);
}

TEST_RUNS_BEHIND(start_empty, training_goes_on_while_it_is_written,
                 assert_int_equal(run_ranks(2, train_on_body, NULL), 0));

/* A relative name is that of the folder in which it was given. */
static int changing_folder_body(ddp_context *context, void *user)
{
	const bool writes = ddp_get_job(context)->rank == 0;
	ddp_model *model = make(context, DDP_SHARD_NONE, DDP_ADAMW);

	CHECK(chdir(test_folder) == 0);
	train(model, BEGUN);
	hold(true);
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, "beside", 0));
	if (writes)
		await_writer();
	CHECK(chdir("/") == 0);
	hold(false);
	CHECK_OK(ddp_checkpoint_wait(model));
	CHECK(!writes || is_there(BEGUN));
	ddp_model_free(model);
	return 0;
}

/* Bytes of memory that this process has. */
static size_t resident(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	size_t all = 0, here = 0;

	CHECK(file != NULL && fscanf(file, "%zu %zu", &all, &here) == 2);
	fclose(file);
	return here * (size_t)sysconf(_SC_PAGESIZE);
}

enum { LARGE = (THREAD_SANITIZER ? 1 : 4) << 20, COPIES = 3 /* the parameters, and AdamW's state */, PATIENCE_S = 60 };

/* Its memory is all there. */
static ddp_model *make_large(ddp_context *context)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW };
	const ddp_param param = { .name = "large", .ndim = 1, .shape = { LARGE } };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, &param, 1, &options, &model));
	for (int s = 0; s < BEGUN; s++) {
		for (int i = 0; i < LARGE; i++)
			ddp_model_param_grad(model, 0)[i] = (float)(i % 17) / 16;
		CHECK_OK(ddp_model_grad_ready(model, 0));
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	}
	return model;
}

static int reserving_body(ddp_context *context, void *user)
{
	ddp_model *model = make_large(context);

	ddp_save_reserve(model); /* without a directory there is nothing to reserve for */
	CHECK_OK(ddp_checkpoint_save(model, NULL, at_once, 0));
	CHECK_OK(ddp_checkpoint_prepare(model, beside));
	const size_t wanted = resident() + (size_t)COPIES * LARGE * sizeof(float) / 10 * 9;
	const uint64_t start_ns = ddp_now_ns();
	ddp_save_reserve(model);
	while (resident() < wanted)
		CHECK(ddp_seconds_since(start_ns) < PATIENCE_S);
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
	ddp_save_reserve(model); /* what is being written stays */
	CHECK_OK(ddp_checkpoint_wait(model));
	CHECK(same_files());
	ddp_model_free(model);
	/* A model may go while its memory is made. */
	model = make_large(context);
	CHECK_OK(ddp_checkpoint_prepare(model, beside));
	ddp_save_reserve(model);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS_BEHIND(start_empty, memory_for_copies_is_made_before_they_are,
                 assert_int_equal(run_ranks(1, reserving_body, NULL), 0));

TEST_WITH(program_may_change_its_folder_meanwhile, start_empty, NULL)
{
	snprintf(beside, sizeof(beside), "%s/beside", test_folder);
	assert_int_equal(run_ranks(2, changing_folder_body, NULL), 0);
}

/* A disk takes longer than ranks wait for each other. */
enum { TIMEOUT_MS = 1000 };

static void *let_write(void *unused)
{
	usleep(3 * TIMEOUT_MS * 1000);
	hold(false);
	return NULL;
}

static int slow_disk_body(ddp_context *context, void *user)
{
	const bool writes = ddp_get_job(context)->rank == 0;
	ddp_model *model = make(context, DDP_SHARD_NONE, DDP_ADAMW);
	pthread_t thread;

	train(model, BEGUN);
	hold(true);
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
	if (writes) {
		await_writer();
		CHECK(pthread_create(&thread, NULL, let_write, NULL) == 0);
	}
	const uint64_t start_ns = ddp_now_ns();
	ddp_model_free(model);
	CHECK(ddp_seconds_since(start_ns) > 2 * TIMEOUT_MS / 1000.0);
	if (writes)
		pthread_join(thread, NULL);
	CHECK(!writes || is_there(BEGUN));
	return 0;
}

TEST_WITH(all_ranks_wait_for_the_last_one, start_empty, NULL)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = TIMEOUT_MS };

	assert_int_equal(run_ranks_with(2, &options, slow_disk_body, NULL), 0);
}

static char told[1024];

static void keep_warnings(void *user, ddp_log_level level, const char *message)
{
	snprintf(told, sizeof(told), "%s", message);
}

static int failing_body(ddp_context *context, void *user)
{
	const bool writes = ddp_get_job(context)->rank == 0;
	ddp_model *model = make(context, DDP_SHARD_AUTO, DDP_ADAMW);
	struct rlimit room;

	ddp_set_log(keep_warnings, NULL, DDP_LOG_WARN);
	CHECK(getrlimit(RLIMIT_FSIZE, &room) == 0);
	const struct rlimit none = { .rlim_cur = 1000, .rlim_max = room.rlim_max };
	train(model, 1);
	for (int i = 0; i < 2; i++) {
		CHECK(!writes || setrlimit(RLIMIT_FSIZE, &none) == 0);
		CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
		train(model, 1);
		if (i == 0) {
			CHECK_FAILS(ddp_checkpoint_wait(model), DDP_ERR_IO, "checkpoint of step 1 was not saved: ");
			CHECK_SAYS("File too large");
			CHECK((strstr(ddp_last_error(), "rank 0: ") == NULL) == writes);
		}
		if (i == 0)
			CHECK(!writes || setrlimit(RLIMIT_FSIZE, &room) == 0);
	}
	/* The next one tells of it, and fails itself, or is saved once there is room. */
	CHECK(ddp_checkpoint_save(model, NULL, beside, 0) == DDP_ERR_IO);
	CHECK((strstr(told, "checkpoint of step 2 was not saved") != NULL) == writes);
	CHECK_SAYS("checkpoint of step 3 was not saved");
	CHECK(!writes || setrlimit(RLIMIT_FSIZE, &room) == 0);
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
	CHECK_OK(ddp_checkpoint_wait(model));
	/* What is not finite is found by the thread. */
	ddp_model_param_data(model, 0)[3] = INFINITY;
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
	CHECK(ddp_checkpoint_wait(model) == DDP_ERR_NOT_FINITE);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS_BEHIND(start_empty, what_cannot_be_written_is_told, assert_int_equal(run_ranks(2, failing_body, NULL), 0));

/* ---- when the world is broken -------------------------------------------------------------- */

/* Rank 0 still writes when rank 1, alone, saves a later step. */
static int broken_body(ddp_context *context, void *user)
{
	const bool writes = ddp_get_job(context)->rank == 0;
	ddp_model *model = make(context, DDP_SHARD_NONE, DDP_ADAMW);

	train(model, BEGUN);
	hold(writes);
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
	if (writes)
		await_writer();
	train(model, 2);
	test_ranks_together(); /* one that is still in it would hear of the abort there */
	if (writes)
		CHECK_OK(ddp_comm_abort(ddp_world(context), "the test wants it"));
	while (ddp_barrier(ddp_world(context)) == DDP_OK)
		continue;
	if (!writes) {
		CHECK_FAILS(ddp_checkpoint_wait(model), DDP_ERR_PEER, "whether rank 0 has written");
		CHECK_OK(ddp_checkpoint_save(model, NULL, beside, 0));
	}
	while (!is_there(BEGUN + 2))
		usleep(1000);
	hold(false);
	if (writes) {
		CHECK_OK(ddp_checkpoint_wait(model));
		CHECK(is_there(BEGUN) && is_there(BEGUN + 2));
	}
	ddp_model_free(model);
	return 0;
}

TEST_RUNS_BEHIND(start_empty, a_later_checkpoint_of_another_rank_stays,
                 assert_int_equal(run_ranks(2, broken_body, NULL), 0));

/* ---- one rank ------------------------------------------------------------------------------- */

static int looked_at; /* by the queue of kernels below */
static bool refuses_threads;

static float look(dk_queue *queue, const float *x, int64_t n)
{
	looked_at++;
	return 1;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	return refuses_threads ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

static int one_rank_body(ddp_context *context, void *user)
{
	const dk_table table = { .largest = look };
	dk_queue queue = { .table = &table };
	ddp_model *model = make(context, DDP_SHARD_NONE, DDP_ADAMW);

	ddp_set_log(keep_warnings, NULL, DDP_LOG_WARN);
	train(model, BEGUN);
	/* The program's queue, of a device, say, is not for the host's memory. */
	CHECK(dk_use(&queue) == NULL);
	CHECK_OK(ddp_checkpoint_save(model, NULL, at_once, 0));
	CHECK(looked_at == 0);
	CHECK(dk_use(NULL) == &queue);
	/* What no thread can write is written all the same. */
	refuses_threads = true;
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, beside, 0));
	refuses_threads = false;
	CHECK(same_files());
	CHECK(strstr(told, "step 3: cannot start a thread that writes it") != NULL);
	CHECK(strstr(told, "training waits until it is written") != NULL);
	CHECK_OK(ddp_checkpoint_wait(model));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS_BEHIND(start_empty, a_rank_by_itself_saves_on_the_host,
                 assert_int_equal(run_ranks(1, one_rank_body, NULL), 0));

TEST_MAIN(folder_make, folder_remove)
