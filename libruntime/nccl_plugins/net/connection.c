/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/connection.h"

#include <openssl/rand.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "comm/net/log.h"
#include "nccl_plugins/net/handle.h"
#include "nccl_plugins/net/report.h"

enum {
	END_MS = 1000,     /* for a peer to take our last message */
	NOTICE_MS = 1500,  /* for UCX to notice that a peer is gone */
	LAST_WORD_MS = 1500, /* for TCP to send again, thrice, what a peer said as it closed */
	FLUSH_MS = 1000,   /* for UCX to send what it was given */
	FORCE_MS = 2000,   /* for UCX to end what it was told to */
	LOOK_EVERY = 64,   /* tests in which nothing moved */
	DRAIN_MAX = 100000,
	AGAIN_MS = 5,            /* until a sender whose connection was dropped connects again */
	DROPPED_MS = 10000,      /* for which it does so */
	SILENCE_MS = 100,        /* of a new connection, at first, and when the sender has tried for long */
	LONG_MS = 8000, LONG_SILENCE_MS = 16000
};

/* ---- making one --------------------------------------------------------------------------- */

/* Which message is for which connection. Nobody else can guess it. */
static ddp_status next_id(uint32_t *id)
{
	static atomic_uint last;
	static atomic_bool drawn;
	unsigned int first;

	if (!atomic_load(&drawn)) {
		if (RAND_bytes((unsigned char *)&first, sizeof(first)) != 1)
			return ddp_fail(DDP_ERR_IO, "OpenSSL gives no random bytes");
		if (!atomic_exchange(&drawn, true))
			atomic_store(&last, first);
	}
	*id = atomic_fetch_add(&last, 1) + 1;
	return DDP_OK;
}

static ddp_status make_requests(net_connection *c)
{
	const int groups = c->sends ? 1 : NET_RECEIVES_MAX;

	/* Receivers flush what they have received. */
	c->request_count = NET_REQUESTS_MAX * (c->sends ? NET_RECEIVES_MAX : 2);
	c->requests = calloc((size_t)c->request_count, sizeof(*c->requests));
	c->operations = calloc((size_t)(c->request_count * groups), sizeof(*c->operations));
	if (c->requests == NULL || c->operations == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d requests of a connection", c->request_count);
	for (int i = c->request_count; i-- > 0;) {
		net_request *r = &c->requests[i];
		r->connection = c;
		r->operations = c->operations + i * groups;
		r->next = c->free;
		c->free = r;
	}
	return DDP_OK;
}

static void free_connection(void *connection)
{
	net_connection *c = connection;

	net_handshake_end(&c->handshake);
	free(c->requests);
	free(c->operations);
	free(c);
}

/* Without a handshake. Takes over the socket, whatever comes. */
static ddp_status make(bool sends, net_worker *worker, int fd, net_connection **connection)
{
	net_connection *c = calloc(1, sizeof(*c));

	if (c == NULL) {
		ddp_descriptor_close(fd);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a connection");
	}
	*c = (net_connection){ .sends = sends, .worker = worker, .fd = fd, .peer = "a process of this job" };
	ddp_status status = next_id(&c->own_id);
	if (status == DDP_OK)
		status = make_requests(c);
	if (status == DDP_OK) {
		*connection = c;
		return DDP_OK;
	}
	ddp_descriptor_close(fd);
	free_connection(c);
	return status;
}

ddp_status net_receiver_begin(net_worker *worker, const ddp_hello *hello, int fd, net_connection **receiver)
{
	net_connection *c;
	net_card card;
	ddp_status status = make(false, worker, fd, &c);

	if (status != DDP_OK)
		return status;
	net_control_watch(fd);
	net_worker_card(worker, c->own_id, &card);
	status = net_handshake_accept(&c->handshake, hello, &card);
	if (status == DDP_OK) {
		*receiver = c;
		return DDP_OK;
	}
	ddp_descriptor_close(fd);
	free_connection(c);
	return status;
}

/* Counts UCX's requests that are active. */
static int count_active(const net_connection *c)
{
	int active = c->closing.active + c->hello_in.active + c->end_in.active + c->end_out.active;

	for (int i = 0; i < c->request_count; i++) {
		const net_request *r = &c->requests[i];
		for (int k = 0; r->busy && k < r->count; k++)
			active += r->operations[k].active;
	}
	return active;
}

/* ---- settling ----------------------------------------------------------------------------- */

/* UCX calls it with the lock held, as it does everything. */
static void failed(void *argument, ucp_ep_h ep, ucs_status_t status)
{
	net_connection *c = argument;

	(void)ep;
	if (c->lost == UCS_OK)
		c->lost = status;
}

static ddp_status connect_ucx(net_connection *c)
{
	const ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
			UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = c->handshake.theirs.address, .err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler = { .cb = failed, .arg = c },
	};
	ucs_status_t status = ucp_ep_create(c->worker->ucx, &params, &c->ep);

	if (status != UCS_OK) {
		c->ep = NULL;
		return ddp_fail(DDP_ERR_PEER, "UCX finds no way to it from device %s: %s; is there one that both "
		                "hosts have? NCCL_DEBUG=INFO shows more", c->worker->device->name, ucs_status_string(status));
	}
	net_word_send_begin(&c->hello_out, c->ep, net_tag_of_word(c->peer_id, NET_HELLO));
	return DDP_OK;
}

