/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net over UCX: the functions of net.h by which messages of a communicator move. */
#include "comm/net/ucx.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/core/silence.h"
#include "comm/net/log.h"

/* ---- progress ------------------------------------------------------------------------ */

enum { TURNS_MAX = 64 }; /* of UCX's progress at a time, though there is more to move */

void ddp_ucx_lock(ddp_worker *worker, const ddp_net *net)
{
	pthread_mutex_lock(&worker->lock);
	worker->current = net;
}

static bool try_lock(ddp_worker *worker, const ddp_net *net)
{
	if (pthread_mutex_trylock(&worker->lock) != 0)
		return false;
	worker->current = net;
	return true;
}

void ddp_ucx_unlock(ddp_worker *worker)
{
	ddp_doorbell *bell = &worker->roster->doorbell;
	const bool news = worker->news, alarm = worker->alarm;

	worker->news = worker->alarm = false;
	worker->current = NULL;
	pthread_mutex_unlock(&worker->lock);
	if (news)
		ddp_doorbell_notify_own(bell);
	if (alarm)
		ddp_doorbell_notify_attention(bell);
}

/* Sends what callbacks left to be sent. A credit that cannot be sent now stays. */
static bool send_due(ddp_worker *worker)
{
	connection *due = worker->due;
	bool sent = false;

	worker->due = NULL;
	for (connection *c = due, *next; c != NULL; c = next) {
		next = c->next_due;
		c->listed = false;
		sent = sent || c->first_due || c->handshake_due;
		if (c->first_due || c->handshake_due)
			ddp_ucx_answer_handshake(c);
		if (c->closed_due != 0)
			ddp_ucx_answer_closed(c);
		if (c->credit_due && !ddp_ucx_send_credit(c))
			ddp_ucx_due(c);
	}
	return sent;
}

bool ddp_ucx_progress(ddp_worker *worker)
{
	bool moved = false;

	if (worker->ended)
		return false;
	/* The turns end when something has come that a rank may wait for: over TCP, a turn in which nothing moves costs a
	   system call. */
	worker->came = false;
	for (int i = 0; i < TURNS_MAX && !worker->came && ucp_worker_progress(worker->worker) != 0; i++)
		moved = true;
	ddp_ucx_end_silent(worker);
	if (send_due(worker))
		moved = true;
	if (ddp_ucx_receive_deferred(worker))
		moved = true;
	ddp_ucx_answer_inquiries(worker);
	return moved;
}

enum {
	MAKING_NS = 200000, /* between two looks at connections that are being made */
	CONNECTING_MS = 1000,
	/* A rank that has closed the communicator is waited for this long. Data that it sent before may come by
	   another of UCX's connections than this word. */
	CLOSED_MS = 50
};

static void lock(const ddp_comm *comm)
{
	ddp_ucx_lock(comm->net->worker, comm->net);
}

static void unlock(const ddp_comm *comm)
{
	ddp_ucx_unlock(comm->net->worker);
}

static bool is_down(const ddp_net *net)
{
	return net->down || net->worker->ended;
}

/* ---- messages without data ------------------------------------------------------ */

static ucs_status_t control_arrived(void *argument, const void *header, size_t header_bytes, void *data,
                                    size_t bytes, const ucp_am_recv_param_t *param)
{
	const control *taker = argument;
	connection *c = ddp_ucx_source(taker->worker, header, header_bytes, taker->bytes);
	control_header aligned;

	(void)data;
	(void)bytes;
	(void)param;
	if (c == NULL)
		return UCS_OK;
	memcpy(&aligned, header, taker->bytes);
	taker->arrived(c, &aligned);
	return UCS_OK;
}

static ucs_status_t set_handler(ddp_worker *worker, unsigned int id, ucp_am_recv_callback_t fn, void *argument)
{
	const ucp_am_handler_param_t param = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
			UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
		.id = id, .flags = UCP_AM_FLAG_WHOLE_MSG, .cb = fn, .arg = argument,
	};

	return ucp_worker_set_am_recv_handler(worker->worker, &param);
}

/* The table of UCX 1.13 grows to an even size, and it calls whatever happens
   to be in places that nobody has set: all are set, the last one first. */
