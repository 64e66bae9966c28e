/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/nccl_standin.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "comm/nccl/abi.h"
#include "tests/device/nccl_standin_move.h"
#include "tests/device/runtime.h"

nccl_standin_switches nccl_standin = { .version = STANDIN_VERSION };

static __attribute__((constructor)) void choose_version(void)
{
	const char *given = getenv("FAKE_GPU_NCCL");

	if (given != NULL)
		nccl_standin.version = atoi(given);
}

/* The leak sanitizer of gcc 12 goes wrong over threads' memory that ld.so allots to a library
   when it is first used, and only then. */
#define OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))

OF_THREAD int depth;
OF_THREAD work *group; /* a group's calls are all of one communicator here */

static bool fails(const char *name, int *result)
{
	if (nccl_standin.failing == NULL || strcmp(nccl_standin.failing, name) != 0)
		return false;
	*result = nccl_standin.result;
	return true;
}

/* Whether the call fails; with an error of CUDA's if the thread's GPU is not the communicator's. */
static bool fails_on_device(const char *name, int *result)
{
	*result = DDP_NCCL_UNHANDLED_CUDA_ERROR;
	return fake_gpu_here() == NULL || fails(name, result);
}

/* ---- communicators ------------------------------------------------------------------------------------ */

static bool is_ready(const standin_comm *comm)
{
	if (comm->finalized && atomic_load(&comm->users) > 1)
		return false;
	return comm->polls == 0 && comm->pending == NULL && (comm->made || atomic_load(&comm->shared->joined) == comm->ranks);
}

/* At the end of a group: begins what its calls ask for. */
static int begin(work *w)
{
	standin_comm *comm = w->comm;

	if (w->count == 0) {
		free(w);
		return DDP_NCCL_SUCCESS;
	}
	if (nccl_standin.polls == 0)
		return standin_queue(w);
	comm->polls = nccl_standin.polls;
	comm->pending = w;
	return DDP_NCCL_IN_PROGRESS;
}

static int add_call(const char *name, call c, void *handle, void *stream)
{
	standin_comm *comm = handle;
	int result;

	if (fails_on_device(name, &result))
		return result;
	if (!is_ready(comm)) /* as NCCL: the one before is not on its queue yet */
		return DDP_NCCL_INVALID_ARGUMENT;
	if (c.count == 0)
		return DDP_NCCL_SUCCESS;
	if (c.op >= DDP_NCCL_OPS) {
		if (c.op >= DDP_NCCL_OPS + SCALARS || !comm->scalars[c.op - DDP_NCCL_OPS].used)
			return DDP_NCCL_INVALID_ARGUMENT;
		c.scalar = comm->scalars[c.op - DDP_NCCL_OPS];
		if (c.scalar.type != c.type)
			return DDP_NCCL_INVALID_ARGUMENT;
	}
	work *w = depth > 0 ? group : NULL;
	if (w == NULL && (w = calloc(1, sizeof(*w))) == NULL)
		return DDP_NCCL_SYSTEM_ERROR;
	w->comm = comm;
	w->queue = stream;
	w->calls[w->count++] = c;
	if (depth > 0)
		group = w;
	return depth > 0 ? DDP_NCCL_SUCCESS : begin(w);
}

DDP_API int ncclGroupStart(void);
DDP_API int ncclGroupEnd(void);
DDP_API int ncclGetVersion(int *version);
DDP_API const char *ncclGetErrorString(int result);
DDP_API const char *ncclGetLastError(void *handle);
DDP_API int ncclGetUniqueId(ddp_nccl_id *id);
DDP_API int ncclCommInitRankConfig(void **handle, int ranks, ddp_nccl_id id, int rank, ddp_nccl_config *config);
DDP_API int ncclCommInitRankScalable(void **handle, int ranks, int rank, int ids, ddp_nccl_id *id,
                                     ddp_nccl_config *config);
DDP_API int ncclCommGetAsyncError(void *handle, int *state);
DDP_API int ncclCommFinalize(void *handle);
DDP_API int ncclCommDestroy(void *handle);
DDP_API int ncclCommAbort(void *handle);
DDP_API int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *handle, void *stream);
DDP_API int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *handle,
                       void *stream);
