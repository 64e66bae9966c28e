/* SPDX-License-Identifier: Apache-2.0 */
/* comm/host: the backend for the host's memory: shared memory on a node, UCX between
   nodes. A lane is a communicator of the same ranks, a twin. */
#pragma once

#include "comm/core/backend.h"

extern const ddp_backend ddp_backend_host;

/* A communicator of the same ranks as `comm`, with which it fails. Collective. */
ddp_status ddp_twin_open(ddp_comm *comm, ddp_comm **twin);
/* Ends what is open on one that is to be closed; collective unless it has failed. Returns the error
   of waiting for the other ranks. */
ddp_status ddp_host_end(ddp_comm *comm);
/* Closes a twin, or a communicator whose twins have been closed; collective unless it has
   failed. */
void ddp_host_close(ddp_comm *comm);
