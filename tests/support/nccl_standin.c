#include "tests/support/nccl_standin.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "comm/nccl/abi.h"
#include "tests/support/nccl_values.h"

enum { RANKS_MAX = 8, CHANNEL_BYTES = 16384, SCALARS = 16 };

DDP_API extern nccl_standin_switches nccl_standin;
nccl_standin_switches nccl_standin = { .version = STANDIN_VERSION };

/* ---- what ranks share ------------------------------------------------------------------------ */

/* Bytes from one rank to another. */
typedef struct channel {
	_Atomic uint64_t written, read;
	char bytes[CHANNEL_BYTES];
} channel;

typedef struct region {
	atomic_int joined;
	channel channels[RANKS_MAX][RANKS_MAX]; /* from, to */
} region;

typedef struct scalar_op {
	bool used;
	int type;
	uint64_t bits;
} scalar_op;

/* One user is the program, the others are works that are queued. */
typedef struct standin_comm {
	region *shared;
	char name[128];
	int ranks, rank;
	atomic_int users;
	atomic_bool aborted;
	int polls;            /* left until it is ready */
	bool made, finalized;
	scalar_op scalars[SCALARS];
	struct work *pending; /* to be queued when it is ready */
} standin_comm;

static void release(standin_comm *comm)
{
	if (atomic_fetch_sub(&comm->users, 1) > 1)
		return;
	munmap(comm->shared, sizeof(region));
	free(comm);
}

/* ---- calls, which are one work when their group ends -------------------------------------------- */

typedef enum kind { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECV } kind;

typedef struct call {
	kind kind;
	const void *send;
	void *recv;
	size_t count;
	int type, op, peer; /* or root */
	scalar_op scalar;   /* of an op that was made */
} call;

typedef struct work {
	standin_comm *comm;
	ddp_device_queue *queue;
	int count;
	call calls[64];
	struct work *next;
} work;

static _Thread_local int depth;
static _Thread_local work *group; /* a group's calls are all of one communicator here */