static void name_peer(net_connection *c)
{
	const net_handshake *h = &c->handshake;

	if (h->theirs.rank >= 0)
		snprintf(c->peer, sizeof(c->peer), "rank %d on %s", h->theirs.rank, h->peer_host);
	else
		snprintf(c->peer, sizeof(c->peer), "a process on %s", h->peer_host);
}

/* Only the sender has an endpoint. UCX makes the receiver's end of it; one of the
   receiver's own could become another connection's, and end that by its close. */
static ddp_status begin_settling(net_connection *c)
{
	static const net_slice nothing = { .type = UCS_MEMORY_TYPE_HOST };
	ucp_worker_h ucx = c->worker->ucx;

	c->peer_id = c->handshake.theirs.connection;
	c->settling = true;
	if (!c->sends) {
		net_receive_begin(&c->hello_in, ucx, &nothing, net_tag_of_word(c->own_id, NET_HELLO));
		net_receive_begin(&c->end_in, ucx, &nothing, net_tag_of_word(c->own_id, NET_END));
		return DDP_OK;
	}
	ddp_status status = net_worker_admit(c->worker, &c->handshake.theirs);
	return status == DDP_OK ? connect_ucx(c) : status;
}

/* The later, the rarer the tries. A host that cannot be reached is given up by the kernel at last. */
static uint64_t silence_ns(const net_connection *c, uint64_t now_ns)
{
	const uint64_t ms_ns = 1000000, tried_ns = now_ns - c->begun_ns;

	if (tried_ns > LONG_MS * ms_ns)
		return LONG_SILENCE_MS * ms_ns;
	return tried_ns / 4 > SILENCE_MS * ms_ns ? tried_ns / 4 : SILENCE_MS * ms_ns;
}

static ddp_status shake_hands(net_connection *c, const ddp_key *key)
{
	const uint64_t now_ns = ddp_now_ns();
	net_card card;

	net_worker_card(c->worker, c->own_id, &card);
	c->again_ns = now_ns + silence_ns(c, now_ns);
	return net_handshake_connect(&c->handshake, key, &card);
}

static ddp_status connect_again(net_connection *c)
{
	ddp_key key = c->handshake.key;

	ddp_descriptor_close(c->fd);
	ddp_status status = net_control_connect(&c->address, &c->fd);
	if (status == DDP_OK) {
		net_handshake_end(&c->handshake);
		status = shake_hands(c, &key);
	}
	explicit_bzero(&key, sizeof(key));
	return status;
}

/* A listener that is flooded drops connections that have not proven the key yet, and its kernel
   lets new ones wait: the sender comes again. */
static ddp_status come_again(net_connection *c, ddp_status status, bool hung_up)
{
	const uint64_t now_ns = ddp_now_ns();

	if (hung_up && c->dropped_ns == 0)
		c->dropped_ns = now_ns;
	if (hung_up && now_ns - c->dropped_ns < (uint64_t)DROPPED_MS * 1000000) {
		ddp_descriptor_close(c->fd);
		c->fd = -1;
		c->again_ns = now_ns + (uint64_t)AGAIN_MS * 1000000;
		return DDP_OK;
	}
	if (status != DDP_OK || now_ns < c->again_ns || net_handshake_begun(&c->handshake))
		return status;
	return connect_again(c);
}

