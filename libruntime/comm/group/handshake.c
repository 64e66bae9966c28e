#include "comm/group/handshake.h"

#include "base/clock.h"
#include "comm/wait/await.h"

enum { FEW_RANKS = 32 }; /* up to which every rank connects with every other */

/* Among many, only those with the same index on their node. */
static bool connects(const ddp_comm *comm, int peer)
{
	if (ddp_is_local(comm, peer))
		return false;
	return comm->size <= FEW_RANKS || comm->topology.local_of[peer] == comm->node.self;
}

/* One whose connection is lost is named first: for its sake others, with whom
   nothing is wrong, may have given up before they connected with this rank. */
static int missing_peer(const ddp_comm *comm, bool (*is_done)(const ddp_comm *, int peer))
{
	int missing = DDP_NOBODY, lost = DDP_NOBODY;

	for (int peer = comm->size - 1; peer >= 0; peer--) {
		if (!connects(comm, peer))
			continue;
		if (!is_done(comm, peer))
			missing = peer;
		if (ddp_net_lost(comm, peer))
			lost = peer;
	}
	return missing != DDP_NOBODY && lost != DDP_NOBODY ? lost : missing;
}

static int missing_settled(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return missing_peer(comm, ddp_net_settled);
}

static int missing_ready(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return missing_peer(comm, ddp_net_ready);
}

static ddp_status settle(ddp_comm *comm)
{
	const ddp_condition settled = { .missing = missing_settled, .sleeps_for = DDP_SLEEPS_FOR_NET };
	ddp_status status = DDP_OK;

	for (int peer = 0; peer < comm->size && status == DDP_OK; peer++) {
		if (connects(comm, peer))
			status = ddp_net_connect(comm, peer);
	}
	return status == DDP_OK ? ddp_comm_await(comm, &settled) : status;
}

/* To each once. */
static void say_ready(ddp_comm *comm)
{
	for (int peer = 0; peer < comm->size; peer++) {
		if (connects(comm, peer))
			ddp_net_say_ready(comm, peer);
	}
}

/* All that this rank connects with are through with connecting. */
static ddp_status meet_ready(ddp_comm *comm)
{
	const ddp_condition ready = { .missing = missing_ready, .sleeps_for = DDP_SLEEPS_FOR_NET };

	say_ready(comm);
	return ddp_comm_await(comm, &ready);
}

/* All that a part of the world needs may have been made for another. */
static bool is_connected(const ddp_comm *comm)
{
	return missing_peer(comm, ddp_net_settled) == DDP_NOBODY && missing_peer(comm, ddp_net_ready) == DDP_NOBODY;
}

ddp_status ddp_handshake(ddp_comm *comm)
{
	static const ddp_collective opening = { .kind = DDP_BARRIER };

	if (is_connected(comm)) {
		say_ready(comm);
		return DDP_OK;
	}
	comm->run.operation = &opening;
	comm->run.deadline_ns = ddp_now_ns() + (uint64_t)comm->timeout_ms * 1000000;
	ddp_status status = settle(comm);
	if (status == DDP_OK) {
		ddp_net_await_connections(comm);
		status = meet_ready(comm);
	}
	if (status != DDP_OK)
		ddp_net_shut_down(comm);
	else if (comm->roster->size <= FEW_RANKS)
		ddp_net_shut_listeners(comm);
	return status;
}
