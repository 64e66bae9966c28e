/* SPDX-License-Identifier: Apache-2.0 */
/* Adam (Kingma and Ba, ICLR 2015) and AdamW (Loshchilov and Hutter, ICLR 2019). */
#include "optim/adam.h"

#include "kernels.h"

static dk_adamw_args arguments(const ddp_optim_span *s, bool coupled)
{
	return (dk_adamw_args){
		.learning_rate = s->learning_rate,
		.beta1 = s->settings->beta1, .beta2 = s->settings->beta2,
		.epsilon = s->settings->epsilon, .weight_decay = s->weight_decay,
		.step = s->step, .grad_scale = s->grad_scale, .rounded = s->rounded, .coupled = coupled,
	};
}

void ddp_adamw_span(const ddp_optim_span *span, float *m, float *v)
{
	const dk_adamw_args args = arguments(span, false);

	dk_adamw(span->params, span->grads, m, v, span->count, &args);
}

static void update_adamw(const ddp_optim_span *span)
{
	ddp_adamw_span(span, span->state[0], span->state[1]);
}

static void update_adam(const ddp_optim_span *span)
{
	const dk_adamw_args args = arguments(span, true);

	dk_adamw(span->params, span->grads, span->state[0], span->state[1], span->count, &args);
}

const ddp_optim_rule ddp_adamw_rule = {
	.name = "AdamW", .states = 2, .state_names = { "m", "v" }, .update = update_adamw,
};

const ddp_optim_rule ddp_adam_rule = {
	.name = "Adam", .states = 2, .state_names = { "m", "v" }, .update = update_adam,
};
