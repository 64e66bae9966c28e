/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* state/checkpoint: loading what does not fit, is broken or takes much memory. */
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "context.h"
#include "data/loader.h"
#include "reduce/model_state.h"
#include "reduce/tensors.h"
#include "state/safetensors.h"
#include "state/store.h"
#include "tests/support/checkpoint_jobs.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

static void load_what_does_not_fit(ddp_context *context)
{
	struct job wider = make_job(context, WIDTH + 1, 3);
	struct job untouched = make_job(context, WIDTH + 1, 3);
	struct job other_seed = make_job(context, WIDTH, 4);
	int64_t step = -1;

	CHECK_FAILS(ddp_checkpoint_load(wider.model, wider.loader, dir, &step), DDP_ERR_FORMAT,
	            "step-00000007.safetensors: tensor scale has shape 33x3, the model has 34x3");
	CHECK(same_parameters(wider, untouched) && step == -1);

	CHECK(ddp_checkpoint_load(other_seed.model, other_seed.loader, dir, &step) ==
	      DDP_ERR_INVALID);
	CHECK_SAYS("seed is 4 here, but was 3");
	CHECK(ddp_loader_get_state(other_seed.loader).samples == 0);
	CHECK(ddp_checkpoint_load(other_seed.model, NULL, dir, &step) == DDP_OK && step == 7);
	free_job(wider);
	free_job(untouched);
	free_job(other_seed);
}

TEST_WITH(checkpoint_that_does_not_fit_changes_nothing, folder_empty, NULL)
{
	on_ranks(2, 0, save_after_seven_steps);
	on_ranks(2, 0, load_what_does_not_fit);
}

enum { OLD_STEP = 8 };

/* Writes what the model has, and one tensor more (NULL: none). */
static void save_with(ddp_model *model, const char *name, const ddp_safetensors_pair *metadata, int pairs)
{
	const int64_t two = 2;
	const float counts[] = { 1, 2 };
	ddp_safetensors_tensor list[16];
	ddp_tensors tensors;
	int count = 0;

	CHECK(ddp_model_tensors(model, true, &tensors) == DDP_OK);
	for (int i = 0; i < tensors.count; i++) {
		const ddp_tensor *t = &tensors.list[i];
		if (!t->optional)
			list[count++] = (ddp_safetensors_tensor){ .name = t->name, .ndim = t->ndim, .shape = t->shape,
			                                          .data = t->data };
	}
	if (name != NULL)
		list[count++] = (ddp_safetensors_tensor){ .name = name, .ndim = 1, .shape = &two, .data = counts };
	CHECK(ddp_store_write(dir, OLD_STEP, list, count, metadata, pairs, 3, NULL, NULL) == DDP_OK);
	ddp_tensors_free(&tensors);
}

static void load_tensors_of_others(ddp_context *context)
{
	const ddp_safetensors_pair at_step = { "ddp.step", "8" };
	struct job job = make_job(context, WIDTH, 3);
	int64_t step;

	save_with(job.model, "strange", &at_step, 1);
	CHECK_FAILS(ddp_checkpoint_load(job.model, NULL, dir, &step), DDP_ERR_FORMAT,
	            "tensor strange is not of this model or optimizer");
	save_with(job.model, "optimizer.missed_steps", &at_step, 1);
	CHECK(ddp_checkpoint_load(job.model, NULL, dir, &step) == DDP_ERR_FORMAT);
	CHECK(test_says("step-00000008.safetensors is of a development version before libddp 0.2: "
	                "its tensor optimizer.missed_steps counts"));
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, tensors_of_others_are_refused_by_name, on_ranks(1, 0, load_tensors_of_others));

/* Written by a program whose locale had a comma in numbers; whole, but of no use. */
static void load_what_is_before_the_unreadable(ddp_context *context)
{
	static const ddp_safetensors_pair metadata[] = {
		{ "ddp.step", "8" }, { "ddp.model.optimizer", "0" }, { "ddp.model.learning_rate", "0,001" },
	};
	struct job job = make_job(context, WIDTH, 3);
	char path[sizeof(dir) + 64];
	int64_t step;

	snprintf(path, sizeof(path), "%s/step-00000008.safetensors", dir);
	if (context->job.rank == 0)
		save_with(job.model, NULL, metadata, 3);
	CHECK(ddp_barrier(context->world) == DDP_OK);
	ddp_set_log(collect, NULL, DDP_LOG_WARN);
	CHECK(ddp_checkpoint_load(job.model, job.loader, dir, &step) == DDP_OK && step == 7);
	const char *said = strstr(warnings, "checkpoint passed over: ");
	CHECK((said != NULL) == (context->job.rank == 0));
	if (said != NULL)
		CHECK(strstr(said, "step-00000008.safetensors: metadata \"ddp.model.learning_rate\" is \"0,001\", no number; ") &&
		      strstr(said, "step-00000007.safetensors is loaded in its place"));
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
	/* By its own name it is an error. */
	CHECK(ddp_checkpoint_load(job.model, job.loader, path, &step) == DDP_ERR_FORMAT && test_says("no number"));
	free_job(job);
}

