#include "spank/failure/relay.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/hex.h"

struct relay relay_parse(const char *text)
{
	const struct relay none = { .port = 0 };
	struct relay relay = none;
	unsigned long port;
	char *end;

	if (text == NULL || text[0] < '1' || text[0] > '9')
		return none;
	port = strtoul(text, &end, 10);
	/* Just as srun's side writes it, so no capitals. */
	if (port > UINT16_MAX || *end != ':' || strpbrk(end, "ABCDEF") != NULL ||
	    !ddp_parse_hex(end + 1, relay.secret, SIPHASH_KEY_BYTES))
		return none;
	relay.port = (uint16_t)port;
	relay.reply_ms = RELAY_REPLY_MS;
	return relay;
}

void relay_sign(const struct relay *relay, const struct relay_message *message,
                unsigned char tag[SIPHASH_BYTES])
{
	siphash(relay->secret, message, offsetof(struct relay_message, tag), tag);
}

/* Of another length than a message, so that neither tag passes for the other. */
void relay_sign_answer(const struct relay *relay, const struct relay_message *message,
                       unsigned char tag[SIPHASH_BYTES])
{
	siphash(relay->secret, message->nonce, sizeof(message->nonce), tag);
}

/* Whether the socket is ready before the time is up. */
static bool await(int fd, short events, uint64_t deadline_ns)
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

bool relay_send(int fd, const void *data, size_t bytes, int wait_ms)
{
	const char *p = data;
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)wait_ms * 1000000;

	while (bytes > 0) {
		ssize_t moved = send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (moved < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (moved > 0) {
			p += moved;
			bytes -= (size_t)moved;
		} else if (!await(fd, POLLOUT, deadline_ns)) {
			return false;
		}
	}
	return true;
}

bool relay_receive(int fd, void *data, size_t bytes, int wait_ms)
{
	char *p = data;
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)wait_ms * 1000000;

	while (bytes > 0) {
		ssize_t moved;
		if (!await(fd, POLLIN, deadline_ns))
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
