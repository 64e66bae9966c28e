/* SPDX-License-Identifier: Apache-2.0 */
/* rule: what an optimizer is. Each has a rule, in a file of its own or beside its like, and a row in the table at the
   end. */
#pragma once

#include "optim/optim.h"

/* A span is updated at once: a whole tensor, or elements that are all updated alike. */
typedef struct ddp_optim_span {
	const ddp_model_options *options;
	const ddp_slot *slot;
	float *params, *grads;
	float *state[DDP_OPTIM_STATES_MAX]; /* NULL where there is none */
	uint16_t *rounded;   /* new parameters go there, too, in bf16; NULL, and of whole tensors: no */
	float *work;
	int64_t count;
	int64_t step;        /* of these parameters, from 1 */
	double learning_rate, weight_decay, grad_scale;
	bool elsewhere;      /* another rank makes the new parameters */
} ddp_optim_span;

typedef struct ddp_optim_rule {
	const char *name;
	bool whole;          /* it updates whole tensors */
	double beta1, beta2, epsilon, momentum; /* defaults of these options */
	bool momentum_is_mean; /* it weighs a mean, so it is below 1 */
	bool has_nesterov;     /* the option nesterov is one of this optimizer's */
	int states;
	const char *state_names[DDP_OPTIM_STATES_MAX];
	/* Dimensions of state i of a tensor, and their number; -1: it has none. NULL: the
	   tensor's own. What is not `whole` has those, or none of the last ones. */
	int (*shape)(const ddp_model_options *options, int i, const ddp_slot *slot, int64_t *shape);
	/* Numbers of f32 that it works on, which are aligned to 8 bytes. NULL: none. */
	int64_t (*work)(const ddp_slot *slot);
	/* The tensor's cost if one rank updates it for all; 0: each rank updates it. NULL: each updates all. */
	double (*cost)(const ddp_slot *slot);
	/* Leaves gradients 0. All is done by kernels where the memory is (kernels.h), so nothing
	   of the memory is looked at. */
	void (*update)(const ddp_optim_span *span);
} ddp_optim_rule;

/* So many numbers of f32 have the place of one in double precision. */
enum { DDP_OPTIM_DOUBLE = sizeof(double) / sizeof(float) };

/* Its work as such. */
static inline double *ddp_optim_doubles(const ddp_optim_span *span)
{
	return (double *)(void *)span->work;
}

/* The table of optimizers: DDP_NAME of ddp_optimizer has the rule ddp_name_rule. The compiler warns
   of an enumerator without a row (optim.c). */
#define DDP_OPTIMIZERS(ROW) \
	ROW(ADAMW, adamw) \
	ROW(SGD, sgd) \
	ROW(ADAM, adam) \
	ROW(LAMB, lamb) \
	ROW(ADAFACTOR, adafactor) \
	ROW(MUON, muon) \
	ROW(LION, lion)

#define DDP_RULE_DECLARED(NAME, name) extern const ddp_optim_rule ddp_##name##_rule;
DDP_OPTIMIZERS(DDP_RULE_DECLARED)
#undef DDP_RULE_DECLARED
