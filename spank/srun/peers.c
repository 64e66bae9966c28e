/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/peers.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/bytes.h"
#include "spank/base/worker.h"
#include "spank/wire/timeline.h"

enum { FIRST_ROOM = 64 };

/* The node's place, or a free one. There is always a free one. */
static struct replay_node *place_of(struct replay_node *nodes, size_t room, uint64_t mark)
{
	size_t at = mark & (room - 1);

	while (nodes[at].window != 0 && nodes[at].mark != mark)
		at = (at + 1) & (room - 1);
	return &nodes[at];
}

/* False without memory. */
static bool make_room(struct replay_guard *guard)
{
	size_t room = guard->room > 0 ? 2 * guard->room : FIRST_ROOM;
	struct replay_node *nodes;

	if (2 * (guard->count + 1) <= guard->room)
		return true;
	nodes = calloc(room, sizeof(*nodes));
	if (nodes == NULL)
		return false;
	for (size_t i = 0; i < guard->room; i++)
		if (guard->nodes[i].window != 0)
			*place_of(nodes, room, guard->nodes[i].mark) = guard->nodes[i];
	free(guard->nodes);
	guard->nodes = nodes;
	guard->room = room;
	return true;
}

static bool note_older(struct replay_node *node, uint64_t number)
{
	uint64_t age = node->newest - number, bit;

	if (age >= REPLAY_WINDOW)
		return false;
	bit = (uint64_t)1 << age;
	if ((node->window & bit) != 0)
		return false;
	node->window |= bit;
	return true;
}

bool replay_guard_accept(struct replay_guard *guard, const unsigned char nonce[RELAY_NONCE_BYTES], bool last_word)
{
	uint64_t mark = bytes_get64(nonce), number = bytes_get64(nonce + 8), step;
	struct replay_node *node;

	if (!make_room(guard))
		return false;
	node = place_of(guard->nodes, guard->room, mark);
	if (node->window == 0) {
		*node = (struct replay_node){ .mark = mark, .newest = number, .window = 1 };
		guard->count++;
		return true;
	}
	if (number <= node->newest)
		return !last_word && note_older(node, number);
	step = number - node->newest;
	node->window = (step < REPLAY_WINDOW ? node->window << step : 0) | 1;
	node->newest = number;
	return true;
}

void replay_guard_end(struct replay_guard *guard)
{
	free(guard->nodes);
	*guard = (struct replay_guard){ .nodes = NULL };
}

static void drop_peer(struct peers *peers, int index)
{
	if (peers->item[index].fd >= 0)
		close(peers->item[index].fd);
	peers->count--;
	memmove(&peers->item[index], &peers->item[index + 1], (size_t)(peers->count - index) * sizeof(peers->item[0]));
}

/* Reads what is there; false if the peer is done with. */
static bool read_peer(struct peer *peer, peers_take take)
{
	char *p = (char *)&peer->message;

	while (peer->got < sizeof(peer->message)) {
		ssize_t got = recv(peer->fd, p + peer->got, sizeof(peer->message) - peer->got, MSG_DONTWAIT);
		if (got <= 0)
			return got < 0 && (errno == EAGAIN || errno == EINTR);
		peer->got += (size_t)got;
	}
	if (take(&peer->message, peer->fd))
		peer->fd = -1;
	return false;
}

void peers_accept(struct peers *peers, int listener, peers_take take)
{
	for (int accepted = 0; accepted < PEERS_MAX; accepted++) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		bool no_room = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
		if (no_room && peers->count == 0)
			pause_ms(50);
		if (fd < 0 && !(no_room && peers->count > 0))
			return;
		if (no_room || peers->count == PEERS_MAX)
			drop_peer(peers, 0);
		if (fd < 0)
			continue;
		struct peer *peer = &peers->item[peers->count++];
		peer->fd = fd;
		peer->got = 0;
		peer->deadline_ns = ddp_now_ns() + (uint64_t)REPLY_MS * 1000000;
		if (!read_peer(peer, take))
			drop_peer(peers, peers->count - 1);
	}
}

int peers_poll(const struct peers *peers, struct pollfd *ready)
{
	for (int i = 0; i < peers->count; i++)
		ready[i] = (struct pollfd){ .fd = peers->item[i].fd, .events = POLLIN };
	return peers->count;
}

void peers_serve(struct peers *peers, const struct pollfd *ready, int count, peers_take take)
{
	uint64_t now = ddp_now_ns();

	/* From the last on: one that goes moves those behind it. */
	for (int i = count - 1; i >= 0; i--)
		if ((ready[i].revents != 0 && !read_peer(&peers->item[i], take)) || peers->item[i].deadline_ns <= now)
			drop_peer(peers, i);
}

uint64_t peers_due(const struct peers *peers)
{
	return peers->count > 0 ? peers->item[0].deadline_ns : UINT64_MAX;
}

void peers_end(struct peers *peers)
{
	while (peers->count > 0)
		drop_peer(peers, peers->count - 1);
}

/* ---- the port ------------------------------------------------------------------- */

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
