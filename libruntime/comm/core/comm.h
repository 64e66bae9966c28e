/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/comm: a communicator. It consists of the parts that the other files of this folder describe.

   One thread at a time runs an operation: the thread that holds run.lock. If nothing is queued, a
   blocking call runs its operation itself; otherwise a thread of the process's pool takes it from the
   queue. A collective is written as straight-line code. When it has to wait, it calls ddp_comm_await() of
   comm/wait. That function checks the deadline, dead peers and aborts, moves messages and the network
   on, and puts the thread to sleep. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "comm/core/backend.h"
#include "comm/core/completion.h"
#include "comm/core/failure.h"
#include "comm/core/fingerprint.h"
#include "comm/core/lines.h"
#include "comm/core/roster.h"

/* The ranks of a communicator that are on this node. Any thread may read the fields that do not change after
   the communicator was opened. core/lines says which thread writes to the lines of the segment. Slots and
   rings are written, on all ranks, only by the thread that holds run.lock. */
typedef struct ddp_node {
	int size, self;             /* number of ranks, and which of them this is */
	bool oversubscribed;        /* more ranks than cores */
	int *ranks;                 /* [size]: rank in the communicator */
	ddp_node_shared *shared;    /* their control segment, and places in it: */
	size_t shared_bytes;
	char *small, *stage, *result;
	char *proposals;              /* of comm/group/agreement: nothing else writes there */
	size_t stage_bytes;         /* of a window in a slot of stage or result */
	size_t slot_bytes;          /* of a slot, for the largest window */
	size_t proposals_bytes;     /* of one of its boards */
	char *rings;                /* of comm/p2p: [size][size], from, to */
	size_t ring_room;           /* bytes of a ring */
	/* The thread that holds run.lock uses these: */
	struct pollfd *watched;     /* [size]: their processes (comm/core/liveness) */
	struct ddp_incoming *incoming; /* [size]: messages of ranks of this node */
	uint64_t step;              /* of this rank; the ranks go in lockstep */
	const void **src;           /* [size], for reductions */
	void **dst;                 /* [size + 1] */
	double *scales;             /* [size] */
} ddp_node;

/* This rank knows this about the rank for which it waits (comm/wait/verdict). */
typedef struct ddp_chain {
	bool waits;          /* this rank has said that it waits */
	int missing;         /* the rank about which it asks, or DDP_NOBODY */
	uint64_t since_ns, asked_ns;
	int end;             /* the last of the chain, or DDP_NOBODY */
	uint64_t certain_ns; /* when that counts, if it stays the same */
} ddp_chain;

enum { DDP_PAST = 256, DDP_TWINS = 1 + 4 * DDP_LANES };

/* The running operation; only who holds the lock touches it. */
typedef struct ddp_running {
	pthread_mutex_t lock;
	bool in_thread;               /* by the progress thread */
	uint64_t sequence;            /* of the last operation */
	ddp_fingerprint past[DDP_PAST]; /* of the last ones, by sequence */
	const ddp_operation *operation;
	size_t *offsets, *recv_offsets; /* [size + 1] each, of its blocks (comm/core/offsets) */
	const ddp_request *awaited;   /* the message for which it waits; may be gone: to compare */
	uint64_t deadline_ns;         /* 0: it has not waited for long */
	bool told;                    /* the progress page says that it waits */
	/* of comm/wait/cores: */
	unsigned int turns;           /* times that this rank and a peer gave up one core to each other */
	uint64_t parted_ns;           /* when it last left a core */
	uint64_t counted_ns;          /* when the kernel was last asked, */
	bool suffice;                 /* and if it had a core for each thread */
	/* of comm/wait/await: */
	int vain_spins;               /* that spinning was in vain, less that it was of use */
	unsigned int short_spins;     /* waits for which that was too much */
	ddp_chain chain;
	/* of comm/wait/message: */
	uint64_t question_ns, question_sequence;
	struct ddp_transfer *question; /* NULL before the first */
	struct ddp_transfer *words; /* of comm/wait/message; NULL before the first */
} ddp_running;