DDP_API int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *handle, void *stream);
DDP_API int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *handle, void *stream);
DDP_API int ncclAllGather(const void *send, void *recv, size_t count, int type, void *handle, void *stream);
DDP_API int ncclSend(const void *buffer, size_t count, int type, int peer, void *handle, void *stream);
DDP_API int ncclRecv(void *buffer, size_t count, int type, int peer, void *handle, void *stream);
DDP_API int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, void *handle);
DDP_API int ncclRedOpDestroy(int op, void *handle);
DDP_API int ncclMemAlloc(void **memory, size_t bytes);
DDP_API int ncclMemFree(void *memory);
DDP_API int ncclCommRegister(void *handle, void *memory, size_t bytes, void **registration);
DDP_API int ncclCommDeregister(void *handle, void *registration);

int ncclGroupStart(void)
{
	int result;

	if (fails("ncclGroupStart", &result))
		return result;
	depth++;
	return DDP_NCCL_SUCCESS;
}

int ncclGroupEnd(void)
{
	work *w = group;
	int result;

	if (depth == 0)
		return DDP_NCCL_INVALID_USAGE;
	depth--;
	group = NULL;
	if (fails("ncclGroupEnd", &result)) {
		free(w);
		return result;
	}
	return w != NULL ? begin(w) : DDP_NCCL_SUCCESS;
}

int ncclGetVersion(int *version)
{
	*version = nccl_standin.version;
	return DDP_NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result)
{
	return result == DDP_NCCL_REMOTE_ERROR ? "remote process exited or there was a network error"
	                                       : "unhandled system error";
}

const char *ncclGetLastError(void *handle)
{
	(void)handle;
	return "what the stand-in says";
}

int ncclGetUniqueId(ddp_nccl_id *id)
{
	static atomic_int count;
	struct timespec now;
	int result;

	if (fails("ncclGetUniqueId", &result))
		return result;
	clock_gettime(CLOCK_MONOTONIC, &now);
	memset(id, 0, sizeof(*id));
	snprintf(id->internal, sizeof(id->internal), "/ddp-nccl-%d-%d-%ld", (int)getpid(), atomic_fetch_add(&count, 1),
	         (long)now.tv_nsec);
	return DDP_NCCL_SUCCESS;
}

/* What ids amount to in their order; never 0. */
static uint64_t sum_ids(const ddp_nccl_id *ids, int count)
{
	uint64_t sum = 1469598103934665603u;

	for (size_t i = 0; i < (size_t)count * sizeof(*ids); i++)
		sum = (sum ^ ((const unsigned char *)ids)[i]) * 1099511628211u;
	return sum | 1;
}

