/* SPDX-License-Identifier: Apache-2.0 */
/* leader: one rank does the work, and all ranks get its status. */
#pragma once

#include "ddp.h"

/* Runs work(argument) on rank 0 and returns its status on all ranks, with its
   message; on success rank 0's `result` of `bytes` (may be 0) is copied to
   all. The ranks are those of the model. While rank 0 works, the others hear from it
   often enough that no deadline of the context passes, however slow the disk. Collective. */
ddp_status ddp_leader_run(const ddp_model *model, ddp_status (*work)(void *), void *argument,
                          void *result, size_t bytes);
