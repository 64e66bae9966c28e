/*
 * comm/inter: collectives among ranks of several nodes. Ranks of a node work
 * together through shared memory; what goes to other nodes goes once.
 */
#ifndef DDP_COMM_INTER_H
#define DDP_COMM_INTER_H

#include "comm/internal.h"
#include "comm/net.h"

ddp_status ddp_inter_barrier(ddp_comm *comm, const ddp_collective *c);
ddp_status ddp_inter_reduction(ddp_comm *comm, const ddp_collective *c);
ddp_status ddp_inter_all_gather(ddp_comm *comm, const ddp_collective *c);

/* The part between nodes of the other collectives, for comm/node_copy. */
typedef struct ddp_inter_copy {
	ddp_transfer *transfers;
	int count;
} ddp_inter_copy;

/* Broadcast: brings the data to `source`, the rank that spreads it on this
   node; its node's other ranks have nothing to do here. gather, scatter,
   all_to_all: starts the exchange of each pair of ranks on different nodes;
   `exposed` is what this rank sends from. */
ddp_status ddp_inter_copy_begin(ddp_comm *comm, const ddp_collective *c, const void *exposed,
                                ddp_inter_copy *copy);
/* Waits for what was begun, if status is DDP_OK, and releases. */
ddp_status ddp_inter_copy_end(ddp_comm *comm, ddp_inter_copy *copy, ddp_status status);

/* The rank that spreads a broadcast's data on `node`. */
int ddp_inter_source(const ddp_comm *comm, const ddp_collective *c, int node);

/* Measures the network, the first time that it matters to an operation of
   `bytes` on each rank. Collective, after ddp_node_enter(). */
ddp_status ddp_inter_tune(ddp_comm *comm, size_t bytes);
/* Is it better to combine `bytes` by owner, in two exchanges, than at every
   node, in one? And by recursive doubling, which sends `wide_bytes`? The same
   answer on all ranks. */
bool ddp_inter_by_owner(const ddp_comm *comm, size_t bytes);
bool ddp_inter_by_doubling(const ddp_comm *comm, size_t bytes, size_t wide_bytes);

/* Combines `mine` (count elements, in accumulator form) over the first ranks
   of all nodes, in place; `theirs` is as large. */
ddp_status ddp_inter_doubling(ddp_comm *comm, const ddp_collective *c, void *mine, void *theirs,
                              size_t count, size_t bytes);

/* Frees what reductions keep; comm->net is closed, or NULL. */
void ddp_inter_close(ddp_comm *comm);

/* After an error: the communicator is broken, if it was not yet, and no
   transfer touches memory any more. Returns what broke it. */
ddp_status ddp_inter_give_up(ddp_comm *comm, ddp_status status);

/* The rank that on `node` has the index `channel`. */
static inline int ddp_channel_rank(const ddp_comm *comm, int node, int channel)
{
	return comm->node_ranks[comm->node_begin[node] + channel];
}

static inline int ddp_node_size(const ddp_comm *comm, int node)
{
	return comm->node_begin[node + 1] - comm->node_begin[node];
}

#endif
