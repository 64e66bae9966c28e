/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/front.h"

#include <sched.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "comm/allocate.h"
#include "comm/core/comm.h"
#include "comm/follow.h"
#include "comm/host.h"
#include "comm/nccl/nccl.h"
#include "comm/request.h"
#include "comm/self.h"
#include "device/device.h"

/* ---- lanes ------------------------------------------------------------------------------ */

/* Collective. */
static ddp_status choose_for_device(ddp_comm *comm, const ddp_backend **backend)
{
	const ddp_device_info *device = ddp_device_describe(comm->roster->device);
	bool is_nccl = false;
	char reason[DDP_FAILURE_TEXT];

	const ddp_status status = ddp_nccl_choose(comm, &is_nccl, reason, sizeof(reason));
	if (status != DDP_OK)
		return status;
	*backend = is_nccl ? &ddp_backend_nccl : comm->size == 1 ? &ddp_backend_self : NULL;
	if (*backend == NULL)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "operations on the memory of %s (%s:%d) need NCCL: %s", device->name,
		                device->kind, device->index, reason);
	ddp_log(DDP_LOG_INFO, "rank %d: operations on the memory of %s:%d run %s NCCL: %s", comm->roster->rank,
	        device->kind, device->index, is_nccl ? "by" : "without", reason);
	return DDP_OK;
}

static ddp_status choose_backend(ddp_comm *comm, ddp_memory memory, const ddp_backend **backend)
{
	if (memory == DDP_MEMORY_DEVICE)
		return choose_for_device(comm, backend);
	*backend = &ddp_backend_host;
	return DDP_OK;
}

static void close_lane(const ddp_comm *comm, ddp_lane *lane)
{
	/* The backend of a rank that has messages may have begun to close in the follower's
	   thread: that comes before the follower's own twin on all ranks. */
	ddp_follower_stop(lane->follower);
	if (lane->backend != NULL && lane->self != comm)
		lane->backend->close(lane->self);
	ddp_follower_close(lane->follower);
	lane->follower = NULL;
	lane->backend = NULL;
}

static const char *memory_of(double place)
{
	return place < DDP_LANES ? "the host's" : "a device's";
}

/* All ranks come here together. */
static ddp_status name_other_place(ddp_comm *comm, int64_t place)
{
	char odd_ranks[DDP_OUTLIER_TEXT], usual_ranks[DDP_OUTLIER_TEXT];
	ddp_outlier outlier;
	double odd, usual;

	ddp_status status = ddp_comm_outlier(comm, (double)place, &outlier, &odd, &usual);
	if (status != DDP_OK)
		return status;
	ddp_comm_outlier_names(comm, &outlier, odd_ranks, usual_ranks);
	return ddp_fail(DDP_ERR_MISMATCH, "%s begins to use lane %d of %s memory, but lane %d of %s memory is begun on "
	                "%s: the first operation of each lane must come in the same order on all ranks", odd_ranks,
	                (int)odd % DDP_LANES, memory_of(odd), (int)usual % DDP_LANES, memory_of(usual), usual_ranks);
}

/* A rank that opened another lane would meet this one in all its operations. */
static ddp_status compare_places(ddp_comm *comm, ddp_memory memory, int lane)
{
	const int64_t place = (int64_t)memory * DDP_LANES + lane;
	int64_t extremes[2] = { place, -place };

	ddp_status status = ddp_comm_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = extremes,
	                                                          .count = 2, .type = DDP_I64, .op = DDP_MAX });
	if (status == DDP_OK && (extremes[0] != place || extremes[1] != -place))
		status = name_other_place(comm, place);
	return status;
}

static ddp_status open_lane(ddp_comm *comm, ddp_memory memory, int lane, ddp_lane *opened)
{
	if (memory == DDP_MEMORY_HOST && lane == 0) {
		opened->self = comm;
		return choose_backend(comm, memory, &opened->backend);
	}
	if (memory == DDP_MEMORY_DEVICE && comm->roster->device == NULL)
		return ddp_fail(DDP_ERR_STATE, "an operation on a device's memory, but no device: name one in ddp_options");
	ddp_status status = ddp_request_may_wait("the first operation of a lane");
	if (status == DDP_OK)
		status = compare_places(comm, memory, lane);
	if (status == DDP_OK)
		status = choose_backend(comm, memory, &opened->backend);
	if (status == DDP_OK)
		status = opened->backend->open(comm, &opened->self);
	if (status != DDP_OK) {
		opened->backend = NULL;
		return status;
	}
	if (opened->backend->poll != NULL)
		status = ddp_follower_open(comm, opened, &opened->follower);
	status = ddp_comm_agree(comm, status, "open a lane");
	if (status != DDP_OK)
		close_lane(comm, opened);
	return status;
}

/* An open lane needs no lock: another one may be waiting for all ranks under it. */
static ddp_status find_open_lane(ddp_comm *comm, ddp_memory memory, int lane, const ddp_lane **found)
{
	ddp_lane *place = &comm->lanes.of[memory][lane];
	ddp_status status = DDP_OK;

	if (!atomic_load_explicit(&place->open, memory_order_acquire)) {
		pthread_mutex_lock(&comm->lanes.lock);
		if (!atomic_load_explicit(&place->open, memory_order_relaxed))
			status = open_lane(comm, memory, lane, place);
		atomic_store_explicit(&place->open, status == DDP_OK, memory_order_release);
		pthread_mutex_unlock(&comm->lanes.lock);
	}
	*found = place;
	return status;
}

/* The lane of an operation, which is opened if it is its first. If it is DDP_OK, the lane
   stays until leave_lanes(). */
