/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/node_reduce: all_reduce, reduce and reduce_scatter among ranks that are
   all on one node. Buffers from ddp_mem_alloc() are read and written in place;
   others pass through windows of the control segment; small payloads travel with
   the header. */
#pragma once

#include "ddp.h"

/* `c` is complete (comm/check). */
ddp_status ddp_node_reduction(ddp_comm *comm, const ddp_operation *c);
