/*
 * LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76
 * minutes", ICLR 2020), algorithm 2 with the identity for its function phi: AdamW's step,
 * as long as the tensor's norm times the learning rate. As in the authors' code, a tensor
 * without decay keeps AdamW's length.
 */
#include <math.h>

#include "kernels.h"
#include "optim/rule.h"

static double trust_ratio(const ddp_optim_span *s)
{
	if (s->slot->no_decay)
		return 1;
	const double norm = sqrt(dk_sum_squares(s->params, s->count));
	const double step = sqrt(dk_sum_squares(s->grads, s->count));
	return norm > 0 && step > 0 ? norm / step : 1;
}

static void update(const ddp_optim_span *s)
{
	const dk_adamw_args args = {
		.learning_rate = 1, .beta1 = s->settings->beta1, .beta2 = s->settings->beta2,
		.epsilon = s->settings->epsilon, .weight_decay = s->weight_decay, .step = s->step,
		.grad_scale = s->grad_scale,
	};

	dk_adamw_direction(s->params, s->grads, s->state[0], s->state[1], s->count, &args);
	dk_mix(s->params, s->grads, 1, (float)(-s->learning_rate * trust_ratio(s)), s->count);
	dk_zero(s->grads, s->count);
}

const ddp_optim_rule ddp_lamb_rule = {
	.name = "LAMB", .whole = true, .states = 2, .state_names = { "m", "v" }, .update = update,
};
