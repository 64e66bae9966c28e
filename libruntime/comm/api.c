/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/api.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "comm/allocate.h"
#include "comm/core/backend.h"
#include "comm/core/comm.h"
#include "comm/core/liveness.h"
#include "comm/follow.h"
#include "comm/group/world.h"
#include "comm/host.h"
#include "comm/nccl/nccl.h"
#include "comm/ops/kernels.h"
#include "comm/request.h"
#include "comm/shm/memory.h"
#include "device/device.h"
#include "watch/watch.h"

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
	bool same;

	ddp_status status = ddp_comm_same(comm, place, &same);
	return status == DDP_OK && !same ? name_other_place(comm, place) : status;
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

static void close_lanes(ddp_comm *comm)
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

/* ---- opening and closing ------------------------------------------------------------- */

ddp_status ddp_comm_open(const ddp_job *job, ddp_wireup *wireup, int timeout_ms, const ddp_comm *former,
                         ddp_comm **comm)
{
	if (job->world_size < 1 || job->rank < 0 || job->rank >= job->world_size || timeout_ms <= 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_open(): rank %d of %d, timeout %d ms", job->rank,
		                job->world_size, timeout_ms);
	return ddp_world_open(job, wireup, timeout_ms, former, comm);
}

static bool has_open_lanes(const ddp_comm *comm)
{
	for (int memory = 0; memory <= DDP_MEMORY_DEVICE; memory++) {
		for (int lane = 0; lane < DDP_LANES; lane++) {
			const ddp_lane *place = &comm->lanes.of[memory][lane];
			if (atomic_load(&place->open) && place->self != comm)
				return true;
		}
	}
	return false;
}

void ddp_comm_leave_failure(ddp_comm *comm)
{
	ddp_failure_owed(comm);
}

ddp_status ddp_comm_await_all(ddp_comm *comm)
{
	if (ddp_comm_check(comm) != DDP_OK)
		return DDP_OK;
	comm->meets = true;
	/* A lane is closed with the others', and would wait for a rank that does not come as long
	   again. Without lanes the last barrier does. */
	return has_open_lanes(comm) ? ddp_comm_meet(comm) : DDP_OK;
}

/* A failure that comes behind the barrier, such as a peer that has gone, is no error. */
static ddp_status end(ddp_comm *comm)
{
	const bool fine = ddp_comm_check(comm) == DDP_OK;

	close_lanes(comm);
	const ddp_status status = fine ? ddp_comm_check(comm) : DDP_OK;
	const ddp_status ended = ddp_host_end(comm);
	if (!fine)
		return ddp_failure_left(comm);
	return status != DDP_OK ? ddp_comm_check(comm) : ended;
}

ddp_status ddp_comm_close(ddp_comm *comm)
{
	ddp_kept_error kept;

	if (comm == NULL)
		return DDP_OK;
	if (ddp_roster_check_owner(comm->roster, "to close a communicator") != DDP_OK)
		return DDP_ERR_STATE;
	ddp_error_keep(&kept, end(comm));
	ddp_host_close(comm);
	return ddp_error_return(&kept);
}

ddp_status ddp_comm_free(ddp_comm *comm)
{
	if (comm == NULL)
		return DDP_OK;
	if (comm->is_world)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_free(): the world communicator belongs to its context");
	if (atomic_load(&comm->models) + atomic_load(&comm->memories) > 0)
		return ddp_fail(DDP_ERR_STATE, "ddp_comm_free(): a model is still trained on the communicator, or uses device memory "
		                "that the communicator gave it: free the model first");
	if (ddp_roster_check_owner(comm->roster, "ddp_comm_free()") != DDP_OK || ddp_request_may_wait("ddp_comm_free()") != DDP_OK)
		return DDP_ERR_STATE;
	return ddp_comm_close(comm);
}

/* ---- what is known of it ---------------------------------------------------------------- */