static ddp_status move(net_connection *c)
{
	bool hung_up;

	if (c->fd < 0 && ddp_now_ns() < c->again_ns)
		return DDP_OK;
	ddp_status status = c->fd < 0 ? connect_again(c) : DDP_OK;
	if (status != DDP_OK)
		return status;
	status = net_control_move(c->fd, &c->handshake, &hung_up);
	return c->sends && !net_handshake_proved(&c->handshake) ? come_again(c, status, hung_up) : status;
}

static ddp_status talk(net_connection *c)
{
	net_handshake *h = &c->handshake;
	const bool had_heard = net_handshake_heard(h);
	ddp_status status = move(c);

	if (status != DDP_OK)
		return status;
	if (net_handshake_heard(h) && !had_heard) {
		name_peer(c);
		if (!c->sends) {
			net_worker_lock(c->worker);
			status = net_worker_admit(c->worker, &h->theirs);
			net_worker_unlock(c->worker);
			if (status == DDP_OK)
				status = net_handshake_answer(h);
			if (status == DDP_OK)
				status = move(c);
		}
	}
	if (status != DDP_OK || !net_handshake_done(h))
		return status;
	net_worker_lock(c->worker);
	status = begin_settling(c);
	net_worker_unlock(c->worker);
	return status;
}

static void drain(net_connection *c)
{
	for (int i = 0; i < DRAIN_MAX && net_worker_progress(c->worker); i++)
		continue;
}

static ddp_status settle(net_connection *c)
{
	const net_operation *hello = c->sends ? &c->hello_out : &c->hello_in;
	const char *why = NULL;
	/* It may have got what it wanted, and closed; so UCX is asked after the socket. */
	const bool alive = net_control_alive(c->fd, &c->notice, &why);

	drain(c);
	if (hello->active ? c->lost != UCS_OK : hello->status != UCS_OK)
		why = ucs_status_string(hello->active ? c->lost : hello->status);
	else if (alive || !hello->active) {
		c->open = !hello->active;
		return DDP_OK;
	}
	return ddp_fail(DDP_ERR_PEER, "%s: its own log, or that of its node, says more", why);
}

ddp_status net_connection_step(net_connection *c)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_status status = c->settling ? DDP_OK : talk(c);

	if (status != DDP_OK || !c->settling)
		return status;
	net_worker_lock(c->worker);
	status = settle(c);
	net_worker_unlock(c->worker);
	if (c->open)
		net_handshake_end(&c->handshake);
	return status;
}

void net_connection_abandon(net_connection *c)
{
	DDP_UCX_FOR_LIBDDP();
	net_worker *worker = c->worker;

	net_worker_lock(worker);
	net_receive_cancel(&c->hello_in, worker->ucx);
	net_receive_cancel(&c->end_in, worker->ucx);
	if (c->ep != NULL && (c->lost != UCS_OK || c->open)) {
		net_ep_close_begin(&c->closing, c->ep, true);
		c->ep = NULL;
		for (int i = 0; i < 1000 && (c->closing.active || c->hello_out.active); i++)
			(void)net_worker_progress(worker);
	}
	/* UCX goes on with what it was given. */
	const bool left = c->ep != NULL || c->hello_out.active || count_active(c) > 0;
	if (left)
		net_worker_leave_over(worker, c, NULL);
	net_worker_unlock(worker);
	ddp_descriptor_close(c->fd);
	if (!left)
		free_connection(c);
	net_worker_leave(worker);
}

/* ---- senders ------------------------------------------------------------------------------ */