/* Operations that were issued and have not run yet, and the thread of the roster's pool that runs them, if
   there are any. */
typedef struct ddp_queue {
	pthread_mutex_t lock;
	pthread_cond_t unserved;
	ddp_request *head, *tail;
	ddp_request *ended, *ended_tail; /* those that are to call back */
	atomic_bool to_call_back;   /* there are some, and `caller` does not look after them */
	atomic_bool busy;           /* the thread that serves cannot call back now; set under the lock */
	bool calling;               /* a thread runs `caller`, which calls back */
	bool running;               /* the thread that serves has not come back from a collective; under the lock */
	ddp_task caller;
	atomic_int count;           /* in the queue or taken from it by the thread */
	atomic_int callers;         /* threads that want run.lock for a blocking call */
	bool closing;               /* nothing is issued any more; under the lock, like these: */
	ddp_task task;
	bool served;                /* a thread has the task, or will have it */
	bool reserved;              /* a thread of the pool is reserved for the task */
	atomic_bool stopping;       /* set under the lock or run.lock */
} ddp_queue;

/* comm/attend knows this of the communicator. */
typedef struct ddp_attended {
	ddp_comm *next;
	bool visited;               /* by its thread, just now */
	uint64_t sequence;          /* of the last operation that it knows of */
	int silences;               /* silent nodes that were shown to the node's ranks */
} ddp_attended;

/* Sends and receives. */
typedef struct ddp_p2p {
	ddp_request *added;         /* just issued; under queue.lock */
	ddp_request *requests;      /* those under way; for who holds run.lock */
	atomic_int count;           /* of both */
	unsigned int turn;          /* which rank of the node a receive from any looks at first; for who holds it */
} ddp_p2p;

/* The allocation looked up last, and mappings; for who holds run.lock (comm/shm/memory). */
typedef struct ddp_memory_cache {
	ddp_allocation recent;      /* a copy, as another thread may free it; .own NULL: none */
	uint64_t changes;           /* the roster's memory.changes then */
	struct ddp_borrowed *borrowed; /* other ranks' own memory that is mapped (comm/shm/borrow) */
	bool has_grown;             /* by a mapping, since those of freed memory were last looked for */
} ddp_memory_cache;

/* A communicator may have twins: communicators of the same ranks that do a part of its work (comm/host). All of
   them fail together. The list begins with the communicator itself. */
typedef struct ddp_twins {
	pthread_mutex_t lock;
	ddp_comm *list[DDP_TWINS];
} ddp_twins;

/* The measured times of the network between nodes (comm/hier/tune). */
typedef struct ddp_link {
	bool measured;
	double latency_seconds; /* from node to node, */
	double message_seconds; /* a message's own time at its sender or receiver, */
	double byte_seconds;    /* and for each byte that a node sends, as all do */
	size_t chunk_bytes;     /* of a large transfer's messages */
} ddp_link;

/* Operations between nodes keep this (comm/hier). */
typedef struct ddp_hier {
	ddp_link link;
	struct ddp_hier_store *store; /* NULL before the first reduction */
	_Atomic(const char *) ran;    /* the last reduction's algorithm; any thread may ask. NULL: none yet */
} ddp_hier;

struct ddp_comm {
	ddp_roster *roster;
	atomic_bool is_world;       /* both are set behind the opening, and read by other threads */
	bool meets;                 /* all ranks wait for each other before they close it, also on one node */
	atomic_int models;          /* that are trained on it */
	atomic_int memories;        /* of models, on a device */
	atomic_bool is_whole;       /* the world, or what ddp_comm_shrink() has left of it */
	int rank, size;
	int timeout_ms;
	ddp_topology topology;
	ddp_node node;
	uint64_t id;                /* the same on all its ranks, and on no other communicator */
	struct ddp_net *net;        /* the network between nodes; NULL on one node */
	ddp_attended attended;
	ddp_hier hier;
	ddp_memory_cache memory;
	ddp_running run;
	ddp_queue queue;
	ddp_p2p p2p;
	ddp_failure_state failure;
	uint64_t agreements;        /* calls of comm/group/shrink */
	struct ddp_comm *_Atomic twin_of; /* NULL: none */
	ddp_twins twins;            /* if twin_of is NULL */
	ddp_lanes lanes;
};

