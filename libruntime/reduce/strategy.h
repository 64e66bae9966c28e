/* SPDX-License-Identifier: Apache-2.0 */
/* strategy: how the gradients of all ranks become the same new parameters on all ranks. It says what
   happens to a complete bucket, which rank updates which parameters, and which rank keeps which part
   of the optimizer's state. A model has one strategy, chosen when the model is made; no other code may
   ask which it is. A function that is NULL is not called. */
#pragma once

#include "optim/optim.h"
#include "params/layout.h"
#include "reduce/options.h"

struct ddp_model;
struct ddp_tensor;

typedef struct ddp_strategy {
	const char *name;
	ddp_shard shard;      /* what of the model is spread over ranks */
	bool spreads;         /* each rank keeps only the optimizer's state of the slices that it owns */
	bool moves_rows;      /* rows can be sent separately from the dense part */
	bool gives_back;      /* the memory of reduced gradients goes back to the system */
	bool recuts;          /* buckets may be cut anew between steps (reduce/replan.h): nothing that it
	                         keeps depends on the cut, and request k is that of bucket k */
	bool per_node;        /* units are owned by the ranks of each node, not by those of the world */
	bool survives;        /* ranks that are left can go on without those that have died (reduce/survival.h) */

	/* Does the work that can fail on this rank alone, such as allocating memory. */
	ddp_status (*prepare)(struct ddp_model *model);
	/* Called when the arenas exist. If it spreads, it gives the optimizer memory for its state. Collective. */
	ddp_status (*open)(struct ddp_model *model);
	void (*close)(struct ddp_model *model);

	/* Called when bucket `k` is complete on this rank and all earlier buckets are started. NULL: gradients
	   are not reduced by buckets. */
	ddp_status (*start)(struct ddp_model *model, int k);
	/* Waits until bucket `k` is reduced, if it is started; on a device, makes its queue wait. */
	ddp_status (*wait)(struct ddp_model *model, int k);
	/* Adds rows to the reduced gradient of `slot`. Only if it moves rows. */
	void (*add_rows)(struct ddp_model *model, const ddp_slot *slot, const int32_t *rows,
	                 const float *values, int64_t count);
	/* Drops what it keeps of the step's gradients. All buckets of the step have ended. */
	void (*discard)(struct ddp_model *model);

	/* The end of a step: all buckets are started, and rows are added. reduce() waits until all gradients
	   are reduced, and sets *squares to the sum of their squares over the whole model. If reduce() was not
	   called (`reduced` is false), update() first does the same, but may already update the parameters of
	   reduced buckets. After update() all ranks have new parameters, and gradients are 0. Collective. */
	ddp_status (*reduce)(struct ddp_model *model, double *squares);
	ddp_status (*update)(struct ddp_model *model, const ddp_update *update, bool reduced,
	                     double *squares);

	/* Waits until the new parameters in elements [begin, end) have come, if update() has not waited for
	   them. */
	ddp_status (*arrive)(struct ddp_model *model, int64_t begin, int64_t end);

	/* If it spreads, it has one of these functions. read() copies elements [begin, end) of state i from memory
	   that the calling rank can reach, also of a rank that has died. gather() is collective and copies state i of
	   all ranks to an arena of the whole layout on rank 0; `whole` is NULL on the other ranks. */
	void (*read)(const struct ddp_model *model, int i, int64_t begin, int64_t end, float *to);
	ddp_status (*gather)(struct ddp_model *model, int i, float *whole);
	/* If an update of one rank changes parameters or state that other ranks use: from now on, keeps what each update
	   changes. Collective. */
	ddp_status (*keep_undo)(struct ddp_model *model);
	/* Undoes what this rank has changed in step `step`, and, if ranks of a node share memory, what `dead` ranks of this
	   node (by their numbers on the node) have. No rank changes anything meanwhile. */
	void (*undo)(struct ddp_model *model, int64_t step, const bool *dead);
	/* DDP_ERR_STATE: a rank has begun to change the state that was complete after `steps` steps. */
	ddp_status (*check)(const struct ddp_model *model, int64_t steps);
	/* Whether each rank uses its own gradients alone in the step under way. NULL: no step does this. */
	bool (*is_local)(const struct ddp_model *model);
	/* Averages the ranks' parameters, if steps were local. Collective. NULL: no steps are local. */
	ddp_status (*average)(struct ddp_model *model);
	/* Called before a checkpoint is saved. If each rank keeps state of its own that the checkpoint holds,
	   brings it into the form in which a load gives it back. Collective. */
	ddp_status (*settle)(struct ddp_model *model);
	/* Its own tensors for checkpoints, whose names begin with DDP_EXTRA_PREFIX: their number, and the
	   list. */
	int (*extra_count)(const struct ddp_model *model);
	ddp_status (*fill_extras)(const struct ddp_model *model, struct ddp_tensor *list);
	/* Called when a checkpoint without these tensors is loaded. */
	void (*forget)(struct ddp_model *model);
	/* Called when a checkpoint says that this many steps are done. */
	void (*set_steps)(struct ddp_model *model, int64_t steps);
} ddp_strategy;

/* Each in the file of its name. */
extern const ddp_strategy ddp_all_reduce_strategy, ddp_node_strategy, ddp_hybrid_strategy;
extern const ddp_strategy ddp_scatter_strategy, ddp_scatter_gradients_strategy; /* _scatter.c */

extern const ddp_strategy ddp_compress_strategy, ddp_hook_strategy, ddp_powersgd_strategy;
extern const ddp_strategy ddp_local_strategy;
