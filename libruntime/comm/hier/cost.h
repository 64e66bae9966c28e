/*
 * comm/hier/cost: how long a reduction between nodes takes, by each algorithm, from
 * what the network was measured to do. Needs no communicator: all ranks, and
 * tests/scale, get the same figures from the same numbers.
 *
 * The model is that of Hockney (1994) with the time that a message takes its sender or
 * receiver (LogP, Culler et al. 1993): messages that a node sends behind each other
 * take their own times, and one latency. Links work in both directions at once.
 */
#ifndef DDP_COMM_HIER_COST_H
#define DDP_COMM_HIER_COST_H

#include "comm/core/comm.h"
#include "comm/hier/plan.h"

typedef enum ddp_algorithm {
	DDP_DIRECT,             /* every node combines everything (comm/hier/direct) */
	DDP_SCATTER_GATHER,     /* each node combines its part (the same) */
	DDP_RECURSIVE_DOUBLING,
	DDP_RECURSIVE_HALVING,
	DDP_ALGORITHMS
} ddp_algorithm;

enum {
	DDP_CHUNKS_MAX = 16, /* of direct exchange, under way */
	/* Recursive halving begins so many chunks while one is in a round. */
	DDP_HALVING_LAG = 2
};

/* An operation, as the algorithms see it. */
typedef struct ddp_shape {
	ddp_kind kind;                /* all_reduce, reduce or reduce_scatter */
	int nodes, channels;
	size_t blocks;                /* of reduce_scatter: of a channel, at most */
	size_t count;                 /* elements */
	size_t element, travel, wide; /* bytes of one: as given, between nodes, in accumulator form */
	size_t stage_bytes;           /* of a slot */
} ddp_shape;

typedef struct ddp_cost {
	double seconds;
	double messages;      /* that a rank sends; the highest of any */
	int connections;      /* that a rank uses */
	size_t message_bytes; /* of the largest message */
} ddp_cost;

ddp_cost ddp_cost_of(ddp_algorithm algorithm, const ddp_link *link, const ddp_shape *shape);
/* A set of algorithms, as bits: those that an operation can choose from; it is small if
   its inputs came with the headers. */
unsigned int ddp_cost_candidates(ddp_kind kind, bool small);
/* The cheapest of a set, or one without rounds that costs hardly more; for two nodes, the
   first, without a look at the link. */
ddp_algorithm ddp_cost_cheapest(const ddp_link *link, const ddp_shape *shape, unsigned int candidates);

/* Elements of a chunk: the same on all nodes, whether they work on shared memory or
   through windows, which are whole multiples of it. For direct exchange of `slices`, the
   `longest` of which is so long, with so many buffers a chunk; 0: a window is too small.
   For reduce_scatter by recursive halving, of each block of a channel. */
size_t ddp_direct_chunk(const ddp_link *link, const ddp_shape *shape, size_t slices, size_t buffers,
                        size_t longest);
size_t ddp_halving_chunk(const ddp_link *link, const ddp_shape *shape);
/* Chunks that are under way at a time. */
size_t ddp_direct_depth(const ddp_shape *shape, size_t chunk, size_t slices);
size_t ddp_halving_depth(const ddp_shape *shape, size_t chunk, size_t longest);

ddp_plan ddp_halving_plan(const ddp_shape *shape, int root);
/* Elements of what is exchanged, in a chunk of `count`: of a channel, or of each block. */
size_t ddp_halving_elements(const ddp_shape *shape, const ddp_plan *plan, ddp_range parts, bool share, size_t count);

/* "recursive_doubling"; and the algorithm of a name, or DDP_ALGORITHMS. */
const char *ddp_algorithm_name(ddp_algorithm algorithm);
ddp_algorithm ddp_algorithm_named(const char *name);

#endif