_Static_assert(DDP_AM_IDS % 2 == 0, "a place of the table would be left");

ucs_status_t ddp_ucx_set_handlers(ddp_worker *worker)
{
	const control controls[DDP_AM_IDS] = {
		[DDP_AM_FAILURE] = { worker, sizeof(failure_header), ddp_ucx_failure_arrived },
		[DDP_AM_HANDSHAKE] = { worker, sizeof(handshake_header), ddp_ucx_handshake_arrived },
		[DDP_AM_INQUIRY] = { worker, sizeof(inquiry_header), ddp_ucx_inquiry_arrived },
		[DDP_AM_CREDIT] = { worker, sizeof(credit_header), ddp_ucx_credit_arrived },
		[DDP_AM_CLOSED] = { worker, sizeof(closed_header), ddp_ucx_closed_arrived },
		[DDP_AM_SILENCE] = { worker, sizeof(silence_header), ddp_ucx_silence_arrived },
		[DDP_AM_UNUSED] = { worker, SIZE_MAX, NULL }, /* no message is so long */
	};
	ucs_status_t status = UCS_OK;

	memcpy(worker->controls, controls, sizeof(controls));
	for (unsigned int id = DDP_AM_IDS; id-- > 0 && status == UCS_OK;)
		status = id == DDP_AM_DATA ? set_handler(worker, id, ddp_ucx_data_arrived, worker)
		                           : set_handler(worker, id, control_arrived, &worker->controls[id]);
	return status;
}

/* ---- the handshake ------------------------------------------------------------------- */

/* The lock is not held. */
static ddp_status fail_connect(ddp_comm *comm, int peer)
{
	if (ddp_comm_check_silence(comm) != DDP_OK)
		return ddp_comm_check(comm);
	return ddp_comm_break(comm, DDP_ERR_PEER, peer, "cannot connect to %s: %s", ddp_rank_text(comm, peer),
	                      ddp_net_lost_reason(comm, peer));
}

void ddp_net_begin_connection(ddp_comm *comm, int peer)
{
	DDP_UCX_FOR_LIBDDP();

	lock(comm);
	if (!is_down(comm->net))
		(void)ddp_ucx_connect(ddp_ucx_connection(comm->net, peer));
	unlock(comm);
}

ddp_status ddp_net_connect(ddp_comm *comm, int peer)
{
	DDP_UCX_FOR_LIBDDP();

	lock(comm);
	bool connected = !is_down(comm->net) && ddp_ucx_connect(ddp_ucx_connection(comm->net, peer));
	unlock(comm);
	return connected ? DDP_OK : fail_connect(comm, peer);
}

bool ddp_net_settled(const ddp_comm *comm, int peer)
{
	return ddp_ucx_connection(comm->net, peer)->settled;
}

bool ddp_net_ready(const ddp_comm *comm, int peer)
{
	return ddp_ucx_connection(comm->net, peer)->ready;
}

void ddp_net_say_ready(ddp_comm *comm, int peer)
{
	DDP_UCX_FOR_LIBDDP();

	lock(comm);
	if (!is_down(comm->net))
		ddp_ucx_say_ready(ddp_ucx_connection(comm->net, peer));
	unlock(comm);
}

/* UCX may use more connections to a peer than the one that messages took. */
void ddp_net_await_connections(ddp_comm *comm)
{
	const ddp_worker *worker = comm->net->worker;
	uint64_t deadline_ns = ddp_ms_from_now(CONNECTING_MS);

	while (ddp_sockets_connecting() && ddp_now_ns() < deadline_ns)
		(void)ddp_net_progress(comm);
	ddp_sockets_close_on_exec(&worker->listeners, worker->peer_listeners, worker->own_sockets.peer_count);
}

void ddp_net_shut_listeners(ddp_comm *comm)
{
	const ddp_worker *worker = comm->net->worker;

	/* If the kernel takes no filter, attackers that only connect would keep UCX's thread busy. */
	if (worker->unfiltered == 0)
		(void)ddp_listeners_shut(&worker->listeners); /* those of the job's hosts stay let in */
	else
		(void)ddp_listeners_end(&worker->listeners);
}

