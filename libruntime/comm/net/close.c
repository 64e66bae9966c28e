/* SPDX-License-Identifier: Apache-2.0 */
/* The end of comm/net over UCX: of a communicator, after a failure and at its close, and of the process's worker
   with the last communicator. */
#include "comm/net/ucx.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/core/silence.h"
#include "comm/net/beats.h"
#include "comm/net/log.h"

enum {
	DRAIN_MS = 800,    /* for peers to be told, and to end what is under way with them */
	FORCE_MS = 2000,   /* for UCX to end what it was told to */
	TURN_MS = 100,     /* of waiting: who was stopped did not wait meanwhile */
	BROKEN_MS = 300,   /* for peers to take the last message after a failure, and else */
	CLOSE_MS = 2000
};

static const ucp_request_param_t by_force = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                              .flags = UCP_EP_CLOSE_FLAG_FORCE };

/* ---- the process's worker -------------------------------------------------------------- */

/* The lock is held, as in those below. Lets peers take what was sent to them: each answers the last message, also
   while it does not close. UCX's own way, to flush, is acknowledged between sockets, and UCX 1.13 asserts over an
   acknowledgement that it reads from a socket which the peer, having ended, no longer takes anything from. (An eager
   message over several rails could be overtaken; UCX uses one, unless UCX_MAX_EAGER_RAILS says otherwise.) */
static void take_leave(ddp_worker *worker, uint64_t deadline_ns)
{
	for (int r = 0; r < worker->roster->size; r++) {
		if (atomic_load(&worker->peers[r].settled))
			ddp_ucx_say_leaving(&worker->peers[r]);
	}
	for (int r = 0; r < worker->roster->size; r++) {
		const connection *c = &worker->peers[r];
		while (c->ep != NULL && !c->released && atomic_load(&c->lost) == UCS_OK && ddp_now_ns() < deadline_ns) {
			if (!ddp_ucx_progress(worker))
				usleep(20);
		}
	}
}

static void close_endpoints(ddp_worker *worker, uint64_t deadline_ns)
{
	int size = worker->roster->size;
	void **requests = calloc((size_t)size, sizeof(*requests));

	for (int r = 0; r < size; r++) {
		connection *c = &worker->peers[r];
		void *request = c->ep != NULL ? ucp_ep_close_nbx(c->ep, &by_force) : NULL;
		c->ep = NULL;
		if (requests != NULL)
			requests[r] = request;
		else if (UCS_PTR_IS_PTR(request))
			ucp_request_free(request);
	}
	for (int r = 0; r < size && requests != NULL; r++) {
		if (!UCS_PTR_IS_PTR(requests[r]))
			continue;
		while (ucp_request_check_status(requests[r]) == UCS_INPROGRESS && ddp_now_ns() < deadline_ns) {
			if (ucp_worker_progress(worker->worker) == 0)
				usleep(20);
		}
		ucp_request_free(requests[r]);
	}
	free(requests);
}

/* UCX 1.13 asserts if an endpoint is closed while its connection is being made;
   one that it has given up itself is made no longer. */
static bool can_close(const ddp_worker *worker)
{
	for (int r = 0; r < worker->roster->size; r++) {
		const connection *c = &worker->peers[r];
		if (c->ep != NULL && !atomic_load(&c->settled) && atomic_load(&c->lost) == UCS_OK)
			return false;
	}
	return true;
}

/* Ranks that give up a new communicator close it at about the same time: what is being made between two of them is
   made to the end, and who has died or closed is lost. Only one that is stopped is neither by the deadline. */
static void settle_connections(ddp_worker *worker, uint64_t deadline_ns)
{
	while (!can_close(worker) && ddp_now_ns() < deadline_ns) {
		if (!ddp_ucx_progress(worker))
			usleep(20);
	}
}

static void free_tickets(ticket **list)
{
	while (*list != NULL) {
		ticket *t = *list;
		*list = t->next;
		ddp_ucx_memory_free(t->to->worker, t);
	}
}

/* From here on, no transfer is written to. The thread that waited for it may be gone. */
static void detach_transfers(ddp_net *net)
{
	for (int r = 0; r < net->comm->size; r++) {
		net->members[r].posted = NULL;
		net->members[r].posted_end = &net->members[r].posted;
	}
	net->held = NULL;
	for (ticket *t = net->tickets; t != NULL; t = t->next)
		t->transfer = NULL;
}

static void end_net(ddp_net *net)
{
	ddp_ucx_drop_all(net, true);
	detach_transfers(net);
	ddp_ucx_news(net);
}

static void free_net_tickets(ddp_net *net)
{
	free_tickets(&net->tickets);
}

/* Endpoints end with their worker: from here on nothing is sent or received. */
static void end_worker(ddp_worker *worker)
{
	ddp_ucx_for_each(worker, end_net);
	atomic_store(&worker->ended, true);
	for (int r = 0; r < worker->roster->size; r++) {
		connection *c = &worker->peers[r];
		c->ep = NULL;
		ddp_ucx_lose(c, UCS_ERR_CANCELED);
	}
	if (worker->guard != NULL)
		ddp_guard_close(worker->guard);
	if (worker->worker != NULL)
		ucp_worker_destroy(worker->worker);
	if (worker->guard != NULL)
		ddp_guard_free(worker->guard);
	worker->guard = NULL;
	ddp_ucx_for_each(worker, free_net_tickets);
	free_tickets(&worker->tickets);
	if (worker->context != NULL)
		ucp_cleanup(worker->context);
	worker->worker = NULL;
	worker->context = NULL;
}

