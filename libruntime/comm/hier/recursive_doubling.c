/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/algorithms.h"

#include "comm/hier/local.h"
#include "comm/hier/store.h"
#include "comm/ops/combine_nodes.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

ddp_cost ddp_recursive_doubling_cost(const ddp_link *link, const ddp_shape *shape)
{
	const ddp_plan plan = ddp_plan_doubling(shape->nodes);
	const double bytes = (double)(shape->count * shape->wide);
	/* If all pairs are in one half, the other half does not wait for their first round: its
	   values are there when the halves meet, and that round takes pairs no time. */
	const int waits = plan.rounds - (plan.pairs > 0 && plan.pairs <= plan.leaves / 2);

	return (ddp_cost){
		.seconds = waits * (link->latency_seconds + link->message_seconds + bytes * link->byte_seconds),
		.messages = plan.rounds - (plan.pairs > 0), .connections = plan.reductions,
		.message_bytes = shape->count * shape->wide,
	};
}

void ddp_recursive_doubling_cut(ddp_reduction *x, size_t longest)
{
	x->chunk_count = longest > 0 ? longest : 1;
	x->depth = 1;
}

ddp_status ddp_recursive_doubling_of(ddp_comm *comm, ddp_type type, ddp_op op, void *mine,
                                     void *theirs, size_t count, uint32_t tag)
{
	const ddp_plan plan = ddp_plan_doubling(comm->topology.nodes);
	const int node = comm->topology.node_of[comm->rank];
	const size_t bytes = count * ddp_type_bytes(ddp_accumulator(type));
	ddp_status status = DDP_OK;

	for (int round = 0; round < plan.rounds; round++) {
		const ddp_exchange e = ddp_plan_round(&plan, node, 0, round);
		const bool results = round >= plan.reductions;
		const uint64_t number = ddp_message_tag(comm, tag + (uint32_t)round);
		ddp_transfer pair[2];
		int under_way = 0;
		if (e.peer < 0)
			continue;
		const int peer = ddp_channel_rank(comm, e.peer, 0);
		if (e.recv.count > 0)
			ddp_message_recv(comm, peer, number, results ? mine : theirs, bytes, &pair[under_way++]);
		if (e.send.count > 0)
			status = ddp_message_send(comm, peer, number, mine, bytes, &pair[under_way++]);
		if (status == DDP_OK)
			status = ddp_await_transfers(comm, pair, under_way);
		/* The transfers of `pair` end before `pair` is gone. */
		if (status != DDP_OK)
			return ddp_message_give_up(comm, status);
		if (e.recv.count > 0 && !results)
			ddp_combine_pair(type, op, e.below ? theirs : mine, e.below ? mine : theirs, mine, count);
	}
	return DDP_OK;
}

ddp_status ddp_recursive_doubling(ddp_reduction *x)
{
	const ddp_range range = x->slices[0].range;
	const size_t bytes = range.count * ddp_type_bytes(ddp_accumulator(x->c->type));
	ddp_status status = ddp_hier_store_grow(x->comm, 2 * bytes, 0);
	void **places = x->comm->node.dst;

	if (status != DDP_OK)
		return status;
	char *mine = x->comm->hier.store->buffers, *theirs = mine + bytes;
	ddp_local_combine_wide(x, 0, range, theirs, mine);
	status = ddp_recursive_doubling_of(x->comm, x->c->type, x->c->op, mine, theirs, range.count, 0);
	if (status == DDP_OK)
		ddp_local_round(x, mine, range.count, places, ddp_local_places(x, 0, range, places));
	return status;
}