static bool has_closed(const ddp_comm *comm, int peer)
{
	uint64_t closed_ns = atomic_load(&comm->net->members[peer].closed_ns);

	return closed_ns != 0 && ddp_now_ns() > closed_ns + (uint64_t)CLOSED_MS * 1000000;
}

bool ddp_net_lost(const ddp_comm *comm, int peer)
{
	return ddp_ucx_connection(comm->net, peer)->lost != UCS_OK || has_closed(comm, peer) ||
	       ddp_silence_of(comm->roster, comm->topology.world_ranks[peer]);
}

const char *ddp_net_lost_reason(const ddp_comm *comm, int peer)
{
	static _Thread_local char text[384];
	char choice[320];
	ucs_status_t lost = (ucs_status_t)atomic_load(&ddp_ucx_connection(comm->net, peer)->lost);

	if (lost == DDP_UCX_NO_DESCRIPTOR) {
		snprintf(text, sizeof(text), "%s has no descriptor left: raise its limit, ulimit -n",
		         ddp_rank_text(comm, comm->rank));
		return text;
	}
	if (lost == UCS_ERR_UNREACHABLE) {
		snprintf(text, sizeof(text), "%s%s", ucs_status_string(lost), ddp_ucx_choice(choice, sizeof(choice)));
		return text;
	}
	return lost == UCS_OK ? "it has closed its communicator" : ucs_status_string(lost);
}

bool ddp_net_lacks_descriptors(const ddp_comm *comm)
{
	bool lacks = false;

	for (int r = 0; r < comm->size && !lacks; r++)
		lacks = (ucs_status_t)atomic_load(&ddp_ucx_connection(comm->net, r)->lost) == DDP_UCX_NO_DESCRIPTOR;
	return lacks;
}

/* ---- messages ------------------------------------------------------------------------ */

/* The lock is held. */
static ddp_status send_or_hold(ddp_net *net, ddp_transfer *transfer)
{
	ddp_transfer **end = &net->held;

	if (atomic_load(&ddp_ucx_connection(net, transfer->peer)->settled))
		return ddp_ucx_begin_send(net, transfer);
	while (*end != NULL)
		end = &(*end)->next;
	*end = transfer;
	return DDP_OK;
}

ddp_status ddp_net_send(ddp_comm *comm, int peer, const ddp_envelope *envelope,
                        const void *buffer, size_t bytes, ddp_transfer *transfer)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;
	ddp_status status = DDP_OK;

	*transfer = (ddp_transfer){ .net = net, .peer = peer, .envelope = *envelope, .data = buffer,
	                            .bytes = bytes };
	if (is_down(net))
		return ddp_comm_check(comm);
	net->sent_bytes += bytes;
	lock(comm);
	bool connected = ddp_ucx_connect(ddp_ucx_connection(net, peer));
	if (connected)
		status = send_or_hold(net, transfer);
	unlock(comm);
	return connected ? status : fail_connect(comm, peer);
}

uint64_t ddp_net_sent_bytes(const ddp_comm *comm)
{
	return comm->net->sent_bytes;
}

void ddp_net_recv(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer,
                  size_t bytes, ddp_transfer *transfer)
{
	*transfer = (ddp_transfer){ .peer = peer, .envelope = *envelope, .buffer = buffer, .bytes = bytes };
	ddp_net_recv_filled(comm, transfer);
}

void ddp_net_recv_filled(ddp_comm *comm, ddp_transfer *transfer)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;

	transfer->net = net;
	if (is_down(net))
		return;
	lock(comm);
	/* Only an endpoint of one's own tells of the peer's death. A failure to
	   connect is reported when the message is waited for. */
	(void)ddp_ucx_connect(ddp_ucx_connection(net, transfer->peer));
	ddp_ucx_receive(net, transfer);
	unlock(comm);
}

bool ddp_net_progress(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;

	/* If another thread lets messages move, it does so for all communicators. */
	if (net->down || !try_lock(net->worker, net))
		return false;
	bool moved = ddp_ucx_progress(net->worker);
	unlock(comm);
	return moved;
}

