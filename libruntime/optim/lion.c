/* SPDX-License-Identifier: Apache-2.0 */
/* Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023). */
#include "kernels.h"
#include "optim/rule.h"

static void update(const ddp_optim_span *s)
{
	const dk_update_args args = {
		.rule = DK_LION, .learning_rate = s->learning_rate, .weight_decay = s->weight_decay,
		.beta1 = s->options->beta1, .beta2 = s->options->beta2, .step = s->step,
		.grad_scale = s->grad_scale, .rounded = s->rounded,
	};

	dk_update(s->params, s->grads, s->state[0], NULL, s->count, &args);
}

const ddp_optim_rule ddp_lion_rule = {
	.name = "Lion", .states = 1, .state_names = { "m" }, .update = update,
	.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8,
};
