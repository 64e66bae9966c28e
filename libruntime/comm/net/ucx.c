/* comm/net over UCX: messages, and what its progress brings. */
#include "base/clock.h"
#include "comm/net/ucx.h"
#include "comm/net/ucx_connect.h"
#include "comm/net/ucx_inquiry.h"
#include "comm/net/ucx_log.h"
#include "comm/net/ucx_receive.h"
#include "comm/net/ucx_send.h"
#include "comm/net/ucx_window.h"

enum {
	TURNS_MAX = 64, /* of UCX's progress at a time, though there is more to move */
	CONNECTING_MS = 1000
};

/* ---- the handshake ------------------------------------------------------------------- */

ddp_status ddp_net_connect(ddp_comm *comm, int peer)
{
	DDP_UCX_FOR_LIBDDP();

	return ddp_ucx_connect(comm->net, peer);
}

bool ddp_net_settled(const ddp_comm *comm, int peer)
{
	return comm->net->peers[peer].settled;
}

bool ddp_net_ready(const ddp_comm *comm, int peer)
{
	return comm->net->peers[peer].ready;
}

void ddp_net_say_ready(ddp_comm *comm, int peer)
{
	DDP_UCX_FOR_LIBDDP();

	ddp_ucx_say_ready(comm->net, peer);
}

/* UCX may use more connections to a peer than the one that messages took. */
void ddp_net_await_connections(ddp_comm *comm)
{
	const ddp_net *net = comm->net;
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)CONNECTING_MS * 1000000;

	while (ddp_sockets_connecting() && ddp_now_ns() < deadline_ns)
		(void)ddp_net_progress(comm);
	ddp_sockets_close_on_exec(&net->listeners, net->peer_listeners, net->own_sockets.peer_count);
}

void ddp_net_shut_listeners(ddp_comm *comm)
{
	if (comm->net->unfiltered == 0)
		(void)ddp_listeners_shut(&comm->net->listeners); /* those of the job's hosts stay let in */
}

bool ddp_net_lost(const ddp_comm *comm, int peer)
{
	return comm->net->peers[peer].lost != UCS_OK;
}

const char *ddp_net_lost_reason(const ddp_comm *comm, int peer)
{
	return ucs_status_string(comm->net->peers[peer].lost);
}

/* ---- messages ------------------------------------------------------------------------ */

ddp_status ddp_net_send(ddp_comm *comm, int peer, const ddp_envelope *envelope,
                        const void *buffer, size_t bytes, ddp_transfer *transfer)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;
	ddp_transfer **end = &net->held;

	*transfer = (ddp_transfer){ .net = net, .peer = peer, .envelope = *envelope, .data = buffer,
	                            .bytes = bytes };
	if (net->down)
		return ddp_comm_check(comm);
	net->sent_bytes += bytes;
	ddp_status status = ddp_ucx_connect(net, peer);
	if (status != DDP_OK)
		return status;
	if (net->peers[peer].settled)
		return ddp_ucx_begin_send(net, transfer);
	while (*end != NULL)
		end = &(*end)->next;
	*end = transfer;
	return DDP_OK;
}

uint64_t ddp_net_sent_bytes(const ddp_comm *comm)
{
	return comm->net->sent_bytes;
}

void ddp_net_recv(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer,
                  size_t bytes, ddp_transfer *transfer)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;

	*transfer = (ddp_transfer){ .net = net, .peer = peer, .envelope = *envelope, .buffer = buffer,
	                            .bytes = bytes };
	if (net->down)
		return;
	/* Only an endpoint of one's own tells of the peer's death. A failure to
	   connect is reported when the message is waited for. */
	(void)ddp_ucx_connect(net, peer);
	ddp_ucx_receive(net, transfer);
}

bool ddp_net_progress(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;
	bool moved = false;

	if (net->down)
		return false;
	for (int i = 0; i < TURNS_MAX && ucp_worker_progress(net->worker) != 0; i++)
		moved = true;
	if (ddp_ucx_answer_handshakes(net))
		moved = true;
	if (ddp_ucx_receive_deferred(net))
		moved = true;
	ddp_ucx_answer_inquiries(net);
	ddp_ucx_send_credits(net);
	return moved;
}

ddp_status ddp_net_check_failure(ddp_comm *comm)
{
	const ddp_net *net = comm->net;

	if (!net->failure_came)
		return DDP_OK;
	return ddp_comm_break(comm, (ddp_status)net->failure.status, net->failure.culprit, "%s",
	                      net->failure.text);
}

ddp_status ddp_net_check_memory(ddp_comm *comm)
{
	const ddp_net *net = comm->net;

	if (net->out_of_memory)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "%s has no memory to receive what %s sends",
		                      ddp_rank_text(comm, comm->rank), ddp_rank_text(comm, net->flooding));
	if (net->flooding != DDP_NOBODY)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, net->flooding,
		                      "%s has no memory for messages that it has not asked for yet: %zu MiB are "
		                      "kept, and %s sent more", ddp_rank_text(comm, comm->rank),
		                      net->kept_bytes >> 20, ddp_rank_text(comm, net->flooding));
	return DDP_OK;
}

const ddp_misfit *ddp_net_misfit(const ddp_comm *comm)
{
	return comm->net->misfits ? &comm->net->misfit : NULL;
}

/* A kept message begins with what the others know of it. */
const ddp_unexpected *ddp_net_unexpected(const ddp_comm *comm, const ddp_unexpected *after)
{
	const kept_message *next = after == NULL ? comm->net->unexpected
	                                         : ((const kept_message *)(const void *)after)->next;

	return next != NULL ? &next->message : NULL;
}

void ddp_net_drop_unexpected(ddp_comm *comm, const ddp_unexpected *message)
{
	ddp_ucx_drop(comm->net, message->envelope.source, message->envelope.tag);
}

void ddp_net_inquire(ddp_comm *comm, int peer)
{
	DDP_UCX_FOR_LIBDDP();

	ddp_ucx_inquire(comm->net, peer);
}

ddp_answer ddp_net_answer_of(const ddp_comm *comm, int peer)
{
	return comm->net->peers[peer].answer;
}

/* ---- sleeping ------------------------------------------------------------------------ */

bool ddp_net_arm(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();

	return comm->net->down || ucp_worker_arm(comm->net->worker) != UCS_ERR_BUSY;
}

int ddp_net_fd(const ddp_comm *comm)
{
	return atomic_load(&comm->net->poll_fd);
}

bool ddp_net_down(const ddp_comm *comm)
{
	return comm->net->down;
}
