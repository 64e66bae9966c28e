/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_jobs: small training jobs that save and load, which tests of checkpoints share. */
#pragma once

#include "ddp.h"
#include "tests/support/folder.h"

enum { SAMPLES = 40, GLOBAL_BATCH = 8, WIDTH = 33 };

extern char dir[TEST_FOLDER_BYTES + 16]; /* of checkpoints, in the test's folder */
/* For cmocka: before all tests. */
int make_base(void **state);

/* Runs `body` on this many ranks, each a process; the first to fail ends so. If one is to, all
   others end well. */
void on_ranks_ending(int ranks, int timeout_ms, void (*body)(ddp_context *context), int exit_code);
/* Expects all to end well. */
void on_ranks(int ranks, int timeout_ms, void (*body)(ddp_context *context));

struct job {
	ddp_model *model;
	ddp_loader *loader;
};

/* Of a dataset: sample i of SAMPLES. */
ddp_status read_number(void *self, int64_t index, void *sample);
struct job make_job_with(ddp_context *context, int width, uint64_t seed, const ddp_model_options *model);
struct job make_job(ddp_context *context, int width, uint64_t seed);
void free_job(struct job job);
/* Steps whose gradients depend on the samples and the parameters. */
void train(struct job job, int steps);
bool same_parameters(struct job a, struct job b);

/* A body: leaves a checkpoint. */
void save_after_seven_steps(ddp_context *context);

extern char warnings[4096];
/* A log: keeps warnings there. */
void collect(void *user, ddp_log_level level, const char *message);