/* The last to join takes the name away. */
static int join(void **handle, int ranks, const ddp_nccl_id *id, int ids, int rank, const ddp_nccl_config *config)
{
	static atomic_int made;
	uint64_t sum = 0;
	standin_comm *comm = calloc(1, sizeof(*comm));
	const int file = shm_open(id->internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *shared = MAP_FAILED;

	if (file >= 0 && ftruncate(file, sizeof(region)) == 0)
		shared = mmap(NULL, sizeof(region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (file >= 0)
		close(file);
	if (comm == NULL || shared == MAP_FAILED || ranks > RANKS_MAX || config->blocking != 0 ||
	    config->magic != DDP_NCCL_CONFIG_MAGIC) {
		free(comm);
		return DDP_NCCL_SYSTEM_ERROR;
	}
	comm->shared = shared;
	comm->ranks = ranks;
	comm->rank = rank;
	comm->number = atomic_fetch_add(&made, 1) + 1;
	comm->polls = nccl_standin.polls;
	atomic_store(&comm->users, 1);
	snprintf(comm->name, sizeof(comm->name), "%s", id->internal);
	if (atomic_fetch_add(&comm->shared->joined, 1) + 1 == ranks)
		shm_unlink(comm->name);
	atomic_store(&nccl_standin.max_ctas, config->max_ctas);
	atomic_store(&nccl_standin.made, comm->number);
	*handle = comm;
	/* All ranks must have the same ids. */
	if (!atomic_compare_exchange_strong(&comm->shared->ids, &sum, sum_ids(id, ids)) && sum != sum_ids(id, ids))
		return DDP_NCCL_INVALID_ARGUMENT;
	return DDP_NCCL_IN_PROGRESS;
}

int ncclCommInitRankConfig(void **handle, int ranks, ddp_nccl_id id, int rank, ddp_nccl_config *config)
{
	int result;

	atomic_fetch_add(&nccl_standin.inits, 1);
	return fails_on_device("ncclCommInitRankConfig", &result) ? result : join(handle, ranks, &id, 1, rank, config);
}

int ncclCommInitRankScalable(void **handle, int ranks, int rank, int ids, ddp_nccl_id *id, ddp_nccl_config *config)
{
	int result;

	atomic_fetch_add(&nccl_standin.inits_by_ids, 1);
	if (fails_on_device("ncclCommInitRankScalable", &result))
		return result;
	if (ids < 1 || ids > ranks)
		return DDP_NCCL_INVALID_ARGUMENT;
	for (int i = 0; i < ids; i++) {
		/* Each has a maker of its own. */
		if (id[i].internal[0] == '\0' || (i > 0 && strcmp(id[i].internal, id[i - 1].internal) == 0))
			return DDP_NCCL_INVALID_ARGUMENT;
	}
	return join(handle, ranks, id, ids, rank, config);
}

int ncclCommGetAsyncError(void *handle, int *state)
{
	standin_comm *comm = handle;
	int result;

	if (fails("ncclCommGetAsyncError", &result))
		return result;
	const int of = atomic_load(&nccl_standin.async_of);
	*state = of == 0 || of == comm->number ? atomic_load(&nccl_standin.async) : DDP_NCCL_SUCCESS;
	if (*state != DDP_NCCL_SUCCESS)
		return DDP_NCCL_SUCCESS;
	if (comm->polls > 0)
		comm->polls--;
	if (comm->polls == 0 && comm->pending != NULL) {
		work *w = comm->pending;
		comm->pending = NULL;
		*state = standin_queue(w);
		return DDP_NCCL_SUCCESS;
	}
	comm->made = comm->made || is_ready(comm);
	*state = is_ready(comm) ? DDP_NCCL_SUCCESS : DDP_NCCL_IN_PROGRESS;
	return DDP_NCCL_SUCCESS;
}

int ncclCommFinalize(void *handle)
{
	standin_comm *comm = handle;
	int result;

	if (fails_on_device("ncclCommFinalize", &result))
		return result;
	if (!is_ready(comm) || comm->finalized)
		return DDP_NCCL_INVALID_ARGUMENT;
	comm->finalized = true;
	comm->polls = nccl_standin.polls;
	return is_ready(comm) ? DDP_NCCL_SUCCESS : DDP_NCCL_IN_PROGRESS;
}

/* An error of this and the next is told of what is gone all the same. */
int ncclCommDestroy(void *handle)
{
	standin_comm *comm = handle;
	int result = DDP_NCCL_SUCCESS;

	if (!comm->finalized || !is_ready(comm))
		return DDP_NCCL_INVALID_USAGE;
	atomic_fetch_add(&nccl_standin.ends, 1);
	standin_await_works();
	standin_release(comm);
	return fails_on_device("ncclCommDestroy", &result) ? result : DDP_NCCL_SUCCESS;
}

int ncclCommAbort(void *handle)
{
	standin_comm *comm = handle;
	int result = DDP_NCCL_SUCCESS;

	atomic_fetch_add(&nccl_standin.aborts, 1);
	if (atomic_load(&comm->shared->joined) < comm->ranks)
		shm_unlink(comm->name);
	atomic_store(&comm->aborted, true);
	free(comm->pending);
	comm->pending = NULL;
	if (!atomic_load(&nccl_standin.hasty))
		standin_await_works();
	standin_release(comm);
	return fails_on_device("ncclCommAbort", &result) ? result : DDP_NCCL_SUCCESS;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *handle, void *stream)
{
	return add_call("ncclAllReduce", (call){ ALL_REDUCE, send, recv, count, type, op, 0, { 0 } }, handle, stream);
}

int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *handle, void *stream)
{
	return add_call("ncclReduce", (call){ REDUCE, send, recv, count, type, op, root, { 0 } }, handle, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *handle, void *stream)
{
	return add_call("ncclBroadcast", (call){ BROADCAST, send, recv, count, type, 0, root, { 0 } }, handle, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *handle, void *stream)
{
	return add_call("ncclReduceScatter", (call){ REDUCE_SCATTER, send, recv, count, type, op, 0, { 0 } }, handle,
	                stream);
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, void *handle, void *stream)
{
	return add_call("ncclAllGather", (call){ ALL_GATHER, send, recv, count, type, 0, 0, { 0 } }, handle, stream);
}

int ncclSend(const void *buffer, size_t count, int type, int peer, void *handle, void *stream)
{
	return add_call("ncclSend", (call){ SEND, buffer, NULL, count, type, 0, peer, { 0 } }, handle, stream);
}

int ncclRecv(void *buffer, size_t count, int type, int peer, void *handle, void *stream)
{
	return add_call("ncclRecv", (call){ RECV, NULL, buffer, count, type, 0, peer, { 0 } }, handle, stream);
}

int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, void *handle)
{
	standin_comm *comm = handle;
	int i = 0, result;

	if (fails("ncclRedOpCreatePreMulSum", &result))
		return result;
	while (i < SCALARS && comm->scalars[i].used)
		i++;
	if (residence != DDP_NCCL_SCALAR_ON_HOST || i == SCALARS)
		return DDP_NCCL_INVALID_ARGUMENT;
	comm->scalars[i] = (scalar_op){ .used = true, .type = type };
	memcpy(&comm->scalars[i].bits, scalar, nccl_bytes_of(type));
	*op = DDP_NCCL_OPS + i;
	return DDP_NCCL_SUCCESS;
}

int ncclRedOpDestroy(int op, void *handle)
{
	standin_comm *comm = handle;
	int result;

	if (fails("ncclRedOpDestroy", &result))
		return result;
	if (op < DDP_NCCL_OPS || op >= DDP_NCCL_OPS + SCALARS || !comm->scalars[op - DDP_NCCL_OPS].used)
		return DDP_NCCL_INVALID_ARGUMENT;
	comm->scalars[op - DDP_NCCL_OPS].used = false;
	return DDP_NCCL_SUCCESS;
}

int ncclMemAlloc(void **memory, size_t bytes)
{
	int result;

	if (fails_on_device("ncclMemAlloc", &result))
		return result;
	if (cudaMalloc(memory, bytes) != cudaSuccess)
		return DDP_NCCL_UNHANDLED_CUDA_ERROR;
	atomic_fetch_add(&nccl_standin.allocated, 1);
	return DDP_NCCL_SUCCESS;
}

int ncclMemFree(void *memory)
{
	int result;

	if (fails_on_device("ncclMemFree", &result))
		return result;
	atomic_fetch_sub(&nccl_standin.allocated, 1);
	return cudaFree(memory) == cudaSuccess ? DDP_NCCL_SUCCESS : DDP_NCCL_UNHANDLED_CUDA_ERROR;
}

int ncclCommRegister(void *handle, void *memory, size_t bytes, void **registration)
{
	int result;

	(void)bytes;
	if (fails_on_device("ncclCommRegister", &result))
		return result;
	if (!is_ready(handle))
		return DDP_NCCL_INVALID_ARGUMENT;
	atomic_fetch_add(&nccl_standin.registered, 1);
	*registration = memory;
	return DDP_NCCL_SUCCESS;
}

int ncclCommDeregister(void *handle, void *registration)
{
	int result;

	(void)registration;
	if (fails_on_device("ncclCommDeregister", &result))
		return result;
	if (!is_ready(handle))
		return DDP_NCCL_INVALID_ARGUMENT;
	atomic_fetch_sub(&nccl_standin.registered, 1);
	return DDP_NCCL_SUCCESS;
}
