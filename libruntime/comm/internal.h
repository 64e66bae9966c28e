/*
 * comm/internal: the parts of a communicator.
 *
 * An operation is run by one thread at a time, the one that holds
 * comm->run_lock: a blocking call runs it itself when nothing is queued, else
 * the communicator's progress thread takes it from the queue. The code of a
 * collective is straight-line; whenever it has to wait it calls
 * ddp_comm_await(), which looks after deadlines, dead peers, aborts, messages
 * between single ranks and the network, and puts the thread to sleep.
 */
#ifndef DDP_COMM_INTERNAL_H
#define DDP_COMM_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/kernels.h"
#include "watch/page.h"

enum { DDP_NOBODY = -1, DDP_FAILURE_TEXT = 768 };

typedef struct ddp_net ddp_net; /* the network between nodes; NULL on one node */

/* A process of the job, as this process knows it. */
typedef struct ddp_peer {
	char host[DDP_HOST_MAX];
	int64_t pid;
	uint64_t pid_start; /* of /proc/PID/stat, for peers of this node */
	int pidfd;          /* for peers of this node; -1: none */
	int node;           /* a node is named by its lowest world rank */
} ddp_peer;

typedef struct ddp_allocation {
	struct ddp_allocation *next;
	uint64_t id;        /* the same on all ranks of the node */
	size_t stride;      /* bytes from one rank's part to the next */
	size_t bytes;       /* of one part, as asked for */
	char *base;         /* all parts */
	char *own;
	size_t parts;
	int *part_of;       /* [world size]: world rank's part, or DDP_NOBODY */
} ddp_allocation;

/* What the communicators of a process share. */
typedef struct ddp_roster {
	const ddp_job *job;
	ddp_key key;        /* of the step, if there is one */
	struct ddp_progress *page; /* of this rank; NULL: none */
	struct ddp_place *hosts; /* addresses of the other nodes, once they are known */
	int host_count;
	int size;
	ddp_peer *peers;    /* [size], by world rank */
	pthread_mutex_t memory_lock;
	ddp_allocation *allocations;
	_Atomic uint64_t memory_changes; /* of the list; under memory_lock */
	atomic_uint_least32_t allocation_count;
	atomic_int users;   /* communicators, and who makes it */
} ddp_roster;

/* Where a buffer lies in memory that the node's ranks share. */
typedef struct ddp_memory_ref {
	uint64_t allocation; /* 0: not shared */
	uint64_t offset;
} ddp_memory_ref;

/* ---- the control segment of a node's ranks -------------------------------- */

enum {
	DDP_INLINE_BYTES = 32,
	DDP_SMALL_BYTES = 8192,        /* payload that travels with the header */
	DDP_STAGE_BYTES = 256 * 1024,  /* window of the staged path */
	DDP_NET_STAGE_BYTES = 4096 * 1024 /* the same, with several nodes */
};

/* What a rank posts at the start of operation `sequence`. The payload of a
   tiny operation travels in the same line. */
typedef struct ddp_header {
	alignas(128) _Atomic uint64_t sequence;
	union {
		struct {
			uint8_t kind, type, op;
			uint8_t form;    /* DDP_HEADER_VECTOR or 0 */
			int32_t root;
			uint64_t count;
		};
		uint64_t operation[2]; /* compared */
	};
	uint32_t counts_hash;
	uint8_t flags;
	union {
		unsigned char inlined[DDP_INLINE_BYTES];
		struct {
			ddp_memory_ref send, recv;
		};
	};
	/* second line, rarely looked at: valid if `flags` say so */
	double scale;
	uint64_t largest_block;  /* bytes; how long the staged path runs */
} ddp_header;

enum { DDP_HEADER_SCALED = 1, DDP_HEADER_SEND_SHARED = 2, DDP_HEADER_RECV_SHARED = 4,
       DDP_HEADER_VECTOR = 8, DDP_HEADER_BLOCK = 16 };

/* What a sleeping rank waits for. */
enum { DDP_AWAKE = 0, DDP_SLEEPS_FOR_HEADERS, DDP_SLEEPS_FOR_STEPS, DDP_SLEEPS_FOR_ANY,
       DDP_SLEEPS_FOR_NET };

/* A failure that a rank has found; complete before `failed_by` names the rank. */
typedef struct ddp_failure {
	int32_t status;
	int32_t culprit;            /* rank of the communicator or DDP_NOBODY */
	char text[DDP_FAILURE_TEXT];
} ddp_failure;

/* One rank's lines; `step`, `header` and `failure` have one writer, the rank
   itself. */
typedef struct ddp_node_rank {
	alignas(128) _Atomic uint64_t step;
	_Atomic uint32_t left;      /* closed its communicator */
	_Atomic uint64_t meeting;   /* the last round of comm/meeting that it is at */
	alignas(128) _Atomic uint32_t bell; /* futex: rung to wake the rank */
	_Atomic uint32_t sleeps_for;
	_Atomic uint64_t sleeps_until;
	_Atomic uint32_t yields_on; /* 1 + the core that it is giving up; 0: none */
	/* of comm/verdict: */
	_Atomic int32_t names;      /* 1 + the rank that it holds to be late; 0: not known */
	_Atomic uint64_t waits_ns;  /* when it last said that it waits; 0: it does not */
	_Atomic uint64_t wanted_ns; /* when a rank last inquired after it */
	ddp_header header[2];       /* by the sequence's parity */
	ddp_failure failure;
} ddp_node_rank;

