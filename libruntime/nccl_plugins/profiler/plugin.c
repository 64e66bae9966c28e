/* SPDX-License-Identifier: Apache-2.0 */
/* libnccl-profiler-ddp.so: a profiler plugin of NCCL's, by which a program that knows
   nothing of libddp (PyTorch, JAX) tells on its progress page what it waits for, for
   failure reports, stall= and ddp-status. `srun --ddp=watch` has NCCL load it. An error
   here is none of the program's: NCCL goes on without. */
#include "ddp.h"
#include "nccl_plugins/profiler/abi.h"
#include "nccl_plugins/profiler/watch.h"

static int open_comm(void **context, int *mask, uint64_t id, int ranks, ddp_nccl_log log)
{
	*context = NULL;
	*mask = 0;
	if (!ddp_nccl_watch_open()) {
		if (log != NULL)
			log(DDP_NCCL_LOG_INFO, DDP_NCCL_LOG_INIT, __FILE__, __LINE__,
			    "ddp: nothing is watched: this is no task of srun --ddp (RANK, LOCAL_RANK, "
			    "WORLD_SIZE, DDP_PROGRESS_FD), or it uses libddp, which watches itself");
		return DDP_NCCL_SUCCESS;
	}
	*context = ddp_nccl_watch_comm(ranks, id);
	if (*context == NULL)
		return DDP_NCCL_SYSTEM_ERROR;
	*mask = DDP_NCCL_COLLECTIVE | DDP_NCCL_P2P | DDP_NCCL_KERNEL;
	return DDP_NCCL_SUCCESS;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks,
                   int rank, ddp_nccl_log log)
{
	(void)name;
	(void)nodes;
	(void)rank;
	return open_comm(context, mask, id, ranks, log);
}

static int init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                   int rank, ddp_nccl_log log)
{
	(void)name;
	(void)nodes;
	(void)rank;
	return open_comm(context, mask, id, ranks, log);
}

static int start(void *context, void **handle, uint64_t type, void *parent,
                 const union ddp_nccl_details *details)
{
	*handle = NULL;
	if (type == DDP_NCCL_KERNEL && parent != NULL)
		*handle = ddp_nccl_watch_kernel(parent);
	if (context == NULL)
		return DDP_NCCL_SUCCESS;
	if (type == DDP_NCCL_COLLECTIVE)
		*handle = ddp_nccl_watch_call(context, &(ddp_nccl_call){
			.function = details->collective.function, .type = details->collective.type,
			.count = details->collective.count, .peer = -1,
			.channels = details->collective.channels, .root = details->collective.root });
	else if (type == DDP_NCCL_P2P)
		*handle = ddp_nccl_watch_call(context, &(ddp_nccl_call){
			.function = details->p2p.function, .type = details->p2p.type,
			.count = details->p2p.count, .peer = details->p2p.peer,
			.channels = details->p2p.channels });
	return DDP_NCCL_SUCCESS;
}

static int start_v4(void *context, void **handle, const struct ddp_nccl_event_v4 *event)
{
	return start(context, handle, event->type, event->parent, &event->details);
}

static int start_v5(void *context, void **handle, const struct ddp_nccl_event_v5 *event)
{
	return start(context, handle, event->type, event->parent, &event->details);
}

static int stop(void *handle)
{
	if (handle != NULL)
		ddp_nccl_watch_stop(handle);
	return DDP_NCCL_SUCCESS;
}

static int record(void *handle, int state, const void *arguments)
{
	(void)handle;
	(void)state;
	(void)arguments;
	return DDP_NCCL_SUCCESS;
}

static int finalize(void *context)
{
	if (context != NULL)
		ddp_nccl_watch_comm_end(context);
	return DDP_NCCL_SUCCESS;
}

DDP_API const struct ddp_nccl_profiler_v4 ncclProfiler_v4 = {
	"ddp", init_v4, start_v4, stop, record, finalize,
};

DDP_API const struct ddp_nccl_profiler_v5 ncclProfiler_v5 = {
	"ddp", init_v5, start_v5, stop, record, finalize,
};

DDP_API const struct ddp_nccl_profiler_v5 ncclProfiler_v6 = {
	"ddp", init_v5, start_v5, stop, record, finalize,
};
