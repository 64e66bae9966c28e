/* model: what the checkpoint needs to see of a ddp_model. */
#ifndef DDP_REDUCE_MODEL_H
#define DDP_REDUCE_MODEL_H

#include "context.h"
#include "ddp.h"

typedef struct ddp_tensor {
	char *name;   /* "h.0.mlp.weight" or "optimizer.m.h.0.mlp.weight" */
	int ndim;
	const int64_t *shape;
	float *data;
} ddp_tensor;

ddp_context *ddp_model_context(const ddp_model *model);

/*
 * Parameters, then optimizer state. *tensors and the names are malloc'd; free
 * with ddp_model_tensors_free(). The data are the model's own. DDP_ERR_STATE
 * if a failed step updated only a part of the parameters: they are neither
 * the old ones nor the new ones.
 */
ddp_status ddp_model_tensors(ddp_model *model, ddp_tensor **tensors, int *count);
void ddp_model_tensors_free(ddp_tensor *tensors, int count);

/* Brings optimizer state that other ranks keep to rank 0. Collective; before
   ddp_model_tensors()' data are saved there. */
ddp_status ddp_model_collect(ddp_model *model);

/* Steps done: the optimizer's count, too. */
int64_t ddp_model_step_count(const ddp_model *model);
void ddp_model_set_step_count(ddp_model *model, int64_t steps);

#endif
