/* SPDX-License-Identifier: Apache-2.0 */
/* renewal: opens a context's world again. In a step with restart=, srun may leave the ranks in their processes that say
   that they survive (ddp_survive()), and start programs only for those that have died. All of them then meet under the
   identity of a new generation. A rank that has stayed finds that identity on the node's progress page, a newcomer in
   its environment. */
#pragma once

#include "context.h"

/* Waits until srun has dealt a new identity to this rank, which has stayed. DDP_ERR_TIMEOUT: srun has dealt none. */
ddp_status ddp_renewal_await(ddp_context *context);

/* Opens the world under the context's identity; context->renewal has the former one then. After an error the context is
   as it was. Collective over the ranks of the generation. */
ddp_status ddp_renewal_meet(ddp_context *context);

/* The rank and the size of `comm` that the caller is to make something for: a newcomer's world is to be the others'. */
void ddp_renewal_place(const ddp_context *context, const ddp_comm *comm, int *rank, int *ranks);

/* Nothing of the former world is needed any more. */
void ddp_renewal_forget(ddp_context *context);
