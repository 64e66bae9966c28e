/* SPDX-License-Identifier: Apache-2.0 */
/* optim: the optimizer of a model. Most update element by element: their state lies in
   arenas with the parameters' layout, so that any range of the arena can be updated as soon
   as its gradients are there. Those that work on whole tensors (rule.h) update a tensor when
   the range has its first element, and have arenas with a layout of their own. */
#pragma once

#include "params/layout.h"

enum { DDP_OPTIM_STATES_MAX = 3 };

/* A thread updates so many elements at a time: 128 KiB of each array stay in a core's own cache. */
enum { DDP_OPTIM_PIECE_ELEMENTS = 32 * 1024 };

/* Where one of the optimizer's states of a parameter is. */
typedef struct ddp_kept {
	int64_t offset, count; /* in the state's arena; count 0: there is none */
	int ndim;
	int64_t shape[DDP_MAX_DIMS];
} ddp_kept;

struct ddp_optim_rule;

typedef struct ddp_optim {
	ddp_model_options options;
	const struct ddp_optim_rule *rule;
	const ddp_layout *layout;
	int state_count;
	float *state[DDP_OPTIM_STATES_MAX];
	const char *state_name[DDP_OPTIM_STATES_MAX];
	int64_t state_elements[DDP_OPTIM_STATES_MAX];
	ddp_kept *kept;     /* [state_count][layout->trained]: see ddp_optim_kept() */
	int *owners;        /* [layout->trained]: see ddp_optim_owner(); NULL: no other rank */
	int rank;
	float *work;        /* of one tensor's update: */
	int64_t work_elements;
	uint16_t *rounded;  /* of the layout: new parameters are put there, too, in bf16; or NULL */
	bool borrowed;      /* state is not its own */
	double *squares;    /* of the pieces that threads update */
} ddp_optim;

/* One step's update needs these numbers. */
typedef struct ddp_update {
	double learning_rate;
	double grad_scale; /* gradients are multiplied by it first */
	int64_t step;      /* from 1 */
	const bool *unused;  /* by parameter: it stays as it is, and so does its state. NULL: none */
	const float *missed; /* by parameter: steps that left it as it was, which its count of
	                        steps does not have. NULL: none */
	bool alone;          /* no other rank updates tensors for this one */
	bool knows_norm;     /* nobody wants the sum of squares: ddp_optim_apply() returns 0 */
	/* If not NULL: called by the thread that is about to update elements [begin, end), with the update's `keeper`. The
	   range begins a piece (DDP_OPTIM_PIECE_ELEMENTS) of what is updated, and element `at` of the state belongs to
	   `begin`. Whole tensors are updated without this call. */
	void (*keep)(void *keeper, int64_t begin, int64_t end, int64_t at);
	void *keeper;
} ddp_update;

/* NULL: there is none. */
const struct ddp_optim_rule *ddp_optim_rule_of(ddp_optimizer kind);
/* "DDP_ADAMW, DDP_SGD, ...": all of them. */
const char *ddp_optimizer_enumerators(void);

/* Whether it updates whole tensors, so that a rank needs all of their gradients and state. */
bool ddp_optimizer_is_whole(ddp_optimizer kind);

/* The layout must outlive it. `borrows`: its state is memory that ddp_optim_lend() gives it,
   and so is what it works in, unless work_elements is 0. */
ddp_status ddp_optim_make(const ddp_model_options *options, const ddp_layout *layout,
                          bool borrows, ddp_optim *optim);

/* State i, zeroed, of state_elements[i], and what it works in, aligned to 8 bytes; both
   outlive the optimizer. */
void ddp_optim_lend(ddp_optim *optim, int i, float *memory);
void ddp_optim_lend_work(ddp_optim *optim, float *memory);
void ddp_optim_free(ddp_optim *optim);

const ddp_kept *ddp_optim_kept(const ddp_optim *optim, int state, const ddp_slot *slot);

/* Where all ranks have the same gradients, each of them updates some tensors for all: those
   whose update is dear, or does not have the same bits everywhere. The others keep the
   state of these up to date, and get the parameters from the owner, after which they call
   ddp_optim_round(). */
ddp_status ddp_optim_share(ddp_optim *optim, int ranks, int rank);
/* Which rank updates it for all; -1: each does. */
int ddp_optim_owner(const ddp_optim *optim, const ddp_slot *slot);
/* Why kernels of the updates, or earlier ones of the host, failed. NULL: none did, or the
   optimizer has none that can. */
const char *ddp_optim_failure(const ddp_optim *optim);
/* A tensor's parameters are new: in bf16, too, if that is wanted. */
void ddp_optim_round(const ddp_optim *optim, const ddp_slot *slot, const float *params);

/* Updates elements [begin, end) of the layout, with all threads, and sets their
   gradients to zero: `params` and `grads` are those of the first, whose state is element
   `at` of what the optimizer keeps. Returns the sum of the squares of the gradients
   before scaling, whatever the number of threads the same.

   Of whole tensors, those that begin there, whose gradients behind `end` are there, too; a
   tensor that reaches into the range is not touched, and neither are its gradients. So
   ranges are to come from the last to the first. */
double ddp_optim_apply(ddp_optim *optim, const ddp_update *update, float *params,
                       float *grads, int64_t begin, int64_t end, int64_t at);

/* The same without the sum, by the calling thread's queue of kernels (dk_use()) of f32, where
   all these addresses are a device's. */
void ddp_optim_enqueue(ddp_optim *optim, const ddp_update *update, float *params, float *grads,
                       int64_t begin, int64_t end, int64_t at);

/* torch.nn.utils.clip_grad_norm_: what gradients of norm `norm` are multiplied by. */
double ddp_clip_factor(double clip_norm, double norm);
