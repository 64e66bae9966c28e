/* SPDX-License-Identifier: Apache-2.0 */
/* model_state: the fields of a ddp_model; for reduce/ and train/ only. */
#ifndef DDP_REDUCE_MODEL_STATE_H
#define DDP_REDUCE_MODEL_STATE_H

#include <stdatomic.h>

#include "optim/scaler.h"
#include "reduce/arena.h"
#include "reduce/consensus.h"
#include "reduce/model.h"
#include "reduce/on_device.h"
#include "reduce/options.h"
#include "reduce/place.h"
#include "reduce/reducer.h"
#include "reduce/replan.h"
#include "reduce/timeline.h"
#include "reduce/rows.h"
#include "reduce/squares.h"
#include "reduce/strategy.h"
#include "reduce/unit.h"
#include "reduce/uses.h"

typedef struct ddp_slot_hook {
	ddp_grad_hook_fn call; /* NULL: none */
	void *user;
} ddp_slot_hook;

struct ddp_model {
	ddp_context *context;
	ddp_comm *comm;         /* of the ranks that train it together */
	int first_ranks;        /* that communicated when the model was made */
	ddp_model_settings settings;
	ddp_layout layout;
	ddp_bucket_plan plan;
	ddp_units units;
	ddp_place place;
	ddp_results *results;   /* of a device; NULL on the host */
	ddp_timeline *timeline; /* of a device; NULL on the host */
	ddp_squares squares;
	ddp_arena params_memory, grads_memory;
	float *params, *grads;  /* their elements */
	ddp_arena rounded_memory;
	uint16_t *rounded;      /* all parameters in bf16, or NULL */
	bool was_rounded;       /* so that these are no longer 0 */
	ddp_optim optim;
	ddp_reducer reducer;
	ddp_replan replan;
	ddp_rows rows;
	const ddp_strategy *strategy;
	void *own;              /* what the strategy keeps */
	double learning_rate;
	int64_t steps;          /* done */
	int64_t averaged;       /* of local SGD: after this step all ranks' parameters were last the same */
	int64_t settled;        /* and their optimizers' state, too */
	ddp_magnitude magnitude; /* of the step under way */
	double largest;         /* that sums of all ranks' gradients could be in the last step
	                           that all have agreed on */
	ddp_uses uses;
	ddp_slot_hook *hooks;   /* [layout.trained]; NULL: none yet */
	double *consensus;      /* what this rank says in a step; then what all do */
	ddp_scaler scaler;      /* of the loss: the same on all ranks */
	double divisor;         /* of the sums of the step under way, which makes them means: with
	                           the loss's scale */
	bool joined;            /* this rank has finished, and adds nothing to the step under way */
	bool sync;
	bool reduced;           /* all gradients of the step under way, which is not updated */
	ddp_step_stats stats;   /* of that step, as far as they are known */
	void *user_state;       /* of the program, for checkpoints */
	size_t user_bytes;
	bool saves;             /* see reduce/model.h, */
	void *attached;         /* for this, too */
	void (*release)(void *attached);
	atomic_bool stop_requested; /* on this rank */
	int64_t compared;       /* after so many steps, all ranks had the same parameters when they last
	                           compared them; -1: not yet, or not since a load */
	int steps_alike;        /* since when all ranks' samples have given the same */
	bool refused;           /* the last step, for what all ranks saw alike */
	struct ddp_survival *survival; /* reduce/survival.h; NULL: the ranks end with the first that dies */
	bool failed;            /* by a step that ended in an error */
	bool partly_updated;    /* a part of the parameters is changed, the rest is not yet */

	uint64_t step_start_ns; /* 0: before the first step's first phase */
	double phase_seconds[DDP_PHASES]; /* of the watch, when the step began */
	ddp_summary summary;    /* sums so far; the ratios are filled in when asked for */
	double weight_sum;
};

/* Waits until buckets [first, end) are reduced, as far as they are started. As all that a
   strategy does, on the model's own kernels, whatever queue the program uses. */
ddp_status ddp_model_wait(ddp_model *model, int first, int end);

/* The host waits for the buckets, too, where only a device's queue has done so. */
ddp_status ddp_model_end_buckets(ddp_model *model);

/* DDP_ERR_INVALID: NULL. DDP_ERR_STATE: a step failed before, or a load did halfway. */
ddp_status ddp_model_check(const ddp_model *model);

/* Fails with DDP_ERR_STATE: the gradients of the step are reduced, and wait for the update. */
ddp_status ddp_model_not_updated(const ddp_model *model);

/* Waits until the new parameters in elements [begin, end) are there; on a device, its queue does. */
ddp_status ddp_model_arrive_in(ddp_model *model, int64_t begin, int64_t end);

/* Elements [begin, end) of the parameters' arena are new: in bf16, too, as far as the model
   has that; on a device, when its queue has come here. */
void ddp_model_round(ddp_model *model, int64_t begin, int64_t end);

/* The slot of the parameter that the program calls `param`; NULL if there is none. */
const ddp_slot *ddp_model_slot(const ddp_model *model, int param);

/* The clock of the first step starts with the first sign of work on it. */
void ddp_model_start_clock(ddp_model *model);

/*
 * The model can train no more: ends what is under way here and on all ranks,
 * keeps the last error in the progress page, and returns `status` with the
 * last error unchanged.
 */
ddp_status ddp_model_fail(ddp_model *model, ddp_status status);

#endif
