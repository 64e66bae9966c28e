/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/algorithms: the table of the algorithms that reduce between nodes.

   A new one is a file that has what a row asks for (struct ddp_algorithm_row in comm/hier/reduction.h), which is
   declared at the end, a name in the enum below, and a row in algorithms.c. DDP_ALGORITHM, its messages,
   tests/bench/algorithms and the tests that compare bits take it from there.

   All algorithms give the same bits. A node's ranks are combined in the order of ranks; the nodes'
   partial results are combined pair by pair in the order of comm/ops/combine_nodes, in accumulator
   form, and the result is rounded once. An algorithm that adds in another order, as a ring does
   (Patarasuk and Yuan 2009), is refused by tests/ranks/test_comm_travel: which algorithm runs
   follows from measured times, so sums would change from job to job. */
#pragma once

#include "comm/hier/plan.h"
#include "comm/hier/reduction.h"

/* Algorithms are tried in this order. If several cost the same, the first of them runs. Between two nodes the
   first that can run the operation does. */
typedef enum ddp_algorithm {
	DDP_DIRECT,             /* every node combines everything (comm/hier/direct) */
	DDP_SCATTER_GATHER,     /* each node combines its part (the same) */
	DDP_RECURSIVE_DOUBLING,
	DDP_RECURSIVE_HALVING,
	DDP_ALGORITHMS
} ddp_algorithm;

const ddp_algorithm_row *ddp_algorithm_of(ddp_algorithm algorithm);
/* The one of a name, or DDP_ALGORITHMS. */
ddp_algorithm ddp_algorithm_named(const char *name);

/* A set of algorithms, as bits: those that can run such an operation. */
unsigned int ddp_algorithm_candidates(ddp_operation_kind kind, bool small);
/* The cheapest of a set, or one without rounds that costs hardly more; for two nodes, the
   first, without a look at the link. */
ddp_algorithm ddp_algorithm_cheapest(const ddp_link *link, const ddp_shape *shape, unsigned int candidates);

/* ---- direct.c ------------------------------------------------------------------------- */

/* Each node sends its part of a slice to the node that owns it, which combines all parts and sends results
   where they are wanted. An all_reduce is then a reduce-scatter and an all-gather, of
   one message time each, and 2 (nodes - 1) / nodes of the data go in and out of each
   node, the least that is possible (Patarasuk and Yuan 2009). Or every node owns
   everything: one message time, but nodes - 1 times the data. */

/* How long it takes: where every node owns everything, */
ddp_cost ddp_direct_cost(const ddp_link *link, const ddp_shape *shape);
/* and where each owns its part. */
ddp_cost ddp_scatter_gather_cost(const ddp_link *link, const ddp_shape *shape);
/* Sets the chunks of slices, the longest of which is so long. */
void ddp_direct_cut(ddp_reduction *x, size_t longest);
/* Buffers of the chunks; they stay with the communicator. */
ddp_status ddp_direct_prepare(ddp_reduction *x);
/* All chunks of the present window. */
ddp_status ddp_direct_run(ddp_reduction *x);

/* ---- recursive_doubling.c ------------------------------------------------------------- */

/* A small all_reduce. In round k each node exchanges all that it has with the one whose number differs in bit k
   (Thakur, Rabenseifner and Gropp 2005); with comm/hier/plan that is comm/ops/combine_nodes's order of combination.
   What travels is combined already and would be rounded in each round: it goes in accumulator form. */

ddp_cost ddp_recursive_doubling_cost(const ddp_link *link, const ddp_shape *shape);
void ddp_recursive_doubling_cut(ddp_reduction *x, size_t longest);
/* The only slice, which is one chunk. */
ddp_status ddp_recursive_doubling(ddp_reduction *x);

/* Combines `mine` (count elements of `type`, in accumulator form) over the first ranks
   of all nodes, in place; `theirs` is as large. Messages are numbered from `tag` on. */
ddp_status ddp_recursive_doubling_of(ddp_comm *comm, ddp_type type, ddp_op op, void *mine,
                                     void *theirs, size_t count, uint32_t tag);

/* ---- recursive_halving.c -------------------------------------------------------------- */

/* A large all_reduce between many nodes: reduce-scatter by recursive halving, with distances that double, then
   all-gather by recursive doubling (Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005). As few bytes as by direct
   exchange, with log2(nodes) peers instead of all, in messages whose size follows from
   the chunk and not from the number of nodes. A reduce gathers the parts on the root's
   node instead; a reduce_scatter ends when each node has its ranks' blocks. */

/* It begins so many chunks while one is in a round. */
enum { DDP_HALVING_LAG = 2 };

ddp_cost ddp_recursive_halving_cost(const ddp_link *link, const ddp_shape *shape);
void ddp_recursive_halving_cut(ddp_reduction *x, size_t longest);

/* Buffers of `depth` chunks; they stay with the communicator. */
ddp_status ddp_recursive_halving_prepare(ddp_reduction *x);
/* All chunks of the present window. */
ddp_status ddp_recursive_halving_run(ddp_reduction *x);

/* Tests of the model use these, too. Returns who exchanges what with whom. */
ddp_plan ddp_halving_plan(const ddp_shape *shape, int root);
/* Returns how many elements of a chunk of `count` are exchanged: of a channel, or of each block. */
size_t ddp_halving_elements(const ddp_shape *shape, const ddp_plan *plan, ddp_range parts, bool share, size_t count);
/* Returns the elements of a chunk; of reduce_scatter, those of each block of a channel. They are the same on all
   nodes, whether nodes work on shared memory or through windows, which are whole multiples of a chunk. 0: a window
   is too small. */
size_t ddp_halving_chunk(const ddp_link *link, const ddp_shape *shape);
/* Returns how many chunks are under way at a time. */
size_t ddp_halving_depth(const ddp_shape *shape, size_t chunk, size_t longest);
