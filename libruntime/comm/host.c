/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/host.h"

#include "base/error.h"
#include "comm/allocate.h"
#include "comm/core/comm.h"
#include "comm/group/build.h"
#include "comm/request.h"

ddp_status ddp_twin_open(ddp_comm *comm, ddp_comm **twin)
{
	ddp_comm *made;

	ddp_status status = ddp_comm_split(comm, 0, 0, &made);
	if (status != DDP_OK)
		return status;
	if ((status = ddp_failure_share(comm, made)) != DDP_OK) {
		ddp_host_close(made);
		return status;
	}
	*twin = made;
	return DDP_OK;
}

ddp_status ddp_host_end(ddp_comm *comm)
{
	ddp_status status = DDP_OK;

	/* Between nodes, no rank gives up messages or closes connections that others still need. A communicator
	   that has stopped has had its last barrier. */
	if ((comm->topology.nodes > 1 || comm->meets) && atomic_load(&comm->failure.status) == DDP_OK &&
	    !atomic_load(&comm->queue.stopping))
		status = ddp_comm_last_barrier(comm);
	ddp_comm_stop(comm);
	return status;
}

void ddp_host_close(ddp_comm *comm)
{
	(void)ddp_host_end(comm);
	if (atomic_load(&comm->twin_of) != NULL)
		ddp_failure_unshare(comm);
	/* Another context may take the slot, so a group that is still open tells no more. */
	if (comm->is_world) {
		atomic_store(&comm->roster->page, NULL);
		atomic_store(&comm->roster->recorder, NULL);
	}
	ddp_comm_leave(comm);
}

static ddp_status open_lane(ddp_comm *comm, void **self)
{
	ddp_comm *twin;
	ddp_status status = ddp_twin_open(comm, &twin);

	if (status == DDP_OK)
		*self = twin;
	return status;
}

static ddp_status issue(void *self, ddp_request *request)
{
	return ddp_request_enqueue(self, request);
}

static ddp_status alloc(void *self, size_t bytes, void **memory)
{
	return ddp_host_alloc(self, bytes, memory);
}

static ddp_status free_memory(void *self, void *memory)
{
	return ddp_host_free(self, memory);
}

static void close_lane(void *self)
{
	ddp_host_close(self);
}

const ddp_backend ddp_backend_host = {
	.name = "host",
	.compares = true,
	.open = open_lane,
	.issue = issue,
	.alloc = alloc,
	.free = free_memory,
	.close = close_lane,
};