/* False if one is being made yet. */
static bool end_connections(ddp_worker *worker)
{
	const uint64_t deadline_ns = ddp_ms_from_now(worker->broken ? BROKEN_MS : CLOSE_MS);

	settle_connections(worker, deadline_ns);
	take_leave(worker, deadline_ns);
	if (!can_close(worker))
		return false;
	close_endpoints(worker, ddp_ms_from_now(FORCE_MS));
	return true;
}

static void free_worker(ddp_worker *worker)
{
	for (int r = 0; r < worker->roster->size; r++)
		free(worker->peers[r].address);
	free(worker->peer_listeners);
	pthread_mutex_destroy(&worker->lock);
	free(worker);
}

/* Nobody uses it any more. */
static void close_worker(ddp_worker *worker)
{
	if (worker->unauthentic > 1)
		ddp_log(DDP_LOG_WARN, "%d messages that no rank of the communicator sent were ignored",
		        worker->unauthentic);
	if (worker->guard != NULL && ddp_guard_refused(worker->guard) > 0)
		ddp_log(DDP_LOG_INFO, "%d connections to UCX's listening sockets were closed, since they did not begin with "
		        "a proof of the job's key", ddp_guard_refused(worker->guard));
	ddp_beats_close(worker->beats);
	worker->beats = NULL;
	if (worker->announced)
		ddp_fork_withdraw(&worker->own_sockets);
	worker->roster->worker = NULL;
	if (worker->worker != NULL && !end_connections(worker)) {
		ddp_log(DDP_LOG_DEBUG, "UCX's part of a communicator is left to the process's end");
		pthread_mutex_unlock(&worker->lock);
		return;
	}
	end_worker(worker);
	pthread_mutex_unlock(&worker->lock);
	free_worker(worker);
}

/* ---- giving up transfers of a communicator ------------------------------------------------ */

static bool has_one_of(const ddp_net *net, const ticket *tickets)
{
	for (const ticket *t = tickets; t != NULL; t = t->next) {
		if (ddp_ucx_rank_of(net, t->to) != DDP_NOBODY)
			return true;
	}
	return false;
}

/* Ranks that shrink the communicator wait a timeout for this one, which comes only when
   it is through: half of that is the most that peers get. */
static int most_ms(const ddp_net *net)
{
	const int half_ms = net->comm->timeout_ms / 2;

	return half_ms > DRAIN_MS ? half_ms : DRAIN_MS;
}

static int force_ms(const ddp_net *net)
{
	const int quarter_ms = net->comm->timeout_ms / 4;

	return quarter_ms < FORCE_MS ? quarter_ms : FORCE_MS;
}

/* How long peers have for what is under way and does not move. Other communicators, which use the same connections,
   are not to lose those of a peer for which they would still wait: it may only be slow. The lock is held. */
static int drain_ms(const ddp_net *net)
{
	const ddp_worker *worker = net->worker;
	int longest_ms = DRAIN_MS;

	for (int i = 0; i < DDP_NET_BUCKETS; i++) {
		for (const ddp_net *other = worker->nets[i]; other != NULL; other = other->next) {
			if (other != net && !other->refusing && atomic_load(&other->comm->failure.status) == DDP_OK &&
			    other->comm->timeout_ms > longest_ms && has_one_of(other, net->tickets))
				longest_ms = other->comm->timeout_ms;
		}
	}
	return longest_ms;
}

/* Lets what is under way end, at most for a time; true if all has. The lock is taken
   and given up again and again: the others may break meanwhile. */
static bool drain(ddp_net *net, bool forced)
{
	const uint64_t ms_ns = 1000000, turn_ns = TURN_MS * ms_ns;
	uint64_t seen_ns = ddp_now_ns(), waited_ns = 0;
	bool drained = false, late = false;

	while (!drained && !late) {
		ddp_ucx_lock(net->worker, net);
		bool moved = net->tickets != NULL && ddp_ucx_progress(net->worker);
		drained = net->tickets == NULL;
		const uint64_t now_ns = ddp_now_ns();
		waited_ns += now_ns - seen_ns < turn_ns ? now_ns - seen_ns : turn_ns;
		seen_ns = now_ns;
		const uint64_t waited_ms = waited_ns / ms_ns;
		if (!drained)
			late = waited_ms > (uint64_t)(forced ? force_ms(net) : most_ms(net)) ||
				(!moved && !forced && waited_ms > (uint64_t)drain_ms(net));
		ddp_ucx_unlock(net->worker);
		if (!moved && !drained)
			usleep(20);
	}
	return drained;
}

