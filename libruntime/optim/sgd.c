/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic gradient descent, with the momentum of Polyak or Nesterov in PyTorch's form. */
#include <string.h>

#include "kernels.h"
#include "optim/rule.h"

static int shape(const ddp_model_options *options, int i, const ddp_slot *slot, int64_t *dims)
{
	(void)i;
	memcpy(dims, slot->shape, (size_t)slot->ndim * sizeof(*dims));
	return options->momentum != 0 ? slot->ndim : -1;
}

static void sgd(const ddp_optim_span *s)
{
	const dk_update_args args = {
		.rule = DK_SGD, .learning_rate = s->learning_rate,
		.momentum = s->options->momentum, .weight_decay = s->weight_decay, .coupled = true,
		.step = s->step, .grad_scale = s->grad_scale, .rounded = s->rounded,
		.nesterov = s->options->nesterov,
	};

	dk_update(s->params, s->grads, s->state[0], NULL, s->count, &args);
}

const ddp_optim_rule ddp_sgd_rule = {
	.name = "SGD", .states = 1, .state_names = { "momentum" }, .shape = shape, .update = sgd,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .has_nesterov = true,
};

/* Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023). */

static void lion(const ddp_optim_span *s)
{
	const dk_update_args args = {
		.rule = DK_LION, .learning_rate = s->learning_rate, .weight_decay = s->weight_decay,
		.beta1 = s->options->beta1, .beta2 = s->options->beta2, .step = s->step,
		.grad_scale = s->grad_scale, .rounded = s->rounded,
	};

	dk_update(s->params, s->grads, s->state[0], NULL, s->count, &args);
}

const ddp_optim_rule ddp_lion_rule = {
	.name = "Lion", .states = 1, .state_names = { "m" }, .update = lion,
	.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8,
};
