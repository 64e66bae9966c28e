/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/control.h"

#include <endian.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "job/environment.h"

enum { IDLE_S = 2, INTERVAL_S = 1, PROBES = 4, SILENCE_MS = 8000 };

static socklen_t length_of(const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* ---- which interface ------------------------------------------------------------------ */

/* As NCCL reads it: prefixes of names; "=": whole names; "^" before either: all but those. */
bool net_control_allows(const char *interface)
{
	const char *list = ddp_environment("NCCL_SOCKET_IFNAME");
	bool but = false, whole = false, named = false;

	if (list == NULL)
		return true;
	if (*list == '^') {
		but = true;
		list++;
	}
	if (*list == '=') {
		whole = true;
		list++;
	}
	for (const char *word = list; !named && *word != '\0';) {
		const size_t length = strcspn(word, ",");
		named = length > 0 && strncmp(interface, word, length) == 0 &&
		        (!whole || interface[length] == '\0');
		word += length + (word[length] == ',');
	}
	return named != but;
}

/* The kernel knows from which of its addresses it would reach the step's first node. */
static bool towards_master(struct sockaddr_storage *address)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM };
	const char *master = ddp_environment("MASTER_ADDR");
	struct addrinfo *found = NULL;
	bool known = false;

	if (master == NULL || ddp_environment("NCCL_SOCKET_IFNAME") != NULL ||
	    getaddrinfo(master, "9", &hints, &found) != 0)
		return false;
	for (const struct addrinfo *a = found; a != NULL && !known; a = a->ai_next) {
		int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		socklen_t length = sizeof(*address);
		if (fd < 0)
			continue;
		known = connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
		        getsockname(fd, (struct sockaddr *)address, &length) == 0;
		close(fd);
	}
	freeaddrinfo(found);
	return known;
}

/* The interface with the higher rating is taken; 0: it is of no use. */
static int rating(const struct ifaddrs *i)
{
	static const char *const local[] = { "docker", "podman", "cni", "virbr", "veth", "br-" };

	if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 || !net_control_allows(i->ifa_name))
		return 0;
	const int family = i->ifa_addr->sa_family;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
	int better = family == AF_INET ? 2 : IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) ? 0 : 1;
	if (better == 0)
		return 0;
	if ((i->ifa_flags & IFF_LOOPBACK) != 0)
		return better;
	for (size_t k = 0; k < sizeof(local) / sizeof(local[0]); k++) {
		if (strncmp(i->ifa_name, local[k], strlen(local[k])) == 0)
			return 10 + better;
	}
	return 20 + better;
}

