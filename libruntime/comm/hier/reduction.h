/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/reduction: the parts of a reduction between nodes. The input is cut
   into slices. A slice has a channel: on each node, the rank with that index
   combines the node's inputs and talks to the same rank of other nodes. And
   it has an owner, the node that combines the nodes' partial results; or all
   nodes do, which costs one exchange less.

   A slice is cut into chunks, of which several are under way, so that the
   network has always something to carry. */
#pragma once

#include "comm/core/comm.h"
#include "comm/net/net.h"
#include "comm/ops/blocks.h"
#include "comm/ops/kernels.h"

/* This tells what a reduction between nodes is to the algorithms that could run it, and how they say how long it takes
   them, from what the network was measured to do. Each algorithm's file has its own formula, which needs no communicator: all
   ranks get the same figures from the same numbers.

   The model is that of Hockney (1994) with the time that a message takes its sender or receiver (LogP, Culler et al.
   1993): messages that a node sends behind each other take their own times, and one latency. Links work in both
   directions at once. */
enum { DDP_BUDGET_BYTES = 32 * 1024 * 1024 }; /* of buffers of one operation */

/* An operation, as the algorithms see it. */
typedef struct ddp_shape {
	ddp_operation_kind kind;                /* all_reduce, reduce or reduce_scatter */
	int nodes, channels;
	size_t blocks;                /* of reduce_scatter: of a channel, at most */
	size_t count;                 /* elements */
	size_t element, travel, wide; /* bytes of one: as given, between nodes, in accumulator form */
	size_t stage_bytes;           /* of a slot */
} ddp_shape;

typedef struct ddp_cost {
	double seconds;       /* INFINITY: it is taken only if it is asked for */
	double messages;      /* that a rank sends; the highest of any */
	int connections;      /* that a rank uses */
	size_t message_bytes; /* of the largest message */
} ddp_cost;

static inline size_t ddp_least(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline size_t ddp_quotient_up(size_t a, size_t b)
{
	return (a + b - 1) / b;
}

enum {
	DDP_EVERY_NODE = -1,
	DDP_CHUNKS_MAX = 16 /* of direct exchange, under way */
};

typedef struct ddp_slice {
	ddp_range range;
	int channel;
	int owner;     /* a node, or DDP_EVERY_NODE */
	int target;    /* the one rank that wants the result, or DDP_NOBODY */
} ddp_slice;

/* A chunk of each of this channel's slices, under way. */
typedef struct ddp_chunk {
	struct ddp_reduction *reduction;
	size_t number;
	bool combined;         /* when it came, without a copy */
	char *buffers;
	ddp_transfer *sends, *recvs;  /* partial results */
	ddp_transfer *result_sends, *result_recvs;
	int send_count, recv_count, result_send_count, result_recv_count;
} ddp_chunk;

struct ddp_reduction;

/* A row describes an algorithm (comm/hier/algorithms has one for each). */
typedef struct ddp_algorithm_row {
	const char *name;      /* as DDP_ALGORITHM and ddp_comm_describe() have it */
	/* Can it run this kind of operation? It is small if its inputs came with the headers. */
	bool (*can)(ddp_operation_kind kind, bool small);
	/* The time of an operation; of the algorithms that can run it, the cheapest one does. */
	ddp_cost (*cost)(const ddp_link *link, const ddp_shape *shape);
	bool by_rounds;        /* a round waits for a process of another node: it has to be cheaper by a margin */
	bool by_node;          /* slices are cut into a part per node, which owns it */
	bool chunks_overlap;   /* it begins chunks before those in front of them are complete */
	/* Sets chunk_count and depth for slices, the longest of which has `longest` elements. */
	void (*cut)(struct ddp_reduction *x, size_t longest);
	/* Gets buffers that stay with the communicator; NULL: it needs none before it runs. */
	ddp_status (*prepare)(struct ddp_reduction *x);
	/* Reduces this rank's slices, as far as they lie in the present window. */
	ddp_status (*run)(struct ddp_reduction *x);
} ddp_algorithm_row;

typedef struct ddp_reduction {
	ddp_comm *comm;
	const ddp_operation *c;
	ddp_type travel;       /* of nodes' partial results */
	size_t element;        /* bytes of an element, */
	size_t travel_bytes;   /* and of one of a partial result */
	size_t total;          /* elements of a rank's input */
	const char *input;
	char *output;          /* addressed like the input */
	char *spare;           /* reduce_scatter over its own input */
	int node, nodes;
	ddp_slice *slices;     /* all channels', the same list on all ranks */
	int count;
	int *mine;             /* those of this rank's channel */
	int mine_count, owned_count;
	bool spread;           /* owners send results to nodes that want them */
	bool small;            /* inputs came with the headers */
	const ddp_algorithm_row *algorithm;
	bool direct;           /* other ranks' inputs and outputs are in shared memory */
	bool plain;            /* the input is the node's partial result, as it is */
	double divisor;        /* of the result, before it is rounded; 0: it is not divided */
	size_t width;          /* elements of a slice per window */
	size_t window;         /* number of the present one */
	size_t chunk_count;  /* elements of a chunk */
	size_t depth;          /* chunks under way */
	ddp_chunk chunks[DDP_CHUNKS_MAX]; /* of direct exchange */
	ddp_combination combination;         /* of this node's inputs */
	void **parts;          /* [nodes] */
} ddp_reduction;
