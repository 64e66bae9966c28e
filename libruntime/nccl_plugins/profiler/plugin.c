/* SPDX-License-Identifier: Apache-2.0 */
/* libnccl-profiler-ddp.so: a profiler plugin of NCCL's, by which a program that knows
   nothing of libddp (PyTorch, JAX) tells on its progress page what it waits for, for
   failure reports, stall= and ddp-status. `srun --ddp=watch` has NCCL load it. An error
   here is none of the program's: NCCL goes on without.

   The page has which operation this rank waits for, or which was the last. An operation is under way from its call
   until its kernel has ended on each of its channels, or a later one of its communicator has. Any thread. */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ddp.h"
#include "nccl_plugins/profiler/abi.h"
#include "watch/page.h"

/* More than CUDA lets a stream have in its queue. A slot is used again and again, but
   is memory until the communicator ends: graphs keep handles for as long as they like. */
enum { SLOTS = 4096 };

/* The addresses of these two are the handles that NCCL gets. */
enum handle { CALL = 1, KERNEL };

/* NCCL tells this of an operation; the texts are constants of NCCL's. */
typedef struct watched_call {
	const char *function; /* "AllReduce" */
	const char *type;     /* "ncclFloat32" */
	size_t count;
	int peer;             /* of send and recv; -1: a collective */
	int channels;
	int root;             /* of collectives that have one */
} watched_call;

typedef struct operation {
	uint8_t call, kernel; /* enum handle */
	bool under_way;
	ddp_recorded recorded;
	struct watched_comm *comm;
	uint64_t order;       /* in its communicator, from 1 */
	uint64_t collective;  /* its number among the collectives there; 0: a message */
	watched_call what;
	int begun, ended;     /* channels */
	struct operation *next, *previous; /* among those under way, in the order of their calls */
} operation;

typedef struct watched_comm {
	uint64_t id;          /* the same on all its ranks */
	int ranks;
	uint64_t called;
	uint64_t collectives, ended; /* called, and the last that has ended: */
	watched_call what;
	size_t used;
	operation slots[SLOTS];
} watched_comm;

static struct {
	pthread_mutex_t lock;
	struct ddp_progress *page; /* stays mapped, */
	ddp_recorder recorder;     /* and so does its ring */
	int world_size;
	watched_comm *world;       /* NULL: none yet */
	operation *first, *last;   /* under way */
	const operation *shown;
} watch = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const operation outdated; /* as `shown`: none of them */

/* ---- the page ------------------------------------------------------------------------- */

static const char *word_for(const char *name, const char *const (*words)[2])
{
	for (; (*words)[0] != NULL; words++)
		if (strcmp((*words)[0], name) == 0)
			return (*words)[1];
	return name;
}

/* Those of ddp_operation_kind and ddp_type, and then those that libddp has not. */
static const char *const functions[][2] = {
	[DDP_ALL_REDUCE] = { "AllReduce", "all_reduce" }, [DDP_BROADCAST] = { "Broadcast", "broadcast" },
	[DDP_REDUCE] = { "Reduce", "reduce" }, [DDP_ALL_GATHER] = { "AllGather", "all_gather" },
	[DDP_REDUCE_SCATTER] = { "ReduceScatter", "reduce_scatter" }, [DDP_ALL_TO_ALL] = { "AlltoAll", "all_to_all" },
	[DDP_GATHER] = { "Gather", "gather" }, [DDP_SCATTER] = { "Scatter", "scatter" },
	[DDP_SEND] = { "Send", "send" }, [DDP_RECV] = { "Recv", "recv" }, { NULL, NULL },
};
static const char *const types[][2] = {
	[DDP_F32] = { "ncclFloat32", "f32" }, [DDP_F64] = { "ncclFloat64", "f64" }, [DDP_F16] = { "ncclFloat16", "f16" },
	[DDP_BF16] = { "ncclBfloat16", "bf16" }, [DDP_I32] = { "ncclInt32", "i32" }, [DDP_I64] = { "ncclInt64", "i64" },
	[DDP_U8] = { "ncclUint8", "u8" }, [DDP_I8] = { "ncclInt8", "i8" },
	{ "ncclUint32", "u32" }, { "ncclUint64", "u64" }, { NULL, NULL },
};