ddp_status net_control_address(struct sockaddr_storage *address)
{
	struct ifaddrs *interfaces;
	int best = 0;

	memset(address, 0, sizeof(*address));
	bool known = towards_master(address);
	if (!known && getifaddrs(&interfaces) != 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot list the network interfaces");
	if (!known) {
		for (const struct ifaddrs *i = interfaces; i != NULL; i = i->ifa_next) {
			if (rating(i) <= best)
				continue;
			best = rating(i);
			memcpy(address, i->ifa_addr, i->ifa_addr->sa_family == AF_INET ?
			       sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
		}
		freeifaddrs(interfaces);
		if (best == 0)
			return ddp_fail(DDP_ERR_IO, "no network interface that is up has an address%s%s; "
			                "let NCCL_SOCKET_IFNAME name one", getenv("NCCL_SOCKET_IFNAME") != NULL ?
			                " and is one of NCCL_SOCKET_IFNAME=" : "",
			                getenv("NCCL_SOCKET_IFNAME") != NULL ? getenv("NCCL_SOCKET_IFNAME") : "");
	}
	if (address->ss_family == AF_INET)
		((struct sockaddr_in *)(void *)address)->sin_port = 0;
	else
		((struct sockaddr_in6 *)(void *)address)->sin6_port = 0;
	return DDP_OK;
}

/* ---- sockets ---------------------------------------------------------------------------- */

static ddp_status fail_socket(int error, const char *what)
{
	return ddp_fail_errno(error == EMFILE || error == ENFILE ? DDP_ERR_NOMEM : DDP_ERR_IO, error,
	                      "%s a socket%s", what,
	                      error == EMFILE ? " (each NCCL connection takes descriptors: raise ulimit -n)" : "");
}

ddp_status net_control_listen(struct sockaddr_storage *address, int *fd)
{
	socklen_t length = length_of(address);

	*fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return fail_socket(errno, "cannot open");
	if (bind(*fd, (struct sockaddr *)address, length) != 0 || listen(*fd, SOMAXCONN) != 0 ||
	    getsockname(*fd, (struct sockaddr *)address, &length) != 0) {
		int error = errno;
		close(*fd);
		*fd = -1;
		return fail_socket(error, "cannot listen at");
	}
	return DDP_OK;
}

void net_control_watch(int fd)
{
	const int one = 1, idle = IDLE_S, interval = INTERVAL_S, probes = PROBES, silence = SILENCE_MS;

	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof(silence));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

ddp_status net_control_connect(const struct sockaddr_storage *address, int *fd)
{
	*fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return fail_socket(errno, "cannot open");
	net_control_watch(*fd);
	if (connect(*fd, (const struct sockaddr *)address, length_of(address)) != 0 &&
	    errno != EINPROGRESS) {
		int error = errno;
		close(*fd);
		*fd = -1;
		return fail_socket(error, "cannot connect");
	}
	return ddp_descriptor_keep(fd);
}

/* ---- bytes ------------------------------------------------------------------------------ */

static bool would_wait(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static ddp_status broke(int error, bool *hung_up)
{
	*hung_up = true;
	return error == 0 ? ddp_fail(DDP_ERR_PEER, "it closed the connection in the handshake; its log says why")
	                  : ddp_fail_errno(DDP_ERR_PEER, error, "the connection broke in the handshake");
}

static ddp_status send_some(int fd, net_handshake *h, bool *hung_up)
{
	const void *from;
	size_t bytes;

	while ((bytes = net_handshake_output(h, &from)) > 0) {
		ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);
		if (sent < 0 && would_wait(errno))
			return DDP_OK;
		if (sent < 0)
			return broke(errno, hung_up);
		net_handshake_sent(h, (size_t)sent);
	}
	return DDP_OK;
}

static ddp_status receive_some(int fd, net_handshake *h, bool *hung_up)
{
	ddp_status status = DDP_OK;
	void *at;
	size_t room;

	while (status == DDP_OK && (room = net_handshake_room(h, &at)) > 0) {
		ssize_t had = recv(fd, at, room, 0);
		if (had < 0 && would_wait(errno))
			break;
		if (had <= 0)
			return broke(had < 0 ? errno : 0, hung_up);
		status = net_handshake_filled(h, (size_t)had);
	}
	return status;
}

ddp_status net_control_move(int fd, net_handshake *h, bool *hung_up)
{
	struct pollfd ready = { .fd = fd, .events = POLLOUT };
	int error = 0;
	socklen_t length = sizeof(error);

	*hung_up = false;
	if (poll(&ready, 1, 0) <= 0)
		return DDP_OK; /* it is being connected */
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error != 0)
		return error == ECONNRESET || error == EPIPE ? broke(error, hung_up)
		                                             : ddp_fail_errno(DDP_ERR_PEER, error, "cannot connect");
	ddp_status status = receive_some(fd, h, hung_up);
	ddp_status sent = send_some(fd, h, hung_up);
	return status != DDP_OK ? status : sent;
}

void net_control_notify_close(int fd, uint64_t received)
{
	const uint64_t bytes = htole64(received);

	(void)send(fd, &bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool net_close_notice_tells(const net_close_notice *notice, uint64_t received)
{
	const uint64_t bytes = htole64(received);

	return notice->had == sizeof(bytes) && memcmp(notice->bytes, &bytes, sizeof(bytes)) == 0;
}

bool net_control_alive(int fd, net_close_notice *notice, const char **why)
{
	*why = "it closed the connection";
	while (notice->had < sizeof(notice->bytes)) {
		ssize_t had = recv(fd, notice->bytes + notice->had, sizeof(notice->bytes) - notice->had, MSG_DONTWAIT);
		if (had < 0 && would_wait(errno))
			return true;
		if (had <= 0) {
			*why = had == 0 ? "its process ended or closed the connection" : ddp_reason(errno);
			return false;
		}
		notice->had += (size_t)had;
	}
	return false;
}