TEST_WITH(unreadable_metadata_let_the_one_before_be_loaded, folder_empty, NULL)
{
	on_ranks(2, 0, save_after_seven_steps);
	on_ranks(2, 0, load_what_is_before_the_unreadable);
}

/* The other dataset has as many samples, which hold something else. */
static void load_with_another_dataset(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	const bool leads = context->job.rank == 0;
	int64_t step;

	for (int way = 0; way < 3; way++) {
		const ddp_dataset dataset = { .size = SAMPLES, .sample_bytes = sizeof(float), .read = read_number,
		                              .digest = way == 2 ? 0 : UINT64_MAX - (uint64_t)way };
		const ddp_loader_options options = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = GLOBAL_BATCH / 2, .seed = 3,
		                                     .tail = DDP_TAIL_UNEVEN };
		ddp_loader *loader;

		CHECK(ddp_loader_create(context, &dataset, &options, &loader) == DDP_OK);
		warnings[0] = '\0';
		ddp_set_log(collect, NULL, DDP_LOG_WARN);
		if (way > 0)
			CHECK(ddp_checkpoint_load(job.model, loader, dir, &step) == DDP_OK);
		CHECK((strstr(warnings, "the loader's dataset holds other samples than the one that training had read") != NULL) ==
		      (way == 1 && leads));
		if (way == 0)
			CHECK(ddp_checkpoint_save(job.model, loader, dir, 0) == DDP_OK &&
			      ddp_checkpoint_load(job.model, loader, dir, &step) == DDP_OK && warnings[0] == '\0');
		ddp_set_log(NULL, NULL, DDP_LOG_WARN);
		ddp_loader_free(loader);
	}
	free_job(job);
}

TEST_RUNS_BEHIND(folder_empty, another_dataset_is_told, on_ranks(2, 0, load_with_another_dataset));

/* Only one rank has another loader: none moves. */
static void load_with_one_strange_loader(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	const ddp_dataset dataset = { .size = SAMPLES, .sample_bytes = sizeof(float),
	                              .read = read_number };
	const ddp_loader_options strange = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = GLOBAL_BATCH / 2, .seed = 4,
	                                     .tail = DDP_TAIL_UNEVEN };
	int64_t step;

	if (context->job.rank == 1) {
		ddp_loader_free(job.loader);
		CHECK(ddp_loader_make(1, 2, &dataset, &strange, &job.loader) == DDP_OK);
	}

	CHECK_FAILS(ddp_checkpoint_load(job.model, job.loader, dir, &step), DDP_ERR_INVALID,
	            context->job.rank == 1 ? "seed is 4" : "could not move its loader");
	CHECK(context->job.rank == 1 || test_says("rank 1 on "));
	CHECK(ddp_loader_get_state(job.loader).samples == 0);
	free_job(job);
}

TEST_WITH(loaders_move_together_or_not_at_all, folder_empty, NULL)
{
	on_ranks(2, 0, save_after_seven_steps);
	on_ranks(2, 0, load_with_one_strange_loader);
}

/* ---- memory ---- */

static atomic_bool counts_memory;
static atomic_size_t most_at_once, refused_from; /* bytes; 0: nothing is refused */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static bool admit(size_t bytes)
{
	if (!atomic_load(&counts_memory))
		return true;
	if (bytes > atomic_load(&most_at_once))
		atomic_store(&most_at_once, bytes);
	return atomic_load(&refused_from) == 0 || bytes < atomic_load(&refused_from);
}

void *__wrap_malloc(size_t bytes)
{
	return admit(bytes) ? __real_malloc(bytes) : NULL;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
	return admit(count * bytes) ? __real_calloc(count, bytes) : NULL;
}

enum { LARGE_WIDTH = 360000, CHUNK_BYTES = 4 << 20 }; /* 4.3 MB of parameters */

static void load_in_little_memory(ddp_context *context)
{
	static const ddp_model_options ways[] = {
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE }, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_STATE },
		{ DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_GRADIENTS },
	};
	int64_t step;

	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		struct job straight = make_job_with(context, LARGE_WIDTH, 3, &ways[w]);
		struct job job = make_job_with(context, LARGE_WIDTH, 3, &ways[w]);

		train(straight, 1);
		CHECK(ddp_checkpoint_save(straight.model, straight.loader, dir, 0) == DDP_OK);
		atomic_store(&counts_memory, true);
		atomic_store(&refused_from, context->job.rank == 1 ? 1 << 20 : 0);
		CHECK_FAILS(ddp_checkpoint_load(job.model, job.loader, dir, &step), DDP_ERR_NOMEM,
		            context->job.rank == 1 ? "no memory for" : "could not load a checkpoint");
		CHECK(context->job.rank == 1 || test_says("rank 1 on "));
		atomic_store(&most_at_once, 0);
		atomic_store(&refused_from, 0);
		CHECK(ddp_checkpoint_load(job.model, job.loader, dir, &step) == DDP_OK && step == 1);
		atomic_store(&counts_memory, false);
		CHECK(atomic_load(&most_at_once) <= CHUNK_BYTES);
		CHECK(same_parameters(straight, job));
		train(straight, 1);
		train(job, 1);
		CHECK(same_parameters(straight, job));
		free_job(straight);
		free_job(job);
	}
}

