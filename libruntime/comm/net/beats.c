/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/beats.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/core/doorbell.h"
#include "comm/core/silence.h"
#include "comm/net/beat.h"

#define MS_NS UINT64_C(1000000)

enum {
	UNPROVEN_MAX = 32,  /* connections without a proof; a further one drops the oldest */
	UNPROVEN_MS = 20000, /* for a proof to come */
	IDLE_MS = 1000,      /* between two looks if there is nothing to look at */
	SCARCE_MS = 250      /* before another attempt to accept a connection for which there was no descriptor */
};

/* A process of the job listens on this port, and proves by these tokens that it is that process. */
typedef struct place {
	uint16_t port;
	ddp_token ours, theirs;
} place;

/* The addresses of a node. */
typedef struct addresses {
	ddp_place *list;
	int count;
} addresses;

typedef struct unproven_peer {
	int fd;
	uint64_t until_ns;
	ddp_beat_hello hello;
	size_t bytes;
} unproven_peer;

struct ddp_beats {
	ddp_roster *roster;
	int limit_ms;
	int listener, wake;
	uint16_t port;
	place *places;        /* [size] */
	addresses *addresses; /* [size]: of a node, by its first rank */
	pthread_mutex_t lock; /* of what follows */
	ddp_beat *list;
	int count, room;
	unproven_peer unproven_peers[UNPROVEN_MAX];
	int unproven_peer_count;
	uint64_t accepts_at_ns; /* until then there may be no descriptor for a connection */
	bool started, stopping;
	pthread_t thread;
};

/* ---- opening ---------------------------------------------------------------------------------- */

/* One socket for both families of addresses, or for IPv4 alone. */
static int listen_anywhere(sa_family_t family)
{
	const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), zero = 0;
	const struct sockaddr_in any = { .sin_family = AF_INET };
	const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 };

	if (fd < 0)
		return -1;
	if ((family == AF_INET
	     ? bind(fd, (const struct sockaddr *)&any, sizeof(any))
	     : setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) != 0
	       ? -1 : bind(fd, (const struct sockaddr *)&any6, sizeof(any6))) == 0 && listen(fd, SOMAXCONN) == 0)
		return fd;
	close(fd);
	return -1;
}

static bool open_sockets(ddp_beats *beats)
{
	ddp_place near, far;

	beats->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	beats->listener = listen_anywhere(AF_INET6);
	if (beats->listener < 0)
		beats->listener = listen_anywhere(AF_INET);
	if (beats->wake < 0 || beats->listener < 0 || !ddp_socket_places(beats->listener, &near, &far))
		return false;
	beats->port = near.port;
	return true;
}

