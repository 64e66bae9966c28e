#include "netplugin/listener.h"

#include <openssl/rand.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "netplugin/handle.h"
#include "netplugin/report.h"

enum {
	PROOF_MS = 10000,  /* for a peer to prove its key */
	FULL_MS = 1000     /* the same, while others wait and no place is free */
};

static ddp_status open_listener(net_listener *l, int device, const ddp_key *step, void *text)
{
	unsigned char nonce[DDP_NONCE_BYTES];
	struct sockaddr_storage address;

	if (RAND_bytes(nonce, sizeof(nonce)) != 1)
		return ddp_fail(DDP_ERR_IO, "OpenSSL gives no random bytes");
	ddp_status status = net_key_of_listener(step, nonce, &l->key);
	if (status == DDP_OK)
		status = net_control_address(&address);
	if (status == DDP_OK)
		status = net_worker_use(device, &l->worker);
	if (status == DDP_OK)
		status = net_control_listen(&address, &l->fd);
	if (status == DDP_OK)
		net_handle_write(nonce, &address, text);
	return status;
}

ddp_status net_listener_open(int device, const ddp_key *step, void *text, net_listener **listener)
{
	net_listener *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to listen for a connection");
	l->fd = -1;
	ddp_status status = open_listener(l, device, step, text);
	if (status == DDP_OK)
		*listener = l;
	else
		net_listener_close(l);
	return status;
}

void net_listener_close(net_listener *l)
{
	for (int i = 0; i < NET_RECEIVERS_MAX; i++) {
		if (l->receivers[i] != NULL)
			net_connection_abandon(l->receivers[i]);
	}
	if (l->fd >= 0)
		net_control_close(l->fd);
	if (l->worker != NULL)
		net_worker_leave(l->worker);
	explicit_bzero(l, sizeof(*l));
	free(l);
}

/* Who has not proved the key is turned away, and the listener goes on. */
static void turn_away(net_listener *l, int i)
{
	const char *text = ddp_last_error();

	if (!l->refused)
		net_warn("NET/ddpucx: a connection was turned away: %s; others are waited for", text);
	l->refused = true;
	net_connection_abandon(l->receivers[i]);
	l->receivers[i] = NULL;
}

static bool has_proved(const net_connection *c)
{
	return c->settling || net_handshake_proved(&c->handshake);
}

/* If somebody waits and no place is free, of those that have not proved the key the
   first to come is turned away. A peer has some time for it however many come after. */
static void make_room(net_listener *l)
{
	struct pollfd waiting = { .fd = l->fd, .events = POLLIN };
	int first = -1;

	for (int i = 0; i < NET_RECEIVERS_MAX; i++) {
		const net_connection *c = l->receivers[i];
		if (c == NULL)
			return;
		if (!has_proved(c) && (first < 0 || c->deadline_ns < l->receivers[first]->deadline_ns))
			first = i;
	}
	if (first < 0 || poll(&waiting, 1, 0) <= 0 ||
	    ddp_now_ns() + (uint64_t)(PROOF_MS - FULL_MS) * 1000000 < l->receivers[first]->deadline_ns)
		return;
	(void)ddp_fail(DDP_ERR_TIMEOUT, "it did not prove the step's key within %d s, and others wait", FULL_MS / 1000);
	turn_away(l, first);
}

/* Those that have come, as long as there is room. */
static ddp_status take_new(net_listener *l)
{
	make_room(l);
	for (int i = 0; i < NET_RECEIVERS_MAX; i++) {
		int fd;
		if (l->receivers[i] != NULL)
			continue;
		ddp_status status = net_control_accept(l->fd, &fd);
		if (status != DDP_OK || fd < 0)
			return status;
		status = net_connection_make(false, l->worker, &l->key, fd, &l->receivers[i]);
		if (status != DDP_OK)
			return status;
		l->receivers[i]->deadline_ns = ddp_now_ns() + (uint64_t)PROOF_MS * 1000000;
		net_worker_share(l->worker);
	}
	return DDP_OK;
}

ddp_status net_listener_accept(net_listener *l, net_connection **receiver)
{
	ddp_status status = take_new(l);

	*receiver = NULL;
	for (int i = 0; i < NET_RECEIVERS_MAX && status == DDP_OK && *receiver == NULL; i++) {
		net_connection *c = l->receivers[i];
		if (c == NULL)
			continue;
		status = net_connection_step(c);
		const bool proved = has_proved(c);
		if (status == DDP_OK && !proved && ddp_now_ns() > c->deadline_ns)
			status = ddp_fail(DDP_ERR_TIMEOUT, "it did not prove the step's key within %d s", PROOF_MS / 1000);
		if (status != DDP_OK && !proved) {
			turn_away(l, i);
			status = DDP_OK;
		} else if (status != DDP_OK) {
			status = ddp_fail_context(status, "connection from %s", c->peer);
			net_connection_abandon(c);
			l->receivers[i] = NULL;
		} else if (c->open) {
			*receiver = c;
			l->receivers[i] = NULL;
		}
	}
	return status;
}