TEST_RUNS_BEHIND(folder_empty, load_takes_little_memory_and_its_lack_is_an_error_on_all,
                 on_ranks(3, 0, load_in_little_memory));

/* A learning rate set by hand counts as long as the model's own is the same. */
static void load_other_hyperparameters(ddp_context *context)
{
	const ddp_model_options first = { DDP_MODEL_OPTIONS_FIELDS, .learning_rate = 0.01, .weight_decay = 0.1 };
	const ddp_model_options other = { DDP_MODEL_OPTIONS_FIELDS, .learning_rate = 0.02, .weight_decay = 0.1, .beta2 = 0.95 };
	struct job job = make_job_with(context, WIDTH, 3, &first);
	struct job same = make_job_with(context, WIDTH, 3, &first);
	struct job another = make_job_with(context, WIDTH, 3, &other);
	int64_t step;

	ddp_set_log(collect, NULL, DDP_LOG_WARN);
	ddp_model_set_learning_rate(job.model, 0.003);
	train(job, 2);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	train(job, 2);

	CHECK(ddp_checkpoint_load(same.model, same.loader, dir, &step) == DDP_OK);
	CHECK(same.model->learning_rate == 0.003 && warnings[0] == '\0');
	train(same, 2);
	CHECK(same_parameters(job, same));

	CHECK(ddp_checkpoint_load(another.model, another.loader, dir, &step) == DDP_OK);
	CHECK(another.model->learning_rate == 0.02);
	bool leads = context->job.rank == 0;
	CHECK((strstr(warnings, "learning_rate was 0.01 where it was saved and is 0.02") != NULL) == leads);
	CHECK((strstr(warnings, "beta2 was 0.999 where it was saved and is 0.95") != NULL) == leads);
	CHECK(strstr(warnings, "weight_decay") == NULL);
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
	free_job(job);
	free_job(same);
	free_job(another);
}

TEST_RUNS_BEHIND(folder_empty, hyperparameters_are_saved_and_others_named, on_ranks(2, 0, load_other_hyperparameters));

static ddp_status nothing(void *user, const ddp_grad_bucket *bucket)
{
	return DDP_OK;
}

/* What is given in place of plain SGD's options, and what a load says of that. */
static const struct others {
	ddp_model_options options;
	const char *named[8];
} others[] = {
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .loss = DDP_LOSS_MEAN }, .named = { "loss was 0 where it was saved and is 1 here" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .unused = DDP_UNUSED_STATIC }, .named = { "unused was 0 where it was saved and is 2" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .local_sgd.steps = 4, .local_sgd.start = 3 },
	  .named = { "local_sgd.steps was 0 where it was saved and is 4", "local_sgd.start was 0 where it was saved and is 3" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_F16 }, .named = { "compress was 0 where it was saved and is 2" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .hook = { nothing, nothing, NULL } }, .named = { "hook was 0 where it was saved and is 1" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .compress = DDP_COMPRESS_POWERSGD, .powersgd.rank = 2, .powersgd.seed = 4000000001u, .powersgd.start = 5,
	               .powersgd.min_rate = 3, .powersgd.feedback = false, .powersgd.warm_start = false },
	  .named = { "compress was 0", "powersgd.rank was 1 where it was saved and is 2",
	             "powersgd.seed was 0 where it was saved and is 4000000001",
	             "powersgd.start was 0 where it was saved and is 5",
	             "powersgd.min_rate was 2 where it was saved and is 3",
	             "powersgd.feedback was 1 where it was saved and is 0",
	             "powersgd.warm_start was 1 where it was saved and is 0" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .bf16_params = true }, .named = { "bf16_params was 0 where it was saved and is 1" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_DYNAMIC, .loss_scaling.initial = 4, .loss_scaling.interval = 9 },
	  .named = { "loss_scaling.kind was 0 where it was saved and is 1",
	             "loss_scaling.interval was 2000 where it was saved and is 9" } },
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .loss_scaling.kind = DDP_SCALING_FIXED, .loss_scaling.initial = 4 },
	  .named = { "loss_scaling.kind was 0 where it was saved and is 2",
	             "fixed_loss_scale was 0 where it was saved and is 4" } },
	/* These change no bit. */
	{ .options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 0.5, .first_bucket_mb = 0.25, .shard = DDP_SHARD_GRADIENTS, .late_gather = true } },
};

