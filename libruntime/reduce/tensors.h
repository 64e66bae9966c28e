/* SPDX-License-Identifier: Apache-2.0 */
/* tensors: a model as the list of named tensors that a checkpoint holds. */
#pragma once

#include "ddp.h"
#include "optim/optim.h"

/* Tensors that only one strategy has; a checkpoint without them is a whole one. */
#define DDP_EXTRA_PREFIX "ddp.reduce."

typedef struct ddp_tensor {
	char *name;   /* "h.0.mlp.weight" or "optimizer.m.h.0.mlp.weight" */
	int param;    /* which it is, or whose state */
	int state;    /* of the optimizer; -1: the parameter itself, or what is optional */
	bool untrained; /* frozen or a buffer, so it may hold what is not finite */
	bool optional; /* steps that it missed. A file may lack it: then it is 0 */
	bool own;     /* `data` is in an arena of the list's own, which no step changes */
	int ndim;
	const int64_t *shape;
	float *data;
	const float *there; /* where a device has what `data` is a copy of; NULL: it is none, or of
	                       ddp_tensors.params or .whole */
} ddp_tensor;

static inline int64_t ddp_tensor_elements(const ddp_tensor *tensor)
{
	int64_t count = 1;

	for (int d = 0; d < tensor->ndim; d++)
		count *= tensor->shape[d];
	return count;
}

/* A model's parameters, then its optimizer's state, where the model has them. State
   that is spread over ranks is in arenas of this list, or nowhere (data is NULL); and so
   is all that is on a device, or data is an address of the device. */
typedef struct ddp_tensors {
	ddp_tensor *list;
	int count;
	int extras; /* of these, the last: the strategy's own */
	float *params, *own; /* of a device: copies, of the parameters and of the strategy's own */
	float *whole[DDP_OPTIM_STATES_MAX];
} ddp_tensors;

/* Free with ddp_tensors_free(), also after an error. `whole`: with arenas for what is
   spread over ranks, or on a device. */
ddp_status ddp_model_tensors(ddp_model *model, bool whole, ddp_tensors *tensors);
void ddp_tensors_free(ddp_tensors *tensors);

/* A checkpoint's list is made in two steps. All ranks call ddp_model_gather(): it settles and compares the model, and,
   if that needs a collective, makes the whole list on rank 0 and fills its own arenas; otherwise it leaves the list
   empty. Then the rank that writes calls ddp_model_list(), which does what is left to do. `alone`: the world is broken,
   and ddp_model_gather() was not called. Free the list in any case. */
ddp_status ddp_model_gather(ddp_model *model, ddp_tensors *tensors);
ddp_status ddp_model_list(ddp_model *model, bool alone, ddp_tensors *tensors);
/* Fills the list's own arenas from memory that this rank reaches. No rank may be in a
   step; that needs no collective where all have ended the same one. DDP_ERR_STATE:
   it is what only ddp_model_gather() reaches. */
ddp_status ddp_model_collect(const ddp_model *model, const ddp_tensors *tensors);
/* Copies elements [first, first + count) of tensor i to where this rank keeps them, if
   it does. */
ddp_status ddp_model_store(ddp_model *model, const ddp_tensors *tensors, int i, int64_t first,
                           const float *values, int64_t count);

/* A checkpoint without the strategy's own tensors is loaded: leaves them out of the list. */
void ddp_model_forget_extras(ddp_model *model, ddp_tensors *tensors);
