/* grads: what a step's gradients are, and when they are final, as the program tells. */
#ifndef DDP_REDUCE_GRADS_H
#define DDP_REDUCE_GRADS_H

#include "ddp.h"

/* Looks at the gradients that ddp_grad_ready() has not looked at, as the step ends, and
   clears those of unused parameters. */
ddp_status ddp_grads_look_at_rest(ddp_model *model);

#endif