/* Two parameters, of which `odd` is the second. */
static ddp_model *make_two(ddp_context *context, ddp_param odd, ddp_model_options options)
{
	const ddp_param params[] = { { .name = "first", .ndim = 1, .shape = { 3 } }, odd };
	ddp_model *model;

	options.optimizer = DDP_SGD;
	CHECK(ddp_model_create(context, params, 2, &options, &model) == DDP_OK);
	return model;
}

/* The load names these, which NULL ends, in a warning each, and says nothing else. */
static void expect_named(ddp_context *context, ddp_model *model, const char *const *named)
{
	int warned = 0;
	int64_t step;

	warnings[0] = '\0';
	CHECK(ddp_checkpoint_load(model, NULL, dir, &step) == DDP_OK && step == 1);
	for (const char *at = warnings; (at = strstr(at, "training goes on with")) != NULL; at++)
		warned++;
	for (; context->job.rank == 0 && *named != NULL; named++, warned--)
		CHECK(strstr(warnings, *named) != NULL);
	CHECK(warned == 0);
	ddp_model_free(model);
}

static void load_other_options(ddp_context *context)
{
	static const ddp_param_group groups[] = {
		{ .learning_rate_factor = 0.5 }, { .learning_rate_factor = 1 }, { .learning_rate_factor = 1, .weight_decay = 0.5 },
	};
	static const char *const nobody[] = { NULL }, *const treated[] = { "the kind, group or no_decay of a parameter", NULL };
	const ddp_param second = { .name = "second", .ndim = 1, .shape = { 2 } };
	ddp_model *model = make_two(context, second, (ddp_model_options)DDP_MODEL_OPTIONS);

	ddp_set_log(collect, NULL, DDP_LOG_WARN);
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_OK);
	CHECK(ddp_checkpoint_save(model, NULL, dir, 0) == DDP_OK);
	expect_named(context, model, nobody);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		expect_named(context, make_two(context, second, others[i].options), others[i].named);
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]) + 2; i++) {
		ddp_param odd = second;
		odd.group = i < sizeof(groups) / sizeof(groups[0]) ? &groups[i] : NULL;
		odd.no_decay = i == sizeof(groups) / sizeof(groups[0]);
		odd.kind = odd.group != NULL || odd.no_decay ? DDP_PARAM_TRAINED : DDP_PARAM_FROZEN;
		expect_named(context, make_two(context, odd, (ddp_model_options)DDP_MODEL_OPTIONS), treated);
	}
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
}

TEST_RUNS_BEHIND(folder_empty, each_option_that_changes_results_is_named, on_ranks(2, 0, load_other_options));

/* ---- parameters that were frozen, and are trained ---- */

/* "body" is of this kind, "head" is trained. Weights of body are 1 to 3. */
static ddp_model *make_body(ddp_context *context, ddp_tensor_kind kind, ddp_model_options options)
{
	const ddp_param params[] = { { .name = "body", .ndim = 1, .shape = { 3 }, .kind = kind },
	                             { .name = "head", .ndim = 1, .shape = { 2 } } };
	ddp_model *model;

	CHECK(ddp_model_create(context, params, 2, &options, &model) == DDP_OK);
	for (int i = 0; i < 3; i++)
		ddp_model_param_data(model, 0)[i] = (float)(i + 1);
	return model;
}

static void step_body(ddp_model *model, int steps)
{
	for (int s = 0; s < steps; s++) {
		for (int p = 0; p < 2; p++)
			for (int64_t i = 0; ddp_model_param_grad(model, p) != NULL && i < ddp_model_param_count(model, p); i++)
				ddp_model_param_grad(model, p)[i] = (float)(i + 1) + (float)s / 8;
		CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_OK);
	}
}

static const ddp_model_options body_ways[] = {
	{ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW, .shard = DDP_SHARD_NONE, .learning_rate = 0.125 },
	{ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW, .shard = DDP_SHARD_GRADIENTS, .learning_rate = 0.125 },
	{ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .momentum = 0.5, .learning_rate = 0.125 },
};

/* A parameter that was frozen is trained as if from its first step. A parameter that was trained
   goes on. */
