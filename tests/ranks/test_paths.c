/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* These tests show what a program's surroundings may do to its files: a folder that changes, a
   limit on the size of files, standard descriptors that are closed, and a locale that writes
   numbers with a comma. */
#include <fcntl.h>
#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { STEPS = 4 };

static const ddp_param params[] = { { .name = "a", .ndim = 1, .shape = { 1000 } } };

static ddp_model *make(ddp_context *context, double learning_rate)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW,
	                                    .learning_rate = learning_rate };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, 1, &options, &model));
	return model;
}

static void train(ddp_model *model, int steps)
{
	for (int s = 0; s < steps; s++) {
		CHECK_OK(ddp_model_grad_ready(model, 0));
		CHECK_OK(ddp_model_step(model, 1, 0.5, NULL));
	}
}

static const char *in_folder(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", test_folder, name);
	return path;
}

static bool is_there(const char *name)
{
	return access(in_folder(name), F_OK) == 0;
}

/* ---- a folder that changes -------------------------------------------------------------- */

static ddp_status compute_elsewhere(void *user, ddp_model *model, const ddp_batch *batch,
                                    double *weight, double *loss_sum)
{
	if (chdir("/") != 0)
		return DDP_ERR_IO;
	*loss_sum = 1;
	*weight = (double)batch->samples;
	return ddp_model_grad_ready(model, 0);
}

static ddp_status read_nothing(void *user, int64_t index, void *sample)
{
	memset(sample, 0, sizeof(float));
	return DDP_OK;
}

static int callback_that_leaves_body(ddp_context *context, void *user)
{
	ddp_dataset dataset = { .size = 64, .sample_bytes = sizeof(float), .read = read_nothing };
	const ddp_loader_options options = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 2 };
	const ddp_train_options train_options = { DDP_TRAIN_OPTIONS_FIELDS, .steps = STEPS,
	                                          .checkpoint_dir = "saved", .checkpoint_every = 2 };
	ddp_loader *loader;
	ddp_model *model = make(context, 0.1);

	CHECK_OK(ddp_loader_create(context, &dataset, &options, &loader));
	CHECK_OK(ddp_train(model, loader, compute_elsewhere, &train_options, NULL));
	CHECK(is_there("saved/step-00000002.safetensors") && is_there("saved/step-00000004.safetensors"));
	ddp_loader_free(loader);
	ddp_model_free(model);
	return 0;
}

TEST(callback_may_change_the_folder)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .metrics_path = "new/m.jsonl", .trace_dir = "new/t" };

	assert_int_equal(chdir(test_folder), 0);
	assert_int_equal(run_ranks_with(2, &options, callback_that_leaves_body, NULL), 0);
	assert_int_equal(chdir("/"), 0);
	assert_true(is_there("new/m.jsonl") && is_there("new/t/rank-1.json"));
}

/* ---- a limit on the size of files --------------------------------------------------------- */

/* SIGXFSZ is as it is in every program: it would end the rank. */
static int limited_body(ddp_context *context, void *user)
{
	const struct rlimit small = { 1 << 20, 1 << 20 };
	void *memory;

	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	CHECK_FAILS(ddp_mem_alloc(ddp_world(context), 4 << 20, &memory), DDP_ERR_NOMEM, "(raise ulimit -f)");
	CHECK_OK(ddp_barrier(ddp_world(context)));
	return 0;
}

TEST_RUNS(shared_memory_beyond_the_limit_is_an_error, assert_int_equal(run_ranks(2, limited_body, NULL), 0));

static int in_child(int (*body)(void))
{
	int status;

	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(body());
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int start_within_small_limit(void)
{
	const struct rlimit small = { 4096, 4096 };
	ddp_spawn_result result;
	ddp_context *context;

	if (setrlimit(RLIMIT_FSIZE, &small) != 0 || ddp_spawn(2, &result) != DDP_OK)
		return 1;
	if (!result.is_rank)
		return result.exit_code;
	return ddp_init(NULL, &context) == DDP_ERR_NOMEM && strstr(ddp_last_error(), "(raise ulimit -f)") != NULL
	       ? 0 : 2;
}

TEST_RUNS(world_that_the_limit_forbids_is_an_error, assert_int_equal(in_child(start_within_small_limit), 0));

/* ---- standard descriptors that are closed ------------------------------------------------- */

static int train_without_descriptors(void)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .metrics_path = in_folder("closed.jsonl") };
	ddp_spawn_result result;
	ddp_context *context;

	for (int fd = 0; fd <= 2; fd++)
		close(fd);
	if (ddp_spawn(2, &result) != DDP_OK)
		return 1;
	if (!result.is_rank)
		return result.exit_code;
	if (ddp_init(&options, &context) != DDP_OK)
		return 2;
	for (int i = 0; i < 100; i++)
		if (write(1, "noise\n", 6) != 6 || write(2, "noise\n", 6) != 6)
			return 3;
	ddp_model *model = make(context, 0.1);
	train(model, STEPS);
	ddp_model_free(model);
	return ddp_finalize(context) == DDP_OK ? 0 : 4;
}