void ddp_comm_set_watch(ddp_comm *world, struct ddp_watch *watch)
{
	ddp_watch_keep(watch);
	world->roster->watch = watch;
	pthread_mutex_lock(&world->run.lock);
	world->roster->page = ddp_watch_page(watch);
	world->roster->recorder = ddp_watch_recorder(watch);
	pthread_mutex_unlock(&world->run.lock);
}

void ddp_comm_use_device(ddp_comm *comm, struct ddp_device *device)
{
	if (device == NULL || ddp_device_describe(device)->is_host_memory)
		return;
	ddp_device_keep(device);
	comm->roster->device = device;
}

void ddp_comm_limit_ctas(ddp_comm *comm, int max_ctas)
{
	comm->roster->max_ctas = max_ctas;
}

ddp_status ddp_comm_choose(ddp_comm *world, ddp_comm *given, const char *function, ddp_comm **comm)
{
	if (given != NULL && given->roster != world->roster)
		return ddp_fail(DDP_ERR_INVALID, "%s: the option comm is a communicator of another context: give one that was "
		                "made of this context's world", function);
	*comm = given != NULL ? given : world;
	return DDP_OK;
}

void ddp_comm_keep(ddp_comm *comm, int change)
{
	atomic_fetch_add(&comm->models, change);
}

int ddp_comm_models(const ddp_comm *comm)
{
	return atomic_load(&comm->models);
}

int ddp_comm_world_rank(const ddp_comm *comm, int rank)
{
	return comm->topology.world_ranks[rank];
}

int ddp_comm_rank(const ddp_comm *comm)
{
	return comm != NULL ? comm->rank : -1;
}

int ddp_comm_size(const ddp_comm *comm)
{
	return comm != NULL ? comm->size : 0;
}

int ddp_comm_nodes(const ddp_comm *comm)
{
	return comm->topology.nodes;
}

int ddp_comm_node(const ddp_comm *comm)
{
	return comm->topology.node_of[comm->rank];
}

int ddp_comm_local_size(const ddp_comm *comm)
{
	return comm->node.size;
}

int ddp_comm_local_rank(const ddp_comm *comm)
{
	return comm->node.self;
}

int ddp_comm_rank_at(const ddp_comm *comm, int i)
{
	return comm->node.ranks[i];
}

int ddp_comm_least_local_size(const ddp_comm *comm)
{
	return comm->topology.channels;
}

static const char *text_or_none(const char *text)
{
	return text != NULL ? text : "";
}

ddp_status ddp_comm_describe(ddp_comm *comm, ddp_comm_info *info)
{
	if (comm == NULL || info == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_describe(): a NULL argument");
	const ddp_lane *device = &comm->lanes.of[DDP_MEMORY_DEVICE][0];
	*info = (ddp_comm_info){
		.nodes = comm->topology.nodes, .local_size = comm->node.size,
		.network = comm->topology.nodes > 1 ? "ucx" : "",
		.algorithm = text_or_none(atomic_load_explicit(&comm->hier.ran, memory_order_relaxed)),
		.instructions = ddp_kernels_name(),
		.device_backend = atomic_load_explicit(&device->open, memory_order_acquire) ? device->backend->name : "",
	};
	return DDP_OK;
}

ddp_status ddp_comm_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies)
{
	return ddp_memory_copies(comm, memory, bytes, copies);
}

bool ddp_comm_broken(ddp_comm *comm)
{
	return ddp_comm_check(comm) != DDP_OK;
}

ddp_status ddp_comm_check_owner(const ddp_comm *comm, const char *what)
{
	return ddp_roster_check_owner(comm->roster, what);
}

bool ddp_comm_fail(ddp_comm *comm, const char *reason)
{
	ddp_comm_break(comm, DDP_ERR_ABORTED, comm->rank, "%s left: %s", ddp_rank_text(comm, comm->rank), reason);
	ddp_failure_returned(comm);
	return comm->failure.culprit == comm->rank || comm->failure.culprit == DDP_NOBODY;
}

