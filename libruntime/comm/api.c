/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/api.h"

#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/core/liveness.h"
#include "comm/front.h"
#include "comm/group/world.h"
#include "comm/host.h"
#include "comm/ops/kernels.h"
#include "comm/shm/memory.h"
#include "device/device.h"
#include "watch/watch.h"

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

	ddp_lanes_close(comm);
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
	if (atomic_load(&comm->models) > 0)
		return ddp_fail(DDP_ERR_STATE, "ddp_comm_free(): a model is still trained on the communicator: free the model before");
	if (ddp_roster_check_owner(comm->roster, "ddp_comm_free()") != DDP_OK || ddp_request_may_wait("ddp_comm_free()") != DDP_OK)
		return DDP_ERR_STATE;
	return ddp_comm_close(comm);
}

/* ---- what is known of it ---------------------------------------------------------------- */

void ddp_comm_set_page(ddp_comm *comm, struct ddp_progress *page, const struct ddp_recorder *recorder)
{
	pthread_mutex_lock(&comm->run.lock);
	comm->roster->page = page;
	comm->roster->recorder = recorder;
	pthread_mutex_unlock(&comm->run.lock);
}

void ddp_comm_set_watch(ddp_comm *world, struct ddp_watch *watch)
{
	ddp_watch_keep(watch);
	world->roster->watch = watch;
	ddp_comm_set_page(world, ddp_watch_page(watch), ddp_watch_recorder(watch));
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
	const uint64_t deadline_ns = ddp_now_ns() + 5000000000u;

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
