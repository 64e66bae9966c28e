/* SPDX-License-Identifier: Apache-2.0 */
/* model_state: the fields of a ddp_model, and what its parts do, each in a file; for reduce/ and train/ only. */
#pragma once

#include <stdatomic.h>

#include "ddp.h"
#include "kernels.h"
#include "optim/optim.h"
#include "optim/scaler.h"
#include "params/layout.h"
#include "reduce/consensus.h"
#include "reduce/model.h"
#include "reduce/options.h"
#include "reduce/place.h"
#include "reduce/reducer.h"
#include "reduce/replan.h"
#include "reduce/strategy.h"
#include "reduce/unit.h"
#include "watch/watch.h"

/* ---- arena.c ------------------------------------------------------------------------------- */

/* The memory that holds one role (such as gradients) of all tensors of a model, in f32. There are five kinds. The
   ranks of a node share an arena, so collectives on it take no copy. A rank that is alone in its communicator has
   private memory, which may consist of huge pages. Or it is this rank's own; clearing it then gives its pages back to
   the system until they are written again. Or it lies on a device. Or it is the program's, and the program frees it. */
typedef struct ddp_arena {
	float *data;
	size_t bytes;
	bool gives_back, lent;
	bool own;            /* no other rank reaches it */
	float *home;         /* where the program knows it, and both are the same memory; NULL: at `data` */
	ddp_comm *comm;      /* of which a device's memory is; NULL: it is other memory */
	const ddp_place *place;
} ddp_arena;

/* Zeroed. `place` outlives it; on a device nothing is given back, nor if it is to lie in the
   program's memory, `lent` (NULL: it is not). Collective. */
ddp_status ddp_arena_open(ddp_comm *comm, const ddp_place *place, float *lent, int64_t elements,
                          bool gives_back, ddp_arena *arena);
void ddp_arena_close(ddp_comm *comm, ddp_arena *arena);

/* The ranks of a world, `from`, meet again in another one, `to` (renewal.h), where each node's ranks then share the
   arena, as after ddp_arena_open(). prepare() allocates the new memory, whose pages come when they are first used;
   *shared NULL: the arena stays. A device's memory stays, and is then of the new world. Collective. move() puts the new
   memory in the arena's place; the address that the program knows stays, and the content is the new memory's. Local. */
ddp_status ddp_arena_prepare(ddp_comm *to, ddp_arena *arena, float **shared);
ddp_status ddp_arena_move(ddp_comm *from, float *shared, ddp_arena *arena);
/* The address that the program knows. */
float *ddp_arena_home(const ddp_arena *arena);

/* Sets elements [begin, end) to zero; on a device, in the order of the place's queue. */
ddp_status ddp_arena_clear(const ddp_arena *arena, int64_t begin, int64_t end);

/* ---- timeline.c ---------------------------------------------------------------------------- */

/* When the program's queue on a device reached forward, backward and update of each step.
   Events of the device measure it, because the host's phases only say when the host enqueued them. */
typedef struct ddp_timeline ddp_timeline;

/* NULL, which is allowed below: the place is the host, or there is no memory for it. */
ddp_timeline *ddp_timeline_open(const ddp_place *place, ddp_watch *watch);
void ddp_timeline_close(ddp_timeline *timeline);

/* From here on, the queue does a step's forward or backward, or, from DDP_PHASE_OPTIMIZER on, its update. Nothing
   is told of other phases. */
void ddp_timeline_mark(ddp_timeline *timeline, ddp_phase phase, int64_t step);
/* The queue has just come to the last mark: tells the trace of what was before it. */
void ddp_timeline_tell(ddp_timeline *timeline);
/* The device's seconds of a phase, of those marked, that were told since the last take. */
double ddp_timeline_take(ddp_timeline *timeline, ddp_phase phase);

/* ---- on_device.c --------------------------------------------------------------------------- */

/* A model keeps this in a device's memory besides its arenas: the optimizer's state, unless the strategy spreads it;
   the memory in which the optimizer works; and two results of backward, the program's loss and the largest magnitude
   of each gradient. The host fetches both once a step. It waits for them, and for the norm if gradients are clipped,
   before it enqueues the update, because all ranks first agree whether there is an update, and ddp_model_step()
   returns loss and norm. So a device without other work waits twice in each step until the host wakes up. */
typedef struct ddp_results {
	double *loss;      /* on the device: [1]; behind it, [params]: */
	float *largest;    /* of the gradients that are complete, in that order */
	double *loss_here; /* as fetched */
	float *largest_here;
	const ddp_slot **slots; /* [params]: which they are */
	dk_array *arrays;       /* [params]: where */
	int complete;
	int looked_at;          /* of these, so many of the first */
} ddp_results;

