/* SPDX-License-Identifier: Apache-2.0 */
/*
 * on_device: what a model keeps in a device's memory besides its arenas: the optimizer's state, unless
 * the strategy spreads it; the memory in which the optimizer works; and two results of backward, the
 * program's loss and the largest magnitude of each gradient. The host fetches both once a step. It waits
 * for them, and for the norm if gradients are clipped, before it enqueues the update, because all ranks
 * first agree whether there is an update, and ddp_model_step() returns loss and norm. So a device
 * without other work waits twice in each step until the host wakes up.
 */
#ifndef DDP_REDUCE_ON_DEVICE_H
#define DDP_REDUCE_ON_DEVICE_H

#include "kernels.h"
#include "params/layout.h"

struct ddp_model;

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

/* Opens what a model on a device needs of this rank alone; lends the optimizer its memory.
   DDP_ERR_NOMEM. */
ddp_status ddp_on_device_open(struct ddp_model *model);
/* No work of the queue may be under way. */
void ddp_on_device_close(struct ddp_model *model);

/* A gradient is complete when the queue has come here. It is looked at with others, */
void ddp_on_device_complete(struct ddp_model *model, int slot);
/* which is now, before what is complete travels: a device has few launches for many. */
void ddp_on_device_look(struct ddp_model *model);
/* The program's loss begins again at 0, and no gradient is complete. On the host there is neither. */
ddp_status ddp_on_device_forget(struct ddp_model *model);
/* Waits for backward: into the model's magnitude, what is complete, and the program's loss; both
   begin again. */
ddp_status ddp_on_device_fetch(struct ddp_model *model, double *loss);

#endif
