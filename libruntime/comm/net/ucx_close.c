/* The end of comm/net over UCX: after a failure, and closing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/net/ucx_connect.h"
#include "comm/net/ucx_failure.h"
#include "comm/net/ucx_log.h"
#include "comm/net/ucx_receive.h"

enum {
	TELL_MS = 300, /* to tell peers of a failure */
	DRAIN_MS = 800,    /* for peers to end what is under way with them */
	FORCE_MS = 2000,   /* for UCX to end what it was told to */
	SETTLE_MS = 300,   /* for connections that are being made */
	CLOSE_MS = 2000
};

static void close_endpoints(ddp_net *net, uint64_t deadline_ns)
{
	const ucp_request_param_t forced = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
	                                     .flags = UCP_EP_CLOSE_FLAG_FORCE };
	const ucp_request_param_t flushed = { .op_attr_mask = 0 };
	int size = net->comm->size;

	for (int r = 0; r < size; r++) {
		connection *c = &net->peers[r];
		net->requests[r] = NULL;
		if (c->ep != NULL)
			net->requests[r] = ucp_ep_close_nbx(c->ep, c->lost != UCS_OK ? &forced : &flushed);
		c->ep = NULL;
	}
	ddp_ucx_finish_requests(net, net->requests, size, deadline_ns);
}

/* UCX 1.13 asserts if an endpoint is closed while its connection is being made;
   one that it has given up itself is made no longer. */
static bool can_close(const ddp_net *net)
{
	for (int r = 0; r < net->comm->size; r++) {
		const connection *c = &net->peers[r];
		if (c->ep != NULL && !c->settled && c->lost == UCS_OK)
			return false;
	}
	return true;
}

/* Ranks that give up a new communicator close it at about the same time: what
   is being made between two of them is made to the end, and who has died or
   closed is lost. Only one that is stopped is neither by the deadline. */
static void settle_connections(ddp_net *net, uint64_t deadline_ns)
{
	while (!can_close(net) && ddp_now_ns() < deadline_ns) {
		if (ucp_worker_progress(net->worker) == 0 && !ddp_ucx_answer_handshakes(net))
			usleep(20);
	}
}

/* Endpoints end with their worker: from here on nothing is sent or received. */
static void close_worker(ddp_net *net)
{
	ddp_ucx_drop_all(net, true);
	net->posted = net->held = NULL;
	net->down = true;
	for (int r = 0; r < net->comm->size && net->peers != NULL; r++) {
		net->peers[r].ep = NULL;
		if (net->peers[r].lost == UCS_OK)
			net->peers[r].lost = UCS_ERR_CANCELED;
	}
	if (net->worker != NULL)
		ucp_worker_destroy(net->worker);
	for (ticket *t = net->tickets, *next; t != NULL; t = next) {
		next = t->next;
		free(t);
	}
	net->tickets = NULL;
	if (net->context != NULL)
		ucp_cleanup(net->context);
	net->worker = NULL;
	net->context = NULL;
	atomic_store(&net->poll_fd, -1);
}

/* ---- giving up transfers -------------------------------------------------------------- */

/* From here on no transfer is written to: who waited for it may be gone. */
static void detach_transfers(ddp_net *net)
{
	net->posted = net->held = NULL;
	for (ticket *t = net->tickets; t != NULL; t = t->next)
		t->transfer = NULL;
}

/* Lets what is under way end, at most for a time; true if all has. */
static bool drain(ddp_net *net, int timeout_ms)
{
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)timeout_ms * 1000000;

	while (net->tickets != NULL && ddp_now_ns() < deadline_ns) {
		if (ucp_worker_progress(net->worker) == 0)
			usleep(20);
	}
	return net->tickets == NULL;
}

/* Ends the connections on which something is still under way, and that with
   them. */
static void force_close(ddp_net *net)
{
	static const ucp_request_param_t forced = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
	                                            .flags = UCP_EP_CLOSE_FLAG_FORCE };

	for (const ticket *t = net->tickets; t != NULL; t = t->next) {
		connection *c = &net->peers[t->peer];
		if (c->lost == UCS_OK)
			c->lost = UCS_ERR_CANCELED;
	}
	for (int r = 0; r < net->comm->size; r++) {
		connection *c = &net->peers[r];
		if (c->lost == UCS_OK || c->ep == NULL || !c->settled)
			continue;
		void *request = ucp_ep_close_nbx(c->ep, &forced);
		if (UCS_PTR_IS_PTR(request))
			ucp_request_free(request);
		c->ep = NULL;
	}
}

/* Peers are heard for a while, so that what is under way with them ends; then
   UCX is made to end the rest. Without a worker, nothing is under way. */
static void give_up_transfers(ddp_net *net)
{
	detach_transfers(net);
	if (net->worker == NULL || drain(net, DRAIN_MS))
		return;
	force_close(net);
	if (drain(net, FORCE_MS))
		return;
	ddp_log(DDP_LOG_WARN, "UCX does not end requests of connections that are closed");
	if (can_close(net))
		close_worker(net);
}

void ddp_net_forget(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();

	give_up_transfers(comm->net);
}

/* Other connections stay as they are, so that peers get our message before
   they see us go; but UCX is not called again until the end. */
void ddp_net_shut_down(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;

	if (net->down)
		return;
	net->refusing = true;
	detach_transfers(net);
	ddp_ucx_drop_all(net, false);
	if (!net->failure_came)
		ddp_ucx_tell_failure(net, ddp_now_ns() + (uint64_t)TELL_MS * 1000000);
	give_up_transfers(net);
	net->down = true;
	atomic_store(&net->poll_fd, -1);
}

void ddp_net_revive(ddp_comm *comm, bool alive)
{
	if (alive)
		ddp_net_shut_down(comm); /* if nobody has done so yet */
	comm->net->down = !alive || comm->net->worker == NULL;
}

bool ddp_net_ended(const ddp_comm *comm)
{
	return comm->net->worker == NULL;
}

/* ---- closing --------------------------------------------------------------------------- */

static void free_net(ddp_net *net)
{
	for (int r = 0; r < net->comm->size && net->peers != NULL; r++)
		free(net->peers[r].address);
	free(net->peers);
	free(net->peer_listeners);
	free(net->failures);
	free(net->requests);
	free(net);
}

void ddp_net_close(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;

	if (net == NULL)
		return;
	comm->net = NULL;
	if (net->unauthentic > 1)
		ddp_log(DDP_LOG_WARN, "%d messages that no rank of this communicator sent were ignored",
		        net->unauthentic);
	if (net->announced)
		ddp_fork_withdraw(&net->own_sockets);
	if (net->worker != NULL && net->down)
		settle_connections(net, ddp_now_ns() + (uint64_t)SETTLE_MS * 1000000);
	if (net->worker != NULL && net->down && !can_close(net)) {
		ddp_log(DDP_LOG_DEBUG, "UCX's part of a broken communicator is left to the process's end");
		return;
	}
	if (net->worker != NULL)
		close_endpoints(net, ddp_now_ns() + (uint64_t)(net->down ? TELL_MS : CLOSE_MS) * 1000000);
	close_worker(net);
	free_net(net);
}
