/* SPDX-License-Identifier: Apache-2.0 */
/* buffers: tensors that forward writes. At the end of a step ranks make them equal. */
#ifndef DDP_REDUCE_BUFFERS_H
#define DDP_REDUCE_BUFFERS_H

#include "reduce/consensus.h"

/* Whether this rank's are, of those that ranks make alike. */
bool ddp_buffers_finite(const ddp_model *model);

/* Averages and broadcasts them, as their kinds say, over the ranks that count: those that have
   not joined, and, unless that is none, whose buffers are finite. Collective. */
ddp_status ddp_buffers_sync(ddp_model *model, const ddp_consensus *own, const ddp_consensus *all);

#endif
