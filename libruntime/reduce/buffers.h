/* buffers: tensors that forward writes, which ranks make alike at the end of a step. */
#ifndef DDP_REDUCE_BUFFERS_H
#define DDP_REDUCE_BUFFERS_H

#include "ddp.h"

/* Averages and broadcasts them, as their kinds say, over the `active` ranks, which have not
   joined. Collective. */
ddp_status ddp_buffers_sync(ddp_model *model, int active);

#endif
