#include "comm/front.h"

#include <stdlib.h>

#include "base/error.h"
#include "comm/allocate.h"
#include "comm/core/comm.h"
#include "comm/host.h"
#include "comm/request.h"

/* ---- lanes ------------------------------------------------------------------------------ */

static ddp_status choose_backend(ddp_memory memory, const ddp_backend **backend)
{
	if (memory == DDP_MEMORY_DEVICE)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "this libddp runs no operations on a device's memory");
	*backend = &ddp_backend_host;
	return DDP_OK;
}

static ddp_status open_lane(ddp_comm *comm, ddp_memory memory, int lane, ddp_lane *opened)
{
	const ddp_backend *backend;

	ddp_status status = choose_backend(memory, &backend);
	if (status == DDP_OK)
		status = ddp_request_may_wait("the first operation of a lane");
	if (status == DDP_OK && memory == DDP_MEMORY_HOST && lane == 0)
		opened->self = comm;
	else if (status == DDP_OK)
		status = backend->open(comm, &opened->self);
	if (status == DDP_OK)
		opened->backend = backend;
	return status;
}

/* The lane of an operation, which is opened if it is its first. */
static ddp_status find_lane(ddp_comm *comm, ddp_memory memory, int lane, ddp_lane *found)
{
	ddp_status status = DDP_OK;

	if ((unsigned int)lane >= DDP_LANES || (unsigned int)memory > DDP_MEMORY_DEVICE)
		return ddp_fail(DDP_ERR_INVALID, "there is no lane %d, or no memory %d", lane, (int)memory);
	ddp_lane *place = &comm->lanes.of[memory][lane];
	pthread_mutex_lock(&comm->lanes.lock);
	if (place->backend == NULL)
		status = open_lane(comm, memory, lane, place);
	*found = *place;
	pthread_mutex_unlock(&comm->lanes.lock);
	return status;
}

void ddp_lanes_close(ddp_comm *comm)
{
	for (int memory = 0; memory <= DDP_MEMORY_DEVICE; memory++) {
		for (int lane = 0; lane < DDP_LANES; lane++) {
			const ddp_lane *l = &comm->lanes.of[memory][lane];
			if (l->backend != NULL && l->self != comm)
				l->backend->close(l->self);
		}
	}
}

/* ---- operations ---------------------------------------------------------------------------- */

ddp_status ddp_issue(ddp_comm *comm, const ddp_collective *operation, ddp_request **request)
{
	ddp_request *made;
	ddp_lane lane;

	if (comm == NULL || operation == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_issue(): a NULL argument");
	if (operation->memory == DDP_MEMORY_HOST && operation->lane == 0)
		return ddp_comm_issue(comm, operation, request);
	ddp_status status = ddp_request_make(comm, operation, request == NULL, &made);
	if (status != DDP_OK)
		return status;
	status = find_lane(comm, operation->memory, operation->lane, &lane);
	if (status == DDP_OK)
		status = lane.backend->issue(lane.self, made);
	if (status != DDP_OK)
		free(made);
	else if (request != NULL)
		*request = made;
	return status;
}

ddp_status ddp_run(ddp_comm *comm, const ddp_collective *operation)
{
	ddp_lane lane;

	if (comm == NULL || operation == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_run(): a NULL argument");
	if (operation->memory == DDP_MEMORY_HOST && operation->lane == 0)
		return ddp_comm_run(comm, operation);
	ddp_status status = find_lane(comm, operation->memory, operation->lane, &lane);
	return status == DDP_OK ? ddp_comm_run(lane.self, operation) : status;
}

ddp_status ddp_wait_on(ddp_request *request, void *stream)
{
	(void)stream;
	if (request == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_wait_on(): request is NULL");
	return ddp_fail(DDP_ERR_UNSUPPORTED, "ddp_wait_on(): a queue waits only for operations on a device's memory");
}

/* ---- memory ---------------------------------------------------------------------------------- */

ddp_status ddp_mem_alloc(ddp_comm *comm, size_t bytes, void **memory)
{
	return ddp_host_alloc(comm, bytes, memory);
}

ddp_status ddp_mem_free(ddp_comm *comm, void *memory)
{
	return ddp_host_free(comm, memory);
}
