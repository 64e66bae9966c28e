/*
 * optim: the optimizer of a model. Its state lies in arenas with the
 * parameters' layout, so that any range of the arena can be updated as soon
 * as its gradients are there.
 */
#ifndef DDP_OPTIM_OPTIM_H
#define DDP_OPTIM_OPTIM_H

#include "reduce/layout.h"

enum { DDP_OPTIM_STATES_MAX = 2 };

typedef struct ddp_optim_settings {
	ddp_optimizer kind;
	double beta1, beta2, epsilon; /* AdamW */
	double momentum;              /* SGD */
	double weight_decay;
} ddp_optim_settings;

typedef struct ddp_optim {
	ddp_optim_settings settings;
	const ddp_layout *layout;
	int state_count;
	float *state[DDP_OPTIM_STATES_MAX]; /* AdamW: m, v; SGD: momentum, if not 0 */
	const char *state_name[DDP_OPTIM_STATES_MAX];
	bool borrowed;   /* state is not its own */
	double *squares; /* of the pieces that threads update */
} ddp_optim;

/* What one step's update needs to know. */
typedef struct ddp_update {
	double learning_rate;
	double grad_scale; /* gradients are multiplied by it first */
	int64_t step;      /* from 1 */
	const bool *unused;  /* by parameter: it stays as it is, and so does its state. NULL: none */
	const float *missed; /* by parameter: steps that left it as it was, which its count of
	                        steps does not have. NULL: none */
} ddp_update;

/* The layout must outlive it. `borrows`: its state is memory that
   ddp_optim_lend() gives it. */
ddp_status ddp_optim_make(const ddp_optim_settings *settings, const ddp_layout *layout,
                          bool borrows, ddp_optim *optim);

/* State i, zeroed, which outlives the optimizer. */
void ddp_optim_lend(ddp_optim *optim, int i, float *memory);
void ddp_optim_free(ddp_optim *optim);

/*
 * Updates elements [begin, end) of the layout, with all threads, and sets their
 * gradients to zero: `params` and `grads` are those of the first, whose state is element
 * `at` of what the optimizer keeps. Returns the sum of the squares of the gradients
 * before scaling, whatever the number of threads the same.
 */
double ddp_optim_apply(ddp_optim *optim, const ddp_update *update, float *params,
                       float *grads, int64_t begin, int64_t end, int64_t at);

/* The same without the sum, by the calling thread's queue of kernels (dk_use()), where all
   these addresses are a device's. */
void ddp_optim_enqueue(ddp_optim *optim, const ddp_update *update, float *params, float *grads,
                       int64_t begin, int64_t end, int64_t at);

/* torch.nn.utils.clip_grad_norm_: what gradients of norm `norm` are multiplied by. */
double ddp_clip_factor(double clip_norm, double norm);

#endif
