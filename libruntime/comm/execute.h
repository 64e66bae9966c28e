/* comm/execute: checks an operation, and runs it. */
#ifndef DDP_COMM_EXECUTE_H
#define DDP_COMM_EXECUTE_H

#include "comm/internal.h"

/* Checks `given` and writes it to *c with all fields set: the input's place,
   a scale that is not 0. Local; DDP_ERR_INVALID breaks nothing. */
ddp_status ddp_collective_complete(const ddp_comm *comm, const ddp_collective *given,
                                   ddp_collective *c);

/* Runs a complete operation; comm->run_lock is held. */
ddp_status ddp_execute(ddp_comm *comm, const ddp_collective *c);

#endif