TEST(closed_descriptors_are_nobodys_files)
{
	char line[2048];
	int lines = 0;

	assert_int_equal(in_child(train_without_descriptors), 0);
	FILE *file = fopen(in_folder("closed.jsonl"), "r");
	assert_non_null(file);
	for (; fgets(line, sizeof(line), file) != NULL; lines++)
		assert_int_equal(line[0], '{');
	fclose(file);
	assert_int_equal(lines, STEPS);
}

/* ---- a locale that writes numbers with a comma ------------------------------------------------ */

static bool use_german(void)
{
	char command[512];

	if (snprintf(command, sizeof(command), "mkdir -p %s/locales && localedef -i de_DE -f UTF-8 "
	             "%s/locales/de_DE.UTF-8 >/dev/null 2>&1", test_folder, test_folder) >= (int)sizeof(command))
		return false;
	if (system(command) != 0)
		return false;
	setenv("LOCPATH", in_folder("locales"), 1);
	return setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
}

static bool holds_text(const char *name, const char *words)
{
	static char text[1 << 16];
	FILE *file = fopen(in_folder(name), "r");

	CHECK(file != NULL);
	const size_t bytes = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[bytes] = '\0';
	return memmem(text, bytes, words, strlen(words)) != NULL;
}

static int numbers_body(ddp_context *context, void *user)
{
	const bool writes = ddp_get_job(context)->rank == 0;
	char text[32];
	int64_t step;
	double value = 0;

	snprintf(text, sizeof(text), "%g", 0.5);
	CHECK(strcmp(text, "0,5") == 0); /* or nothing is tested */
	ddp_model *model = make(context, 0.125);
	train(model, STEPS);
	CHECK_OK(ddp_checkpoint_save(model, NULL, in_folder("german"), 0));
	CHECK(!writes || holds_text("german/step-00000004.safetensors", "\"0.125\""));
	CHECK(!writes || holds_text("m.jsonl", "\"loss\":0.5,"));
	ddp_model_free(model);
	setlocale(LC_ALL, "C");
	model = make(context, 0.125);
	CHECK_OK(ddp_checkpoint_load(model, NULL, in_folder("german"), &step));
	CHECK(step == STEPS);
	ddp_model_free(model);
	setlocale(LC_ALL, "de_DE.UTF-8");
	model = make(context, 0.125);
	CHECK_OK(ddp_checkpoint_load(model, NULL, in_folder("german"), &step));
	ddp_model_free(model);
	/* The text that the program itself prints stays as it was. */
	CHECK(ddp_parse_number("2.5", &value) && value == 2.5 && !ddp_parse_number("2,5", &value));
	snprintf(text, sizeof(text), "%g", 0.5);
	CHECK(strcmp(text, "0,5") == 0);
	const ddp_model_options wrong = { DDP_MODEL_OPTIONS_FIELDS, .learning_rate = -0.5 };
	CHECK_FAILS(ddp_model_create(context, params, 1, &wrong, &model), DDP_ERR_INVALID, "-0.5");
	return 0;
}

TEST(numbers_are_the_same_in_every_locale)
{
	ddp_options options = { DDP_OPTIONS_FIELDS };
	char metrics[128];

	if (!use_german())
		skip();
	snprintf(metrics, sizeof(metrics), "%s", in_folder("m.jsonl"));
	options.metrics_path = metrics;
	setenv("DDP_BUCKET_MB", "2.5", 1);
	assert_int_equal(run_ranks_with(2, &options, numbers_body, NULL), 0);
	unsetenv("DDP_BUCKET_MB");
	setlocale(LC_ALL, "C");
}

TEST_MAIN(folder_make, folder_remove)
