/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/adopt.h"

#include "base/error.h"
#include "comm/agree.h"
#include "comm/core/backend.h"
#include "comm/core/comm.h"

void ddp_comm_use_device_of(ddp_comm *comm, const ddp_comm *former)
{
	ddp_comm_use_device(comm, former->roster->device);
	ddp_comm_limit_ctas(comm, former->roster->max_ctas);
}

ddp_status ddp_mem_adopt(ddp_comm *comm, ddp_comm *former, void *memory)
{
	const ddp_lane *from = &former->lanes.of[DDP_MEMORY_DEVICE][0], *to = &comm->lanes.of[DDP_MEMORY_DEVICE][0];

	/* The barrier opens the lane. */
	ddp_status status = ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .memory = DDP_MEMORY_DEVICE });
	if (status == DDP_OK && from->backend != to->backend)
		status = ddp_fail(DDP_ERR_STATE, "memory of a device cannot pass from %s to %s", from->backend->name,
		                  to->backend->name);
	/* A device may fail on this rank alone. */
	status = ddp_comm_agree(comm, status, "keep memory of its device");
	if (status == DDP_OK && to->backend->adopt != NULL)
		to->backend->adopt(to->self, from->self, memory);
	return status;
}

void ddp_comm_hold(ddp_comm *comm, int change)
{
	atomic_fetch_add(&comm->memories, change);
}
