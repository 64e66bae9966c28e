/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/beat.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS_NS UINT64_C(1000000)

enum {
	CONNECT_MS = 1500,   /* for one place, before the next one is tried */
	PROVE_MS = 20000,    /* the process there may wait for a core */
	AGAIN_MS = 1000,     /* before the next attempt, */
	ATTEMPTS_OFTEN = 60, /* so often, */
	SELDOM_MS = 30000,   /* and then before it tries all places once more */
	ATTEMPTS_WARN = 12,
	PERIOD_MIN_MS = 100, PERIOD_MAX_MS = 500, /* between two bytes */
	PERIODS = 10,        /* bytes within the limit */
	RAN_PERIODS = 4,     /* a process that sends nothing for so many periods gets no more bytes */
	SUSPECT_MS = 1300,   /* keepalive is answered once a second, so something is wrong after this time */
	PROBE_MIN_MS = 250,
	PROBES = 20,         /* further connections within the limit, at most */
	KEEPALIVES_MAX = 120
};

/* ---- detector of silence -------------------------------------------------------- */

void ddp_detector_start(ddp_detector *detector, uint64_t now_ns)
{
	*detector = (ddp_detector){ .heard_ns = now_ns, .checked_ns = now_ns };
}

void ddp_detector_alive(ddp_detector *detector, uint64_t heard_ns)
{
	if (heard_ns <= detector->heard_ns)
		return;
	if (heard_ns - detector->heard_ns > DDP_DETECTOR_SAME_NS)
		detector->counted_ns = 0;
	detector->heard_ns = heard_ns;
}

uint64_t ddp_detector_silent_ns(const ddp_detector *detector, uint64_t now_ns)
{
	return now_ns > detector->heard_ns ? now_ns - detector->heard_ns : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool ddp_detector_is_silent(ddp_detector *detector, uint64_t now_ns, uint64_t limit_ns)
{
	const uint64_t silent_ns = ddp_detector_silent_ns(detector, now_ns);
	const uint64_t gap_ns = now_ns > detector->checked_ns ? now_ns - detector->checked_ns : 0;

	detector->counted_ns = least(detector->counted_ns + least(gap_ns, DDP_DETECTOR_STEP_NS), silent_ns);
	detector->checked_ns = now_ns;
	return silent_ns >= limit_ns && detector->counted_ns >= limit_ns;
}

/* ---- sockets ---------------------------------------------------------------------------- */

static socklen_t address_of(const ddp_place *place, struct sockaddr_storage *to)
{
	struct sockaddr_in *in = (struct sockaddr_in *)(void *)to;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)(void *)to;

	memset(to, 0, sizeof(*to));
	if (place->family == AF_INET) {
		in->sin_family = AF_INET;
		in->sin_port = place->port;
		memcpy(&in->sin_addr, place->address, sizeof(in->sin_addr));
		return sizeof(*in);
	}
	in6->sin6_family = AF_INET6;
	in6->sin6_port = place->port;
	memcpy(&in6->sin6_addr, place->address, sizeof(in6->sin6_addr));
	return sizeof(*in6);
}

/* A socket for a place, which is being connected with it, or -1. */
static int begin_to_connect(const ddp_place *place)
{
	struct sockaddr_storage to;
	const socklen_t length = address_of(place, &to);
	const int fd = socket(place->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	if (connect(fd, (const struct sockaddr *)&to, length) == 0 || errno == EINPROGRESS)
		return fd;
	close(fd);
	return -1;
}

/* A listener for both families of addresses has those of IPv4 in IPv6's form. */
static void simplify(ddp_place *place)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };

	if (place->family != AF_INET6 || memcmp(place->address, mapped, sizeof(mapped)) != 0)
		return;
	memmove(place->address, place->address + sizeof(mapped), 4);
	memset(place->address + 4, 0, sizeof(place->address) - 4);
	place->family = AF_INET;
}

static bool places_of(int fd, ddp_place *near, ddp_place *far)
{
	if (!ddp_socket_places(fd, near, far) || far->family == 0)
		return false;
	simplify(near);
	simplify(far);
	return true;
}

/* Is the connection made? 0: yes; EINPROGRESS: not yet; otherwise why not. */
static int connected(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLOUT };
	socklen_t length = sizeof(int);
	int error = 0;

	if (poll(&ready, 1, 0) <= 0)
		return EINPROGRESS;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 ? errno : error;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void set(int fd, int level, int name, int value)
{
	/* A kernel that does not know the option works without it. */
	(void)setsockopt(fd, level, name, &value, sizeof(value));
}