/* Allocates a device's memory for this rank's model. `lends`: also for the optimizer's state, which it gets. A model
   that is fitted to other ranks keeps what it has of both. DDP_ERR_NOMEM. */
ddp_status ddp_on_device_open(ddp_model *model, bool lends);
/* No work of the queue may be under way. */
void ddp_on_device_close(ddp_model *model);

/* Notes that a gradient is complete when the queue gets to this point. */
void ddp_on_device_complete(ddp_model *model, int slot);
/* Looks at all gradients that were noted since the last call, before they are reduced. One launch looks at
   many gradients. */
void ddp_on_device_look(ddp_model *model);
/* Sets the program's loss to 0, and notes that no gradient is complete. On the host it does nothing. */
ddp_status ddp_on_device_forget(ddp_model *model);
/* Waits for backward. Adds the complete gradients to the model's magnitude, and writes the program's loss to
   *loss; then does the same as ddp_on_device_forget(). */
ddp_status ddp_on_device_fetch(ddp_model *model, double *loss);

/* ---- uses.c -------------------------------------------------------------------------------- */

/* Which parameters have gradients in a step. Each rank tells this in the step's consensus, in a
   few bits for each parameter, so that the sums over all ranks stay exact. When a static graph has been
   learned, ranks only tell whether their parameters have changed. */
typedef struct ddp_uses {
	ddp_unused mode;
	const ddp_layout *layout;
	int count, ranks; /* parameters, as the program counts them; ranks that communicate */
	bool learned;     /* what each step is to use */
	bool *used;       /* [count]: on this rank, in the step under way, as grads.c notes */
	bool *absent;     /* [count]: not used on this rank in any step, as was learned */
	bool *unused;     /* [count]: on all ranks, in the step that all have agreed on */
	float *missed;    /* [count]: steps that did not update it */
	int changed;      /* the first parameter that is not used as it was learned; -1 */
} ddp_uses;

/* The layout must outlive it. Free it after an error, too. */
ddp_status ddp_uses_make(ddp_unused mode, const ddp_layout *layout, int ranks, ddp_uses *uses);
void ddp_uses_free(ddp_uses *uses);

/* A new step. */
void ddp_uses_reset(ddp_uses *uses);

/* Whether parameters that are not used are left as they are. */
static inline bool ddp_uses_counts(const ddp_uses *uses)
{
	return uses->mode != DDP_UNUSED_ZERO;
}

/* Whether this rank does not use the parameter in any step, as was learned: no bucket waits for its gradient. */
static inline bool ddp_uses_lacks(const ddp_uses *uses, int param)
{
	return uses->learned && uses->absent[param];
}

/* At most so many numbers are added to a consensus. */
int ddp_uses_words_max(const ddp_uses *uses);
/* Writes the numbers that this rank says, and returns how many. `joined`: it says
   that it uses nothing, which is no change. */
int ddp_uses_state(ddp_uses *uses, bool joined, double *words);
/* Takes the sums of all ranks' numbers. `whole`: no rank has joined. */
void ddp_uses_agree(ddp_uses *uses, const double *words, bool whole);
/* The step has updated what is used. */
void ddp_uses_end_step(ddp_uses *uses);

/* ---- rows.c -------------------------------------------------------------------------------- */

/* Sparse parts of gradients, such as that of an embedding whose weight the classifier shares.
   If rows are sent, they are kept apart until the end of the step, gathered from all ranks, and added
   to the reduced gradient in the order of ranks, then of calls. So all ranks get the same bits. */

/* The rows of one parameter. */
typedef struct ddp_row_set {
	const ddp_slot *slot;
	int64_t width, used;
	int64_t most;       /* times * sparse_rows */
	int32_t *rows;      /* [most] */
	float *values;      /* [most, width] */
	int32_t *all_rows;  /* [ranks * most] */
	float *all_values;
} ddp_row_set;

typedef struct ddp_rows {
	int count, ranks;
	ddp_row_set *sets;  /* [count]: of the parameters whose rows travel */
	size_t *counts;     /* [2 * ranks]: of rows, and of their values */
	int64_t *used;      /* [ranks] */
} ddp_rows;

/* The layout must outlive it. A rank adds up to `times` as many rows as the program has said: ranks that are left of a
   world share out the same samples. */
ddp_status ddp_rows_make(const ddp_layout *layout, int ranks, int times, ddp_rows *rows);
void ddp_rows_free(ddp_rows *rows);

