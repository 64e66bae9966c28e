/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/algorithms: the table of the algorithms that reduce between nodes.

   A new one is a file that has what a row asks for (struct ddp_algorithm_row in comm/hier/reduction.h),
   a name in the enum below, and a row in algorithms.c. DDP_ALGORITHM, its messages,
   tests/bench/algorithms and the tests that compare bits take it from there.

   All algorithms give the same bits. A node's ranks are combined in the order of ranks; the nodes'
   partial results are combined pair by pair in the order of comm/ops/combine_nodes, in accumulator
   form, and the result is rounded once. An algorithm that adds in another order, as a ring does
   (Patarasuk and Yuan 2009), is refused by tests/ranks/test_comm_travel: which algorithm runs
   follows from measured times, so sums would change from job to job. */
#pragma once

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