ddp_status net_sender_begin(int device, const ddp_key *step, const void *text, net_connection **sender)
{
	unsigned char nonce[DDP_NONCE_BYTES];
	struct sockaddr_storage address;
	net_connection *c;
	net_worker *worker;
	ddp_key key;
	int fd;
	ddp_status status = net_handle_read(text, &address, nonce);

	if (status == DDP_OK)
		status = net_key_of_listener(step, nonce, &key);
	if (status != DDP_OK)
		return status;
	status = net_worker_use(device, step, &worker);
	if (status != DDP_OK)
		return status;
	status = net_control_connect(&address, &fd);
	if (status == DDP_OK)
		status = make(true, worker, fd, &c);
	if (status != DDP_OK) {
		net_worker_leave(worker);
		return status;
	}
	c->address = address;
	c->begun_ns = ddp_now_ns();
	status = shake_hands(c, &key);
	explicit_bzero(&key, sizeof(key));
	if (status == DDP_OK)
		*sender = c;
	else
		net_connection_abandon(c);
	return status;
}

/* ---- the end ------------------------------------------------------------------------------ */

static void cancel_receives(net_connection *c)
{
	if (c->sends)
		return;
	for (int i = 0; i < c->request_count; i++) {
		const net_request *r = &c->requests[i];
		for (int k = 0; r->busy && !r->flushes && k < r->count; k++)
			net_receive_cancel(&r->operations[k], c->worker->ucx);
	}
}

static void close_ep(net_connection *c, bool forced)
{
	if (c->ep != NULL)
		net_ep_close_begin(&c->closing, c->ep, forced);
	c->ep = NULL;
}

/* UCX has lost the peer, but its control socket is open, so the peer may yet tell what it has received. */
static bool may_yet_tell(net_connection *c, const char **why)
{
	if (!net_control_alive(c->fd, &c->notice, why))
		return false;
	if (c->lost_ns == 0)
		c->lost_ns = ddp_now_ns();
	return ddp_now_ns() - c->lost_ns < (uint64_t)LAST_WORD_MS * 1000000;
}

static bool seems_there(net_connection *c, const char **why)
{
	if (c->lost != UCS_OK)
		return may_yet_tell(c, why);
	return ++c->idle % LOOK_EVERY != 0 || net_control_alive(c->fd, &c->notice, why);
}

void net_connection_look(net_connection *c)
{
	const bool ended = !c->sends && !c->end_in.active;
	const char *why = "it closed the connection";

	if (c->gone || (!ended && seems_there(c, &why)))
		return;
	/* Messages that came before the end are taken. */
	drain(c);
	if (c->lost != UCS_OK && !ended && net_control_alive(c->fd, &c->notice, &why))
		why = "it has not closed the connection, but UCX has lost it";
	snprintf(c->why, sizeof(c->why), "%s%s%s", why, c->lost != UCS_OK && !ended ? "; UCX: " : "",
	         c->lost != UCS_OK && !ended ? ucs_status_string(c->lost) : "");
	c->gone = true;
	c->gone_ns = ddp_now_ns();
	c->delivered = c->sends && net_close_notice_tells(&c->notice, c->counters.messages +
	                                                  (uint64_t)c->counters.under_way);
	cancel_receives(c);
}

void net_connection_cut(net_connection *c, const char *why)
{
	c->cut = true;
	if (c->gone)
		return;
	snprintf(c->why, sizeof(c->why), "%s", why);
	c->gone = true;
	c->gone_ns = ddp_now_ns();
	cancel_receives(c);
}

/* Progress, until `over` says so or time is up; others get the worker between. */
static bool progress_until(net_connection *c, bool (*over)(net_connection *), int timeout_ms)
{
	const uint64_t deadline_ns = ddp_ms_from_now(timeout_ms);

	while (!over(c)) {
		if (ddp_now_ns() > deadline_ns)
			return false;
		if (net_worker_progress(c->worker))
			continue;
		net_worker_unlock(c->worker);
		usleep(20);
		net_worker_lock(c->worker);
	}
	return true;
}

static bool end_was_taken(net_connection *c)
{
	const char *why;

	return !c->end_out.active || c->lost != UCS_OK || !net_control_alive(c->fd, &c->notice, &why);
}

static bool is_over(net_connection *c)
{
	return count_active(c) == 0;
}

static bool is_lost(net_connection *c)
{
	return c->lost != UCS_OK || count_active(c) == 0;
}

/* A peer that takes no message now (its GPU computes, or it is stopped) keeps the
   first connection waiting, and no other. */
