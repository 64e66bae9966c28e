/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/srun/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 4096, PORT_TRIES_MAX = 256 };

/* Listens in both families, if the machine has them; -1 and errno otherwise. */
static int listen_on(uint16_t port)
{
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(port),
	                             .sin6_addr = in6addr_any };
	struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	const int no = 0, yes = 1;
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	/* Connections that have just ended do not count, as in srun. */
	if (fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) == 0 &&
	    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
	    bind(fd, (struct sockaddr *)&any6, sizeof(any6)) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	if (fd >= 0) {
		close(fd);
		if (errno == EADDRINUSE)
			return -1;
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
	                bind(fd, (struct sockaddr *)&any4, sizeof(any4)) < 0 || listen(fd, BACKLOG) < 0)) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* Finds a free port of the range, and begins to try at a random one. */
int listener_open(uint16_t low, uint16_t high)
{
	uint32_t span = high >= low ? (uint32_t)(high - low) + 1 : 1, start = 0;
	int fd = -1;

	if (getrandom(&start, sizeof(start), 0) != (ssize_t)sizeof(start))
		start = 0;
	for (uint32_t i = 0; fd < 0 && i < span && i < PORT_TRIES_MAX; i++) {
		fd = listen_on((uint16_t)(low + (start % span + i) % span));
		if (fd < 0 && errno != EADDRINUSE)
			break;
	}
	return fd;
}

bool listener_has_room(uint16_t low, uint16_t high, uint32_t ports)
{
	for (uint32_t port = low; port <= high && ports > 0; port++) {
		int fd = listen_on((uint16_t)port);
		if (fd < 0)
			continue;
		close(fd);
		ports--;
	}
	return ports == 0;
}
