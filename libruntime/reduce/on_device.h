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

/* Allocates a device's memory for this rank's model, and gives the optimizer its part. DDP_ERR_NOMEM. */
ddp_status ddp_on_device_open(struct ddp_model *model);
/* No work of the queue may be under way. */
void ddp_on_device_close(struct ddp_model *model);

/* Notes that a gradient is complete when the queue gets to this point. */
void ddp_on_device_complete(struct ddp_model *model, int slot);
/* Looks at all gradients that were noted since the last call, before they are reduced. One launch looks at
   many gradients. */
void ddp_on_device_look(struct ddp_model *model);
/* Sets the program's loss to 0, and notes that no gradient is complete. On the host it does nothing. */
ddp_status ddp_on_device_forget(struct ddp_model *model);
/* Waits for backward. Adds the complete gradients to the model's magnitude, and writes the program's loss to
   *loss; then does the same as ddp_on_device_forget(). */
ddp_status ddp_on_device_fetch(struct ddp_model *model, double *loss);

#endif