static ddp_status find_lane(ddp_comm *comm, ddp_memory memory, int lane, const ddp_lane **found)
{
	ddp_status status = DDP_OK;

	if ((unsigned int)lane >= DDP_LANES)
		return ddp_fail(DDP_ERR_INVALID, "there is no lane %d: lanes are 0 to %d", lane, DDP_LANES - 1);
	if ((unsigned int)memory > DDP_MEMORY_DEVICE)
		return ddp_fail(DDP_ERR_INVALID, "%d is no ddp_memory: DDP_MEMORY_HOST or DDP_MEMORY_DEVICE", (int)memory);
	atomic_fetch_add(&comm->lanes.users, 1);
	if (atomic_load(&comm->lanes.closing))
		status = ddp_fail(DDP_ERR_STATE, "the communicator is being closed: nothing is issued any more");
	else
		status = find_open_lane(comm, memory, lane, found);
	if (status != DDP_OK)
		atomic_fetch_sub(&comm->lanes.users, 1);
	return status;
}

static void leave_lanes(ddp_comm *comm)
{
	atomic_fetch_sub(&comm->lanes.users, 1);
}

void ddp_lanes_close(ddp_comm *comm)
{
	/* A callback of one lane may be issuing on another. */
	atomic_store(&comm->lanes.closing, true);
	while (atomic_load(&comm->lanes.users) > 0)
		sched_yield();
	for (int memory = 0; memory <= DDP_MEMORY_DEVICE; memory++) {
		for (int lane = 0; lane < DDP_LANES; lane++)
			close_lane(comm, &comm->lanes.of[memory][lane]);
	}
}

/* ---- operations ---------------------------------------------------------------------------- */

ddp_status ddp_issue(ddp_comm *comm, const ddp_operation *operation, ddp_request **request)
{
	ddp_request *made;
	const ddp_lane *lane;

	if (comm == NULL || operation == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_issue(): a NULL argument");
	if (operation->memory == DDP_MEMORY_HOST && operation->lane == 0)
		return ddp_comm_issue(comm, operation, request);
	ddp_status status = ddp_request_make(comm, operation, request == NULL, &made);
	if (status != DDP_OK)
		return status;
	status = find_lane(comm, operation->memory, operation->lane, &lane);
	if (status == DDP_OK) {
		status = lane->follower != NULL ? ddp_follower_issue(lane->follower, made)
		                                : lane->backend->issue(lane->self, made);
		leave_lanes(comm);
	}
	if (status != DDP_OK)
		free(made);
	else if (request != NULL)
		*request = made;
	return status;
}

ddp_status ddp_run(ddp_comm *comm, const ddp_operation *operation)
{
	const ddp_lane *lane;

	if (comm == NULL || operation == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_run(): a NULL argument");
	if (operation->memory == DDP_MEMORY_HOST && operation->lane == 0)
		return ddp_comm_run(comm, operation);
	ddp_status status = ddp_roster_check_owner(comm->roster, "ddp_run()");
	if (status == DDP_OK)
		status = find_lane(comm, operation->memory, operation->lane, &lane);
	if (status != DDP_OK)
		return status;
	leave_lanes(comm);
	if (lane->follower == NULL)
		return ddp_comm_run(lane->self, operation);
	if (operation->on_complete != NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_run(): on_complete is for ddp_issue()");
	ddp_request *request;
	if ((status = ddp_request_may_wait("ddp_run()")) == DDP_OK)
		status = ddp_issue(comm, operation, &request);
	return status == DDP_OK ? ddp_wait(request) : status;
}

ddp_status ddp_wait_on(ddp_request *request, void *stream)
{
	if (request == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_wait_on(): request is NULL");
	if (ddp_roster_check_owner(request->comm->roster, "ddp_wait_on()") != DDP_OK)
		return DDP_ERR_STATE;
	const ddp_operation *c = &request->operation;
	const ddp_lane *lane = &request->comm->lanes.of[c->memory][c->lane];
	if (lane->follower == NULL || lane->backend->wait_on == NULL)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "ddp_wait_on(): a queue waits only for operations on a device's memory");
	return ddp_follower_wait_on(lane->follower, request, stream);
}

/* ---- memory ---------------------------------------------------------------------------------- */

ddp_status ddp_mem_alloc(ddp_comm *comm, size_t bytes, void **memory)
{
	return ddp_host_alloc(comm, bytes, memory);
}

ddp_status ddp_mem_alloc_on(ddp_comm *comm, ddp_memory kind, size_t bytes, void **memory)
{
	const ddp_lane *lane;

	if (comm == NULL || memory == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_alloc_on(): a NULL argument");
	/* find_lane() may open a lane. */
	ddp_status status = ddp_roster_check_owner(comm->roster, "ddp_mem_alloc_on()");
	if (status == DDP_OK)
		status = find_lane(comm, kind, 0, &lane);
	if (status != DDP_OK)
		return status;
	leave_lanes(comm);
	return lane->backend->alloc(lane->self, bytes, memory);
}

ddp_status ddp_mem_free(ddp_comm *comm, void *memory)
{
	const ddp_lane *lane;

	if (comm == NULL) {
		if (memory != NULL && ddp_allocation_free_kept(memory))
			return DDP_OK;
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_free(): comm is NULL, and %p was not kept by ddp_mem_keep()", memory);
	}
	const bool of_device = comm->roster->device != NULL && ddp_device_owns(comm->roster->device, memory);
	ddp_status status = ddp_roster_check_owner(comm->roster, "ddp_mem_free()");
	if (status == DDP_OK)
		status = find_lane(comm, of_device ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST, 0, &lane);
	if (status != DDP_OK)
		return status;
	leave_lanes(comm);
	return lane->backend->free(lane->self, memory);
}
