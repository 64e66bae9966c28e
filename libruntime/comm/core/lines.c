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

int ddp_node_lagging(const ddp_comm *comm, uint32_t event, uint64_t until)
{
	const ddp_node *node = &comm->node;

	for (int i = 0; i < node->size; i++) {
		const ddp_node_rank *rank = &node->shared->ranks[i];
		uint64_t at = event == DDP_SLEEPS_FOR_HEADERS
			? atomic_load(&rank->header[until & 1].sequence)
			: atomic_load(&rank->step);
		if (at < until)
			return node->ranks[i];
	}
	return DDP_NOBODY;
}

ddp_answer ddp_lines_inquire(ddp_node_rank *lines, uint64_t now)
{
	atomic_store(&lines->wanted_ns, now);
	uint64_t waits_ns = atomic_load_explicit(&lines->waits_ns, memory_order_acquire);

	return (ddp_answer){ .at_ns = waits_ns, .waits = waits_ns != 0,
	                     .names = atomic_load(&lines->names) - 1 };
}
