/*
 * on_device: what a model keeps in a device's memory besides its arenas: the optimizer's
 * state, unless the strategy spreads it, and what it works in; and what backward's kernels find
 * out, which the host fetches once: the program's loss, and the largest magnitude of each
 * gradient.
 */
#ifndef DDP_REDUCE_ON_DEVICE_H
#define DDP_REDUCE_ON_DEVICE_H

#include "reduce/layout.h"

struct ddp_model;

typedef struct ddp_results {
	double *loss;      /* on the device: [1]; behind it, [params]: */
	float *largest;
	double *loss_here; /* as fetched */
	float *largest_here;
} ddp_results;

/* What a model on a device needs of this rank alone; lends the optimizer its memory.
   DDP_ERR_NOMEM. */
ddp_status ddp_on_device_open(struct ddp_model *model);
/* No work of the queue may be under way. */
void ddp_on_device_close(struct ddp_model *model);

/* A gradient is complete when the queue has come here. */
void ddp_on_device_look(struct ddp_model *model, int slot);
/* The program's loss begins again at 0. On the host there is none. */
ddp_status ddp_on_device_forget(struct ddp_model *model);
/* Waits for backward: into the model's magnitude, what was looked at, and the program's loss,
   which begins again at 0. */
ddp_status ddp_on_device_fetch(struct ddp_model *model, double *loss);

#endif