static bool fails(const char *name, int *result)
{
	if (nccl_standin.failing == NULL || strcmp(nccl_standin.failing, name) != 0)
		return false;
	*result = nccl_standin.result;
	return true;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* What is done to a rank's input before it is combined. */
static void prepare(const standin_comm *comm, const call *c, void *values, size_t count)
{
	double factor = 1;

	if (c->op >= DDP_NCCL_OPS && nccl_is_integer(c->type)) {
		const int64_t whole = nccl_get_integer(c->type, &c->scalar.bits, 0);
		for (size_t i = 0; i < count; i++)
			nccl_put_integer(c->type, values, i, (uint64_t)nccl_get_integer(c->type, values, i) * (uint64_t)whole);
		return;
	}
	if (c->op >= DDP_NCCL_OPS) {
		factor = nccl_get(c->type, &c->scalar.bits, 0);
	} else if (c->op == DDP_NCCL_AVG && !nccl_is_integer(c->type)) {
		uint64_t rounded = 0;
		nccl_put(c->type, &rounded, 0, 1.0 / comm->ranks);
		factor = nccl_get(c->type, &rounded, 0);
	}
	for (size_t i = 0; i < count && factor != 1; i++)
		nccl_put(c->type, values, i, nccl_get(c->type, values, i) * factor);
}

/* What is done to what was combined. */
static void complete(const standin_comm *comm, const call *c, void *values, size_t count)
{
	for (size_t i = 0; i < count && c->op == DDP_NCCL_AVG && nccl_is_integer(c->type); i++)
		nccl_put_integer(c->type, values, i, (uint64_t)(nccl_get_integer(c->type, values, i) / comm->ranks));
}

/* ---- moving bytes: in a queue's thread -------------------------------------------------------------- */

/* What goes before the bytes of a message: who expects another one hangs. */
typedef struct label {
	uint64_t kind, type, count;
} label;

typedef struct transfer {
	channel *channel;
	bool sends;
	label label, got;
	char *data;
	size_t bytes, labelled, moved;
} transfer;

/* Copies between a channel and memory, as far as that goes. */
static size_t move(transfer *t, char *memory, size_t bytes)
{
	const uint64_t written = atomic_load(&t->channel->written), read = atomic_load(&t->channel->read);
	size_t room = t->sends ? CHANNEL_BYTES - (size_t)(written - read) : (size_t)(written - read);

	room = room < bytes ? room : bytes;
	for (size_t i = 0; i < room;) {
		const size_t at = (size_t)((t->sends ? written : read) + i) % CHANNEL_BYTES;
		const size_t part = room - i < CHANNEL_BYTES - at ? room - i : CHANNEL_BYTES - at;
		if (t->sends)
			memcpy(t->channel->bytes + at, memory + i, part);
		else
			memcpy(memory + i, t->channel->bytes + at, part);
		i += part;
	}
	atomic_fetch_add(t->sends ? &t->channel->written : &t->channel->read, room);
	return room;
}

static bool advance(transfer *t, bool *moved)
{
	size_t part = 0;

	if (t->labelled < sizeof(t->label)) {
		part = move(t, (t->sends ? (char *)&t->label : (char *)&t->got) + t->labelled, sizeof(t->label) - t->labelled);
		t->labelled += part;
	}
	const bool mine = t->sends || memcmp(&t->label, &t->got, sizeof(t->label)) == 0;
	if (t->labelled == sizeof(t->label) && t->moved < t->bytes && mine) {
		part = move(t, t->data + t->moved, t->bytes - t->moved);
		t->moved += part;
	}
	*moved |= part > 0;
	return t->labelled == sizeof(t->label) && t->moved == t->bytes && mine;
}

/* Until all are done; false: the communicator was aborted. */
static bool run_transfers(standin_comm *comm, transfer *transfers, int count)
{
	bool done = false;

	while (!done) {
		bool moved = false;
		done = true;
		for (int i = 0; i < count; i++)
			done = advance(&transfers[i], &moved) && done;
		if (atomic_load(&comm->aborted))
			return false;
		if (!done && !moved)
			usleep(20);
	}
	return true;
}

static transfer transfer_of(standin_comm *comm, const call *c, int peer, bool sends, void *data, size_t bytes)
{
	channel *way = sends ? &comm->shared->channels[comm->rank][peer] : &comm->shared->channels[peer][comm->rank];
	const kind name = c->kind == RECV ? SEND : c->kind;

	return (transfer){ .channel = way, .sends = sends, .data = data, .bytes = bytes,
	                   .label = { .kind = (uint64_t)name, .type = (uint64_t)c->type, .count = c->count } };
}

static void *view(const void *address, size_t bytes, bool writes)
{
	void *found = NULL;

	if (bytes == 0 || nccl_standin.view(nccl_standin.device, address, bytes,
	                                    writes ? DDP_DEVICE_WRITES : DDP_DEVICE_READS, &found) != DDP_OK)
		return NULL;
	return found;
}

/* Every rank sends its input, or the block of each, to those who combine it. */
static bool run_reduction(standin_comm *comm, const call *c)
{
	const bool scatter = c->kind == REDUCE_SCATTER, all = c->kind != REDUCE;
	const bool gets = all || c->peer == comm->rank;
	const size_t block = c->count * nccl_bytes_of(c->type), whole = scatter ? block * (size_t)comm->ranks : block;
	const void *input = view(c->send, whole, false);
	char *own = malloc(whole), *others = malloc(block * (size_t)comm->ranks);
	transfer transfers[2 * RANKS_MAX];
	int count = 0;
	bool done = input != NULL && own != NULL && others != NULL;

	if (done) {
		memcpy(own, input, whole);
		prepare(comm, c, own, whole / nccl_bytes_of(c->type));
	}
	for (int r = 0; r < comm->ranks && done; r++) {
		if (r != comm->rank && (all || r == c->peer))
			transfers[count++] = transfer_of(comm, c, r, true, own + (scatter ? (size_t)r * block : 0), block);
		if (r != comm->rank && gets)
			transfers[count++] = transfer_of(comm, c, r, false, others + (size_t)r * block, block);
	}
	done = done && run_transfers(comm, transfers, count);
	char *output = done && gets ? view(c->recv, block, true) : NULL;
	if (output != NULL) {
		memcpy(others + (size_t)comm->rank * block, own + (scatter ? (size_t)comm->rank * block : 0), block);
		for (int r = 1; r < comm->ranks; r++) {
			for (size_t i = 0; i < c->count; i++)
				nccl_combine_one(c->type, c->op, others, others + (size_t)r * block, i);
		}
		complete(comm, c, others, c->count);
		memcpy(output, others, block);
	}
	free(own);
	free(others);
	return done;
}

static bool run_copies(standin_comm *comm, const call *c)
{
	const size_t bytes = c->count * nccl_bytes_of(c->type);
	const bool gather = c->kind == ALL_GATHER, gives = gather || c->peer == comm->rank;
	char *input = gives ? view(c->send, bytes, false) : NULL;
	char *output = gives && !gather && c->recv == c->send ? input : view(c->recv, gather ? bytes * (size_t)comm->ranks : bytes, true);
	transfer transfers[2 * RANKS_MAX];
	int count = 0;

	if ((gives && input == NULL) || output == NULL)
		return false;
	for (int r = 0; r < comm->ranks; r++) {
		if (r != comm->rank && gives)
			transfers[count++] = transfer_of(comm, c, r, true, input, bytes);
		if (r != comm->rank && (gather || r == c->peer))
			transfers[count++] = transfer_of(comm, c, r, false, gather ? output + (size_t)r * bytes : output, bytes);
	}
	if (!run_transfers(comm, transfers, count))
		return false;
	char *own = gather ? output + (size_t)comm->rank * bytes : output;
	if (gives && own != input)
		memmove(own, input, bytes);
	return true;
}

static bool run_messages(const work *w)
{
	transfer transfers[64];
	int count = 0;

	for (int i = 0; i < w->count; i++) {
		const call *c = &w->calls[i];
		const size_t bytes = c->count * nccl_bytes_of(c->type);
		if (c->kind != SEND && c->kind != RECV)
			continue;
		void *data = view(c->kind == SEND ? c->send : c->recv, bytes, c->kind == RECV);
		if (data == NULL)
			return false;
		transfers[count++] = transfer_of(w->comm, c, c->peer, c->kind == SEND, data, bytes);
	}
	return run_transfers(w->comm, transfers, count);
}

static void run(void *argument)
{
	work *w = argument;
	bool goes_on = true;

	while (atomic_load(&nccl_standin.stuck) && !atomic_load(&w->comm->aborted))
		usleep(100);
	goes_on = !atomic_load(&w->comm->aborted);
	for (int i = 0; i < w->count && goes_on; i++) {
		const call *c = &w->calls[i];
		if (c->kind == SEND || c->kind == RECV)
			continue;
		goes_on = c->kind == BROADCAST || c->kind == ALL_GATHER ? run_copies(w->comm, c) : run_reduction(w->comm, c);
	}
	if (goes_on)
		(void)run_messages(w);
	release(w->comm);
	free(w);
}

/* ---- communicators ------------------------------------------------------------------------------------ */

static int queue_work(work *w)
{
	atomic_fetch_add(&w->comm->users, 1);
	if (nccl_standin.launch(nccl_standin.device, w->queue, run, w) == DDP_OK)
		return DDP_NCCL_SUCCESS;
	release(w->comm);
	free(w);
	return DDP_NCCL_UNHANDLED_CUDA_ERROR;
}

static bool is_ready(const standin_comm *comm)
{
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
		return queue_work(w);
	comm->polls = nccl_standin.polls;
	comm->pending = w;
	return DDP_NCCL_IN_PROGRESS;
}

static int add_call(const char *name, call c, void *handle, void *stream)
{
	standin_comm *comm = handle;
	int result;

	if (fails(name, &result))
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

/* The last to join takes the name away. */
static int join(void **handle, int ranks, const ddp_nccl_id *id, int rank, const ddp_nccl_config *config)
{
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
	comm->polls = nccl_standin.polls;
	atomic_store(&comm->users, 1);
	snprintf(comm->name, sizeof(comm->name), "%s", id->internal);
	if (atomic_fetch_add(&comm->shared->joined, 1) + 1 == ranks)
		shm_unlink(comm->name);
	atomic_store(&nccl_standin.max_ctas, config->max_ctas);
	*handle = comm;
	return DDP_NCCL_IN_PROGRESS;
}

int ncclCommInitRankConfig(void **handle, int ranks, ddp_nccl_id id, int rank, ddp_nccl_config *config)
{
	int result;

	atomic_fetch_add(&nccl_standin.inits, 1);
	return fails("ncclCommInitRankConfig", &result) ? result : join(handle, ranks, &id, rank, config);
}

int ncclCommInitRankScalable(void **handle, int ranks, int rank, int ids, ddp_nccl_id *id, ddp_nccl_config *config)
{
	int result;

	atomic_fetch_add(&nccl_standin.inits_by_ids, 1);
	if (fails("ncclCommInitRankScalable", &result) || ids < 1)
		return ids < 1 ? DDP_NCCL_INVALID_ARGUMENT : result;
	return join(handle, ranks, &id[0], rank, config);
}

int ncclCommGetAsyncError(void *handle, int *state)
{
	standin_comm *comm = handle;
	int result;

	if (fails("ncclCommGetAsyncError", &result))
		return result;
	*state = atomic_load(&nccl_standin.async);
	if (*state != DDP_NCCL_SUCCESS)
		return DDP_NCCL_SUCCESS;
	if (comm->polls > 0)
		comm->polls--;
	if (comm->polls == 0 && comm->pending != NULL) {
		work *w = comm->pending;
		comm->pending = NULL;
		*state = queue_work(w);
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

	if (fails("ncclCommFinalize", &result))
		return result;
	if (!is_ready(comm) || comm->finalized)
		return DDP_NCCL_INVALID_ARGUMENT;
	comm->finalized = true;
	comm->polls = nccl_standin.polls;
	return comm->polls > 0 ? DDP_NCCL_IN_PROGRESS : DDP_NCCL_SUCCESS;
}

int ncclCommDestroy(void *handle)
{
	standin_comm *comm = handle;

	if (!comm->finalized || !is_ready(comm))
		return DDP_NCCL_INVALID_USAGE;
	atomic_fetch_add(&nccl_standin.ends, 1);
	release(comm);
	return DDP_NCCL_SUCCESS;
}

int ncclCommAbort(void *handle)
{
	standin_comm *comm = handle;

	atomic_fetch_add(&nccl_standin.aborts, 1);
	if (atomic_load(&comm->shared->joined) < comm->ranks)
		shm_unlink(comm->name);
	atomic_store(&comm->aborted, true);
	free(comm->pending);
	comm->pending = NULL;
	release(comm);
	return DDP_NCCL_SUCCESS;
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

	if (op < DDP_NCCL_OPS || op >= DDP_NCCL_OPS + SCALARS || !comm->scalars[op - DDP_NCCL_OPS].used)
		return DDP_NCCL_INVALID_ARGUMENT;
	comm->scalars[op - DDP_NCCL_OPS].used = false;
	return DDP_NCCL_SUCCESS;
}

int ncclMemAlloc(void **memory, size_t bytes)
{
	int result;

	if (fails("ncclMemAlloc", &result))
		return result;
	if (nccl_standin.alloc(nccl_standin.device, bytes, memory) != DDP_OK)
		return DDP_NCCL_UNHANDLED_CUDA_ERROR;
	atomic_fetch_add(&nccl_standin.allocated, 1);
	return DDP_NCCL_SUCCESS;
}

int ncclMemFree(void *memory)
{
	int result;

	if (fails("ncclMemFree", &result))
		return result;
	atomic_fetch_sub(&nccl_standin.allocated, 1);
	return nccl_standin.free(nccl_standin.device, memory) == DDP_OK ? DDP_NCCL_SUCCESS : DDP_NCCL_UNHANDLED_CUDA_ERROR;
}

int ncclCommRegister(void *handle, void *memory, size_t bytes, void **registration)
{
	int result;

	(void)bytes;
	if (fails("ncclCommRegister", &result))
		return result;
	if (!is_ready(handle))
		return DDP_NCCL_INVALID_ARGUMENT;
	atomic_fetch_add(&nccl_standin.registered, 1);
	*registration = memory;
	return DDP_NCCL_SUCCESS;
}

int ncclCommDeregister(void *handle, void *registration)
{
	(void)registration;
	if (!is_ready(handle))
		return DDP_NCCL_INVALID_ARGUMENT;
	atomic_fetch_sub(&nccl_standin.registered, 1);
	return DDP_NCCL_SUCCESS;
}
