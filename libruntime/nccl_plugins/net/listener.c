/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/listener.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "nccl_plugins/net/handle.h"

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
		status = net_worker_use(device, step, &l->worker);
	if (status == DDP_OK)
		status = net_control_listen(&address, &l->acceptor.listener);
	if (status == DDP_OK)
		status = ddp_acceptor_open(&l->acceptor);
	if (status == DDP_OK)
		net_handle_write(nonce, &address, text);
	return status;
}

ddp_status net_listener_open(int device, const ddp_key *step, void *text, net_listener **listener)
{
	net_listener *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to listen for a connection");
	if (gethostname(l->host, sizeof(l->host) - 1) != 0)
		snprintf(l->host, sizeof(l->host), "unknown");
	l->acceptor = (ddp_acceptor){ .listener = -1, .epoll = -1, .key = &l->key, .who = "a listener",
	                              .host = l->host, .unproven_max = DDP_UNPROVEN_MAX };
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
	ddp_acceptor_close(&l->acceptor);
	if (l->worker != NULL)
		net_worker_leave(l->worker);
	explicit_bzero(l, sizeof(*l));
	free(l);
}

/* Those that have proven the key, as long as there is room. */
static ddp_status take_new(net_listener *l)
{
	ddp_status status = DDP_OK;

	for (int i = 0; i < NET_RECEIVERS_MAX && status == DDP_OK; i++) {
		ddp_hello hello;
		int fd;
		if (l->receivers[i] != NULL)
			continue;
		status = ddp_acceptor_next(&l->acceptor, &fd, &hello);
		if (status == DDP_ERR_NOMEM)
			return ddp_fail_context(status, "each NCCL connection takes descriptors: raise ulimit -n");
		if (status != DDP_OK || fd < 0)
			return status;
		status = net_receiver_begin(l->worker, &hello, fd, &l->receivers[i]);
		if (status == DDP_OK)
			net_worker_share(l->worker);
	}
	return status;
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
		if (status != DDP_OK) {
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