typedef struct ddp_node_shared {
	unsigned char nonce[16];
	_Atomic uint32_t cores;     /* of the node, as its first rank to come saw it */
	alignas(64) _Atomic uint32_t sleepers;
	alignas(64) _Atomic uint32_t failed_by; /* 1 + index of the rank whose failure counts; 0: none */
	alignas(4096) ddp_node_rank ranks[];
} ddp_node_shared;

/* The ranks of a communicator that are on this node. */
typedef struct ddp_node {
	int size, self;             /* number of ranks, and which of them this is */
	int *ranks;                 /* [size]: rank in the communicator */
	ddp_node_shared *shared;
	size_t shared_bytes;
	char *small, *stage, *result;
	char *notices;              /* of comm/meeting: nothing else writes there */
	size_t stage_bytes;         /* of a window of stage, result or notices */
	char *rings;                /* of comm/pairs: [size][size], from, to */
	struct ddp_incoming *incoming; /* [size]: messages of ranks of this node */
	uint64_t step;              /* of this rank; the ranks go in lockstep */
	const void **src;           /* [size], for reductions */
	void **dst;                 /* [size + 1] */
	double *scales;             /* [size] */
} ddp_node;

/* What an operation was on this rank; it has to be the same on all. */
typedef struct ddp_fingerprint {
	uint8_t kind, type, op, form;
	int32_t root;
	uint64_t count;
	uint32_t counts_hash;
} ddp_fingerprint;

enum { DDP_PAST = 256 };

/* What the network between nodes was measured to do. */
typedef struct ddp_link {
	bool measured;
	double latency_seconds; /* of a small message */
	double byte_seconds;    /* for each byte more */
	double post_seconds;    /* of the sender's own time */
	size_t segment_bytes;   /* of a large transfer's messages */
} ddp_link;

/* What a rank that is inquired after says (comm/verdict). */
typedef struct ddp_answer {
	uint64_t at_ns;
	bool waits;
	int names;      /* the rank that it holds to be late, or DDP_NOBODY */
} ddp_answer;

/* What this rank knows of the one that it waits for (comm/verdict). */
typedef struct ddp_chain {
	bool waits;          /* this rank has said that it waits */
	int missing;         /* whom it inquires after, or DDP_NOBODY */
	uint64_t since_ns, asked_ns;
	int end;             /* the last of the chain, or DDP_NOBODY */
	uint64_t certain_ns; /* when that counts, if it stays the same */
} ddp_chain;

/* ---- communicator ---------------------------------------------------------- */

struct ddp_comm {
	ddp_roster *roster;
	bool is_world;
	int rank, size;
	int *world_ranks;           /* [size] */
	int nodes;                  /* number of nodes */
	int *node_of;               /* [size]: 0 .. nodes - 1, by first rank */
	int *node_begin;            /* [nodes + 1]: where a node's ranks begin in */
	int *node_ranks;            /* [size]: ranks, node by node */
	int *local_of;              /* [size]: index among its node's ranks */
	int channels;               /* ranks of each node that use the network */
	ddp_node node;
	ddp_net *net;
	ddp_link link;
	struct ddp_inter_store *inter_store; /* NULL before the first reduction */
	int timeout_ms;
	bool crowded;               /* more ranks on the node than cores */
	unsigned int turns;         /* times that this rank and a peer gave up one core to each other */

	pthread_mutex_t run_lock;   /* held while operations run */
	bool in_thread;             /* the running one is run by the progress thread */
	uint64_t sequence;          /* of the last operation */
	ddp_fingerprint past[DDP_PAST]; /* of the last ones, by sequence */
	const ddp_collective *running;
	const ddp_request *awaited; /* the message for which it waits; may be gone: to compare */
	const ddp_allocation *recent; /* looked up last; for who holds run_lock */
	uint64_t recent_changes;      /* the roster's memory_changes then */
	uint64_t deadline_ns;       /* of the running operation; 0: it has not waited for long */
	bool told;                  /* the progress page says that the running one waits */
	ddp_chain chain;            /* for who holds run_lock */

	pthread_mutex_t queue_lock;
	pthread_cond_t queue_filled;
	ddp_request *queue_head, *queue_tail;
	atomic_int queued;          /* in the queue or taken from it by the thread */
	atomic_int callers;         /* threads that want run_lock for a blocking call */
	ddp_request *pairs_new;     /* sends and receives that were just issued */
	ddp_request *pairs;         /* those under way; for who holds run_lock */
	atomic_int pair_count;      /* of both */
	bool thread_started;        /* under queue_lock */
	atomic_bool stopping;       /* set under queue_lock or run_lock */
	pthread_t thread;

	atomic_int failed;          /* a ddp_status; set once, after the text */
	pthread_mutex_t failure_lock;
	bool failure_told;          /* this rank's lines hold its own failure */
	char failure_text[DDP_FAILURE_TEXT];
	int culprit;                /* rank that the failure is about, or DDP_NOBODY */
	uint64_t meetings;          /* calls of comm/shrink */
};

/* Is this rank of the communicator on the caller's node? */
static inline bool ddp_is_local(const ddp_comm *comm, int rank)
{
	return comm->node_of[rank] == comm->node_of[comm->rank];
}

struct ddp_request {
	ddp_comm *comm;
	ddp_collective operation;
	ddp_request *next;
	_Atomic uint32_t done;      /* futex */
	ddp_status status;
	bool last;                  /* nothing runs after it */
	atomic_bool awaited;        /* by a thread of the program */
	char *message;              /* of a failure; malloc'd */
	uint64_t start_ns, end_ns;
	/* of send and recv: */
	uint64_t deadline_ns;
	size_t moved;        /* bytes of header and data written */
	bool claimed;        /* a message is being received into it */
	bool arrived;
	struct ddp_transfer *transfer; /* between nodes */
};

#endif