static void thaw_the_body(ddp_context *context)
{
	for (size_t w = 0; w < sizeof(body_ways) / sizeof(body_ways[0]); w++) {
		ddp_model *frozen = make_body(context, DDP_PARAM_FROZEN, body_ways[w]);
		ddp_model *thawed = make_body(context, DDP_PARAM_TRAINED, body_ways[w]);
		ddp_model *fresh = make_body(context, DDP_PARAM_TRAINED, body_ways[w]);
		int64_t step;

		step_body(frozen, 3);
		CHECK(ddp_checkpoint_save(frozen, NULL, dir, 0) == DDP_OK);
		step_body(thawed, 1);
		warnings[0] = '\0';
		ddp_set_log(collect, NULL, DDP_LOG_WARN);
		CHECK(ddp_checkpoint_load(thawed, NULL, dir, &step) == DDP_OK && step == 3);
		ddp_set_log(NULL, NULL, DDP_LOG_WARN);
		const bool leads = context->job.rank == 0;
		CHECK((strstr(warnings, "holds no optimizer's state of 1 parameters that are trained here (body)") != NULL) == leads);
		CHECK((strstr(warnings, "the kind, group or no_decay of a parameter was another") != NULL) == leads);
		for (int more = 0; more < 2; more++) {
			step_body(thawed, 1);
			step_body(frozen, 1);
			step_body(fresh, 1);
			CHECK(memcmp(ddp_model_param_data(thawed, 1), ddp_model_param_data(frozen, 1), 2 * sizeof(float)) == 0);
			CHECK(memcmp(ddp_model_param_data(thawed, 0), ddp_model_param_data(fresh, 0), 3 * sizeof(float)) == 0);
		}
		/* It is saved, and loaded, as any. */
		CHECK(ddp_checkpoint_save(thawed, NULL, dir, 0) == DDP_ERR_STATE); /* the other model's */
		ddp_model_free(frozen);
		CHECK(ddp_checkpoint_save(thawed, NULL, dir, 0) == DDP_OK);
		CHECK(ddp_checkpoint_load(fresh, NULL, dir, &step) == DDP_OK && step == 5);
		step_body(thawed, 1);
		step_body(fresh, 1);
		CHECK(memcmp(ddp_model_param_data(thawed, 0), ddp_model_param_data(fresh, 0), 3 * sizeof(float)) == 0);
		ddp_model_free(thawed);
		ddp_model_free(fresh);
	}
}

static void freeze_the_body(ddp_context *context)
{
	for (size_t w = 0; w < sizeof(body_ways) / sizeof(body_ways[0]); w++) {
		ddp_model *trained = make_body(context, DDP_PARAM_TRAINED, body_ways[w]);
		ddp_model *frozen = make_body(context, DDP_PARAM_FROZEN, body_ways[w]);
		int64_t step;

		step_body(trained, 3);
		CHECK(ddp_checkpoint_save(trained, NULL, dir, 0) == DDP_OK);
		warnings[0] = '\0';
		ddp_set_log(collect, NULL, DDP_LOG_WARN);
		CHECK(ddp_checkpoint_load(frozen, NULL, dir, &step) == DDP_OK && step == 3);
		ddp_set_log(NULL, NULL, DDP_LOG_WARN);
		const bool one = strstr(warnings, ": 1 tensor of the optimizer's state is left out (optimizer.m") != NULL;
		const bool more = strstr(warnings, " tensors of the optimizer's state are left out (optimizer.m") != NULL;
		CHECK((one || more) == (context->job.rank == 0));
		float body[3];
		memcpy(body, ddp_model_param_data(trained, 0), sizeof(body));
		CHECK(memcmp(ddp_model_param_data(frozen, 0), body, sizeof(body)) == 0);
		step_body(frozen, 2);
		step_body(trained, 2);
		CHECK(memcmp(ddp_model_param_data(frozen, 0), body, sizeof(body)) == 0);
		CHECK(memcmp(ddp_model_param_data(frozen, 1), ddp_model_param_data(trained, 1), 2 * sizeof(float)) == 0);
		ddp_model_free(trained);
		ddp_model_free(frozen);
	}
}

/* Momentum is the optimizer's state, too. */
static void give_momentum(ddp_context *context)
{
	const ddp_model_options plain = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD }, with = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .momentum = 0.5 };
	const ddp_model_options other = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW };
	ddp_model *without = make_body(context, DDP_PARAM_TRAINED, plain), *model = make_body(context, DDP_PARAM_TRAINED, with);
	ddp_model *adam = make_body(context, DDP_PARAM_TRAINED, other);
	int64_t step;

	step_body(without, 2);
	CHECK(ddp_checkpoint_save(without, NULL, dir, 0) == DDP_OK);
	CHECK(ddp_checkpoint_load(model, NULL, dir, &step) == DDP_OK && step == 2);
	step_body(model, 1);
	/* If the model has another optimizer, the load is right to report the missing state. */
	CHECK(ddp_checkpoint_load(adam, NULL, dir, &step) == DDP_ERR_FORMAT &&
	      test_says("tensor optimizer.m.body is missing"));
	ddp_model_free(without);
	CHECK(ddp_checkpoint_save(model, NULL, dir, 0) == DDP_OK);
	without = make_body(context, DDP_PARAM_TRAINED, plain);
	CHECK(ddp_checkpoint_load(without, NULL, dir, &step) == DDP_OK && step == 3);
	step_body(without, 1);
	ddp_model_free(model);
	ddp_model_free(without);
	ddp_model_free(adam);
}

