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
	int64_t first;  /* the element of the layout that state[i][0] belongs to */
	bool borrowed;  /* state is not its own */
	double *squares; /* of the pieces that threads update */
} ddp_optim;

/* What one step's update needs to know. */
typedef struct ddp_update {
	double learning_rate;
	double grad_scale; /* gradients are multiplied by it first */
	int64_t step;      /* from 1 */
} ddp_update;

/* The layout must outlive it. `borrows`: its state is memory that
   ddp_optim_lend() gives it. */
ddp_status ddp_optim_make(const ddp_optim_settings *settings, const ddp_layout *layout,
                          bool borrows, ddp_optim *optim);

/* State i of the elements from `first` on, zeroed, which outlives the optimizer. */
void ddp_optim_lend(ddp_optim *optim, int i, float *memory, int64_t first);
void ddp_optim_free(ddp_optim *optim);

/*
 * Updates elements [begin, end) of the arenas, with all threads, and sets their
 * gradients to zero. Returns the sum of the squares of the gradients before scaling,
 * whatever the number of threads the same.
 */
double ddp_optim_apply(ddp_optim *optim, const ddp_update *update, float *params,
                       float *grads, int64_t begin, int64_t end);

#endif
