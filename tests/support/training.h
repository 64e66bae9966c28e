/* SPDX-License-Identifier: Apache-2.0 */
/* training: small trainings that the tests of the loop share, of a network with real gradients: 10 inputs, 32 tanh
   units, 4 classes, softmax cross-entropy. Everything is computed in double and stored in float. */
#pragma once

#include "tests/support/context_ranks.h"

enum { MLP_INPUTS = 10, MLP_HIDDEN = 32, MLP_CLASSES = 4, MLP_PARAMS = 4, MLP_ELEMENTS = 484 };

typedef struct mlp_sample {
	float input[MLP_INPUTS];
	int32_t label;
} mlp_sample;

extern const ddp_param mlp_params[MLP_PARAMS];

/* A sample of a made-up but learnable task. */
void mlp_make_sample(int64_t index, mlp_sample *sample);
/* The task's samples, as a dataset. */
ddp_dataset mlp_dataset(int64_t size);

/* The same start on all ranks; `elements` is a parameter's number. */
void mlp_init(int param, float *data, int64_t elements);
/* Writes that start into a model, which may be on a device, as is what follows. */
void mlp_start(ddp_model *model);

/* The first number of a parameter. */
float mlp_first(ddp_model *model, int param);
void mlp_set_first(ddp_model *model, int param, float value);

/* Adds a sample's gradients to grads[MLP_PARAMS], and returns its loss. */
double mlp_gradients(const double *const *params, const mlp_sample *sample, double *const *grads);

/* A ddp_batch_fn: announces the gradients from the last to the first. */
ddp_status mlp_batch(void *user, ddp_model *model, const ddp_batch *batch, double *weight,
                     double *loss_sum);

/* The same training in plain double precision, by hand: what `steps` steps of
   AdamW on one process leave in params[MLP_ELEMENTS], packed without gaps.
   Only the order of samples is the library's. 0, or -1 on failure. */
typedef struct mlp_reference {
	int64_t steps, batch, samples; /* a step takes `batch`, an epoch's last fewer */
	uint64_t seed;
	double learning_rate, weight_decay;
} mlp_reference;
int mlp_train_reference(const mlp_reference *given, double *params);

/* Packs a model's parameters into out[MLP_ELEMENTS], without gaps. */
void mlp_pack(ddp_model *model, float *out);

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