/* The rank that on `node` has the index `channel`. */
static inline int ddp_channel_rank(const ddp_comm *comm, int node, int channel)
{
	return comm->topology.node_ranks[comm->topology.node_begin[node] + channel];
}

static inline int ddp_node_size(const ddp_comm *comm, int node)
{
	return comm->topology.node_begin[node + 1] - comm->topology.node_begin[node];
}

/* How long the operation that runs may wait for other ranks. */
static inline int ddp_timeout_ms(const ddp_comm *comm)
{
	const ddp_operation *c = comm->run.operation;

	return c != NULL && c->timeout_ms > 0 ? c->timeout_ms : comm->timeout_ms;
}

/* Is this rank of the communicator on the caller's node? */
static inline bool ddp_is_local(const ddp_comm *comm, int rank)
{
	return comm->topology.node_of[rank] == comm->topology.node_of[comm->rank];
}

/* This rank's lines, and those of a rank of the communicator on this node. */
static inline ddp_node_rank *ddp_lines_own(const ddp_comm *comm)
{
	return &comm->node.shared->ranks[comm->node.self];
}

static inline ddp_node_rank *ddp_lines_of(const ddp_comm *comm, int rank)
{
	return &comm->node.shared->ranks[comm->topology.local_of[rank]];
}

/* The first rank (of the communicator) that has not posted header or step `until`, or
   DDP_NOBODY. Inline, as who waits asks again and again. */
static inline int ddp_node_lagging(const ddp_comm *comm, uint32_t event, uint64_t until)
{
	const ddp_node *node = &comm->node;

	for (int i = 0; i < node->size; i++) {
		const ddp_node_rank *rank = &node->shared->ranks[i];
		uint64_t at = event == DDP_SLEEPS_FOR_HEADERS
			? atomic_load(&rank->header[until & 1].sequence)
			: atomic_load(&rank->step);
		if (at < until)
			return node->ranks[i];
	}
	return DDP_NOBODY;
}

/* An operation of a communicator in the flight recorder's ring (watch/recorder.h). */

/* Begins the operation, which began at now_ns. `number` counts the collectives of the communicator and lane from 1; a
   message has 0. */
static inline ddp_recorded ddp_comm_record(const ddp_comm *comm, const ddp_operation *c, uint64_t number,
                                           uint64_t now_ns)
{
	const ddp_recorder *recorder = comm->roster->recorder;

	if (recorder == NULL)
		return (ddp_recorded){ NULL, 0 };
	const bool message = ddp_kind_is_message(c->kind);
	const bool rooted = message || ddp_kind_has_root(c->kind);
	const struct ddp_record_entry what = {
		.number = number, .group = comm->id, .count = c->count, .begin_ns = now_ns,
		.peer = rooted ? c->root : -1, .ranks = (uint32_t)comm->size, .kind = (uint8_t)c->kind, .type = (uint8_t)c->type,
		.op = ddp_kind_reduces(c->kind) ? (uint8_t)c->op : DDP_RECORD_NAMED, .lane = (uint8_t)c->lane,
		.flags = (uint8_t)((comm->size == comm->roster->size ? DDP_RECORD_OF_ALL : 0) |
		                   (c->memory == DDP_MEMORY_DEVICE ? DDP_RECORD_DEVICE : 0)),
		.tag = message ? (uint16_t)c->tag : 0,
	};
	return ddp_record_begin(recorder, &what);
}

/* A group may outlive the context that has the ring. The ring stays mapped, but may be another context's by now. */
static inline void ddp_comm_record_end(const ddp_comm *comm, ddp_recorded recorded, ddp_status status, uint64_t now_ns)
{
	if (recorded.entry != NULL && comm->roster->recorder != NULL)
		ddp_record_end(recorded, status, now_ns);
}