/* In libddp's words: "NCCL all_reduce f32[262144]". */
static void describe(const watched_call *call, char *text, size_t bytes)
{
	const char *function = word_for(call->function, functions);
	int used = snprintf(text, bytes, "NCCL %s %s[%zu]", function, word_for(call->type, types),
	                    call->count);

	if (call->peer >= 0 && used > 0 && (size_t)used < bytes)
		snprintf(text + used, bytes - (size_t)used, " %s %d",
		         strcmp(function, "send") == 0 ? "to" : "from", call->peer);
}

static void show_collective(uint64_t number, const watched_call *what)
{
	char text[sizeof(watch.page->collective_text)];

	describe(what, text, sizeof(text));
	ddp_page_collective(watch.page, number, ddp_coarse_ns());
	ddp_page_wait(watch.page, number, 0, text);
}

/* The oldest operation that is under way, or that there is none. */
static void show(void)
{
	operation *oldest = watch.first;
	char text[sizeof(watch.page->collective_text)];

	if (oldest == watch.shown)
		return;
	watch.shown = oldest;
	if (oldest != NULL && (oldest->comm != watch.world || oldest->collective == 0)) {
		describe(&oldest->what, text, sizeof(text));
		ddp_page_wait(watch.page, 0, ddp_now_ns(), text);
	} else if (oldest != NULL) {
		show_collective(oldest->collective, &oldest->what);
	} else {
		if (watch.world != NULL && watch.world->ended > 0)
			show_collective(watch.world->ended, &watch.world->what);
		ddp_page_go_on(watch.page);
	}
}

/* ---- the ring -------------------------------------------------------------------------- */

static uint8_t number_of(const char *name, const char *const (*words)[2], size_t known)
{
	for (size_t i = 0; i < known; i++)
		if (strcmp(words[i][0], name) == 0)
			return (uint8_t)i;
	return DDP_RECORD_NAMED;
}

static void note(operation *o)
{
	const uint8_t kind = number_of(o->what.function, functions, DDP_RECV + 1);
	const uint8_t type = number_of(o->what.type, types, DDP_I8 + 1);
	const bool rooted = kind == DDP_BROADCAST || kind == DDP_REDUCE || kind == DDP_GATHER || kind == DDP_SCATTER;

	o->recorded = ddp_record_begin(&watch.recorder, &(struct ddp_record_entry){
		.number = o->collective, .group = o->comm->id, .count = o->what.count, .begin_ns = ddp_coarse_ns(),
		.peer = o->what.peer >= 0 ? o->what.peer : rooted ? o->what.root : -1, .ranks = (uint32_t)o->comm->ranks,
		.kind = kind, .type = type, .op = DDP_RECORD_NAMED,
		.flags = DDP_RECORD_DEVICE | (o->comm->ranks == watch.world_size ? DDP_RECORD_OF_ALL : 0) });
	if (o->recorded.entry != NULL && (kind == DDP_RECORD_NAMED || type == DDP_RECORD_NAMED))
		snprintf(o->recorded.entry->name, sizeof(o->recorded.entry->name), "%s %s", word_for(o->what.function, functions),
		         word_for(o->what.type, types));
}

/* ---- operations ------------------------------------------------------------------------ */

static void begin(operation *o)
{
	o->order = ++o->comm->called;
	o->collective = o->what.peer < 0 ? ++o->comm->collectives : 0;
	o->under_way = true;
	o->begun = o->ended = 0;
	o->next = NULL;
	o->previous = watch.last;
	if (watch.last != NULL)
		watch.last->next = o;
	else
		watch.first = o;
	watch.last = o;
	note(o);
}

static void end(operation *o)
{
	if (!o->under_way)
		return;
	o->under_way = false;
	ddp_record_end(o->recorded, DDP_OK, ddp_coarse_ns());
	if (o->collective > o->comm->ended) {
		o->comm->ended = o->collective;
		o->comm->what = o->what;
	}
	if (o->previous != NULL)
		o->previous->next = o->next;
	else
		watch.first = o->next;
	if (o->next != NULL)
		o->next->previous = o->previous;
	else
		watch.last = o->previous;
	if (o == watch.shown)
		watch.shown = &outdated;
}

/* Its communicator runs one after the other: those before it have ended, too. */
static void end_up_to(const operation *last)
{
	operation *next;

	for (operation *o = watch.first; o != NULL; o = next) {
		next = o->next;
		if (o->comm == last->comm && o->order <= last->order)
			end(o);
	}
}

static int number_in(const char *variable)
{
	const char *text = getenv(variable);
	char *rest;
	long value = text != NULL ? strtol(text, &rest, 10) : -1;

	return text != NULL && rest != text && *rest == '\0' && value >= 0 && value < INT32_MAX ? (int)value : -1;
}

