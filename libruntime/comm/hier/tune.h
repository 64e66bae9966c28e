/* comm/hier/tune: the choice among algorithms between nodes, by what the network was
   measured to do. */
#ifndef DDP_COMM_HIER_TUNE_H
#define DDP_COMM_HIER_TUNE_H

#include "ddp.h"

/* Measures the network, the first time that it matters to an operation of
   `bytes` on each rank. Collective, after ddp_node_enter(). */
ddp_status ddp_hier_tune(ddp_comm *comm, size_t bytes);
/* Is it better to combine `bytes` by owner, in two exchanges, than at every
   node, in one? And by recursive doubling, which sends `wide_bytes`? The same
   answer on all ranks. */
bool ddp_hier_by_owner(const ddp_comm *comm, size_t bytes);
bool ddp_hier_by_doubling(const ddp_comm *comm, size_t bytes, size_t wide_bytes);

#endif
