#include "spank/failure/relay.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/sink.h"

enum { PEER_MS = 100, BACKLOG = 4096, PORT_TRIES_MAX = 256 };

static struct {
	struct relay relay;
	void (*say)(const char *text);
	int hold_ms;
	pthread_t thread;
	pid_t process; /* 0: not open */
	int listener, wake;
	bool said;
	bool held; /* text is to be said at say_at_ns */
	bool hearsay;
	uint64_t happened_ns, say_at_ns;
	char text[RELAY_TEXT_MAX + 1];
} server = { .listener = -1, .wake = -1 };

static void say(void)
{
	server.said = true;
	server.say(server.text);
}

/* Of what is held and what comes, the cause wins, then the earlier. */
static void take(const struct relay_message *message)
{
	uint64_t now = ddp_now_ns(), happened_ns = now;
	bool hearsay = message->hearsay != 0;
	struct sink sink;

	for (int i = 0; i < 4; i++)
		happened_ns -= ((uint64_t)message->age_ms[i] << (8 * i)) * 1000000;
	if (server.said || (server.held && (hearsay != server.hearsay
	                                    ? hearsay : happened_ns >= server.happened_ns)))
		return;
	if (!server.held)
		server.say_at_ns = now + (uint64_t)server.hold_ms * 1000000;
	server.held = true;
	server.hearsay = hearsay;
	server.happened_ns = happened_ns;
	sink = sink_on(server.text, sizeof(server.text));
	sink_add_untrusted(&sink, message->text, sizeof(message->text));
}

/* Strangers may connect, too: they get PEER_MS and no answer. */
static void serve_peer(int fd)
{
	struct relay_message message;
	unsigned char tag[SIPHASH_BYTES];

	if (!relay_receive(fd, &message, sizeof(message), PEER_MS))
		return;
	relay_sign(&server.relay, &message, tag);
	if (memcmp(tag, message.tag, sizeof(tag)) != 0)
		return;
	/* A node that has hung up has waited too long, and spoken itself. */
	if (recv(fd, tag, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
		server.said |= !message.hearsay;
		return;
	}
	take(&message);
	relay_sign_answer(&server.relay, &message, tag);
	relay_send(fd, tag, sizeof(tag), PEER_MS);
}

static void serve_next(void)
{
	const struct timespec pause = { .tv_nsec = 50000000 };
	int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd >= 0) {
		serve_peer(fd);
		close(fd);
	} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
		nanosleep(&pause, NULL);
	}
}

/* Until what is held is due, or for good. */
static int wait_ms(void)
{
	uint64_t now = ddp_now_ns();

	if (!server.held || server.said)
		return -1;
	return now < server.say_at_ns ? (int)((server.say_at_ns - now + 999999) / 1000000) : 0;
}

static void *serve(void *unused)
{
	for (;;) {
		struct pollfd ready[] = { { .fd = server.listener, .events = POLLIN },
		                          { .fd = server.wake, .events = POLLIN } };
		int count = poll(ready, 2, wait_ms());
		if (count > 0 && ready[1].revents != 0)
			break;
		if (server.held && !server.said && wait_ms() == 0)
			say();
		if (count > 0)
			serve_next();
	}
	if (server.held && !server.said)
		say();
	return unused;
}

/* Of both families, where the machine has them; -1 and errno otherwise. */
static int listen_on(uint16_t port)
{
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(port),
	                             .sin6_addr = in6addr_any };
	struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	const int no = 0;
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) == 0 &&
	    bind(fd, (struct sockaddr *)&any6, sizeof(any6)) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	if (fd >= 0) {
		close(fd);
		if (errno == EADDRINUSE)
			return -1;
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && (bind(fd, (struct sockaddr *)&any4, sizeof(any4)) < 0 || listen(fd, BACKLOG) < 0)) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* A free port of the range, tried from a random one on. */
static int listen_in(uint16_t low, uint16_t high)
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

static bool start_thread(void)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&server.thread, NULL, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = error;
	return error == 0;
}

static void close_sockets(void)
{
	if (server.listener >= 0)
		close(server.listener);
	if (server.wake >= 0)
		close(server.wake);
	server.listener = server.wake = -1;
}

static bool listen_and_start(uint16_t low, uint16_t high)
{
	struct sockaddr_storage address;
	socklen_t bytes = sizeof(address);

	server.listener = listen_in(low, high);
	server.wake = eventfd(0, EFD_CLOEXEC);
	if (server.listener < 0 || server.wake < 0 ||
	    getsockname(server.listener, (struct sockaddr *)&address, &bytes) < 0 ||
	    getrandom(server.relay.secret, sizeof(server.relay.secret), 0) !=
	    (ssize_t)sizeof(server.relay.secret))
		return false;
	/* The port is at the same place in both families' addresses. */
	server.relay.port = ntohs(((struct sockaddr_in *)&address)->sin_port);
	return start_thread();
}

bool relay_open(uint16_t low, uint16_t high, int hold_ms, void (*say_text)(const char *text),
                char spec[RELAY_SPEC_MAX], struct fault *fault)
{
	struct sink sink = sink_on(spec, RELAY_SPEC_MAX);

	if (server.process == 0) {
		server.say = say_text;
		server.hold_ms = hold_ms;
		if (!listen_and_start(low, high)) {
			fault_set(fault, "cannot listen for the nodes' reports: %s", strerror(errno));
			close_sockets();
			return false;
		}
		server.process = getpid();
	}
	sink_add(&sink, "%u:", server.relay.port);
	for (int i = 0; i < SIPHASH_KEY_BYTES; i++)
		sink_add(&sink, "%02x", server.relay.secret[i]);
	return true;
}

void relay_close(void)
{
	const uint64_t one = 1;

	if (server.process != getpid())
		return;
	if (write(server.wake, &one, sizeof(one)) == (ssize_t)sizeof(one)) {
		pthread_join(server.thread, NULL);
		close_sockets();
	}
	memset(&server, 0, sizeof(server));
	server.listener = server.wake = -1;
}