static bool say_end(net_connection *c)
{
	static atomic_bool in_vain;

	net_word_send_begin(&c->end_out, c->ep, net_tag_of_word(c->peer_id, NET_END));
	if (!progress_until(c, end_was_taken, atomic_load(&in_vain) ? END_MS / 100 : END_MS))
		atomic_store(&in_vain, true);
	return !c->end_out.active && c->end_out.status == UCS_OK;
}

/* Whether UCX is to give up at once what it has still to do for a sender. */
static bool end_sender(net_connection *c)
{
	const char *why;

	if (c->ep == NULL || c->lost != UCS_OK)
		return true;
	if (!c->gone && count_active(c) == 0)
		return say_end(c) || c->lost != UCS_OK || c->end_out.active;
	/* UCX 1.13 does not end all sends to a process that has died, unless it has
	   noticed that itself. */
	if (!c->delivered && !net_control_alive(c->fd, &c->notice, &why))
		(void)progress_until(c, is_lost, NOTICE_MS);
	return true;
}

/* Marks what is under way with the memory, if there is any. */
static bool mark_withdrawn(net_connection *c, const void *memory)
{
	bool found = false, receives = false;

	for (int i = 0; i < c->request_count; i++) {
		const net_request *r = &c->requests[i];
		for (int k = 0; r->busy && k < r->count; k++) {
			net_operation *o = &r->operations[k];
			if (!o->active || o->memory != memory)
				continue;
			found = o->withdrawn = true;
			receives |= !c->sends && !r->flushes;
			if (!c->sends && !r->flushes)
				net_receive_cancel(o, c->worker->ucx);
		}
	}
	if (receives)
		net_connection_cut(c, "NCCL took back memory that was being received into");
	return found;
}

static bool none_withdrawn(net_connection *c)
{
	for (int i = 0; i < c->request_count; i++) {
		const net_request *r = &c->requests[i];
		for (int k = 0; r->busy && k < r->count; k++) {
			if (r->operations[k].active && r->operations[k].withdrawn)
				return false;
		}
	}
	return true;
}

bool net_connection_withdraw(net_connection *c, const void *memory)
{
	if (!mark_withdrawn(c, memory))
		return true;
	if (c->sends) { /* UCX cancels no send; it ends with its endpoint */
		if (!c->gone)
			snprintf(c->why, sizeof(c->why), "NCCL took back memory that was being sent");
		c->gone = true;
		(void)end_sender(c);
		close_ep(c, true);
	}
	return progress_until(c, none_withdrawn, FORCE_MS);
}

void net_connection_close(net_connection *c)
{
	DDP_UCX_FOR_LIBDDP();
	net_worker *worker = c->worker;
	char by[128] = "";

	net_worker_lock(worker);
	if (c->ep != NULL && !c->gone && c->lost == UCS_OK)
		net_transports_of(c->ep, by, sizeof(by));
	const bool forced = c->sends && end_sender(c);
	close_ep(c, forced);
	cancel_receives(c);
	net_receive_cancel(&c->end_in, worker->ucx);
	if (!c->sends)
		net_control_notify_close(c->fd, c->counters.messages);
	/* A sender that is still at it gives up when it sees the socket closed. */
	const bool early = !c->sends && count_active(c) > 0;
	if (early)
		ddp_descriptor_close(c->fd);
	const bool over = progress_until(c, is_over, forced || early ? FORCE_MS : FLUSH_MS);
	if (!over)
		net_worker_leave_over(worker, c, free_connection);
	net_info("NET/ddpucx: closed %s %s%s%s: %llu messages, %llu bytes, at most %d under way, %llu times no request free%s%s",
	         c->sends ? "connection to" : "connection from", c->peer, by[0] != '\0' ? " by " : "", by,
	         (unsigned long long)c->counters.messages,
	         (unsigned long long)c->counters.bytes, c->counters.under_way_max,
	         (unsigned long long)c->counters.exhausted, c->gone ? "; gone: " : "", c->gone ? c->why : "");
	net_worker_unlock(worker);
	if (!early)
		ddp_descriptor_close(c->fd);
	if (over)
		free_connection(c);
	net_worker_leave(worker);
}
