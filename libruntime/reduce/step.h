/* SPDX-License-Identifier: Apache-2.0 */
/* step: one training step, from the first gradient to the update. */
#ifndef DDP_REDUCE_STEP_H
#define DDP_REDUCE_STEP_H

#include "ddp.h"

/* Forgets the step under way: its gradients, what was announced of it, and what is
   being reduced, which may be another part on each rank. Collective. */
ddp_status ddp_model_drop_step(ddp_model *model);

#endif
