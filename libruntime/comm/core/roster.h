/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/roster: the processes of the job, and what their communicators share. */
#pragma once

#include <stdatomic.h>

#include "comm/core/allocation.h"
#include "comm/core/doorbell.h"
#include "comm/core/pool.h"
#include "ddp.h"
#include "job/job.h"

/* A process of the job, as this process knows it. */
typedef struct ddp_peer {
	char host[DDP_HOST_MAX];
	int64_t pid;
	uint64_t pid_start; /* of /proc/PID/stat, for peers of this node */
	int pidfd;          /* for peers of this node; -1: none */
	int bell;           /* write end of its doorbell, for peers of this node; -1: none */
	int node;           /* a node is named by its lowest world rank */
	atomic_int silent_ms; /* the node has been silent for so long (comm/core/silence); 0: it is not silent */
} ddp_peer;

/* DDP_ALGORITHM asks for these algorithms (comm/hier/tune). An operation takes the first of them
   that it can, and the cheapest algorithm if the list is empty. */
enum { DDP_WANTED_MAX = 8 };
typedef struct ddp_wanted_list {
	int count, order[DDP_WANTED_MAX];
} ddp_wanted_list;

typedef struct ddp_roster {
	int rank, size;     /* of this process in the world */
	unsigned int forks; /* which led to this process, as ddp_roster_check_owner() counts them */
	ddp_key key;        /* of the step, if there is one */
	/* The context has these. Groups may outlive it, so the roster has a reference to the watch and to the device. */
	struct ddp_watch *watch;   /* NULL: none */
	struct ddp_progress *_Atomic page; /* of this rank; NULL: none, or the context is closed */
	const struct ddp_recorder *_Atomic recorder; /* of its operations; the same */
	struct ddp_device *device; /* of DDP_MEMORY_DEVICE; NULL: none */
	ddp_peer *peers;    /* [size], by world rank */
	ddp_allocations memory;
	int max_ctas;       /* of a GPU, for its communication; 0: as NCCL likes */
	ddp_wanted_list wanted;  /* the same on all ranks */
	ddp_doorbell doorbell;
	ddp_pool pool;      /* runs what communicators have queued */
	struct ddp_worker *worker;       /* of comm/net; NULL on one node */
	struct ddp_attention *attention; /* of comm/attend; the same */
	int silence_ms;     /* after this time without a sign of life, a node is silent; 0: never */
	atomic_int silences; /* nodes that are silent */
	atomic_bool deaf;    /* this process hears no other node: its own network may be lost */
	atomic_uint opened; /* communicators that this process began to open */
	atomic_int users;   /* communicators, and who makes it */
} ddp_roster;

/* Makes the roster of a job, used once; its processes are not known yet. `key` may be NULL. */
ddp_status ddp_roster_make(const ddp_job *job, const ddp_key *key, ddp_roster **roster);
/* The last user's release frees it. */
void ddp_roster_release(ddp_roster *roster);

/* DDP_ERR_STATE if this process is a forked child of the one that made the roster: it would do `what` in the name
   of a rank that knows nothing of it. A world of one rank has nobody who could be misled. */
ddp_status ddp_roster_check_owner(const ddp_roster *roster, const char *what);

/* How many forks have led to this process since the library was first used. */
unsigned int ddp_roster_forks(void);

/* A number that no other communicator of the job has, if all its members take that of
   their first. */
uint64_t ddp_roster_new_id(ddp_roster *roster);

/* "rank 3 on n1", by its number in the world, in one of a few buffers of the thread. */
const char *ddp_rank_text(const ddp_comm *comm, int rank);

/* Which of a communicator's ranks are on which node. */
typedef struct ddp_topology {
	int *world_ranks; /* [size] */
	int nodes;        /* number of nodes */
	int *node_of;     /* [size]: 0 .. nodes - 1, by first rank */
	int *node_begin;  /* [nodes + 1]: where a node's ranks begin in */
	int *node_ranks;  /* [size]: ranks, node by node */
	int *local_of;    /* [size]: index among its node's ranks */
	int channels;     /* ranks of each node that use the network */
} ddp_topology;

/* Makes the topology of `size` processes, given by world rank; the nodes are not known yet. */
ddp_status ddp_topology_make(ddp_topology *t, const int *world_ranks, int size);
/* Numbers the nodes by their first rank and lists their ranks, by roster->peers. */
ddp_status ddp_topology_place(ddp_topology *t, int size, const ddp_roster *roster);
void ddp_topology_free(ddp_topology *t);
