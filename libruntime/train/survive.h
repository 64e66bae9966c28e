/* SPDX-License-Identifier: Apache-2.0 */
/* survive: ddp_survive() for the training loop, which does more between steps. */
#pragma once

#include "reduce/level.h"

/* ddp_survive(). *left becomes whether ranks were lost, and this rank goes on. done[] are numbers of this rank, which
   become the least of all ranks that are left. */
ddp_status ddp_survive_with(ddp_model *model, ddp_loader *loader, ddp_status status, int64_t done[DDP_DONE], bool *left);
