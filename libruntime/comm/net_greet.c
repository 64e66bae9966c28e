#include "base/clock.h"
#include "base/error.h"
#include "comm/await.h"
#include "comm/inter.h"
#include "comm/net_log.h"
#include "comm/net_ucx.h"

enum {
	FEW_RANKS = 32,    /* up to which every rank greets every other */
	CONNECTING_MS = 1000
};

/* Among many, only those with the same index on their node. */
static bool greets(const ddp_comm *comm, int peer)
{
	if (comm->node_of[peer] == comm->node_of[comm->rank])
		return false;
	return comm->size <= FEW_RANKS || comm->local_of[peer] == comm->node.self;
}

static bool is_settled(const connection *c)
{
	return c->settled;
}

static bool is_ready(const connection *c)
{
	return c->ready;
}

/* One whose connection is lost is named first: for its sake others, with whom
   nothing is wrong, may have given up before they greeted this rank. */
static int missing_greeted(const ddp_comm *comm, bool (*is_done)(const connection *))
{
	int missing = DDP_NOBODY, lost = DDP_NOBODY;

	for (int peer = comm->size - 1; peer >= 0; peer--) {
		if (!greets(comm, peer))
			continue;
		if (!is_done(&comm->net->peers[peer]))
			missing = peer;
		if (comm->net->peers[peer].lost != UCS_OK)
			lost = peer;
	}
	return missing != DDP_NOBODY && lost != DDP_NOBODY ? lost : missing;
}

static int missing_settled(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return missing_greeted(comm, is_settled);
}

static int missing_ready(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return missing_greeted(comm, is_ready);
}

static ddp_status settle(ddp_comm *comm)
{
	const ddp_condition settled = { .missing = missing_settled, .sleeps_for = DDP_SLEEPS_FOR_NET };
	ddp_status status = DDP_OK;
	ucp_ep_h ep;

	for (int peer = 0; peer < comm->size && status == DDP_OK; peer++) {
		if (greets(comm, peer))
			status = ddp_net_connect(comm->net, peer, &ep);
	}
	return status == DDP_OK ? ddp_comm_await(comm, &settled) : status;
}

/* UCX may use more connections to a peer than the one that messages took. */
static void await_connections(ddp_comm *comm)
{
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)CONNECTING_MS * 1000000;

	while (ddp_sockets_connecting() && ddp_now_ns() < deadline_ns)
		(void)ddp_net_progress(comm);
}

/* All that this rank connects with are through with connecting. */
static ddp_status meet_ready(ddp_comm *comm)
{
	const ddp_condition ready = { .missing = missing_ready, .sleeps_for = DDP_SLEEPS_FOR_NET };

	for (int peer = 0; peer < comm->size; peer++) {
		if (greets(comm, peer))
			ddp_net_say_ready(comm->net, peer);
	}
	return ddp_comm_await(comm, &ready);
}

ddp_status ddp_net_greet(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	static const ddp_collective opening = { .kind = DDP_BARRIER };
	ddp_net *net = comm->net;

	comm->running = &opening;
	comm->deadline_ns = ddp_now_ns() + (uint64_t)comm->timeout_ms * 1000000;
	ddp_status status = settle(comm);
	if (status == DDP_OK) {
		await_connections(comm);
		ddp_sockets_close_on_exec(&net->doors, net->peer_doors, net->kinship.peer_count);
		status = meet_ready(comm);
	}
	if (status != DDP_OK)
		ddp_net_shut_down(comm);
	else if (comm->size <= FEW_RANKS && net->unfiltered == 0)
		(void)ddp_doors_shut(&net->doors); /* those of the job's hosts stay let in */
	return status;
}
