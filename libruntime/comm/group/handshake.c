/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/handshake.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/hier/plan.h"
#include "comm/wait/await.h"

/* This rank connects with these ranks, and each of them connects with this rank. */
typedef struct neighbours {
	int *ranks;
	int count;
} neighbours;

static void find_all(const ddp_comm *comm, neighbours *n)
{
	for (int rank = 0; rank < comm->size; rank++) {
		if (!ddp_is_local(comm, rank))
			n->ranks[n->count++] = rank;
	}
}

/* The rank of that node with this one's index; each once. */
static void add(const ddp_comm *comm, int node, neighbours *n)
{
	if (comm->node.self >= ddp_node_size(comm, node))
		return;
	const int rank = ddp_channel_rank(comm, node, comm->node.self);
	for (int i = 0; i < n->count; i++) {
		if (n->ranks[i] == rank)
			return;
	}
	n->ranks[n->count++] = rank;
}

/* Finds the partners of recursive doubling and halving, which work on even and on odd chunks. */
static void find_partners(const ddp_comm *comm, neighbours *n)
{
	const ddp_plan plan = ddp_plan_halving(comm->topology.nodes);

	for (int k = 0; k < 2 * plan.rounds; k++) {
		const ddp_exchange exchange = ddp_plan_round(&plan, comm->topology.node_of[comm->rank], (size_t)k % 2, k / 2);
		if (exchange.peer >= 0)
			add(comm, exchange.peer, n);
	}
}

static ddp_status find_neighbours(const ddp_comm *comm, neighbours *n)
{
	*n = (neighbours){ .ranks = malloc((size_t)comm->size * sizeof(*n->ranks)) };
	if (n->ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the neighbours among %d ranks", comm->size);
	if (comm->size <= DDP_NET_FEW_RANKS)
		find_all(comm, n);
	else
		find_partners(comm, n);
	return DDP_OK;
}

/* One whose connection is lost is named first: for its sake others, with whom
   nothing is wrong, may have given up before they connected with this rank. */
static int missing_neighbour(const ddp_comm *comm, const neighbours *n, bool (*is_done)(const ddp_comm *, int peer))
{
	int missing = DDP_NOBODY, lost = DDP_NOBODY;

	for (int i = n->count - 1; i >= 0; i--) {
		if (!is_done(comm, n->ranks[i]))
			missing = n->ranks[i];
		if (ddp_net_lost(comm, n->ranks[i]))
			lost = n->ranks[i];
	}
	return missing != DDP_NOBODY && lost != DDP_NOBODY ? lost : missing;
}

static int missing_settled(ddp_comm *comm, const void *argument)
{
	return missing_neighbour(comm, argument, ddp_net_settled);
}

static int missing_ready(ddp_comm *comm, const void *argument)
{
	return missing_neighbour(comm, argument, ddp_net_ready);
}

static ddp_status settle(ddp_comm *comm, const neighbours *n)
{
	const ddp_condition settled = { .missing = missing_settled, .argument = n, .sleeps_for = DDP_SLEEPS_FOR_NET };
	ddp_status status = DDP_OK;

	for (int i = 0; i < n->count && status == DDP_OK; i++)
		status = ddp_net_connect(comm, n->ranks[i]);
	return status == DDP_OK ? ddp_comm_await(comm, &settled) : status;
}

/* Tells each neighbour once. */
static void say_ready(ddp_comm *comm, const neighbours *n)
{
	for (int i = 0; i < n->count; i++)
		ddp_net_say_ready(comm, n->ranks[i]);
}

/* All that this rank connects with are through with connecting. */
static ddp_status meet_ready(ddp_comm *comm, const neighbours *n)
{
	const ddp_condition ready = { .missing = missing_ready, .argument = n, .sleeps_for = DDP_SLEEPS_FOR_NET };

	say_ready(comm, n);
	return ddp_comm_await(comm, &ready);
}

static ddp_status connect_all(ddp_comm *comm, const neighbours *n)
{
	static const ddp_operation opening = { .kind = DDP_BARRIER };

	/* All that a part of the world needs may have been made for another. */
	if (missing_neighbour(comm, n, ddp_net_settled) == DDP_NOBODY &&
	    missing_neighbour(comm, n, ddp_net_ready) == DDP_NOBODY) {
		say_ready(comm, n);
		return DDP_OK;
	}
	comm->run.operation = &opening;
	comm->run.deadline_ns = ddp_now_ns() + (uint64_t)comm->timeout_ms * 1000000;
	ddp_status status = settle(comm, n);
	if (status == DDP_OK) {
		ddp_net_await_connections(comm);
		status = meet_ready(comm, n);
	}
	if (status != DDP_OK)
		ddp_net_shut_down(comm);
	else if (comm->roster->size <= DDP_NET_FEW_RANKS)
		ddp_net_shut_listeners(comm);
	return status;
}

ddp_status ddp_handshake(ddp_comm *comm)
{
	neighbours n;
	ddp_status status = find_neighbours(comm, &n);

	if (status == DDP_OK)
		status = connect_all(comm, &n);
	free(n.ranks);
	return status;
}
