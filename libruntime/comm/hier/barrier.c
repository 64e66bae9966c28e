/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/barrier.h"

#include "comm/shm/node.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

static ddp_status disseminate(ddp_comm *comm)
{
	ddp_transfer pair[2];
	int node = comm->topology.node_of[comm->rank], nodes = comm->topology.nodes, round = 0;

	for (int distance = 1; distance < nodes; distance *= 2, round++) {
		uint64_t tag = ddp_message_tag(comm, (uint32_t)round);
		ddp_message_recv(comm, ddp_channel_rank(comm, (node + nodes - distance) % nodes, 0), tag, NULL,
		                 0, &pair[0]);
		ddp_status status = ddp_message_send(comm, ddp_channel_rank(comm, (node + distance) % nodes, 0),
		                                     tag, NULL, 0, &pair[1]);
		if (status == DDP_OK)
			status = ddp_await_transfers(comm, pair, 2);
		/* Other threads receive for this communicator, too: not into a frame that has ended. */
		if (status != DDP_OK)
			return ddp_message_give_up(comm, status);
	}
	return DDP_OK;
}

ddp_status ddp_hier_barrier(ddp_comm *comm, const ddp_operation *c)
{
	const ddp_entry nothing = { .payload = NULL };
	ddp_status status = ddp_node_enter(comm, c, &nothing);

	if (status == DDP_OK && comm->node.self == 0)
		status = disseminate(comm);
	if (status == DDP_OK)
		status = ddp_node_step(comm);
	return status == DDP_OK ? status : ddp_message_give_up(comm, status);
}