/* Requests that use only memory of their own, as all do at a peaceful end, outlive the communicator. */
static void leave_tickets(ddp_net *net, bool of_data)
{
	ticket **list = &net->worker->tickets;

	for (ticket **link = &net->tickets; *link != NULL;) {
		ticket *t = *link;
		if (t->of_data && !of_data) {
			link = &t->next;
			continue;
		}
		*link = t->next;
		if (t->next != NULL)
			t->next->link = link;
		t->next = *list;
		t->link = list;
		if (t->next != NULL)
			t->next->link = &t->next;
		*list = t;
	}
}

/* Ends a connection that is lost. */
static void close_lost(connection *c)
{
	if (atomic_load(&c->lost) == UCS_OK || c->ep == NULL || !atomic_load(&c->settled))
		return;
	ucp_ep_h ep = c->ep;
	c->ep = NULL;
	void *request = ucp_ep_close_nbx(ep, &by_force);
	if (UCS_PTR_IS_PTR(request))
		ucp_request_free(request);
}

/* Ends the connections on which something is still under way, and that with them. */
static void force_close(ddp_net *net)
{
	ddp_worker *worker = net->worker;

	for (const ticket *t = net->tickets; t != NULL; t = t->next)
		ddp_ucx_lose(t->to, UCS_ERR_CANCELED);
	for (int r = 0; r < worker->roster->size; r++)
		close_lost(&worker->peers[r]);
	worker->news = true;
}

/* Nobody waits for what is under way with a silent node. */
static void close_silent(ddp_worker *worker)
{
	if (worker->ended || ddp_silence_count(worker->roster) == 0)
		return;
	ddp_ucx_end_silent(worker);
	for (int r = 0; r < worker->roster->size; r++) {
		if (ddp_silence_of(worker->roster, r))
			close_lost(&worker->peers[r]);
	}
}

/* Peers are heard for a while, so that what is under way with them ends; then UCX is made to end the rest. Without a
   worker, nothing is under way. The lock is not held. */
static void give_up_transfers(ddp_net *net)
{
	ddp_worker *worker = net->worker;

	ddp_ucx_lock(worker, net);
	detach_transfers(net);
	close_silent(worker);
	ddp_ucx_unlock(worker);
	if (drain(net, false))
		return;
	ddp_ucx_lock(worker, net);
	leave_tickets(net, false);
	if (!worker->ended)
		force_close(net);
	ddp_ucx_unlock(worker);
	if (drain(net, true))
		return;
	ddp_log(DDP_LOG_WARN, "UCX does not end requests of connections that are closed");
	ddp_ucx_lock(worker, net);
	if (!worker->ended && can_close(worker))
		end_worker(worker);
	ddp_ucx_unlock(worker);
}

void ddp_net_forget(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();

	give_up_transfers(comm->net);
}

/* When nothing runs, only a thread that works moves messages. After a failure, UCX had better not be called again
   without need. */
static void set_down(ddp_net *net, bool down)
{
	ddp_worker *worker = net->worker;

	if (net->down != down && atomic_fetch_add(&worker->working, down ? -1 : 1) == 0)
		ddp_doorbell_notify_attention(&worker->roster->doorbell);
	net->down = down;
}

/* Connections stay as they are, so that peers get our message before they see us go. */
void ddp_net_shut_down(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;

	if (net->down)
		return;
	ddp_ucx_lock(net->worker, net);
	net->refusing = true;
	net->worker->broken = true;
	detach_transfers(net);
	if (!net->worker->ended) {
		ddp_ucx_drop_all(net, false);
		/* This comes before the failure, because a rank that hears of the failure may look at other communicators. */
		ddp_ucx_end_silent(net->worker);
		/* If not all ranks are connected with all, the failure reaches all only if each rank passes it on. */
		if (!net->failure_came || net->comm->size > DDP_NET_FEW_RANKS)
			ddp_ucx_send_failure(net);
	}
	ddp_ucx_unlock(net->worker);
	give_up_transfers(net);
	set_down(net, true);
}

void ddp_net_revive(ddp_comm *comm, bool alive)
{
	if (alive) {
		ddp_net_shut_down(comm); /* if nobody has done so yet */
		ddp_ucx_lock(comm->net->worker, comm->net);
		ddp_ucx_try_again(comm->net);
		ddp_ucx_unlock(comm->net->worker);
	}
	set_down(comm->net, !alive);
}

bool ddp_net_ended(const ddp_comm *comm)
{
	return comm->net->worker->ended;
}

/* ---- closing --------------------------------------------------------------------------- */

void ddp_net_close(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;

	if (net == NULL)
		return;
	ddp_worker *worker = net->worker;
	/* A question of comm/wait/message may be under way: it has no data. */
	ddp_ucx_lock(worker, net);
	detach_transfers(net);
	if (!worker->ended)
		ddp_ucx_drop_all(net, true);
	set_down(net, true);
	const bool last = --worker->users == 0;
	if (net->id != 0 && !last && !worker->ended)
		ddp_ucx_send_closed(net);
	if (net->id != 0)
		ddp_ucx_remove(net);
	leave_tickets(net, true);
	comm->net = NULL;
	free(net);
	if (last)
		close_worker(worker);
	else
		ddp_ucx_unlock(worker);
}
