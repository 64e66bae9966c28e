/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/socket.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

/* ---- silence ------------------------------------------------------------------------- */

enum { CHECK_MS = 500, PROBES = 127 };

static void set(int fd, int level, int name, int value)
{
	/* A local socket does not know this option. */
	(void)setsockopt(fd, level, name, &value, sizeof(value));
}

void ddp_socket_keep_alive(int fd)
{
	set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
	set(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
}

static int unheard_ms(int fd)
{
	struct tcp_info info;
	socklen_t length = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return 0;
	/* The process there reads nothing, and its kernel is asked less and less often. */
	if (length >= offsetof(struct tcp_info, tcpi_snd_wnd) + sizeof(info.tcpi_snd_wnd) && info.tcpi_snd_wnd == 0)
		return 0;
	return (int)(info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv : info.tcpi_last_data_recv);
}

int ddp_socket_silent_ms(ddp_silence_checks *checks, int fd, int limit_ms)
{
	const uint64_t now_ns = ddp_now_ns();

	if (limit_ms == 0 || now_ns < checks->next_ns)
		return 0;
	checks->next_ns = now_ns + (uint64_t)CHECK_MS * 1000000;
	const int ms = unheard_ms(fd);
	checks->silent = ms >= limit_ms ? checks->silent + 1 : 0;
	return checks->silent >= 2 ? ms : 0;
}

/* ---- input and output ---------------------------------------------------------------- */

int ddp_poll_ms(uint64_t deadline_ns, int cap_ms)
{
	uint64_t now = ddp_now_ns();

	if (now >= deadline_ns)
		return 0;
	uint64_t left_ms = (deadline_ns - now + 999999) / 1000000;
	return left_ms < (uint64_t)cap_ms ? (int)left_ms : cap_ms;
}

ddp_status ddp_socket_await(int fd, uint64_t deadline_ns, int silence_ms)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	ddp_silence_checks checks = { .silent = 0 };

	for (;;) {
		const int wait_ms = ddp_poll_ms(deadline_ns, 500), rc = poll(&ready, 1, wait_ms);
		/* The reader decides what a timeout or an error means. */
		if (rc > 0 || wait_ms == 0 || (rc < 0 && errno != EINTR))
			return DDP_OK;
		const int silent_ms = ddp_socket_silent_ms(&checks, fd, silence_ms);
		if (silent_ms > 0)
			return ddp_fail(DDP_ERR_PEER, "its node has been silent for %.1f s: is its power or network lost? (silence=)",
			                (double)silent_ms * 1e-3);
	}
}

static ddp_status wait_ready(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd ready = { .fd = fd, .events = events };

	for (;;) {
		int wait_ms = ddp_poll_ms(deadline_ns, 1000);
		int rc = poll(&ready, 1, wait_ms);
		if (rc > 0)
			return DDP_OK;
		if (rc < 0 && errno != EINTR)
			return ddp_fail_errno(DDP_ERR_IO, errno, "poll");
		if (wait_ms == 0)
			return ddp_fail(DDP_ERR_TIMEOUT, "no answer in time");
	}
}

ddp_status ddp_socket_read_some(int fd, void *to, size_t bytes, uint64_t deadline_ns, size_t *got)
{
	for (;;) {
		ssize_t count = recv(fd, to, bytes, 0);
		if (count > 0) {
			*got = (size_t)count;
			return DDP_OK;
		}
		if (count == 0)
			return ddp_fail(DDP_ERR_PEER, "the connection was closed");
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return ddp_fail_errno(DDP_ERR_PEER, errno, "the connection broke");
		ddp_status status = wait_ready(fd, POLLIN, deadline_ns);
		if (status != DDP_OK)
			return status;
	}
}

