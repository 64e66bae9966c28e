/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl: the backend for a GPU's memory, by NCCL. Its library is loaded (load), and a
   communicator of NCCL's belongs to each lane, with a queue of the device for what runs
   there (handle, lane). NCCL's communicators do not block the host; what it is given goes
   on in steps, which the lane's follower takes, and who waits (ddp_wait_on()).

   Groups that are split or shrunk make communicators of their own when they are first
   used, and inherit nothing: what they come from may have failed, and need not have used
   its lanes. */
#pragma once

#include "comm/core/backend.h"

extern const ddp_backend ddp_backend_nccl;

/* Do all ranks have it for the memory of their GPUs? *taken false, if not, and `why` says on which rank and
   why not. Collective; an error is another one. */
ddp_status ddp_nccl_choose(ddp_comm *comm, bool *taken, char *why, size_t bytes);