ddp_status ddp_beats_open(ddp_roster *roster, ddp_beats **opened)
{
	ddp_beats *beats = calloc(1, sizeof(*beats));

	if (beats == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to watch nodes for silence");
	beats->roster = roster;
	beats->limit_ms = roster->silence_ms;
	beats->listener = beats->wake = -1;
	pthread_mutex_init(&beats->lock, NULL);
	beats->places = calloc((size_t)roster->size, sizeof(*beats->places));
	beats->addresses = calloc((size_t)roster->size, sizeof(*beats->addresses));
	ddp_status status = DDP_OK;
	if (beats->places == NULL || beats->addresses == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory to watch nodes for silence");
	else if (!open_sockets(beats))
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot listen for other nodes' beats (DDP_SILENCE=0 does without)");
	if (status == DDP_OK)
		*opened = beats;
	else
		ddp_beats_close(beats);
	return status;
}

uint16_t ddp_beats_port(const ddp_beats *beats)
{
	return beats != NULL ? beats->port : 0;
}

ddp_status ddp_beats_learn(ddp_beats *beats, int rank, uint16_t port, const ddp_place *hosts, int count)
{
	addresses *a = &beats->addresses[beats->roster->peers[rank].node];

	beats->places[rank].port = port;
	if (a->list != NULL || count == 0)
		return DDP_OK;
	a->list = malloc((size_t)count * sizeof(*a->list));
	if (a->list == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d addresses of a node", count);
	memcpy(a->list, hosts, (size_t)count * sizeof(*a->list));
	a->count = count;
	return DDP_OK;
}

void ddp_beats_trust(ddp_beats *beats, int rank, const ddp_token *ours, const ddp_token *theirs)
{
	beats->places[rank].ours = *ours;
	beats->places[rank].theirs = *theirs;
}

/* ---- whom to watch ------------------------------------------------------------------------------ */

int ddp_beats_neighbours(int nodes, int node, int neighbours[DDP_BEATS_MAX])
{
	int count = 0;

	for (int apart = 1; apart > 0 && apart < nodes && count + 2 <= DDP_BEATS_MAX; apart *= 2) {
		const int both[2] = { (int)(((int64_t)node + apart) % nodes), (int)(((int64_t)node + nodes - apart) % nodes) };
		for (int k = 0; k < 2; k++) {
			bool listed = false;
			for (int i = 0; i < count; i++)
				listed = listed || neighbours[i] == both[k];
			if (!listed)
				neighbours[count++] = both[k];
		}
	}
	return count;
}

/* Returns how well an address of another node suits; 0 is best; -1: the address reaches nobody there. */
static int rank_of_address(const ddp_place *there, const struct ifaddrs *own)
{
	const bool v4 = there->family == AF_INET;
	const unsigned char *a = there->address;
	static const unsigned char loopback6[16] = { [15] = 1 };
	int rank = v4 ? 1 : 2;

	if (v4 ? a[0] == 169 && a[1] == 254 : a[0] == 0xfe && (a[1] & 0xc0) == 0x80)
		return -1; /* a link-local address is of no use without its interface */
	if (v4 ? a[0] == 127 : memcmp(a, loopback6, sizeof(loopback6)) == 0)
		return 9;
	for (const struct ifaddrs *i = own; i != NULL; i = i->ifa_next) {
		ddp_place mine, mask;
		bool same = true, near = true;
		if (i->ifa_addr == NULL || i->ifa_netmask == NULL || !ddp_place_of(i->ifa_addr, &mine) ||
		    mine.family != there->family || !ddp_place_of(i->ifa_netmask, &mask))
			continue;
		for (size_t k = 0; k < (v4 ? 4 : 16); k++) {
			same = same && mine.address[k] == a[k];
			near = near && ((mine.address[k] ^ a[k]) & mask.address[k]) == 0;
		}
		/* Bridges for containers have the same address on many nodes; so has a pretended node. */
		if (same)
			return 8;
		if (near)
			rank = 0;
	}
	return rank;
}

/* Puts the node's addresses that suit best into the beat. */
static void choose_places(const ddp_beats *beats, ddp_beat *beat, const struct ifaddrs *own)
{
	const addresses *a = &beats->addresses[beats->roster->peers[beat->rank].node];

	for (int wanted = 0; wanted <= 9; wanted++) {
		for (int i = 0; i < a->count && beat->place_count < DDP_BEAT_PLACES; i++) {
			if (rank_of_address(&a->list[i], own) != wanted)
				continue;
			beat->places[beat->place_count] = a->list[i];
			beat->places[beat->place_count++].port = beats->places[beat->rank].port;
		}
	}
}

static ddp_beat *find(const ddp_beats *beats, int rank)
{
	for (int i = 0; i < beats->count; i++) {
		if (beats->list[i].rank == rank)
			return &beats->list[i];
	}
	return NULL;
}

static ddp_proof_key key_of(const ddp_token *token)
{
	ddp_proof_key key = { .bytes = { 0 } };

	memcpy(key.bytes, token->bytes, sizeof(token->bytes));
	return key;
}

/* The lock is held. */
static ddp_status add(ddp_beats *beats, int rank, bool connects, const struct ifaddrs *own)
{
	const place *there = &beats->places[rank];

	if (there->port == 0 || find(beats, rank) != NULL || ddp_silence_of(beats->roster, rank))
		return DDP_OK;
	if (beats->count == beats->room) {
		const int room = 2 * beats->room + 8;
		ddp_beat *list = realloc(beats->list, (size_t)room * sizeof(*list));
		if (list == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory to watch %d nodes for silence", room);
		beats->list = list;
		beats->room = room;
	}
	ddp_beat *beat = &beats->list[beats->count];
	*beat = (ddp_beat){ .rank = rank, .self = beats->roster->rank, .connects = connects,
	                    .ours = key_of(&there->ours), .theirs = key_of(&there->theirs) };
	choose_places(beats, beat, own);
	ddp_beat_begin(beat, beats->limit_ms, ddp_now_ns());
	beats->count++;
	return DDP_OK;
}

/* ---- who connects --------------------------------------------------------------------------------- */

static void drop_unproven_peer(ddp_beats *beats, int i)
{
	beats->unproven_peer_count--;
	memmove(&beats->unproven_peers[i], &beats->unproven_peers[i + 1],
	        (size_t)(beats->unproven_peer_count - i) * sizeof(*beats->unproven_peers));
}

/* Takes a whole hello. False: the connection is of no use. */
static bool admit(ddp_beats *beats, const unproven_peer *s, uint64_t now_ns)
{
	const int rank = s->hello.rank;
	ddp_beat *beat = rank >= 0 && rank < beats->roster->size ? find(beats, rank) : NULL;

	if (beat == NULL || beat->connects || ddp_silence_of(beats->roster, rank) ||
	    !ddp_beat_hello_holds(s->fd, &s->hello, &beat->theirs) ||
	    !ddp_beat_hello_send(s->fd, beat->self, &beat->ours))
		return false;
	ddp_beat_adopt(beat, s->fd, beats->places[rank].port, beats->limit_ms, now_ns);
	return true;
}

/* True: it stays. */
static bool read_hello(ddp_beats *beats, unproven_peer *s, uint64_t now_ns)
{
	const ssize_t got = recv(s->fd, (char *)&s->hello + s->bytes, sizeof(s->hello) - s->bytes, MSG_DONTWAIT);
	const bool ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);

	if (got > 0)
		s->bytes += (size_t)got;
	if (s->bytes < sizeof(s->hello) && !ended && now_ns < s->until_ns)
		return true;
	if (s->bytes < sizeof(s->hello) || !admit(beats, s, now_ns))
		close(s->fd);
	return false;
}

/* As many as there is room for, so that whoever connects again and again does not keep the thread from its beats. A
   connection that cannot be accepted stays, and poll() would tell of it without end. */
static void accept_some(ddp_beats *beats, uint64_t now_ns)
{
	for (int i = 0; i < UNPROVEN_MAX && now_ns >= beats->accepts_at_ns; i++) {
		const int fd = accept4(beats->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		const bool scarce = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
		if (scarce && beats->unproven_peer_count == 0)
			beats->accepts_at_ns = now_ns + SCARCE_MS * MS_NS;
		if (fd < 0 && !(scarce && beats->unproven_peer_count > 0))
			return;
		if (scarce || beats->unproven_peer_count == UNPROVEN_MAX) {
			close(beats->unproven_peers[0].fd);
			drop_unproven_peer(beats, 0);
		}
		if (fd < 0)
			continue;
		beats->unproven_peers[beats->unproven_peer_count++] =
			(unproven_peer){ .fd = fd, .until_ns = now_ns + UNPROVEN_MS * MS_NS };
	}
}

static void accept_hellos(ddp_beats *beats, uint64_t now_ns)
{
	accept_some(beats, now_ns);
	for (int i = 0; i < beats->unproven_peer_count; i++) {
		if (!read_hello(beats, &beats->unproven_peers[i], now_ns))
			drop_unproven_peer(beats, i--);
	}
}

/* ---- the thread --------------------------------------------------------------------------------- */

/* Does a node but this one give signs of life? */
static bool hears_another(const ddp_beats *beats, const ddp_beat *silent, uint64_t now_ns)
{
	const uint64_t half_ns = (uint64_t)beats->limit_ms * MS_NS / 2;

	for (int i = 0; i < beats->count; i++) {
		const ddp_beat *beat = &beats->list[i];
		if (beat != silent && beat->state == DDP_BEAT_HEARS && ddp_detector_silent_ns(&beat->detector, now_ns) < half_ns)
			return true;
	}
	return false;
}

/* Notes the silent node and wakes whoever waits in this process, and the thread of comm/attend, which tells others. If
   this process hears nobody, it need not wait for any other node. */
static void announce(const ddp_beats *beats, const ddp_beat *silent, uint64_t now_ns)
{
	ddp_roster *roster = beats->roster;
	/* A node that gave this one up has not been heard there for about the limit. */
	const int silent_ms = silent->word == DDP_BEAT_LIVES ? (int)(ddp_detector_silent_ns(&silent->detector, now_ns) / MS_NS)
	                                                    : beats->limit_ms;

	if (silent->word == DDP_BEAT_GAVE_YOU_UP ||
	    (silent->word == DDP_BEAT_LIVES && !hears_another(beats, silent, now_ns)))
		atomic_store(&roster->deaf, true);
	if (!ddp_silence_note(roster, silent->rank, silent_ms))
		return;
	for (int r = 0; r < roster->size && atomic_load(&roster->deaf); r++) {
		if (roster->peers[r].node == r && r != roster->peers[roster->rank].node)
			(void)ddp_silence_note(roster, r, silent_ms);
	}
	ddp_doorbell_notify_attention(&roster->doorbell);
	ddp_doorbell_notify_own(&roster->doorbell);
}

/* If a firewall drops or refuses the connections, nobody would learn that the node is not watched. */
static void warn(const ddp_beats *beats, ddp_beat *beat)
{
	if (beat->warned || !ddp_beat_is_blind(beat))
		return;
	beat->warned = true;
	if (beat->place_count == 0)
		ddp_log(DDP_LOG_WARN, "rank %d on %s cannot watch %s for silence: none of the %d addresses of that node reaches it "
		        "from another node; give it one that is not link-local (DDP_SILENCE)", beat->self,
		        beats->roster->peers[beat->self].host, beats->roster->peers[beat->rank].host,
		        beats->addresses[beats->roster->peers[beat->rank].node].count);
	else if (beat->refused)
		ddp_log(DDP_LOG_WARN, "rank %d on %s has lost the connection by which it watches %s for silence, and %d attempts to "
		        "open it again have failed; it goes on trying. If rank %d has not ended there, a firewall refuses "
		        "connections to TCP port %d (DDP_SILENCE)", beat->self, beats->roster->peers[beat->self].host,
		        beats->roster->peers[beat->rank].host, beat->attempts, beat->rank, ntohs(beats->places[beat->rank].port));
	else if (beat->heard)
		ddp_log(DDP_LOG_WARN, "rank %d on %s has lost the connection by which it watches %s for silence, and %d attempts to "
		        "open it again have failed; it goes on trying (DDP_SILENCE)", beat->self,
		        beats->roster->peers[beat->self].host, beats->roster->peers[beat->rank].host, beat->attempts);
	else
		ddp_log(DDP_LOG_WARN,
		        "rank %d on %s cannot watch %s for silence: after %d attempts there is no connection to TCP "
		        "port %d there; does a firewall stand between? (DDP_SILENCE)",
		        beat->self, beats->roster->peers[beat->self].host, beats->roster->peers[beat->rank].host,
		        beat->attempts, ntohs(beats->places[beat->rank].port));
}

static void progress_all(ddp_beats *beats)
{
	accept_hellos(beats, ddp_now_ns());
	for (int i = 0; i < beats->count; i++) {
		ddp_beat *beat = &beats->list[i];
		const bool known = ddp_silence_of(beats->roster, beat->rank);
		const uint64_t now_ns = ddp_now_ns();
		warn(beats, beat);
		if (!known && !ddp_beat_progress(beat, beats->limit_ms, now_ns))
			continue;
		if (beat->state == DDP_BEAT_ENDED)
			continue;
		if (!known)
			announce(beats, beat, now_ns);
		ddp_beat_give_up(beat, atomic_load(&beats->roster->deaf) ? DDP_BEAT_GAVE_ALL_UP : DDP_BEAT_GAVE_YOU_UP);
	}
}

/* Gives what to wait for, in a list that has room for all, and until when. */
static int list_events(const ddp_beats *beats, struct pollfd *fds, uint64_t *next_ns)
{
	const uint64_t now_ns = ddp_now_ns();
	int count = 2;

	*next_ns = now_ns + IDLE_MS * MS_NS;
	fds[0] = (struct pollfd){ .fd = beats->wake, .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = now_ns >= beats->accepts_at_ns ? beats->listener : -1, .events = POLLIN };
	if (now_ns < beats->accepts_at_ns)
		*next_ns = beats->accepts_at_ns;
	for (int i = 0; i < beats->unproven_peer_count; i++)
		fds[count++] = (struct pollfd){ .fd = beats->unproven_peers[i].fd, .events = POLLIN };
	for (int i = 0; i < beats->count; i++)
		count += ddp_beat_poll(&beats->list[i], fds + count, now_ns, next_ns);
	return count;
}

static void sleep_until(struct pollfd *fds, int count, uint64_t until_ns)
{
	const uint64_t now_ns = ddp_now_ns();
	uint64_t bell;

	(void)poll(fds, (nfds_t)count, until_ns > now_ns ? (int)((until_ns - now_ns + MS_NS - 1) / MS_NS) : 1);
	(void)!read(fds[0].fd, &bell, sizeof(bell));
}

static void *look_after(void *argument)
{
	ddp_beats *beats = argument;
	struct pollfd *fds = NULL;
	int room = 0, count = 0;
	uint64_t next_ns = 0;

	for (bool going = true; going;) {
		pthread_mutex_lock(&beats->lock);
		progress_all(beats);
		const int wanted = 2 + UNPROVEN_MAX + DDP_BEAT_FDS * beats->count;
		struct pollfd *more = wanted > room ? realloc(fds, (size_t)wanted * sizeof(*fds)) : fds;
		if (more != NULL) {
			fds = more;
			room = wanted > room ? wanted : room;
			count = list_events(beats, fds, &next_ns);
		}
		going = !beats->stopping;
		pthread_mutex_unlock(&beats->lock);
		if (going && more != NULL)
			sleep_until(fds, count, next_ns);
		else if (going)
			usleep(IDLE_MS * 100); /* there is no memory just now */
	}
	free(fds);
	return NULL;
}

static ddp_status start(ddp_beats *beats)
{
	const int error = beats->started ? 0 : ddp_thread_start(&beats->thread, look_after, beats);

	if (error != 0)
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "cannot start the thread that watches nodes for silence (see ulimit -u)");
	beats->started = true;
	return DDP_OK;
}

static void wake(const ddp_beats *beats)
{
	const uint64_t one = 1;

	(void)!write(beats->wake, &one, sizeof(one));
}

ddp_status ddp_beats_watch(ddp_beats *beats, const ddp_comm *comm)
{
	const ddp_topology *t = &comm->topology;
	const int node = t->node_of[comm->rank];
	int neighbours[DDP_BEATS_MAX];
	struct ifaddrs *own = NULL;
	ddp_status status = DDP_OK;

	if (comm->node.self != 0)
		return DDP_OK;
	(void)getifaddrs(&own);
	pthread_mutex_lock(&beats->lock);
	const int count = ddp_beats_neighbours(t->nodes, node, neighbours);
	for (int i = 0; i < count && status == DDP_OK; i++) {
		const int rank = t->world_ranks[t->node_ranks[t->node_begin[neighbours[i]]]];
		status = add(beats, rank, node < neighbours[i], own);
	}
	if (status == DDP_OK)
		status = start(beats);
	pthread_mutex_unlock(&beats->lock);
	freeifaddrs(own);
	wake(beats);
	return status;
}

int ddp_beats_heard(ddp_beats *beats)
{
	int heard = 0;

	pthread_mutex_lock(&beats->lock);
	for (int i = 0; i < beats->count; i++)
		heard += beats->list[i].state == DDP_BEAT_HEARS;
	pthread_mutex_unlock(&beats->lock);
	return heard;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void ddp_beats_close(ddp_beats *beats)
{
	if (beats == NULL)
		return;
	pthread_mutex_lock(&beats->lock);
	beats->stopping = true;
	pthread_mutex_unlock(&beats->lock);
	if (beats->started) {
		wake(beats);
		pthread_join(beats->thread, NULL);
	}
	for (int i = 0; i < beats->unproven_peer_count; i++)
		close(beats->unproven_peers[i].fd);
	for (int i = 0; i < beats->count; i++)
		ddp_beat_end(&beats->list[i]);
	close_fd(beats->listener);
	close_fd(beats->wake);
	for (int r = 0; r < beats->roster->size && beats->addresses != NULL; r++)
		free(beats->addresses[r].list);
	if (beats->places != NULL)
		explicit_bzero(beats->places, (size_t)beats->roster->size * sizeof(*beats->places));
	if (beats->list != NULL)
		explicit_bzero(beats->list, (size_t)beats->room * sizeof(*beats->list));
	free(beats->addresses);
	free(beats->places);
	free(beats->list);
	pthread_mutex_destroy(&beats->lock);
	free(beats);
}
