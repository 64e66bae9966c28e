/* SPDX-License-Identifier: Apache-2.0 */
/* grads: the calls by which the program adds a step's gradients and says which are complete. */
#pragma once

#include "ddp.h"

/* Starts bucket `k` by the model's strategy. What this rank does not use, as was learned, and
   for which nobody waits, counts as 0 in it, whatever its memory holds. */
ddp_status ddp_grads_start(ddp_model *model, int k);

/* Looks at the gradients that ddp_model_grad_ready() has not looked at, as the step ends, and
   clears those of unused parameters. */
ddp_status ddp_grads_look_at_rest(ddp_model *model);
