/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/handle: making and ending NCCL's communicators, and NCCL's errors as ours. */
#pragma once

#include <pthread.h>

#include "comm/nccl/load.h"
#include "device/device.h"

/* The status of a result of NCCL's; unless it is a success, with a sentence that names
   `call` and has what NCCL tells. `handle` may be NULL. */
ddp_status ddp_nccl_status(const ddp_nccl *nccl, ddp_nccl_handle *handle, int result, const char *call);

/* NCCL's ranks find each other through the one that made the id: more of them ask too much
   of it. 128; a test has fewer. */
extern int ddp_nccl_ranks_per_id;

/* Begins to make a communicator, by one id or several; *handle stays NULL if it cannot. */
ddp_status ddp_nccl_begin(const ddp_nccl *nccl, ddp_device *device, int ranks, int rank, ddp_nccl_id *ids,
                          int id_count, int max_ctas, ddp_nccl_handle **handle);
/* Is it made, or has what was given it been put on its queue? */
ddp_status ddp_nccl_ready(const ddp_nccl *nccl, ddp_nccl_handle *handle, bool *ready);
/* Makes the one of all ranks of `comm`, with ids that go by the host. Collective; waits,
   and tells by the communicator's deadline who has not come so far. */
ddp_status ddp_nccl_connect(const ddp_nccl *nccl, ddp_device *device, ddp_comm *comm, int max_ctas,
                            ddp_nccl_handle **handle);

/* Ends it, in order: all its ranks do, and nothing is under way. The first call only begins
   that, so that ranks may end several in any order; the second one gets what it returned,
   and aborts what does not end by the deadline. */
bool ddp_nccl_begin_end(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle, uint64_t deadline_ns);
void ddp_nccl_end(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle, bool begun,
                  uint64_t deadline_ns);
/* Ends one, and what is under way. NCCL may wait then for all that the GPU has been given,
   also for what another communicator waits for in vain: so the first call begins to end it,
   beside others, and the second one, which must follow, waits. `handle` may be NULL. */
typedef struct ddp_nccl_aborting {
	const ddp_nccl *nccl;
	ddp_device *device;
	ddp_nccl_handle *handle;
	int result;
	bool in_thread;
	pthread_t thread;
} ddp_nccl_aborting;

void ddp_nccl_begin_abort(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle, ddp_nccl_aborting *a);
void ddp_nccl_await_abort(ddp_nccl_aborting *a);
/* The only one that has anything under way. */
void ddp_nccl_abort(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle);
