/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/reduce: all_reduce, reduce and reduce_scatter between nodes. */
#ifndef DDP_COMM_HIER_REDUCE_H
#define DDP_COMM_HIER_REDUCE_H

#include "ddp.h"

ddp_status ddp_hier_reduction(ddp_comm *comm, const ddp_operation *c);

#endif
