/* SPDX-License-Identifier: Apache-2.0 */
/* hypers: the numbers that say how a model is trained: each option with a key (reduce/options.h),
   and state such as the present learning rate and loss scale. A checkpoint holds them by name, and a
   load names those that differ. */
#pragma once

#include "reduce/options.h"

typedef enum ddp_hyper {
	/* These say what training has come to. */
	DDP_HYPER_CURRENT_RATE, /* what ddp_model_set_learning_rate() set last */
	DDP_HYPER_LOSS_SCALE, DDP_HYPER_GOOD_STEPS, /* as the next step begins: see optim/scaler.h */
	/* These are compared when a checkpoint is loaded. */
	DDP_HYPER_FIXED_LOSS_SCALE, /* 0: none. With another kind of loss_scaling the first scale does not matter */
	DDP_HYPER_TREATMENT, /* of parameters: see ddp_layout_treatment() */
	DDP_HYPER_OPTIONS,   /* option i of the table is hyper DDP_HYPER_OPTIONS + i */
	DDP_HYPERS = DDP_HYPER_OPTIONS + DDP_MODEL_OPTIONS_MAX,
	DDP_HYPERS_COMPARED = DDP_HYPER_FIXED_LOSS_SCALE /* the first of them */
} ddp_hyper;

/* A checkpoint's name for it; NULL: a checkpoint does not hold it. */
const char *ddp_hyper_key(int hyper);
/* Returns the name that messages use. */
const char *ddp_hyper_name(int hyper);
/* The number that a checkpoint holds for this value, and the value of such a number. */
double ddp_hyper_saved(int hyper, double value);
/* Lists the hypers that a checkpoint holds, by its names for them. Returns how many these are. */
typedef struct ddp_saved_hyper {
	const char *key;
	double value;
} ddp_saved_hyper;
int ddp_hypers_list(const double *hypers, ddp_saved_hyper list[DDP_HYPERS]);
/* Returns the hyper of the option of this name, such as "beta1". */
int ddp_hyper_of(const char *option);

void ddp_model_get_hypers(const ddp_model *model, double *hypers);
/* Scales the loss as a checkpoint says, if the model's scale is dynamic. */
void ddp_model_resume_scale(ddp_model *model, const double *hypers);