TEST_WITH(what_was_frozen_is_trained_on_and_the_reverse, folder_empty, NULL)
{
	for (int ranks = 1; ranks <= 2; ranks++) {
		on_ranks(ranks, 0, thaw_the_body);
		assert_int_equal(folder_empty(NULL), 0);
		on_ranks(ranks, 0, freeze_the_body);
		assert_int_equal(folder_empty(NULL), 0);
		on_ranks(ranks, 0, give_momentum);
		assert_int_equal(folder_empty(NULL), 0);
	}
}

/* ---- parameters alone ---- */

/* Writes a file as another program does: without checksums. */
static void write_file(const char *path, const char *header, const void *data, size_t bytes)
{
	const uint64_t length = strlen(header);
	FILE *file = fopen(path, "wb");

	CHECK(file != NULL && fwrite(&length, 8, 1, file) == 1 && fwrite(header, length, 1, file) == 1);
	CHECK(fwrite(data, bytes, 1, file) == 1 && fclose(file) == 0);
}

/* A name that rank 0 writes a file of, and all then load. */
static void write_together(ddp_context *context, const char *path, const char *header, const void *data, size_t bytes)
{
	if (context->job.rank == 0)
		write_file(path, header, data, bytes);
	CHECK(ddp_barrier(context->world) == DDP_OK);
}

static void expect_body(ddp_model *model, float a, float b, float c)
{
	const float *body = ddp_model_param_data(model, 0);

	CHECK(body[0] == a && body[1] == b && body[2] == c);
}

/* The load takes the parameters of this library's newest checkpoint, and no more. */
static void load_params_of_a_checkpoint(ddp_context *context)
{
	static const ddp_shard ways[] = { DDP_SHARD_AUTO, DDP_SHARD_NONE, DDP_SHARD_GRADIENTS };
	ddp_model *source = make_body(context, DDP_PARAM_TRAINED, (ddp_model_options){ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW });
	int loaded;

	step_body(source, 3);
	CHECK(ddp_checkpoint_save(source, NULL, dir, 0) == DDP_OK);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW, .shard = ways[w], .bf16_params = true };
		ddp_model *model = make_body(context, DDP_PARAM_TRAINED, options);
		ddp_model *copy = make_body(context, DDP_PARAM_TRAINED, options);

		CHECK(ddp_model_load_params(model, dir, NULL, &loaded) == DDP_OK && loaded == 2);
		CHECK(ddp_model_param_bf16(model, 0)[0] != 0);
		for (int p = 0; p < 2; p++) {
			const size_t bytes = (size_t)ddp_model_param_count(source, p) * sizeof(float);
			CHECK(memcmp(ddp_model_param_data(model, p), ddp_model_param_data(source, p), bytes) == 0);
			memcpy(ddp_model_param_data(copy, p), ddp_model_param_data(source, p), bytes);
		}
		/* As a new training that begins with them. */
		CHECK(ddp_model_broadcast_params(copy) == DDP_OK);
		step_body(model, 2);
		step_body(copy, 2);
		CHECK(model->steps == 2);
		for (int p = 0; p < 2; p++)
			CHECK(memcmp(ddp_model_param_data(model, p), ddp_model_param_data(copy, p), (size_t)ddp_model_param_count(copy, p) * sizeof(float)) == 0);
		ddp_model_free(model);
		ddp_model_free(copy);
	}
	ddp_model_free(source);
}

