/* SPDX-License-Identifier: Apache-2.0 */
/* update: the numbers that an update of single elements works with, worked out once per call, on every
   processor alike. */
#pragma once

#include <math.h>

#include "kernels.h"

typedef struct dk_update_consts {
	float grad_scale;
	float coupled;         /* weight decay that is a part of the gradient */
	float decay;           /* 1 - learning rate * other weight decay */
	float beta1, one_beta1, beta2, one_beta2;
	float root_correction2, epsilon; /* root of 1 - beta2^step */
	float minus_step_size; /* - learning rate; AdamW's / (1 - beta1^step) */
	float momentum;        /* 0 in the first step, which takes the gradient as it is */
	float nesterov;        /* its momentum, or 0 */
} dk_update_consts;

static inline dk_update_consts dk_update_consts_of(const dk_update_args *args)
{
	const bool adam = args->rule == DK_ADAMW;
	const double correction1 = adam ? 1 - pow(args->beta1, (double)args->step) : 1;
	const double correction2 = adam ? 1 - pow(args->beta2, (double)args->step) : 1;
	dk_update_consts c;

	c.grad_scale = (float)args->grad_scale;
	c.coupled = args->coupled ? (float)args->weight_decay : 0;
	c.decay = args->coupled ? 1 : (float)(1 - args->learning_rate * args->weight_decay);
	c.beta1 = (float)args->beta1;
	c.one_beta1 = (float)(1 - args->beta1);
	c.beta2 = (float)args->beta2;
	c.one_beta2 = (float)(1 - args->beta2);
	c.root_correction2 = (float)sqrt(correction2);
	c.epsilon = (float)args->epsilon;
	c.minus_step_size = (float)(-args->learning_rate / correction1);
	c.momentum = args->step > 1 ? (float)args->momentum : 0;
	c.nesterov = args->nesterov ? (float)args->momentum : 0;
	return c;
}
