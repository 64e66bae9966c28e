/*
 * comm/hier/tune: what the network between nodes does, measured once a communicator and
 * agreed on by all ranks; and the choice among the algorithms that are possible, by
 * comm/hier/cost, so that all ranks choose alike. All algorithms give the same bits.
 *
 * DDP_ALGORITHM=direct, scatter_gather, recursive_doubling or recursive_halving, the same
 * in all ranks' environment, overrules the choice where that algorithm is possible and
 * there are more than two nodes, for tests and measurements.
 *
 * There is no ring (Patarasuk and Yuan 2009): it moves as many bytes as scatter_gather
 * and recursive halving, in 2 (nodes - 1) message times, and combines each of its parts
 * in another order, so that the bits would depend on the algorithm.
 */
#ifndef DDP_COMM_HIER_TUNE_H
#define DDP_COMM_HIER_TUNE_H

#include "comm/hier/reduction.h"

/* Measures the network, the first time that it matters to an operation of
   `bytes` on each rank. Collective, after ddp_node_enter(). */
ddp_status ddp_hier_tune(ddp_comm *comm, size_t bytes);
ddp_algorithm ddp_hier_choose(const ddp_reduction *x);

#endif
