/* SPDX-License-Identifier: Apache-2.0 */
/* training: small trainings of tests/unit/mlp that the tests of the loop share. */
#pragma once

#include "tests/support/context_ranks.h"
#include "tests/support/mlp.h"

/* An epoch is four whole updates and one of 5 samples; with two micro-batches a step,
   the last of an epoch is empty on all ranks. */
enum { SAMPLES = 101, GLOBAL_BATCH = 24, STEPS = 20, RANKS_MAX = 4, SEED = 5 };

enum { SHARDS = 3 };
extern const ddp_shard shards[SHARDS];

typedef struct setup {
	double bucket_bytes;
	ddp_shard shard;
	int accumulate;
	int64_t steps;
	double clip_norm;
	const char *checkpoint_dir;
	bool resume;
	bool scaled; /* losses, for fp16 */
	ddp_comm *comm; /* of the ranks that train; NULL: the world */
} setup;

typedef struct training {
	ddp_model *model;
	ddp_loader *loader; /* of SAMPLES samples */
} training;

/* One at its start, which the caller finishes. */
training start(ddp_context *context, const setup *with);
void finish(training t);

/* Trains, and leaves the parameters, packed, in out[MLP_ELEMENTS]. */
void train(ddp_context *context, const setup *with, float *out);
