/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank is doing, from the slots of all contexts of its process: each context writes one slot of the
   rank's progress page. The rank may have written anything there, so slots are checked as in progress_text.h, which
   reads the result. Pure. */
#pragma once

#include <stdbool.h>

#include "watch/progress.h"

/* Makes one description of a copy of the page. A rank waits if any of its contexts does, in what the oldest
   wait says; collectives have the numbers of the context of the step's ranks, so another context's wait
   is told without its number. Phase and step are those that changed last, the error is the one that is least
   over, and the rank has ended its part once all contexts have. Python's slot tells phase and step beside
   libddp's or NCCL's, which tell of collectives. */
void slots_read(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], struct ddp_progress *shown);

/* Whether the ranks go on if one of them dies. */
bool slots_survive(const struct ddp_progress *shown);

/* Whether the rank has gone on without ranks that have died. */
bool slots_have_survived(const struct ddp_progress *shown);

/* Gives the loss of the last step, which only programs of Python tell. False: it is not told. */
bool slots_loss(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], double *loss);

/* Gives how much of the last step the rank waited for gradients, from 0 to 1. False: it is not told. */
bool slots_exposed(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], double *ratio);

/* What a rank has computed: see struct ddp_progress. */
struct slots_compute {
	uint64_t ns, steps;
	uint32_t pid;
};

/* Of the context with most steps. False: none tells. */
bool slots_compute(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], struct slots_compute *compute);
