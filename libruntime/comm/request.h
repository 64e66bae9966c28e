/* SPDX-License-Identifier: Apache-2.0 */
/* comm/request: the queue of operations, the thread that runs them, and waiting for
   completion. */
#pragma once

#include "comm/core/completion.h"

/* A request for an operation on the host's or a device's memory, which has been checked.
   `let_go`: the program has no pointer to it. */
ddp_status ddp_request_make(ddp_comm *comm, const ddp_operation *operation, bool let_go,
                            ddp_request **request);
/* Queues it to run on this communicator. */
ddp_status ddp_request_enqueue(ddp_comm *comm, ddp_request *request);
/* ddp_issue() and ddp_run() of an operation on the host's memory, on this communicator
   whatever its lane. */
ddp_status ddp_comm_issue(ddp_comm *comm, const ddp_operation *operation, ddp_request **request);
ddp_status ddp_comm_run(ddp_comm *comm, const ddp_operation *operation);

/* Issues a message of the library's own (comm/p2p/match), which no receive of the program's takes. */
ddp_status ddp_comm_issue_own(ddp_comm *comm, const ddp_operation *message, ddp_request **request);

/* A barrier by which the program's call that closes the communicator waits for all ranks, while they
   can still run operations. */
ddp_status ddp_comm_meet(ddp_comm *comm);
/* Waits like this after what is queued, and nothing runs after it. A peer that closes its communicator from then
   on breaks no send or receive that is still open. */
ddp_status ddp_comm_last_barrier(ddp_comm *comm);
/* Waits until what is queued has run; sends and receives that have not met their
   counterpart end with an error. */
void ddp_comm_stop(ddp_comm *comm);

/* ddp_wait() that also tells when its thread, or its device, began and ended work
   on the request, for the trace. The times are written on success only. */
ddp_status ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns);
