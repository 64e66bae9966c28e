/* SPDX-License-Identifier: Apache-2.0 */
/* Contender "wire": the link between two nodes without any library. Each of
   two ranks sends COUNT floats to the other over TCP and receives as many at
   the same time: what an all-reduce of two nodes has to move.

   usage, under srun: rank_wire RENDEZVOUS_FILE (a path that both nodes see) */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rank.h"

enum { WAIT_MS = 100, WAITS = 600 };

struct wire_engine {
	struct rank_engine base;
	int fd;
	char *received; /* [count * 4] */
};

static bool fail_errno(struct rank_engine *engine, const char *what)
{
	return rank_fail(engine, "%s: %s", what, strerror(errno));
}

/* Sends and receives `bytes` at once. */
static bool exchange(struct wire_engine *self, const char *send_from, char *receive_to, size_t bytes)
{
	size_t sent = 0, received = 0;

	while (sent < bytes || received < bytes) {
		struct pollfd ready = { .fd = self->fd };
		ssize_t moved;

		ready.events = (short)((sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0));
		if (poll(&ready, 1, -1) < 0 && errno != EINTR)
			return fail_errno(&self->base, "poll");
		if (sent < bytes && ready.revents & POLLOUT) {
			moved = send(self->fd, send_from + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (moved < 0 && errno != EAGAIN)
				return fail_errno(&self->base, "send");
			sent += moved > 0 ? (size_t)moved : 0;
		}
		if (received < bytes && ready.revents & (POLLIN | POLLHUP)) {
			moved = recv(self->fd, receive_to + received, bytes - received, MSG_DONTWAIT);
			if (moved == 0)
				return rank_fail(&self->base, "the other rank has closed the connection");
			if (moved < 0 && errno != EAGAIN)
				return fail_errno(&self->base, "recv");
			received += moved > 0 ? (size_t)moved : 0;
		}
	}
	return true;
}

static bool open_memory(struct rank_engine *engine)
{
	struct wire_engine *self = (struct wire_engine *)engine;

	engine->data = malloc(engine->count * sizeof(float));
	self->received = calloc(engine->count, sizeof(float));
	if (!engine->data || !self->received)
		return rank_fail(engine, "no memory for %zu floats", engine->count);
	return true;
}

static bool close_memory(struct rank_engine *engine)
{
	struct wire_engine *self = (struct wire_engine *)engine;

	free(engine->data);
	free(self->received);
	engine->data = NULL;
	self->received = NULL;
	return true;
}

static bool operate(struct rank_engine *engine)
{
	struct wire_engine *self = (struct wire_engine *)engine;

	return exchange(self, (char *)engine->data, self->received, engine->count * sizeof(float));
}

static bool barrier(struct rank_engine *engine)
{
	char out = 0, in;

	return exchange((struct wire_engine *)engine, &out, &in, 1);
}

/* Listens on this node's own address and leaves its port in the file. */
static bool accept_peer(struct wire_engine *self, const char *path)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	char host[256], port[NI_MAXSERV];
	struct sockaddr_storage address;
	socklen_t length = sizeof address;
	FILE *file;
	int listener, error;

	if (gethostname(host, sizeof host))
		return fail_errno(&self->base, "gethostname");
	error = getaddrinfo(host, NULL, &hints, &found);
	if (error)
		return rank_fail(&self->base, "%s: %s", host, gai_strerror(error));
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	error = listener < 0 || bind(listener, found->ai_addr, found->ai_addrlen) ||
	        listen(listener, 1) || getsockname(listener, (struct sockaddr *)&address, &length);
	freeaddrinfo(found);
	if (error)
		return fail_errno(&self->base, "listen");
	getnameinfo((struct sockaddr *)&address, length, NULL, 0, port, sizeof port, NI_NUMERICSERV);
	file = fopen(path, "w");
	if (!file || fprintf(file, "%s %s\n", host, port) < 0 || fclose(file))
		return fail_errno(&self->base, path);
	self->fd = accept(listener, NULL, NULL);
	close(listener);
	return self->fd >= 0 || fail_errno(&self->base, "accept");
}

static bool read_rendezvous(const char *path, char host[256], char port[16])
{
	FILE *file = fopen(path, "r");
	int read;

	if (!file)
		return false;
	read = fscanf(file, "%255s %15s", host, port);
	fclose(file);
	return read == 2;
}

static bool connect_peer(struct wire_engine *self, const char *path)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	char host[256], port[16];
	int waits = 0, error;

	while (!read_rendezvous(path, host, port)) {
		if (++waits > WAITS)
			return rank_fail(&self->base, "%s does not appear; do the nodes share it?", path);
		poll(NULL, 0, WAIT_MS);
	}
	error = getaddrinfo(host, port, &hints, &found);
	if (error)
		return rank_fail(&self->base, "%s: %s", host, gai_strerror(error));
	self->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	error = self->fd < 0 || connect(self->fd, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return !error || fail_errno(&self->base, "connect");
}

int main(int argc, char **argv)
{
	struct wire_engine self = {
		.base = {
			.size = 2,
			.open = open_memory,
			.operate = operate,
			.barrier = barrier,
			.close = close_memory,
		},
		.fd = -1,
	};
	const char *rank = getenv("SLURM_PROCID");
	int one = 1, code;
	bool connected;

	if (argc != 2 || !rank) {
		fprintf(stderr, "usage: srun -N2 -n2 %s RENDEZVOUS_FILE\n", argv[0]);
		return 2;
	}
	self.base.rank = (int)rank_number("SLURM_PROCID", rank, 0, 1);
	connected = self.base.rank == 0 ? accept_peer(&self, argv[1]) : connect_peer(&self, argv[1]);
	if (!connected)
		return rank_report_error(self.base.rank, self.base.error);
	setsockopt(self.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	code = rank_serve(&self.base, rank_command_fd(self.base.rank));
	close(self.fd);
	return code;
}
