/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net: connections, and how their ends find each other. */
#include "comm/net/ucx.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/log.h"

enum {
	SETTLE_MS = 100,       /* for what is under way, before a connection is begun */
	CONNECTION_SOCKETS = 4, /* at most, over TCP */
	SPARE_DESCRIPTORS = 32 + DDP_GUARD_HELD /* for shared memory, and for others */
};

static void connection_lost(void *argument, ucp_ep_h ep, ucs_status_t status)
{
	connection *c = argument;

	(void)ep;
	ddp_ucx_lose(c, status);
	c->worker->news = true;
}

/* ---- handshakes ---------------------------------------------------------------------------- */

/* They come and go in the order in which the fields of `connection` tell.

   With the first message that UCX cannot send at once, it asks the peer's UCX who it is. UCX 1.13 asserts in the peer
   (ucp_request.c) if this process dies while the answer waits for a socket, as it does where the peer's socket to this
   process is being made. So nothing is sent before the sockets are made, and the second handshake, before which a
   handshake has come by the peer's socket, is what has UCX ask. */
static void send_handshake(connection *c, handshake_header *handshake)
{
	const bool has_ucx_ask = handshake == &c->handshakes[1];
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | (has_ucx_ask ? UCP_OP_ATTR_FLAG_NO_IMM_CMPL : 0),
		.flags = UCP_AM_SEND_FLAG_EAGER,
	};

	if (c->ep == NULL || atomic_load(&c->lost) != UCS_OK)
		return;
	handshake->seal = ddp_ucx_seal(c);
	void *request = ucp_am_send_nbx(c->ep, DDP_AM_HANDSHAKE, handshake, sizeof(*handshake), NULL, 0, &param);
	if (UCS_PTR_IS_ERR(request))
		connection_lost(c, c->ep, UCS_PTR_STATUS(request));
	else if (request != NULL)
		ucp_request_free(request);
}

void ddp_ucx_say_ready(connection *c)
{
	if (c->ready_said)
		return;
	c->ready_said = true;
	c->handshakes[2] = (handshake_header){ .heard = 1, .ready = 1 };
	send_handshake(c, &c->handshakes[2]);
}

void ddp_ucx_say_leaving(connection *c)
{
	c->handshakes[3] = (handshake_header){ .heard = 1, .leaves = 1 };
	send_handshake(c, &c->handshakes[3]);
}

void ddp_ucx_handshake_arrived(connection *c, const control_header *header)
{
	c->hears_us = c->hears_us || header->handshake.heard != 0;
	if (header->handshake.ready != 0)
		atomic_store(&c->ready, true);
	c->released = c->released || header->handshake.released != 0;
	c->release_due = c->release_due || header->handshake.leaves != 0;
	c->worker->news = true;
	/* Answered after the callback. */
	c->handshake_due = true;
	ddp_ucx_due(c);
}

static void release_held(ddp_net *net)
{
	for (ddp_transfer **link = &net->held; *link != NULL;) {
		ddp_transfer *t = *link;
		connection *c = ddp_ucx_connection(net, t->peer);
		if (!atomic_load(&c->settled)) {
			link = &t->next;
			continue;
		}
		*link = t->next;
		if (ddp_ucx_begin_send(net, t) != DDP_OK)
			connection_lost(c, NULL, UCS_ERR_NO_MEMORY);
	}
}

static void send_first(connection *c)
{
	c->first_due = false;
	c->made = true;
	send_handshake(c, &c->handshakes[0]);
}

void ddp_ucx_answer_handshake(connection *c)
{
	if (c->first_due)
		send_first(c);
	/* While the sockets are being made, the handshake stays due. */
	if (!c->handshake_due || !ddp_ucx_connect(c) || !c->made)
		return;
	c->handshake_due = false;
	if (!c->heard_sent) {
		c->heard_sent = true;
		c->handshakes[1] = (handshake_header){ .heard = 1 };
		send_handshake(c, &c->handshakes[1]);
	}
	if (c->hears_us && !atomic_load(&c->settled)) {
		atomic_store(&c->settled, true);
		ddp_ucx_for_each(c->worker, release_held);
	}
	if (c->release_due) {
		c->release_due = false;
		c->handshakes[4] = (handshake_header){ .heard = 1, .released = 1 };
		send_handshake(c, &c->handshakes[4]);
	}
}