ddp_status ddp_comm_abort(ddp_comm *comm, const char *reason)
{
	if (comm == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_abort(): comm is NULL");
	if (ddp_roster_check_owner(comm->roster, "ddp_comm_abort()") != DDP_OK)
		return DDP_ERR_STATE;
	ddp_comm_break(comm, DDP_ERR_ABORTED, comm->rank, "%s aborted: %s",
	               ddp_rank_text(comm, comm->rank), reason != NULL ? reason : "no reason given");
	ddp_failure_returned(comm); /* who aborts knows */
	return DDP_OK;
}

/* ---- one call per kind -------------------------------------------------------------- */

ddp_status ddp_all_reduce(ddp_comm *comm, const void *send, void *recv, size_t count,
                          ddp_type type, ddp_op op)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .send = send, .recv = recv,
	                                        .count = count, .type = type, .op = op });
}

ddp_status ddp_reduce(ddp_comm *comm, const void *send, void *recv, size_t count, ddp_type type,
                      ddp_op op, int root)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_REDUCE, .send = send, .recv = recv,
	                                        .count = count, .type = type, .op = op, .root = root });
}

ddp_status ddp_broadcast(ddp_comm *comm, void *buffer, size_t count, ddp_type type, int root)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_BROADCAST, .recv = buffer, .count = count,
	                                        .type = type, .root = root });
}

ddp_status ddp_reduce_scatter(ddp_comm *comm, const void *send, void *recv, size_t count,
                              ddp_type type, ddp_op op)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_REDUCE_SCATTER, .send = send, .recv = recv,
	                                        .count = count, .type = type, .op = op });
}

ddp_status ddp_all_gather(ddp_comm *comm, const void *send, void *recv, size_t count,
                          ddp_type type)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = send, .recv = recv,
	                                        .count = count, .type = type });
}

ddp_status ddp_gather(ddp_comm *comm, const void *send, void *recv, size_t count, ddp_type type,
                      int root)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_GATHER, .send = send, .recv = recv,
	                                        .count = count, .type = type, .root = root });
}

ddp_status ddp_scatter(ddp_comm *comm, const void *send, void *recv, size_t count, ddp_type type,
                       int root)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_SCATTER, .send = send, .recv = recv,
	                                        .count = count, .type = type, .root = root });
}

ddp_status ddp_all_to_all(ddp_comm *comm, const void *send, void *recv, size_t count,
                          ddp_type type)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_ALL_TO_ALL, .send = send, .recv = recv,
	                                        .count = count, .type = type });
}

ddp_status ddp_send(ddp_comm *comm, const void *buffer, size_t count, ddp_type type, int peer,
                    int tag)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_SEND, .send = buffer, .count = count,
	                                        .type = type, .root = peer, .tag = tag });
}

ddp_status ddp_recv(ddp_comm *comm, void *buffer, size_t count, ddp_type type, int peer, int tag)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = buffer, .count = count,
	                                        .type = type, .root = peer, .tag = tag });
}

ddp_status ddp_barrier(ddp_comm *comm)
{
	return ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER });
}

/* ---- what is lost ---------------------------------------------------------------------- */

static bool has_rank(const ddp_comm *comm, int world_rank)
{
	for (int r = 0; r < comm->size; r++) {
		if (comm->topology.world_ranks[r] == world_rank)
			return true;
	}
	return false;
}

ddp_status ddp_comm_lost(ddp_comm *comm, const ddp_comm *left, bool *dead)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	const uint64_t deadline_ns = ddp_ms_from_now(5000);

	for (int i = 0; i < comm->node.size; i++) {
		const int world_rank = ddp_comm_world_rank(comm, comm->node.ranks[i]);
		dead[i] = !has_rank(left, world_rank);
		while (dead[i] && ddp_peer_alive(&comm->roster->peers[world_rank])) {
			if (ddp_now_ns() > deadline_ns)
				return ddp_fail(DDP_ERR_STATE, "%s is lost, but its process still runs, and may write to the "
				                "memory that it shares with this rank", ddp_rank_text(comm, comm->node.ranks[i]));
			nanosleep(&pause, NULL);
		}
	}
	return DDP_OK;
}
