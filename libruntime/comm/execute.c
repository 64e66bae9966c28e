/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/execute.h"

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/core/offsets.h"
#include "comm/hier/hier.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/node.h"
#include "comm/shm/node_copy.h"
#include "comm/shm/node_reduce.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"
#include "watch/page.h"

/* ---- sends and receives ------------------------------------------------------------------ */

static int missing_p2p(ddp_comm *comm, const void *argument)
{
	const ddp_request *request = argument;
	bool wanted = atomic_load(&comm->queue.count) > 0 || atomic_load(&comm->queue.callers) > 0;

	/* A message that is late does not give way any more. Otherwise nobody would look at its deadline while
	   operations follow each other closely. */
	if (atomic_load(&comm->queue.stopping) || (wanted && ddp_now_ns() < comm->run.deadline_ns))
		return DDP_NOBODY;
	/* An operation that waits for a message may wait for one that a callback sends. */
	if (ddp_requests_to_call_back(comm))
		return DDP_NOBODY;
	if (request != NULL)
		return ddp_request_done(request) ? DDP_NOBODY : ddp_p2p_peer(comm, request);
	const ddp_request *first = ddp_p2p_first_due(comm);
	/* The deadline belongs to another request, which is complete, or later. */
	if (first == NULL || comm->run.awaited != first || comm->run.deadline_ns != first->deadline_ns)
		return DDP_NOBODY;
	return ddp_p2p_peer(comm, first);
}

ddp_status ddp_execute_p2p(ddp_comm *comm, const ddp_request *request)
{
	const ddp_condition condition = { .missing = missing_p2p, .argument = request,
	                                  .sleeps_for = DDP_SLEEPS_FOR_ANY };
	static const ddp_operation none = { .kind = DDP_BARRIER };

	(void)ddp_p2p_progress(comm);
	const ddp_request *first = request != NULL ? request : ddp_p2p_first_due(comm);
	if (first == NULL || ddp_request_done(first))
		return ddp_comm_check(comm);
	/* A request that completes meanwhile is its owner's to free. */
	const ddp_operation operation = first->operation;
	comm->run.operation = &operation;
	comm->run.awaited = first;
	comm->run.deadline_ns = first->deadline_ns;
	ddp_status status = missing_p2p(comm, request) == DDP_NOBODY ? ddp_comm_check(comm)
	                                                              : ddp_comm_await(comm, &condition);
	ddp_comm_tell_end(comm);
	comm->run.operation = &none;
	comm->run.awaited = NULL;
	return status;
}

/* Breaks the communicator if a message is late, however busy others keep it. */
static ddp_status check_p2p(ddp_comm *comm)
{
	const ddp_request *first = ddp_p2p_first_due(comm);

	if (first == NULL || ddp_now_ns() < first->deadline_ns)
		return DDP_OK;
	return ddp_execute_p2p(comm, NULL);
}

/* ---- collectives -------------------------------------------------------------------------- */

/* The barrier by dissemination (Hensgen, Finkel and Manber 1988): in round k each node's first rank tells the node 2^k
   further on; after it, it has heard of 2^(k + 1) nodes. */
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

static ddp_status barrier_between_nodes(ddp_comm *comm, const ddp_operation *c)
{
	const ddp_entry nothing = { .payload = NULL };
	ddp_status status = ddp_node_enter(comm, c, &nothing);

	if (status == DDP_OK && comm->node.self == 0)
		status = disseminate(comm);
	if (status == DDP_OK)
		status = ddp_node_step(comm);
	return status == DDP_OK ? status : ddp_message_give_up(comm, status);
}

static ddp_status run_on_node(ddp_comm *comm, const ddp_operation *c)
{
	const ddp_entry nothing = { .payload = NULL };

	if (c->kind == DDP_BARRIER)
		return ddp_node_enter(comm, c, &nothing);
	return ddp_kind_reduces(c->kind) ? ddp_node_reduction(comm, c) : ddp_node_copy(comm, c, NULL);
}

static ddp_status run_between_nodes(ddp_comm *comm, const ddp_operation *c)
{
	if (c->kind == DDP_BARRIER)
		return barrier_between_nodes(comm, c);
	if (c->kind == DDP_ALL_GATHER)
		return ddp_hier_all_gather(comm, c);
	if (c->kind == DDP_BROADCAST)
		return ddp_hier_broadcast(comm, c);
	return ddp_kind_reduces(c->kind) ? ddp_hier_reduction(comm, c) : ddp_hier_pairwise(comm, c);
}

ddp_status ddp_execute(ddp_comm *comm, const ddp_operation *c)
{
	ddp_status status = ddp_comm_check(comm);

	/* Operations may follow each other so fast that none of them waits for long
	   enough to look after these. */
	if (status == DDP_OK)
		status = check_p2p(comm);
	if (status == DDP_OK && comm->net != NULL &&
	    (status = ddp_message_check(comm, DDP_NOBODY, false)) != DDP_OK)
		status = ddp_message_give_up(comm, status);
	if (status != DDP_OK)
		return status;
	comm->run.sequence++;
	comm->run.operation = c;
	comm->run.deadline_ns = 0;
	if (c->kind == DDP_BARRIER && c->tag != 0)
		atomic_store(&ddp_lines_own(comm)->ending, 1);
	const uint64_t begun_ns = comm->roster->page != NULL ? ddp_coarse_ns() : 0;
	if (comm->is_world)
		ddp_page_collective(comm->roster->page, comm->run.sequence, begun_ns);
	const ddp_recorded recorded = ddp_comm_record(comm, c, comm->run.sequence, begun_ns);
	status = ddp_offsets_make(comm);
	if (status != DDP_OK)
		status = ddp_comm_break(comm, status, comm->rank, "%s", ddp_last_error());
	else
		status = comm->topology.nodes == 1 ? run_on_node(comm, c) : run_between_nodes(comm, c);
	ddp_comm_tell_end(comm);
	if (recorded.entry != NULL)
		ddp_comm_record_end(comm, recorded, status, ddp_coarse_ns());
	return status;
}
