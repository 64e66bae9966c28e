/* SPDX-License-Identifier: Apache-2.0 */
/* comm/execute: runs operations; comm->run.lock is held. */
#pragma once

#include "ddp.h"

/* Runs a complete collective operation. */
ddp_status ddp_execute(ddp_comm *comm, const ddp_operation *c);

/* Lets sends and receives move until `request` is complete (NULL: until none is
   left), or something else wants to run, or the communicator is being closed. */
ddp_status ddp_execute_p2p(ddp_comm *comm, const ddp_request *request);
