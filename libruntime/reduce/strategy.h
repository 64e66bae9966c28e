/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strategy: how the gradients of all ranks become the same new parameters on all ranks. It says what
 * happens to a complete bucket, which rank updates which parameters, and which rank keeps which part
 * of the optimizer's state. A model has one strategy, chosen when the model is made; no other code may
 * ask which it is. A function that is NULL is not called.
 */
#ifndef DDP_REDUCE_STRATEGY_H
#define DDP_REDUCE_STRATEGY_H

#include "optim/optim.h"
#include "params/layout.h"
#include "reduce/options.h"

struct ddp_model;
struct ddp_tensor;

typedef struct ddp_strategy {
	const char *name;
	ddp_shard shard;      /* what of the model is spread over ranks */
	bool spreads;         /* each rank keeps the optimizer's state of what it owns, no more */
	bool moves_rows;      /* rows can travel by themselves, apart from the dense part */
	bool gives_back;      /* gradients that are reduced go back to the system */
	bool recuts;          /* buckets may be cut anew between steps (reduce/replan.h): nothing that it
	                         keeps hangs on the cut, and request k is that of bucket k */
	bool per_node;        /* units are owned by the ranks of each node, not by those of the world */

	/* Makes what can fail on this rank alone. */
	ddp_status (*prepare)(struct ddp_model *model);
	/* Collective; the arenas are there. It lends the optimizer its state, if it spreads. */
	ddp_status (*open)(struct ddp_model *model);
	void (*close)(struct ddp_model *model);

	/* Bucket `k` is complete on this rank, and all before it are started. NULL: the
	   gradients take another way than by buckets. */
	ddp_status (*start)(struct ddp_model *model, int k);
	/* Waits until bucket `k` is reduced, if it is started; on a device, its queue does. */
	ddp_status (*wait)(struct ddp_model *model, int k);
	/* Adds rows to the reduced gradient of `slot`. Only if it moves rows. */
	void (*add_rows)(struct ddp_model *model, const ddp_slot *slot, const int32_t *rows,
	                 const float *values, int64_t count);
	/* Forgets what it keeps of the step's gradients, all of whose buckets have ended. */
	void (*discard)(struct ddp_model *model);

	/*
	 * The end of a step; all buckets are started, and rows are added. reduce() waits until
	 * all gradients are reduced, and tells the sum of their squares over the whole model.
	 * update() does the same if that was not called (`reduced` false), but may update what
	 * is complete beside the rest; then all ranks have new parameters, and gradients of 0.
	 * *squares is written unless `reduced`. Collective.
	 */
	ddp_status (*reduce)(struct ddp_model *model, double *squares);
	ddp_status (*update)(struct ddp_model *model, const ddp_update *update, bool reduced,
	                     double *squares);

	/* Waits until the new parameters in elements [begin, end) are there, if update() left them
	   on their way. */
	ddp_status (*arrive)(struct ddp_model *model, int64_t begin, int64_t end);

	/* If it spreads, one of these copies state i of all ranks to an arena of the whole
	   layout: collect() from memory that the calling rank reaches, gather() collectively,
	   on rank 0; `whole` is NULL on the others. */
	void (*collect)(const struct ddp_model *model, int i, float *whole);
	ddp_status (*gather)(struct ddp_model *model, int i, float *whole);
	/* DDP_ERR_STATE if a rank has begun to change what is complete after `steps`. */
	ddp_status (*check)(const struct ddp_model *model, int64_t steps);
	/* Whether the step under way leaves each rank's gradients to itself. NULL: none does. */
	bool (*is_local)(const struct ddp_model *model);
	/* Averages the ranks' parameters, if steps were local. Collective. NULL: none are. */
	ddp_status (*average)(struct ddp_model *model);
	/* Before a checkpoint is saved: what it can hold of what ranks keep each for itself, they
	   now have in the form in which a load would give it to them. Collective. */
	ddp_status (*settle)(struct ddp_model *model);
	/* Tensors of its own for checkpoints, which begin with DDP_EXTRA_PREFIX: how many, and
	   what they are. */
	int (*extra_count)(const struct ddp_model *model);
	ddp_status (*fill_extras)(const struct ddp_model *model, struct ddp_tensor *list);
	/* A checkpoint is loaded that has none of them. */
	void (*forget)(struct ddp_model *model);
	/* This many steps are done, as a checkpoint says. */
	void (*set_steps)(struct ddp_model *model, int64_t steps);
} ddp_strategy;

/* Each in the file of its name. */
extern const ddp_strategy ddp_all_reduce_strategy, ddp_node_strategy, ddp_hybrid_strategy;
extern const ddp_strategy ddp_scatter_strategy, ddp_scatter_gradients_strategy; /* _scatter.c */

extern const ddp_strategy ddp_compress_strategy, ddp_hook_strategy, ddp_powersgd_strategy;
extern const ddp_strategy ddp_local_strategy;

/* The one for a world of `ranks` that communicate (1 if they do not), on `nodes`, in the
   host's memory or in a device's. */
const ddp_strategy *ddp_strategy_choose(const ddp_model_settings *settings, int ranks, int nodes,
                                        bool on_host);

#endif