ddp_status ddp_socket_write(int fd, const void *from, size_t bytes, uint64_t deadline_ns)
{
	size_t used = 0;

	while (used < bytes) {
		ssize_t count = send(fd, (const char *)from + used, bytes - used, MSG_NOSIGNAL);
		if (count >= 0) {
			used += (size_t)count;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return ddp_fail_errno(DDP_ERR_PEER, errno, "the connection broke");
		ddp_status status = wait_ready(fd, POLLOUT, deadline_ns);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

const char *ddp_socket_peer(int fd, char *text, size_t bytes)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);
	char host[NI_MAXHOST], port[NI_MAXSERV];

	snprintf(text, bytes, "a local process");
	if (getpeername(fd, (struct sockaddr *)&address, &length) == 0 &&
	    address.ss_family != AF_UNIX &&
	    getnameinfo((struct sockaddr *)&address, length, host, sizeof(host), port, sizeof(port),
	                NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(text, bytes, "%s:%s", host, port);
	return text;
}

/* ---- the rendezvous ------------------------------------------------------------------ */

static ddp_status bind_error(const ddp_job *job, const ddp_rendezvous *rendezvous, int error)
{
	switch (error) {
	case EADDRINUSE:
		if (rendezvous->same_user)
			return ddp_fail(DDP_ERR_IO, "rank 0 on %s cannot listen at %s: another program of "
			                "this user with the same MASTER_ADDR and MASTER_PORT is just starting",
			                job->hostname, rendezvous->where);
		return ddp_fail(DDP_ERR_IO, "rank 0 on %s cannot listen at %s: another program holds the "
		                "port, and others hold libddp's own ones (%d to %d); choose another "
		                "MASTER_PORT (srun --ddp=port=N)", job->hostname, rendezvous->where,
		                rendezvous->ports.port[1], rendezvous->ports.port[rendezvous->ports.count - 1]);
	case EADDRNOTAVAIL:
		return ddp_fail(DDP_ERR_JOB, "rank 0 is on %s, but %s is no address of that node: "
		                "MASTER_ADDR must be rank 0's node", job->hostname, rendezvous->where);
	case EACCES:
		return ddp_fail(DDP_ERR_IO, "rank 0 on %s may not listen at %s: MASTER_PORT is a port of "
		                "the system's; choose one above 1023", job->hostname, rendezvous->where);
	}
	return ddp_fail_errno(DDP_ERR_IO, error, "rank 0 on %s cannot listen at %s", job->hostname,
	                      rendezvous->where);
}

/* The address of all interfaces in IPv6, which takes IPv4, too. */
static bool is_every_address(const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 &&
	       IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static struct sockaddr_storage with_port(const struct sockaddr_storage *address, uint16_t port)
{
	struct sockaddr_storage changed = *address;

	if (changed.ss_family == AF_INET)
		((struct sockaddr_in *)&changed)->sin_port = htons(port);
	else if (changed.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&changed)->sin6_port = htons(port);
	return changed;
}

/* The errno of what failed; 0 if *fd listens. */
static int listen_at(const struct sockaddr_storage *address, socklen_t bytes, int *fd)
{
	int one = 1, zero = 0;
	int candidate = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (candidate < 0)
		return errno;
	/* Past connections that linger must not keep a restarted job out. */
	if (setsockopt(candidate, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
	    (!is_every_address(address) ||
	     setsockopt(candidate, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) == 0) &&
	    bind(candidate, (const struct sockaddr *)address, bytes) == 0 &&
	    listen(candidate, SOMAXCONN) == 0) {
		*fd = candidate;
		return 0;
	}
	int error = errno;
	close(candidate);
	return error;
}

static int listen_at_port(const ddp_rendezvous *rendezvous, int index, int *fd)
{
	int error = EADDRNOTAVAIL;

	/* A kernel without IPv6 does not know that family. */
	for (int i = 0; i < rendezvous->count && (error == EADDRNOTAVAIL || error == EAFNOSUPPORT); i++) {
		const struct sockaddr_storage address = with_port(&rendezvous->addresses[i],
		                                                  rendezvous->ports.port[index]);
		error = listen_at(&address, rendezvous->bytes[i], fd);
	}
	return error;
}

ddp_status ddp_rendezvous_listen(const ddp_job *job, ddp_rendezvous *rendezvous, int *fd)
{
	char first[DDP_WHERE_MAX], where[DDP_WHERE_MAX];
	int error = EADDRINUSE, index;

	for (index = 0; index < rendezvous->ports.count && error == EADDRINUSE; index++)
		error = listen_at_port(rendezvous, index, fd);
	if (error != 0)
		return bind_error(job, rendezvous, error);
	index--;
	ddp_rendezvous_where(rendezvous, index, where);
	if (index > 0)
		ddp_log(DDP_LOG_INFO, "rank 0 on %s listens at %s: another program holds %s", job->hostname,
		        where, ddp_rendezvous_where(rendezvous, 0, first));
	memcpy(rendezvous->where, where, sizeof(where));
	return DDP_OK;
}

const char *ddp_rendezvous_where(const ddp_rendezvous *rendezvous, int index, char text[DDP_WHERE_MAX])
{
	const char *colon = strrchr(rendezvous->where, ':');

	if (rendezvous->addresses[0].ss_family == AF_UNIX || colon == NULL)
		snprintf(text, DDP_WHERE_MAX, "%s", rendezvous->where);
	else
		snprintf(text, DDP_WHERE_MAX, "%.*s:%d", (int)(colon - rendezvous->where), rendezvous->where,
		         rendezvous->ports.port[index]);
	return text;
}

bool ddp_socket_is_same_user(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* A port of the kernel's own choice can make a socket connect to itself. */
static bool is_connected_to_itself(int fd)
{
	struct sockaddr_storage here = { 0 }, there = { 0 };
	socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);

	return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
	       getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 &&
	       here.ss_family != AF_UNIX && here_bytes == there_bytes &&
	       memcmp(&here, &there, here_bytes) == 0;
}

int ddp_rendezvous_connected(int fd)
{
	int error = 0, one = 1;
	socklen_t length = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
		return errno;
	if (error == 0 && is_connected_to_itself(fd))
		return ECONNREFUSED;
	/* Local sockets do not have this option, which is no loss. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	ddp_socket_keep_alive(fd);
	return error;
}

ddp_status ddp_rendezvous_connect(const ddp_rendezvous *rendezvous, int index, int address, int *fd, int *error)
{
	const struct sockaddr_storage there = with_port(&rendezvous->addresses[address],
	                                                rendezvous->ports.port[index]);
	const int candidate = socket(there.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	*fd = -1;
	*error = errno;
	if (candidate < 0)
		return *error == EAFNOSUPPORT ? DDP_OK : ddp_fail_errno(DDP_ERR_IO, *error, "cannot make a socket");
	*error = connect(candidate, (const struct sockaddr *)&there, rendezvous->bytes[address]) < 0
	         ? errno : ddp_rendezvous_connected(candidate);
	if (*error == 0 || *error == EINPROGRESS)
		*fd = candidate;
	else
		close(candidate);
	return DDP_OK;
}
