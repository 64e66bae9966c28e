/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/lines.h"

#include "comm/core/comm.h"

ddp_node_rank *ddp_lines_own(const ddp_comm *comm)
{
	return &comm->node.shared->ranks[comm->node.self];
}

ddp_node_rank *ddp_lines_of(const ddp_comm *comm, int rank)
{
	return &comm->node.shared->ranks[comm->topology.local_of[rank]];
}

ddp_answer ddp_lines_inquire(ddp_node_rank *lines, uint64_t now)
{
	atomic_store(&lines->wanted_ns, now);
	uint64_t waits_ns = atomic_load_explicit(&lines->waits_ns, memory_order_acquire);

	return (ddp_answer){ .at_ns = waits_ns, .waits = waits_ns != 0,
	                     .names = atomic_load(&lines->names) - 1 };
}
