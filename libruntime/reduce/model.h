/* model: what the checkpoint needs to see of a ddp_model. */
#ifndef DDP_REDUCE_MODEL_H
#define DDP_REDUCE_MODEL_H

#include "context.h"
#include "ddp.h"

ddp_context *ddp_model_context(const ddp_model *model);

/* DDP_ERR_STATE if a failed step or load has changed only a part of parameters
   and optimizer state: they are neither the old ones nor the new ones. */
ddp_status ddp_model_check_whole(const ddp_model *model);
void ddp_model_set_partly_updated(ddp_model *model, bool partly_updated);

/* Forgets the step under way: its gradients, what was announced of it, and what is
   being reduced, which may be another part on each rank. Collective. */
ddp_status ddp_model_drop_step(ddp_model *model);

/* How a model is trained. Numbers, so that a file can hold them by name. */
typedef enum ddp_hyper {
	DDP_HYPER_OPTIMIZER, DDP_HYPER_LEARNING_RATE, /* as the model was made */
	DDP_HYPER_BETA1, DDP_HYPER_BETA2, DDP_HYPER_EPSILON, DDP_HYPER_WEIGHT_DECAY,
	DDP_HYPER_MOMENTUM, DDP_HYPER_CLIP_NORM,
	DDP_HYPER_NESTEROV, DDP_HYPER_ADAFACTOR_DECAY, DDP_HYPER_ADAFACTOR_LEAST_SCALE,
	DDP_HYPER_ADAFACTOR_CLIP, DDP_HYPER_MUON_ITERATIONS, DDP_HYPER_MUON_MATCH_RMS,
	DDP_HYPER_CURRENT_RATE, /* of learning: what ddp_set_learning_rate() set last */
	DDP_HYPER_LOSS_SCALE, DDP_HYPER_GOOD_STEPS, /* as the next step begins: see optim/scaler.h */
	DDP_HYPERS
} ddp_hyper;
const char *ddp_hyper_name(ddp_hyper hyper); /* "beta1" */
void ddp_model_get_hypers(const ddp_model *model, double *hypers);
/* Scales the loss as a checkpoint says, if the model's scale is dynamic. */
void ddp_model_resume_scale(ddp_model *model, const double *hypers);

/* Before a save: see settle() of reduce/strategy.h. Collective. */
ddp_status ddp_model_settle(ddp_model *model);

/* Waits until all parameters are there (see ddp_param_wait()); an error leaves the model partly
   updated. */
ddp_status ddp_model_arrive(ddp_model *model);

/* Whether all ranks have the same parameters; see reduce/consensus.h. Collective. */
ddp_status ddp_model_compare(ddp_model *model);

/* Something that goes with the model and is released with it, in place of what was
   attached before; ddp_model_attached() is NULL if nothing is. */
void ddp_model_attach(ddp_model *model, void *thing, void (*release)(void *thing));
void *ddp_model_attached(const ddp_model *model);

/* Steps done: the optimizer's count, too. */
int64_t ddp_model_step_count(const ddp_model *model);
void ddp_model_set_step_count(ddp_model *model, int64_t steps);

#endif