bool ddp_net_progress_all(const ddp_roster *roster)
{
	DDP_UCX_FOR_LIBDDP();

	if (atomic_load(&roster->worker->working) == 0 || !try_lock(roster->worker, NULL))
		return false;
	bool moved = ddp_ucx_progress(roster->worker);
	ddp_ucx_unlock(roster->worker);
	return moved;
}

/* ---- what went wrong -------------------------------------------------------------------- */

ddp_status ddp_net_check_failure(ddp_comm *comm)
{
	const ddp_net *net = comm->net;

	if (!net->trouble)
		return DDP_OK;
	lock(comm);
	const bool came = net->failure_came;
	const ddp_failure failure = net->failure;
	unlock(comm);
	if (!came)
		return DDP_OK;
	return ddp_comm_break(comm, (ddp_status)failure.status, failure.culprit, "%s", failure.text);
}

ddp_status ddp_net_check_memory(ddp_comm *comm)
{
	const ddp_net *net = comm->net;

	if (!net->trouble)
		return DDP_OK;
	lock(comm);
	const bool out_of_memory = net->out_of_memory;
	const int flooding = net->flooding;
	const size_t kept_bytes = net->worker->kept_bytes;
	unlock(comm);
	if (out_of_memory)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "%s has no memory to receive what %s sends",
		                      ddp_rank_text(comm, comm->rank), ddp_rank_text(comm, flooding));
	if (flooding != DDP_NOBODY)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, flooding,
		                      "%s has no memory for messages that it has not asked for yet: %zu MiB are "
		                      "kept, and %s sent more", ddp_rank_text(comm, comm->rank),
		                      kept_bytes >> 20, ddp_rank_text(comm, flooding));
	return DDP_OK;
}

bool ddp_net_misfit(const ddp_comm *comm, ddp_misfit *misfit)
{
	const ddp_net *net = comm->net;

	if (!net->trouble)
		return false;
	lock(comm);
	const bool misfits = net->misfits;
	*misfit = net->misfit;
	unlock(comm);
	return misfits;
}

bool ddp_net_find_unexpected(const ddp_comm *comm, ddp_wants_message *wanted, const void *argument,
                             ddp_unexpected *message)
{
	const ddp_net *net = comm->net;

	if (net->unexpected == 0)
		return false;
	lock(comm);
	const kept_message *a = net->first;
	while (a != NULL && !wanted(comm, &a->message, argument))
		a = a->after;
	if (a != NULL)
		*message = a->message;
	unlock(comm);
	return a != NULL;
}

void ddp_net_drop_unexpected(ddp_comm *comm, const ddp_unexpected *message)
{
	DDP_UCX_FOR_LIBDDP();

	lock(comm);
	ddp_ucx_drop(comm->net, message->envelope.source, message->envelope.tag);
	unlock(comm);
}

void ddp_net_inquire(ddp_comm *comm, int peer)
{
	DDP_UCX_FOR_LIBDDP();

	if (is_down(comm->net))
		return;
	lock(comm);
	ddp_ucx_inquire(comm->net, peer);
	unlock(comm);
}

ddp_answer ddp_net_answer_of(const ddp_comm *comm, int peer)
{
	lock(comm);
	const ddp_answer answer = comm->net->members[peer].answer;
	unlock(comm);
	return answer;
}

/* ---- sleeping ------------------------------------------------------------------------ */

bool ddp_net_arm(const ddp_roster *roster)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_worker *worker = roster->worker;

	ddp_ucx_lock(worker, NULL);
	bool armed = worker->ended || atomic_load(&worker->working) == 0 || ucp_worker_arm(worker->worker) != UCS_ERR_BUSY;
	ddp_ucx_unlock(worker);
	return armed;
}

int ddp_net_fd(const ddp_roster *roster, uint64_t *timeout_ns)
{
	const ddp_worker *worker = roster->worker;

	if (worker->ended || atomic_load(&worker->working) == 0)
		return -1;
	if (timeout_ns == NULL || atomic_load(&worker->making) == 0)
		return worker->event_fd;
	*timeout_ns = *timeout_ns < MAKING_NS ? *timeout_ns : MAKING_NS;
	return -1;
}

bool ddp_net_down(const ddp_comm *comm)
{
	return comm->net->down;
}