/* Is there a page to write to? Not if the plugin gave none, and not if libddp writes it:
   such a program describes itself. */
static bool watch_open(void)
{
	const ddp_job job = { .rank = number_in("RANK"), .local_rank = number_in("LOCAL_RANK"),
		              .world_size = number_in("WORLD_SIZE"), .identity_source = DDP_SOURCE_ENVIRONMENT };

	pthread_mutex_lock(&watch.lock);
	if (watch.page == NULL && job.rank >= 0 && job.local_rank >= 0 && job.world_size > 0) {
		watch.page = ddp_page_map_for_nccl(&job, &watch.recorder);
		watch.world_size = job.world_size;
	}
	bool open = watch.page != NULL;
	pthread_mutex_unlock(&watch.lock);
	return open;
}

/* A communicator of so many ranks, with a number that all of them have for it; NULL: no memory. The first of all
   ranks is the one whose operations have numbers in the page. */
static watched_comm *watch_comm(int ranks, uint64_t id)
{
	watched_comm *comm = calloc(1, sizeof(*comm));

	if (comm == NULL)
		return NULL;
	comm->id = id;
	comm->ranks = ranks;
	pthread_mutex_lock(&watch.lock);
	if (watch.world == NULL && ranks == watch.world_size)
		watch.world = comm;
	pthread_mutex_unlock(&watch.lock);
	return comm;
}

static void watch_comm_end(watched_comm *comm)
{
	pthread_mutex_lock(&watch.lock);
	for (size_t i = 0; i < SLOTS; i++)
		end(&comm->slots[i]);
	show();
	if (watch.world == comm)
		watch.world = NULL;
	pthread_mutex_unlock(&watch.lock);
	free(comm);
}

/* An operation was called: its handle, which lasts for the next 4095 of `comm`. */
static void *watch_call(watched_comm *comm, const watched_call *call)
{
	pthread_mutex_lock(&watch.lock);
	operation *o = &comm->slots[comm->used++ % SLOTS];
	end(o);
	*o = (operation){ .call = CALL, .kernel = KERNEL, .comm = comm, .what = *call };
	begin(o);
	show();
	pthread_mutex_unlock(&watch.lock);
	return &o->call;
}

/* Its kernel runs on a channel: the handle of that; and has ended there. A CUDA graph
   that is launched again begins an operation again. */
static void *watch_kernel(void *call_handle)
{
	operation *o = (operation *)((char *)call_handle - offsetof(operation, call));

	pthread_mutex_lock(&watch.lock);
	if (o->begun >= o->what.channels) {
		end(o);
		begin(o);
		show();
	}
	o->begun++;
	pthread_mutex_unlock(&watch.lock);
	return &o->kernel;
}

/* Either handle is used no more. */
static void watch_stop(void *handle)
{
	operation *o = (operation *)((char *)handle - offsetof(operation, kernel));

	/* That a call has returned says nothing of its kernel. */
	if (*(const uint8_t *)handle != KERNEL)
		return;
	pthread_mutex_lock(&watch.lock);
	if (++o->ended == o->what.channels)
		end_up_to(o);
	show();
	pthread_mutex_unlock(&watch.lock);
}

/* ---- what NCCL calls ------------------------------------------------------------------- */

static int open_comm(void **context, int *mask, uint64_t id, int ranks, ddp_nccl_log log)
{
	*context = NULL;
	*mask = 0;
	if (!watch_open()) {
		if (log != NULL)
			log(DDP_NCCL_LOG_INFO, DDP_NCCL_LOG_INIT, __FILE__, __LINE__,
			    "ddp: nothing is watched: this is no task of srun --ddp (RANK, LOCAL_RANK, "
			    "WORLD_SIZE, DDP_PROGRESS_FD), or it uses libddp, which watches itself");
		return DDP_NCCL_SUCCESS;
	}
	*context = watch_comm(ranks, id);
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
		*handle = watch_kernel(parent);
	if (context == NULL)
		return DDP_NCCL_SUCCESS;
	if (type == DDP_NCCL_COLLECTIVE)
		*handle = watch_call(context, &(watched_call){
			.function = details->collective.function, .type = details->collective.type,
			.count = details->collective.count, .peer = -1,
			.channels = details->collective.channels, .root = details->collective.root });
	else if (type == DDP_NCCL_P2P)
		*handle = watch_call(context, &(watched_call){
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
		watch_stop(handle);
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
		watch_comm_end(context);
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
