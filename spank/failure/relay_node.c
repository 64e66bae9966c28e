#include "spank/failure/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* No name is one: this runs as root too. */
static bool numeric_address(const char *text, uint16_t port, struct sockaddr_storage *address,
                            socklen_t *bytes)
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

	if (!numeric_address(text, port, &address, &bytes))
		return -1;
	ready.fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ready.fd < 0)
		return -1;
	if (connect(ready.fd, (struct sockaddr *)&address, bytes) == 0)
		return ready.fd;
	/* A signal counts as an end of the wait: the node then speaks itself. */
	if (errno == EINPROGRESS && poll(&ready, 1, RELAY_CONNECT_MS) == 1 &&
	    getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 && error == 0)
		return ready.fd;
	close(ready.fd);
	return -1;
}

bool relay_tell(const struct relay *relay, const char *address, const struct relay_news *news)
{
	struct relay_message message = { .hearsay = news->hearsay };
	unsigned char wanted[SIPHASH_BYTES], got[SIPHASH_BYTES];
	bool taken;
	int fd;

	if (relay->port == 0 ||
	    getrandom(message.nonce, sizeof(message.nonce), 0) != (ssize_t)sizeof(message.nonce))
		return false;
	for (int i = 0; i < 4; i++)
		message.age_ms[i] = (unsigned char)(news->age_ms >> (8 * i));
	memcpy(message.text, news->text, strnlen(news->text, sizeof(message.text)));
	relay_sign(relay, &message, message.tag);
	fd = connect_to(address, relay->port);
	if (fd < 0)
		return false;
	relay_sign_answer(relay, &message, wanted);
	taken = relay_send(fd, &message, sizeof(message), relay->reply_ms) &&
	        relay_receive(fd, got, sizeof(got), relay->reply_ms) &&
	        memcmp(got, wanted, sizeof(got)) == 0;
	close(fd);
	return taken;
}