static void load_params_of_another_program(ddp_context *context)
{
	static const struct { float head[2]; uint16_t half[3], brain[3]; double wide[3]; } data = {
		{ 7, 8 }, { 0x3c00, 0xc000, 0x3555 }, { 0x3f80, 0xc000, 0x3eab }, { 1, -2, 0.25 },
	};
	static const struct { const char *dtype; int begin, end; float third; } types[] = {
		{ "F16", 8, 14, 0.333251953125f }, { "BF16", 14, 20, 0.333984375f }, { "F64", 24, 48, 0.25f },
	};
	ddp_model *model = make_body(context, DDP_PARAM_FROZEN, (ddp_model_options)DDP_MODEL_OPTIONS);
	const ddp_load_options partial = { DDP_LOAD_OPTIONS_FIELDS, .partial = true };
	const ddp_load_options renamed = { DDP_LOAD_OPTIONS_FIELDS, .file_prefix = "net.", .partial = true };
	const ddp_load_options part = { DDP_LOAD_OPTIONS_FIELDS, .file_prefix = "net.b", .model_prefix = "b" };
	const ddp_load_options wrong = { DDP_LOAD_OPTIONS_FIELDS, .model_prefix = "tail." };
	char path[sizeof(dir) + 64], header[512];
	int loaded = -1;

	CHECK(offsetof(__typeof__(data), wide) == 24);
	snprintf(path, sizeof(path), "%s-of-others.safetensors", dir);
	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		const char *pad = "\"pad\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}";
		char before[128], after[128];

		snprintf(before, sizeof(before), pad, types[t].begin - 8, 8, types[t].begin);
		snprintf(after, sizeof(after), pad, 48 - types[t].end, types[t].end, 48);
		memcpy(after + 1, "end", 3);
		snprintf(header, sizeof(header), "{\"net.head\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},%s,%s,"
		         "\"net.body\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[%d,%d]}}",
		         before, after, types[t].dtype, types[t].begin, types[t].end);
		write_together(context, path, header, &data, 48);
		CHECK_FAILS(ddp_model_load_params(model, path, NULL, &loaded), DDP_ERR_FORMAT,
		            "has no tensor of the model: the model's begin with body, the file's with net.head");
		expect_body(model, 1, 2, 3);
		CHECK(ddp_model_load_params(model, path, &partial, &loaded) == DDP_ERR_FORMAT && loaded == -1);
		CHECK(ddp_model_load_params(model, path, &part, &loaded) == DDP_OK && loaded == 1); /* strict: "net.body" alone */
		expect_body(model, 1, -2, types[t].third);
		CHECK(ddp_model_param_data(model, 1)[0] == 0);
		CHECK(ddp_model_load_params(model, path, &renamed, &loaded) == DDP_OK && loaded == 2);
		CHECK(ddp_model_param_data(model, 1)[0] == 7 && ddp_model_param_data(model, 1)[1] == 8);
		CHECK(ddp_model_load_params(model, path, &wrong, &loaded) == DDP_ERR_INVALID &&
		      test_says("model_prefix is \"tail.\""));
		for (int i = 0; i < 3; i++)
			ddp_model_param_data(model, 0)[i] = (float)(i + 1);
		ddp_model_param_data(model, 1)[0] = 0;
		loaded = -1;
		CHECK(ddp_barrier(context->world) == DDP_OK);
	}
	/* F32 would make infinities of such values. */
	write_together(context, path, "{\"body\":{\"dtype\":\"F64\",\"shape\":[3],\"data_offsets\":[0,24]}}",
	               (const double[]){ 1, -1e300, INFINITY }, 24);
	CHECK(ddp_model_load_params(model, path, &partial, &loaded) == DDP_ERR_FORMAT && loaded == -1);
	CHECK_SAYS("tensor body has the value -1e+300 at 1, which is beyond F32");
	expect_body(model, 1, 2, 3);
	CHECK(ddp_barrier(context->world) == DDP_OK);
	write_together(context, path, "{\"body\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
	               (const float[]){ 1, NAN, 3 }, 12);
	warnings[0] = '\0';
	ddp_set_log(collect, NULL, DDP_LOG_WARN);
	CHECK(ddp_model_load_params(model, path, &partial, &loaded) == DDP_OK && loaded == 1);
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
	CHECK((strstr(warnings, "tensor body holds an infinity or a NaN") != NULL) == (context->job.rank == 0));
	ddp_model_free(model);
}

static void load_params_that_do_not_fit(ddp_context *context)
{
	static const float data[6] = { 4, 5, 6, 7, 8, 9 };
	static const struct { const char *header, *says, *partial; } cases[] = {
		{ "{\"body\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		  "\"neck\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]}}",
		  "lacks 1 of the model's 2 tensors, first head; with the option partial", NULL },
		{ "{\"body\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		  "\"head\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
		  "\"optimizer.x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[20,24]}}",
		  "has 1 tensor that the model lacks, first optimizer.x; with the option partial", NULL },
		{ "{\"body\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}",
		  "tensor body has shape 6, the model has 3", "tensor body has shape 6, the model has 3" },
		{ "{\"body\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		  "\"head\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]}}",
		  "tensor body has dtype I32; F32, F16, BF16 and F64", "tensor body has dtype I32" },
		/* A type that is not known, of a tensor that is not wanted, and of one that is. */
		{ "{\"body\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		  "\"scales\":{\"dtype\":\"F4\",\"shape\":[24],\"data_offsets\":[12,24]}}",
		  "lacks 1 of the model's 2 tensors, first head; with the option partial", NULL },
		{ "{\"body\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,12]},"
		  "\"head\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]}}",
		  "tensor body has dtype F4; F32, F16, BF16 and F64", "tensor body has dtype F4" },
	};
	ddp_model *model = make_body(context, DDP_PARAM_TRAINED, (ddp_model_options){ DDP_MODEL_OPTIONS_FIELDS, .bf16_params = true });
	const ddp_load_options partial = { DDP_LOAD_OPTIONS_FIELDS, .partial = true };
	char path[sizeof(dir) + 64];
	int loaded;

	ddp_model_param_data(model, 1)[1] = 0.5f; /* no file's */

	snprintf(path, sizeof(path), "%s-of-others.safetensors", dir);
	CHECK(ddp_model_load_params(model, path, NULL, NULL) == DDP_ERR_IO && test_says("No such file"));
	CHECK(ddp_model_load_params(model, dir, NULL, NULL) == DDP_ERR_IO && test_says("no directory with a checkpoint"));
	CHECK(ddp_model_load_params(model, "", NULL, NULL) == DDP_ERR_INVALID);
	CHECK(ddp_model_load_params(NULL, path, NULL, NULL) == DDP_ERR_INVALID);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_together(context, path, cases[i].header, data, sizeof(data));
		CHECK(ddp_model_load_params(model, path, NULL, NULL) == DDP_ERR_FORMAT);
		CHECK(test_says(cases[i].says) && test_says(path));
		expect_body(model, 1, 2, 3);
		if (cases[i].partial != NULL)
			CHECK(ddp_model_load_params(model, path, &partial, NULL) == DDP_ERR_FORMAT && test_says(cases[i].partial));
		else
			CHECK(ddp_model_load_params(model, path, &partial, &loaded) == DDP_OK && loaded == (i == 1 ? 2 : 1));
		CHECK(i > 0 || ddp_model_param_bf16(model, 1)[1] == 0x3f00);
		expect_body(model, cases[i].partial != NULL ? 1 : 4, cases[i].partial != NULL ? 2 : 5, cases[i].partial != NULL ? 3 : 6);
		for (int e = 0; e < 3; e++)
			ddp_model_param_data(model, 0)[e] = (float)(e + 1);
		CHECK(ddp_barrier(context->world) == DDP_OK);
	}
	/* The model trains as if nothing had been tried. */
	step_body(model, 1);
	ddp_model_free(model);
}

