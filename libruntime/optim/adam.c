/* SPDX-License-Identifier: Apache-2.0 */
/* Adam (Kingma and Ba, ICLR 2015) and AdamW (Loshchilov and Hutter, ICLR 2019). */
#include "optim/adam.h"

#include "kernels.h"

static void update(const ddp_optim_span *s, bool coupled, float *m, float *v)
{
	const dk_update_args args = {
		.rule = DK_ADAMW, .learning_rate = s->learning_rate, .weight_decay = s->weight_decay, .coupled = coupled,
		.beta1 = s->options->beta1, .beta2 = s->options->beta2, .epsilon = s->options->epsilon,
		.step = s->step, .grad_scale = s->grad_scale, .rounded = s->rounded,
	};

	dk_update(s->params, s->grads, m, v, s->count, &args);
}

void ddp_adamw_span(const ddp_optim_span *span, float *m, float *v)
{
	update(span, false, m, v);
}

static void update_adamw(const ddp_optim_span *span)
{
	update(span, false, span->state[0], span->state[1]);
}

static void update_adam(const ddp_optim_span *span)
{
	update(span, true, span->state[0], span->state[1]);
}

const ddp_optim_rule ddp_adamw_rule = {
	.name = "AdamW", .states = 2, .state_names = { "m", "v" }, .update = update_adamw,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8,
};

const ddp_optim_rule ddp_adam_rule = {
	.name = "Adam", .states = 2, .state_names = { "m", "v" }, .update = update_adam,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8,
};
