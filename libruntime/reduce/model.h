/* SPDX-License-Identifier: Apache-2.0 */
/* model: the functions by which checkpoints read and write a ddp_model. */
#pragma once

#include "context.h"
#include "ddp.h"

/* DDP_ERR_STATE if a failed step or load has changed only a part of parameters
   and optimizer state: they are neither the old ones nor the new ones. */
ddp_status ddp_model_check_whole(const ddp_model *model);

/* Waits until all parameters are there, and gives the steps that are done and the numbers that a checkpoint holds
   (hypers[DDP_HYPERS], reduce/hypers.h). DDP_ERR_STATE: see ddp_model_check_whole(). ddp_model_gather() follows
   (reduce/tensors.h). */
ddp_status ddp_model_begin_save(ddp_model *model, int64_t *steps, double *hypers);

/* All parameters are new: in bf16, too, as far as the model has that. */
void ddp_model_round_all(ddp_model *model);

/* Something that goes with the model and is released with it, in place of what was
   attached before. */
void ddp_model_attach(ddp_model *model, void *thing, void (*release)(void *thing));

/* Steps done: the optimizer's count, too. */
int64_t ddp_model_step_count(const ddp_model *model);
void ddp_model_set_step_count(ddp_model *model, int64_t steps);
