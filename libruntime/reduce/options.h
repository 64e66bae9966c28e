/* SPDX-License-Identifier: Apache-2.0 */
/* options: a model's options with their defaults filled in and checked. */
#ifndef DDP_REDUCE_OPTIONS_H
#define DDP_REDUCE_OPTIONS_H

#include "optim/optim.h"

/* See ddp_model_options. */
typedef struct ddp_powersgd_settings {
	int rank;
	uint32_t seed;
	int64_t start_step;
	double least_rate;
	bool no_feedback, no_warm_start;
} ddp_powersgd_settings;

typedef struct ddp_model_settings {
	int64_t bucket_elements; /* 0: by the size of the model */
	int64_t first_bucket_elements;
	bool caps_given;         /* of buckets, by the program or the environment */
	ddp_optim_settings optim;
	double learning_rate;
	double clip_norm; /* 0: none */
	ddp_shard shard;
	bool late_gather;
	float *params_memory, *grads_memory; /* of the program; NULL: none */
	ddp_compression compress;
	ddp_bucket_hook hook; /* start NULL: none */
	ddp_powersgd_settings powersgd;
	int64_t local_steps; /* 0: gradients are reduced in each step */
	int64_t local_start;
	ddp_loss loss;
	ddp_unused unused;
	bool no_overlap, no_communication; /* to measure */
	bool bf16_params;
	ddp_scaling loss_scaling;
	double loss_scale; /* 1 without loss_scaling */
	int64_t loss_scale_interval;
	ddp_memory memory;
	void *stream;
} ddp_model_settings;

/* Reads DDP_BUCKET_MB and DDP_MEASURE of the environment too. `given` may be NULL.
   DDP_ERR_INVALID names the wrong option. */
ddp_status ddp_model_settings_make(const ddp_model_options *given, ddp_model_settings *settings);

/*
 * The bucket size where none is given: a 32nd of the gradients, since the last
 * bucket is what backward cannot hide, but at least 1 MiB, so that latency
 * stays small beside it, and at most 25 MiB.
 */
int64_t ddp_default_bucket_elements(int64_t elements);

#endif
