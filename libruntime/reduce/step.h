/* SPDX-License-Identifier: Apache-2.0 */
/* step: one training step, from the first gradient to the update. */
#pragma once

#include "ddp.h"

/* Forgets the step under way: its gradients, what was announced of it, and what is
   being reduced, which may be another part on each rank. Collective. */
ddp_status ddp_model_drop_step(ddp_model *model);

/* For reduce/level: */
/* All ranks have new parameters. */
void ddp_step_count(ddp_model *model);
/* This rank has got the parameters and the state of a step that other ranks have ended. */
void ddp_step_take(ddp_model *model, const ddp_step_stats *stats);
/* Ready for the next step. */
void ddp_step_reset(ddp_model *model);