static void keep_alive(int fd, int limit_ms)
{
	set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1 + limit_ms / 1000 / (KEEPALIVES_MAX / 2));
	set(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVES_MAX);
	set(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
	/* The kernel gives a connection up only after the detector has called the node silent. */
	set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 2 * limit_ms);
}

/* ---- hellos --------------------------------------------------------------------------------- */

bool ddp_beat_hello_send(int fd, int self, const ddp_proof_key *ours)
{
	ddp_beat_hello hello = { .rank = self };
	ddp_place near, far;

	return places_of(fd, &near, &far) && ddp_proof_make(ours, &near, &far, &hello.proof) == DDP_OK &&
	       send(fd, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(hello);
}

bool ddp_beat_hello_holds(int fd, const ddp_beat_hello *hello, const ddp_proof_key *theirs)
{
	ddp_place near, far;

	return places_of(fd, &near, &far) && ddp_proof_holds(theirs, &far, &near, &hello->proof);
}

/* ---- the ways from one state to another ------------------------------------------------------- */

/* Refused connections alone do not tell: a firewall refuses them, too. */
static bool has_ended(const ddp_beat *beat)
{
	return beat->left && beat->refused;
}

static void wait_again(ddp_beat *beat, uint64_t now_ns)
{
	close_fd(&beat->fd);
	close_fd(&beat->probe_fd);
	const bool often = beat->attempts < ATTEMPTS_OFTEN;
	const bool tried_all = beat->place_count == 0 || beat->attempts % beat->place_count == 0;
	/* A firewall or a network may be mended much later. A process that has ended does not come back, and its port may
	   become another one's. */
	beat->state = has_ended(beat) && !often ? DDP_BEAT_ENDED : DDP_BEAT_WAITS;
	beat->until_ns = now_ns + (often || !tried_all ? AGAIN_MS : SELDOM_MS) * MS_NS;
}

/* Which of the places the last attempt tried. */
static int tried_place(const ddp_beat *beat)
{
	return (beat->attempts - 1) % beat->place_count;
}

/* Only a refusal where the process once listened tells that it has ended: other addresses may be those of other
   hosts. */
static void note_error(ddp_beat *beat, int error)
{
	beat->refused = beat->refused || (error == ECONNREFUSED && beat->heard && tried_place(beat) == 0);
}

/* The next attempts begin with the place that was right. */
static void prefer_tried_place(ddp_beat *beat)
{
	if (!beat->connects || beat->attempts == 0)
		return;
	const int i = tried_place(beat);
	const ddp_place right = beat->places[i];
	beat->places[i] = beat->places[0];
	beat->places[0] = right;
}

static uint64_t bounded_ms(int wanted, int least, int most)
{
	return (uint64_t)(wanted < least ? least : wanted > most ? most : wanted);
}

void ddp_beat_begin(ddp_beat *beat, int limit_ms, uint64_t now_ns)
{
	beat->fd = beat->probe_fd = -1;
	beat->state = DDP_BEAT_WAITS;
	beat->until_ns = now_ns;
	beat->attempts = 0;
	beat->period_ns = bounded_ms(limit_ms / PERIODS, PERIOD_MIN_MS, PERIOD_MAX_MS) * MS_NS;
}

void ddp_beat_adopt(ddp_beat *beat, int fd, uint16_t port, int limit_ms, uint64_t now_ns)
{
	ddp_place near;

	close_fd(&beat->probe_fd);
	if (beat->fd != fd)
		close_fd(&beat->fd);
	beat->fd = fd;
	if (!places_of(fd, &near, &beat->place)) {
		wait_again(beat, now_ns);
		return;
	}
	beat->place.port = port;
	keep_alive(fd, limit_ms);
	prefer_tried_place(beat);
	beat->attempts = 0;
	beat->state = DDP_BEAT_HEARS;
	beat->heard = true;
	beat->refused = beat->left = beat->warned = false;
	beat->sent_ns = beat->ran_ns = now_ns;
	ddp_detector_start(&beat->detector, now_ns);
}

static void begin_attempt(ddp_beat *beat, uint64_t now_ns)
{
	if (!beat->connects || beat->place_count == 0 || now_ns < beat->until_ns)
		return;
	beat->place = beat->places[beat->attempts++ % beat->place_count];
	beat->fd = begin_to_connect(&beat->place);
	if (beat->fd < 0) {
		note_error(beat, errno);
		wait_again(beat, now_ns);
		return;
	}
	beat->state = DDP_BEAT_CONNECTS;
	beat->until_ns = now_ns + CONNECT_MS * MS_NS;
}

static void check_connecting(ddp_beat *beat, uint64_t now_ns)
{
	const int error = connected(beat->fd);

	if (error == 0 && ddp_beat_hello_send(beat->fd, beat->self, &beat->ours)) {
		beat->state = DDP_BEAT_PROVES;
		beat->hello_bytes = 0;
		beat->until_ns = now_ns + PROVE_MS * MS_NS;
	} else if (error != EINPROGRESS || now_ns >= beat->until_ns) {
		note_error(beat, error);
		wait_again(beat, now_ns);
	}
}

static void check_hello(ddp_beat *beat, int limit_ms, uint64_t now_ns)
{
	const ssize_t got = recv(beat->fd, (char *)&beat->hello + beat->hello_bytes,
	                         sizeof(beat->hello) - beat->hello_bytes, MSG_DONTWAIT);

	if (got > 0)
		beat->hello_bytes += (size_t)got;
	const bool ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
	if (beat->hello_bytes == sizeof(beat->hello)) {
		if (beat->hello.rank == beat->rank && ddp_beat_hello_holds(beat->fd, &beat->hello, &beat->theirs))
			ddp_beat_adopt(beat, beat->fd, beat->place.port, limit_ms, now_ns);
		else
			wait_again(beat, now_ns);
	} else if (ended || now_ns >= beat->until_ns) {
		wait_again(beat, now_ns);
	}
}

/* ---- life ------------------------------------------------------------------------------------- */

/* When the kernel there last acknowledged something, or sent something. */
static void read_kernel(ddp_beat *beat, int fd, uint64_t now_ns, bool *idle)
{
	struct tcp_info info;
	socklen_t length = sizeof(info);

	memset(&info, 0, sizeof(info));
	*idle = false;
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return;
	const uint32_t age_ms = info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv
	                                                                          : info.tcpi_last_data_recv;
	if (age_ms * MS_NS < now_ns)
		ddp_detector_alive(&beat->detector, now_ns - age_ms * MS_NS);
	*idle = info.tcpi_unacked == 0;
}

/* Takes the bytes that have come. False: the connection has ended. */
static bool read_bytes(ddp_beat *beat, uint64_t now_ns)
{
	char bytes[64];
	ssize_t got;

	while ((got = recv(beat->fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
		beat->ran_ns = now_ns;
		const char last = bytes[got - 1];
		if (last == DDP_BEAT_GAVE_ALL_UP || last == DDP_BEAT_GAVE_YOU_UP)
			beat->word = (ddp_beat_word)last;
	}
	return got < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Whether the network, and not the peer, has ended the connection with this error. */
static bool is_cut(int error)
{
	return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
}

static void check_connection(ddp_beat *beat, uint64_t now_ns)
{
	bool idle;

	read_kernel(beat, beat->fd, now_ns, &idle);
	errno = 0;
	if (!read_bytes(beat, now_ns) && beat->word == DDP_BEAT_LIVES) {
		const int error = errno;
		beat->left = error == 0;
		close_fd(&beat->fd);
		if (is_cut(error))
			beat->state = DDP_BEAT_CUT;
		else
			wait_again(beat, now_ns); /* if the process has ended, it listens no more */
		return;
	}
	/* If the process there is stopped, this end sends no more after some periods, so few bytes wait. */
	if (idle && now_ns - beat->sent_ns >= beat->period_ns && now_ns - beat->ran_ns < RAN_PERIODS * beat->period_ns) {
		beat->sent_ns = now_ns;
		(void)!send(beat->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
}

static void end_probe(ddp_beat *beat)
{
	const struct linger reset = { .l_onoff = 1 };

	if (beat->probe_fd >= 0)
		(void)setsockopt(beat->probe_fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close_fd(&beat->probe_fd);
}

/* A host that refuses a connection lives, too. */
static void check_probe(ddp_beat *beat, uint64_t now_ns)
{
	const int error = beat->probe_fd >= 0 ? connected(beat->probe_fd) : EINPROGRESS;
	bool idle;

	if (error == EINPROGRESS)
		return;
	if (error == 0)
		read_kernel(beat, beat->probe_fd, now_ns, &idle);
	else if (error == ECONNREFUSED || error == ECONNRESET)
		ddp_detector_alive(&beat->detector, now_ns);
	end_probe(beat);
	if (beat->state == DDP_BEAT_CUT && error == 0)
		wait_again(beat, now_ns);
}

static void probe(ddp_beat *beat, int limit_ms, uint64_t now_ns)
{
	const uint64_t interval_ns = bounded_ms(limit_ms / PROBES, PROBE_MIN_MS, limit_ms) * MS_NS;

	check_probe(beat, now_ns);
	if (beat->state != DDP_BEAT_HEARS && beat->state != DDP_BEAT_CUT)
		return;
	if (ddp_detector_silent_ns(&beat->detector, now_ns) < SUSPECT_MS * MS_NS) {
		end_probe(beat);
	} else if (now_ns - beat->probed_ns >= interval_ns) {
		end_probe(beat);
		beat->probed_ns = now_ns;
		beat->probe_fd = begin_to_connect(&beat->place);
	}
}

bool ddp_beat_progress(ddp_beat *beat, int limit_ms, uint64_t now_ns)
{
	if (beat->state == DDP_BEAT_WAITS)
		begin_attempt(beat, now_ns);
	if (beat->state == DDP_BEAT_CONNECTS)
		check_connecting(beat, now_ns);
	if (beat->state == DDP_BEAT_PROVES)
		check_hello(beat, limit_ms, now_ns);
	if (beat->state == DDP_BEAT_HEARS)
		check_connection(beat, now_ns);
	if (beat->word != DDP_BEAT_LIVES)
		return true;
	if (beat->state != DDP_BEAT_HEARS && beat->state != DDP_BEAT_CUT)
		return false;
	probe(beat, limit_ms, now_ns);
	return (beat->state == DDP_BEAT_HEARS || beat->state == DDP_BEAT_CUT) &&
	       ddp_detector_is_silent(&beat->detector, now_ns, (uint64_t)limit_ms * MS_NS);
}

bool ddp_beat_is_blind(const ddp_beat *beat)
{
	if (beat->connects && beat->place_count == 0)
		return true;
	/* A process that was killed while bytes waited for it does not close its connections, but resets them. */
	return !has_ended(beat) && beat->attempts >= (beat->refused ? ATTEMPTS_OFTEN : ATTEMPTS_WARN);
}

int ddp_beat_poll(const ddp_beat *beat, struct pollfd fds[DDP_BEAT_FDS], uint64_t now_ns, uint64_t *next_ns)
{
	const bool heard = beat->state == DDP_BEAT_HEARS || beat->state == DDP_BEAT_CUT;
	uint64_t at_ns = heard ? now_ns + beat->period_ns : beat->until_ns;
	int count = 0;

	if (beat->state == DDP_BEAT_ENDED || (beat->state == DDP_BEAT_WAITS && (!beat->connects || beat->place_count == 0)))
		return 0;
	if (beat->state == DDP_BEAT_CONNECTS)
		fds[count++] = (struct pollfd){ .fd = beat->fd, .events = POLLOUT };
	if (beat->state == DDP_BEAT_PROVES)
		fds[count++] = (struct pollfd){ .fd = beat->fd, .events = POLLIN };
	if (heard && beat->probe_fd >= 0)
		fds[count++] = (struct pollfd){ .fd = beat->probe_fd, .events = POLLOUT };
	if (heard && ddp_detector_silent_ns(&beat->detector, now_ns) >= SUSPECT_MS * MS_NS / 2 &&
	    at_ns > now_ns + PROBE_MIN_MS * MS_NS)
		at_ns = now_ns + PROBE_MIN_MS * MS_NS;
	if (at_ns < *next_ns)
		*next_ns = at_ns;
	return count;
}

void ddp_beat_end(ddp_beat *beat)
{
	close_fd(&beat->fd);
	close_fd(&beat->probe_fd);
	beat->state = DDP_BEAT_ENDED;
}

void ddp_beat_give_up(ddp_beat *beat, ddp_beat_word word)
{
	const char byte = (char)word;

	close_fd(&beat->probe_fd);
	/* If this end closed the connection and bytes came then, the kernel would reset it and drop the word. */
	if (beat->state == DDP_BEAT_HEARS && send(beat->fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
		(void)shutdown(beat->fd, SHUT_WR);
	else
		close_fd(&beat->fd);
	beat->state = DDP_BEAT_ENDED;
}
