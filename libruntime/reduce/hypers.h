/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hypers: how a model is trained, in numbers, so that a checkpoint can hold them by name and tell
 * what is another when it is loaded: each option that changes what steps come to. What changes
 * only how long they take, or where what they come to is kept (caps of buckets, shard,
 * late_gather, memory), is none.
 */
#ifndef DDP_REDUCE_HYPERS_H
#define DDP_REDUCE_HYPERS_H

#include "ddp.h"

typedef enum ddp_hyper {
	DDP_HYPER_OPTIMIZER, DDP_HYPER_LEARNING_RATE, /* as the model was made */
	DDP_HYPER_BETA1, DDP_HYPER_BETA2, DDP_HYPER_EPSILON, DDP_HYPER_WEIGHT_DECAY,
	DDP_HYPER_MOMENTUM, DDP_HYPER_CLIP_NORM,
	DDP_HYPER_NESTEROV, DDP_HYPER_ADAFACTOR_DECAY, DDP_HYPER_ADAFACTOR_LEAST_SCALE,
	DDP_HYPER_ADAFACTOR_CLIP, DDP_HYPER_MUON_ITERATIONS, DDP_HYPER_MUON_MATCH_RMS,
	DDP_HYPER_LOSS, DDP_HYPER_UNUSED, DDP_HYPER_LOCAL_STEPS, DDP_HYPER_LOCAL_START,
	DDP_HYPER_COMPRESS, DDP_HYPER_HOOK, /* whether there is one */
	DDP_HYPER_POWERSGD_RANK, DDP_HYPER_POWERSGD_SEED, DDP_HYPER_POWERSGD_START,
	DDP_HYPER_POWERSGD_RATE, DDP_HYPER_POWERSGD_NO_FEEDBACK, DDP_HYPER_POWERSGD_NO_WARM_START,
	DDP_HYPER_BF16_PARAMS, DDP_HYPER_LOSS_SCALING,
	DDP_HYPER_FIXED_LOSS_SCALE, /* 0: none; with another loss_scaling, the first one is no matter */
	DDP_HYPER_LOSS_SCALE_INTERVAL,
	DDP_HYPER_TREATMENT, /* of parameters: see ddp_layout_treatment() */
	/* The state of the training. */
	DDP_HYPER_CURRENT_RATE, /* of learning: what ddp_model_set_learning_rate() set last */
	DDP_HYPER_LOSS_SCALE, DDP_HYPER_GOOD_STEPS, /* as the next step begins: see optim/scaler.h */
	DDP_HYPERS,
	DDP_HYPER_OPTIONS = DDP_HYPER_CURRENT_RATE /* the first so many are options */
} ddp_hyper;

const char *ddp_hyper_name(ddp_hyper hyper); /* "beta1" */
void ddp_model_get_hypers(const ddp_model *model, double *hypers);
/* Scales the loss as a checkpoint says, if the model's scale is dynamic. */
void ddp_model_resume_scale(ddp_model *model, const double *hypers);

#endif