/* Keeps rows for the exchange. DDP_ERR_INVALID: there are too many. */
ddp_status ddp_rows_keep(ddp_rows *rows, const ddp_slot *slot, const int32_t *index,
                         const float *values, int64_t count);

/* Forgets the rows of the step under way. */
void ddp_rows_discard(ddp_rows *rows);

/* Gathers all ranks' rows of set i, once per step: they are in all_rows and all_values
   then, *total of them. Collective. */
ddp_status ddp_rows_gather(ddp_rows *rows, int i, ddp_reducer *reducer, int64_t *total);

/* ---- squares.c ----------------------------------------------------------------------------- */

/* The sum of the squares of a step's gradients, from which the norm is computed, and the updates that use and clear
   these gradients. In the host's memory both are done at once. On a device they are enqueued, and the host fetches the
   sums at the end. Both sum the same slices in the same order, so they give the same bits. */
typedef struct ddp_squares {
	bool wanted;
	int64_t most, count; /* sums of squares, of a piece of gradients each */
	double *sums;        /* [most]: where the model is */
	double *here;        /* [most]: on the host */
	int run_count;
	int *runs;           /* [most]: of so many sums the sum is taken by itself */
	dk_array *added;     /* [most]: arrays whose sums are not begun yet, */
	int64_t added_count; /* of so many */
} ddp_squares;

/* DDP_ERR_NOMEM. The model has its units. */
ddp_status ddp_squares_open(ddp_model *model);
void ddp_squares_close(ddp_model *model);

/* Begins a new sum; if it is not `wanted`, only updates follow, and no end. */
void ddp_squares_begin(ddp_model *model, bool wanted);
/* Adds those of `values`, which are read at the end. */
void ddp_squares_add(ddp_model *model, const float *values, int64_t count);
/* Adds those of `grads`, and updates: see ddp_optim_apply(). */
void ddp_squares_update(ddp_model *model, const ddp_update *update, float *params, float *grads,
                        int64_t begin, int64_t end, int64_t at);
/* If the model is on a device, the host waits for the communication before this call, and for the sums. */
ddp_status ddp_squares_end(ddp_model *model, double *squares);

/* ---- the model ---------------------------------------------------------------------------------- */

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
	bool saves;             /* a save was begun, and no call has waited for its end: the same on all ranks */
	void *attached;         /* goes with the model (ddp_model_attach()); NULL: nothing does */
	void (*release)(void *attached);
	atomic_bool stop_requested; /* on this rank */
	int64_t compared;       /* after so many steps, all ranks had the same parameters when they last
	                           compared them; -1: not yet, or not since a load */
	int steps_alike;        /* since when all ranks' samples have given the same */
	bool refused;           /* the last step, for what all ranks saw alike */
	struct ddp_survival *survival; /* reduce/survival.h; NULL: the ranks end with the first that dies */
	struct ddp_buddy *buddy; /* reduce/buddy.h; NULL: no rank keeps a copy of another one's shard */
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

/* Waits until all parameters are there (see ddp_model_param_wait()); an error leaves the model partly
   updated. */
ddp_status ddp_model_arrive(ddp_model *model);
/* Waits until the new parameters in elements [begin, end) are there; on a device, its queue does. */
ddp_status ddp_model_arrive_in(ddp_model *model, int64_t begin, int64_t end);

/* Elements [begin, end) of the parameters' arena are new: in bf16, too, as far as the model
   has that; on a device, when its queue has come here. */
void ddp_model_round(ddp_model *model, int64_t begin, int64_t end);

/* The slot of the parameter that the program calls `param`; NULL if there is none. */
const ddp_slot *ddp_model_slot(const ddp_model *model, int param);

/* The clock of the first step starts with the first sign of work on it. */
void ddp_model_start_clock(ddp_model *model);

/* The model can train no more: ends what is under way here and on all ranks, keeps the last error in the progress
   page, and returns `status` with the last error unchanged. */
ddp_status ddp_model_fail(ddp_model *model, ddp_status status);

/* ---- buffers.c: tensors that forward writes. At the end of a step ranks make them equal. ---- */

/* Whether this rank's are, of those that ranks make alike. */
bool ddp_buffers_finite(const ddp_model *model);

/* Averages and broadcasts them, as their kinds say, over the ranks that count: those that have
   not joined, and, unless that is none, whose buffers are finite. Collective. */
ddp_status ddp_buffers_sync(ddp_model *model, const ddp_consensus *own, const ddp_consensus *all);

/* ---- grads.c ------------------------------------------------------------------------------- */

/* Looks at the gradients that ddp_model_grad_ready() has not looked at, as the step ends, and
   clears those of unused parameters. */
ddp_status ddp_grads_look_at_rest(ddp_model *model);