/* ---- descriptors ------------------------------------------------------------------------- */

static void raise_limit(const ddp_worker *worker)
{
	rlim_t fd = 0;
	struct rlimit limit;

	for (int spare = 0; spare < worker->descriptors; fd++)
		spare += fcntl((int)fd, F_GETFD) < 0;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= fd)
		return;
	limit.rlim_cur = fd < limit.rlim_max ? fd : limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		ddp_log(DDP_LOG_DEBUG, "cannot raise the limit of descriptors: %s", ddp_reason(errno));
}

void ddp_ucx_make_room(ddp_worker *worker, int nodes)
{
	worker->descriptors = SPARE_DESCRIPTORS + 2 * CONNECTION_SOCKETS * (nodes - 1);
	raise_limit(worker);
}

void ddp_ucx_try_again(ddp_net *net)
{
	raise_limit(net->worker);
	for (int r = 0; r < net->comm->size; r++) {
		int lacking = DDP_UCX_NO_DESCRIPTOR;
		atomic_compare_exchange_strong(&ddp_ucx_connection(net, r)->lost, &lacking, UCS_OK);
	}
}

/* Is there one for each socket of a connection? */
static bool has_descriptors(void)
{
	int fds[CONNECTION_SOCKETS], count = 0, error = 0;

	while (count < CONNECTION_SOCKETS && error == 0) {
		fds[count] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fds[count] < 0)
			error = errno;
		else
			count++;
	}
	while (count > 0)
		close(fds[--count]);
	return error != EMFILE && error != ENFILE;
}

/* Asks the same, and raises the limit first if it has to be. */
static bool gets_descriptors(const ddp_worker *worker)
{
	if (has_descriptors())
		return true;
	raise_limit(worker);
	return has_descriptors();
}

/* ---- connections ------------------------------------------------------------------------- */

/* UCX 1.13 may end the process if it has no descriptor for a connection. */
static void create_endpoint(connection *c)
{
	const ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
			UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = c->address, .err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler = { .cb = connection_lost, .arg = c },
	};

	if (!gets_descriptors(c->worker)) {
		connection_lost(c, NULL, DDP_UCX_NO_DESCRIPTOR);
		return;
	}
	/* UCX 1.13 asserts if a connection of the peer's that has just failed, and
	   waits for its end, is taken for the new endpoint. */
	uint64_t deadline_ns = ddp_ms_from_now(SETTLE_MS);
	while (ucp_worker_progress(c->worker->worker) != 0 && ddp_now_ns() < deadline_ns)
		continue;
	ucs_status_t status = ucp_ep_create(c->worker->worker, &params, &c->ep);
	if (status != UCS_OK) {
		c->ep = NULL;
		connection_lost(c, NULL, status);
	}
}

static void sockets_made(void *request, ucs_status_t status, void *user)
{
	connection *c = user;

	atomic_fetch_sub(&c->worker->making, 1);
	ucp_request_free(request);
	if (status != UCS_OK) {
		connection_lost(c, c->ep, status);
		return;
	}
	c->first_due = true;
	ddp_ucx_due(c);
}

/* A flush ends when the sockets are made: nothing has been sent yet that it would wait for. Until then UCX polls for
   room in a socket that has room. */
static void make_sockets(connection *c)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = sockets_made, .user_data = c,
	};

	c->begun = true;
	void *request = ucp_ep_flush_nbx(c->ep, &param);
	if (request == NULL)
		send_first(c);
	else if (UCS_PTR_IS_ERR(request))
		connection_lost(c, c->ep, UCS_PTR_STATUS(request));
	else
		atomic_fetch_add(&c->worker->making, 1);
}

bool ddp_ucx_connect(connection *c)
{
	if (c->ep == NULL && atomic_load(&c->lost) == UCS_OK)
		create_endpoint(c);
	if (c->ep == NULL)
		return false;
	if (!c->begun)
		make_sockets(c);
	return true;
}
