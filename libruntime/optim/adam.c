/* SPDX-License-Identifier: Apache-2.0 */
/* Adam (Kingma and Ba, ICLR 2015) and AdamW (Loshchilov and Hutter, ICLR 2019). */
#include "kernels.h"
#include "optim/rule.h"

static void adam(const ddp_optim_span *s, bool coupled)
{
	const dk_update_args args = {
		.rule = DK_ADAMW, .learning_rate = s->learning_rate, .weight_decay = s->weight_decay, .coupled = coupled,
		.beta1 = s->options->beta1, .beta2 = s->options->beta2, .epsilon = s->options->epsilon,
		.step = s->step, .grad_scale = s->grad_scale, .rounded = s->rounded,
	};

	dk_update(s->params, s->grads, s->state[0], s->state[1], s->count, &args);
}

static void update_adamw(const ddp_optim_span *span)
{
	adam(span, false);
}

static void update_adam(const ddp_optim_span *span)
{
	adam(span, true);
}

const ddp_optim_rule ddp_adamw_rule = {
	.name = "AdamW", .states = 2, .state_names = { "m", "v" }, .update = update_adamw,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8,
};

const ddp_optim_rule ddp_adam_rule = {
	.name = "Adam", .states = 2, .state_names = { "m", "v" }, .update = update_adam,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8,
};

/* LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76
   minutes", ICLR 2020), algorithm 2 with the identity for its function phi: AdamW's step,
   as long as the tensor's norm times the learning rate. As in the authors' code, a tensor
   without decay keeps AdamW's length. */

/* Needs memory for two sums of squares. */
static int64_t work(const ddp_slot *slot)
{
	(void)slot;
	return 2 * DDP_OPTIM_DOUBLE;
}

static void lamb(const ddp_optim_span *s)
{
	const dk_update_args args = {
		.learning_rate = 1, .beta1 = s->options->beta1, .beta2 = s->options->beta2,
		.epsilon = s->options->epsilon, .weight_decay = s->weight_decay, .step = s->step,
		.grad_scale = s->grad_scale,
	};
	double *norms = ddp_optim_doubles(s);
	const dk_ratio trust = { .over = norms, .under = norms + 1, .count = 1 };

	dk_adamw_direction(s->params, s->grads, s->state[0], s->state[1], s->count, &args);
	dk_sum_squares_at(norms, s->params, s->count);
	dk_sum_squares_at(norms + 1, s->grads, s->count);
	dk_mix(s->params, s->grads, 1, -s->learning_rate, s->slot->no_decay ? NULL : &trust, s->count);
	dk_zero(s->grads, s->count);
}

const ddp_optim_rule ddp_lamb_rule = {
	.name = "LAMB", .whole = true, .states = 2, .state_names = { "m", "v" },
	.work = work, .update = lamb,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6,
};
