/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/checkpoint_jobs.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

char dir[TEST_FOLDER_BYTES + 16];

/* ---- ranks --------------------------------------------------------------------- */

static _Atomic int *ended; /* ranks of which all was as wanted */

static int run_body(ddp_context *context, void *body)
{
	(*(void (**)(ddp_context *))body)(context);
	atomic_fetch_add(ended, 1);
	return 0;
}

void on_ranks_ending(int ranks, int timeout_ms, void (*body)(ddp_context *context), int exit_code)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = timeout_ms > 0 ? timeout_ms : DDP_AUTO };

	ended = test_share(sizeof(*ended));
	assert_int_equal(run_ranks_with(ranks, &options, run_body, &body), exit_code);
	assert_int_equal(atomic_load(ended), ranks - (exit_code != 0));
	test_unshare((void *)(uintptr_t)ended, sizeof(*ended));
}

void on_ranks(int ranks, int timeout_ms, void (*body)(ddp_context *context))
{
	on_ranks_ending(ranks, timeout_ms, body, 0);
}

/* ---- a training job -------------------------------------------------------------- */

ddp_status read_number(void *self, int64_t index, void *sample)
{
	float value = (float)index / SAMPLES;

	memcpy(sample, &value, sizeof(value));
	return DDP_OK;
}

struct job make_job_with(ddp_context *context, int width, uint64_t seed, const ddp_model_options *model)
{
	struct job job;
	ddp_param params[] = {
		{ .name = "scale", .ndim = 2, .shape = { width, 3 } },
		{ .name = "shift", .ndim = 1, .shape = { 5 } },
	};
	ddp_dataset dataset = { .size = SAMPLES, .sample_bytes = sizeof(float), .read = read_number };
	ddp_loader_options options = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = GLOBAL_BATCH / context->job.world_size,
	                               .seed = seed, .tail = DDP_TAIL_UNEVEN };

	CHECK(ddp_model_create(context, params, 2, model, &job.model) == DDP_OK);
	for (int p = 0; p < 2; p++) {
		const int64_t count = ddp_model_param_count(job.model, p);
		float *data = ddp_model_param_data(job.model, p);

		for (int64_t i = 0; i < count; i++)
			data[i] = (float)(i % 7) / 7 - 0.5f;
	}
	CHECK(ddp_loader_create(context, &dataset, &options, &job.loader) == DDP_OK);
	return job;
}

struct job make_job(ddp_context *context, int width, uint64_t seed)
{
	return make_job_with(context, width, seed, NULL);
}

void free_job(struct job job)
{
	ddp_loader_free(job.loader);
	ddp_model_free(job.model);
}

static void add_gradients(ddp_model *model, int p, const float *samples, int64_t n)
{
	const int64_t count = ddp_model_param_count(model, p);
	const float *data = ddp_model_param_data(model, p);
	float *grad = ddp_model_param_grad(model, p), sum = 0;

	for (int64_t s = 0; s < n; s++)
		sum += samples[s];
	for (int64_t i = 0; i < count; i++)
		grad[i] += ((float)n * data[i] - sum) * (float)(i % 3 + 1);
}

void train(struct job job, int steps)
{
	ddp_batch batch;

	for (int s = 0; s < steps; s++) {
		CHECK(ddp_loader_next(job.loader, &batch) == DDP_OK);
		for (int p = 0; p < 2; p++)
			add_gradients(job.model, p, batch.data, batch.samples);
		CHECK(ddp_model_step(job.model, (double)batch.samples, 0, NULL) == DDP_OK);
	}
}

bool same_parameters(struct job a, struct job b)
{
	for (int p = 0; p < 2; p++)
		if (memcmp(ddp_model_param_data(a.model, p), ddp_model_param_data(b.model, p),
		      (size_t)ddp_model_param_count(a.model, p) * sizeof(float)) != 0)
			return false;
	return true;
}

void save_after_seven_steps(ddp_context *context)
{
	struct job job = make_job(context, WIDTH, 3);

	train(job, 7);
	CHECK(ddp_checkpoint_save(job.model, job.loader, dir, 0) == DDP_OK);
	free_job(job);
}

char warnings[4096];

void collect(void *user, ddp_log_level level, const char *message)
{
	strncat(warnings, message, sizeof(warnings) - strlen(warnings) - 1);
}

int make_base(void **state)
{
	int failed = folder_make(state);

	snprintf(dir, sizeof(dir), "%s/run", test_folder);
	return failed;
}