/* Parameters alone do not mend what a load left half done: the optimizer's state may be of two steps. */
static void load_params_after_half_a_load(ddp_context *context)
{
	const ddp_load_options partial = { DDP_LOAD_OPTIONS_FIELDS, .partial = true };
	const ddp_load_options *const ways[] = { NULL, &partial };
	ddp_model *model = make_body(context, DDP_PARAM_TRAINED, (ddp_model_options){ DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_ADAMW });
	int64_t step;

	step_body(model, 1);
	CHECK(ddp_checkpoint_save(model, NULL, dir, 0) == DDP_OK);
	model->partly_updated = true;
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		CHECK(ddp_model_load_params(model, dir, ways[w], NULL) == DDP_ERR_STATE);
		CHECK(test_says("were not loaded") && test_says("go back to the last checkpoint"));
		CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_STATE);
		CHECK(ddp_checkpoint_save(model, NULL, dir, 0) == DDP_ERR_STATE);
	}
	CHECK(ddp_checkpoint_load(model, NULL, dir, &step) == DDP_OK && step == 1);
	CHECK(ddp_model_load_params(model, dir, NULL, NULL) == DDP_OK);
	step_body(model, 1);
	ddp_model_free(model);
}

TEST_WITH(parameters_are_loaded_alone, folder_empty, NULL)
{
	for (int ranks = 1; ranks <= 3; ranks += 2) {
		on_ranks(ranks, 0, load_params_of_a_checkpoint);
		assert_int_equal(folder_empty(NULL), 0);
		on_ranks(ranks, 0, load_params_of_another_program);
		assert_int_equal(folder_empty(NULL), 0);
		on_ranks(ranks, 0, load_params_that_do_not_fit);
		assert_int_equal(folder_empty(NULL), 0);
		on_ranks(ranks, 0, load_params_after_half_a_load);
		assert_int_equal(folder_empty(NULL), 0);
	}
}

static void load_broken_or_absent(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);
	char path[256];
	int64_t step = -1;

	snprintf(path, sizeof(path), "%s/step-00000007.safetensors", dir);
	CHECK(ddp_checkpoint_load(job.model, job.loader, path, &step) == DDP_ERR_FORMAT);
	CHECK(test_says("cut short") && test_says(path));
	snprintf(path, sizeof(path), "%s/step-00000008.safetensors", dir);
	CHECK(ddp_checkpoint_load(job.model, job.loader, path, &step) == DDP_ERR_IO);
	snprintf(path, sizeof(path), "%s/none", dir);
	CHECK(step == -1);
	CHECK(ddp_checkpoint_load(job.model, job.loader, path, &step) == DDP_OK && step == 0);
	CHECK(ddp_checkpoint_load(job.model, job.loader, "", &step) == DDP_ERR_INVALID);
	CHECK(ddp_checkpoint_save(job.model, job.loader, NULL, 0) == DDP_ERR_INVALID);
	free_job(job);
}

TEST_WITH(broken_file_is_an_error_and_an_absent_directory_is_none, folder_empty, NULL)
{
	char path[256];
	struct stat about;

	on_ranks(1, 0, save_after_seven_steps);
	snprintf(path, sizeof(path), "%s/step-00000007.safetensors", dir);
	assert_int_equal(stat(path, &about), 0);
	assert_int_equal(truncate(path, about.st_size - 4), 0);
	on_ranks(2, 0, load_broken_or_absent);
}

int main(void)
{
	test_trap_floats();
	return test_run(make_base, folder_remove);
}
