/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/node/relay_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/release.h"
#include "spank/failure/channel.h"
#include "spank/failure/timeline.h"

bool relay_address(const char *text, uint16_t port, struct sockaddr_storage *address, socklen_t *bytes)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;

	memset(address, 0, sizeof(*address));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		*bytes = sizeof(*v4);
		return true;
	}
	if (inet_pton(AF_INET6, text, &v6->sin6_addr) != 1)
		return false;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	*bytes = sizeof(*v6);
	return true;
}

/* A connected socket, or -1. */
static int connect_to(const char *text, uint16_t port)
{
	struct sockaddr_storage address;
	socklen_t bytes, error_bytes = sizeof(int);
	struct pollfd ready = { .events = POLLOUT };
	int error = 0;

	if (!relay_address(text, port, &address, &bytes))
		return -1;
	ready.fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ready.fd < 0)
		return -1;
	channel_tune(ready.fd, CONNECT_MS + REPLY_MS);
	if (connect(ready.fd, (struct sockaddr *)&address, bytes) == 0)
		return ready.fd;
	/* A signal counts as an end of the wait: the node then speaks itself. */
	if (errno == EINPROGRESS && poll(&ready, 1, CONNECT_MS) == 1 &&
	    getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 && error == 0)
		return ready.fd;
	close(ready.fd);
	return -1;
}

/* Whether the socket is ready before the time is up. */
static bool wait_ready(int fd, short events, uint64_t deadline_ns)
{
	for (;;) {
		struct pollfd ready = { .fd = fd, .events = events };
		uint64_t now = ddp_now_ns();
		int left_ms = now < deadline_ns ? (int)((deadline_ns - now + 999999) / 1000000) : 0;
		int count = poll(&ready, 1, left_ms);
		if (count > 0)
			return true;
		if (count == 0 || errno != EINTR)
			return false;
	}
}

static bool send_all(int fd, const void *data, size_t bytes, uint64_t deadline_ns)
{
	const char *p = data;

	while (bytes > 0) {
		ssize_t moved = send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (moved < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (moved > 0) {
			p += moved;
			bytes -= (size_t)moved;
		} else if (!wait_ready(fd, POLLOUT, deadline_ns)) {
			return false;
		}
	}
	return true;
}

static bool receive_all(int fd, void *data, size_t bytes, uint64_t deadline_ns)
{
	char *p = data;

	while (bytes > 0) {
		ssize_t moved;
		if (!wait_ready(fd, POLLIN, deadline_ns))
			return false;
		moved = recv(fd, p, bytes, MSG_DONTWAIT);
		if (moved == 0 || (moved < 0 && errno != EINTR && errno != EAGAIN))
			return false;
		if (moved > 0) {
			p += moved;
			bytes -= (size_t)moved;
		}
	}
	return true;
}

struct relay_sender *relay_start_sender(struct relay_sender *sender)
{
	return getrandom(sender->mark, sizeof(sender->mark), 0) == (ssize_t)sizeof(sender->mark) ? sender : NULL;
}

bool relay_make_nonce(struct relay_sender *sender, unsigned char nonce[RELAY_NONCE_BYTES])
{
	uint64_t number;

	if (sender == NULL)
		return getrandom(nonce, RELAY_NONCE_BYTES, 0) == (ssize_t)RELAY_NONCE_BYTES;
	number = atomic_fetch_add(&sender->number, 1) + 1;
	memcpy(nonce, sender->mark, RELAY_MARK_BYTES);
	for (int i = RELAY_MARK_BYTES; i < RELAY_NONCE_BYTES; i++, number >>= 8)
		nonce[i] = (unsigned char)number;
	return true;
}

bool relay_tell_here(const struct relay *relay, const char *address, uint32_t rank, const char *node)
{
	const struct relay_news news = { .text = release_own(), .here = true, .rank = rank, .node = node };

	return relay_tell(relay, address, &news) || relay_tell(relay, address, &news);
}

bool relay_tell(const struct relay *relay, const char *address, const struct relay_news *news)
{
	struct relay_message message = { .end = 0 };
	unsigned char wanted[SIPHASH_BYTES], got[SIPHASH_BYTES];
	uint64_t deadline_ns;
	bool taken;
	int fd = relay->port != 0 ? connect_to(address, relay->port) : -1;

	if (fd < 0)
		return false;
	/* Just before it is sent: another message of the node may overtake it. */
	if (!relay_make_nonce(relay->sender, message.nonce)) {
		close(fd);
		return false;
	}
	relay_write(&message, news);
	relay_sign(relay, &message, message.tag);
	relay_sign_answer(relay, &message, wanted);
	deadline_ns = ddp_now_ns() + (uint64_t)relay->reply_ms * 1000000;
	taken = send_all(fd, &message, sizeof(message), deadline_ns) &&
	        receive_all(fd, got, sizeof(got), deadline_ns) &&
	        memcmp(got, wanted, sizeof(got)) == 0;
	close(fd);
	return taken;
}
