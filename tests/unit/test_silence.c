/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; needs: UCX */
/* comm/net/beat: when a node is silent. comm/net/beats: who watches whom, and whom they believe. comm/core/silence:
   what is said. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/silence.h"
#include "comm/net/beat.h"
#include "comm/net/beats.h"
#include "tests/support/test.h"

#define MS UINT64_C(1000000)
#define START (UINT64_C(1000000) * MS)
#define LIMIT (5000 * MS)

/* ---- the detector ----------------------------------------------------------------------------- */

/* Looks each `every` ms from `from` ms on; returns the ms at which the detector calls the node silent, or 0 if it does
   not until `to`. */
static uint64_t verdict(ddp_detector *detector, uint64_t from, uint64_t to, uint64_t every)
{
	for (uint64_t at = from; at <= to; at += every) {
		if (ddp_detector_is_silent(detector, START + at * MS, LIMIT))
			return at;
	}
	return 0;
}

TEST(a_node_that_says_nothing_is_silent_after_the_limit)
{
	ddp_detector detector;

	ddp_detector_start(&detector, START);
	assert_int_equal(verdict(&detector, 250, 20000, 250), 5000);
	ddp_detector_start(&detector, START);
	assert_int_equal(verdict(&detector, 900, 20000, 900), 5400);
}

TEST(a_sign_of_life_begins_the_time_anew)
{
	ddp_detector detector;

	ddp_detector_start(&detector, START);
	assert_int_equal(verdict(&detector, 250, 4750, 250), 0);
	ddp_detector_alive(&detector, START + 4740 * MS);
	assert_int_equal(verdict(&detector, 5000, 20000, 250), 9750);
}

TEST(an_older_sign_of_life_changes_nothing)
{
	ddp_detector detector;

	ddp_detector_start(&detector, START);
	ddp_detector_alive(&detector, START - 3000 * MS);
	assert_int_equal(ddp_detector_silent_ns(&detector, START + 10 * MS), 10 * MS);
	assert_int_equal(verdict(&detector, 250, 20000, 250), 5000);
}

/* The kernel tells whole milliseconds, or four of them: the same sign of life seems to come a little later. */
TEST(coarse_clocks_do_not_begin_it_anew)
{
	ddp_detector detector;

	ddp_detector_start(&detector, START);
	for (uint64_t at = 250; at < 5000; at += 250) {
		ddp_detector_alive(&detector, START + at % 4 * MS);
		assert_false(ddp_detector_is_silent(&detector, START + at * MS, LIMIT));
	}
	assert_true(ddp_detector_is_silent(&detector, START + 5004 * MS, LIMIT));
}

TEST(a_detector_that_did_not_run_does_not_count_that_time)
{
	ddp_detector detector;

	ddp_detector_start(&detector, START);
	assert_int_equal(verdict(&detector, 250, 1000, 250), 0);
	/* It was away for a minute. It counts a second of it, and three more to come. */
	assert_int_equal(verdict(&detector, 61000, 70000, 250), 64000);
	/* What it had counted before the last sign of life does not count. */
	ddp_detector_start(&detector, START);
	assert_int_equal(verdict(&detector, 250, 4750, 250), 0);
	ddp_detector_alive(&detector, START + 4700 * MS);
	assert_int_equal(verdict(&detector, 61000, 70000, 250), 65000);
}

/* ---- neighbours -------------------------------------------------------------------------------- */

TEST(neighbours_are_few_and_mutual)
{
	static const int sizes[] = { 1, 2, 3, 4, 5, 8, 9, 64, 1000, 16385 };
	int mine[DDP_BEATS_MAX], theirs[DDP_BEATS_MAX];

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		const int nodes = sizes[s];
		for (int node = 0; node < nodes; node += nodes > 1000 ? 97 : 1) {
			const int count = ddp_beats_neighbours(nodes, node, mine);
			assert_true(nodes == 1 ? count == 0 : count >= 1);
			assert_true(count <= 30);
			for (int i = 0; i < count; i++) {
				bool mutual = false;
				assert_true(mine[i] >= 0 && mine[i] < nodes && mine[i] != node);
				for (int k = 0; k < i; k++)
					assert_int_not_equal(mine[k], mine[i]);
				const int others = ddp_beats_neighbours(nodes, mine[i], theirs);
				for (int k = 0; k < others; k++)
					mutual = mutual || theirs[k] == node;
				assert_true(mutual);
			}
		}
	}
	assert_int_equal(ddp_beats_neighbours(3, 0, mine), 2);
	assert_int_equal(ddp_beats_neighbours(1000, 0, mine), 20);
}

/* ---- two processes, of two nodes, in this one ---------------------------------------------------- */

enum { RANKS = 2 };

typedef struct side {
	ddp_job job;
	ddp_roster *roster;
	ddp_beats *beats;
	ddp_comm comm;
} side;

static int world_ranks[RANKS] = { 0, 1 }, node_of[RANKS] = { 0, 1 }, node_begin[RANKS + 1] = { 0, 1, 2 };
static const ddp_place loopback = { .family = AF_INET, .address = { 127, 0, 0, 1 } };

static void open_side(side *s, int rank)
{
	memset(s, 0, sizeof(*s));
	s->job.rank = rank;
	s->job.world_size = RANKS;
	assert_int_equal(ddp_roster_make(&s->job, NULL, &s->roster), DDP_OK);
	s->roster->silence_ms = 5000;
	for (int r = 0; r < RANKS; r++) {
		s->roster->peers[r].node = r;
		snprintf(s->roster->peers[r].host, sizeof(s->roster->peers[r].host), "n%d", r);
	}
	assert_int_equal(ddp_doorbell_open(&s->roster->doorbell), DDP_OK);
	assert_int_equal(ddp_beats_open(s->roster, &s->beats), DDP_OK);
	s->comm.roster = s->roster;
	s->comm.rank = rank;
	s->comm.size = RANKS;
	s->comm.topology = (ddp_topology){ .world_ranks = world_ranks, .nodes = 2, .node_of = node_of,
	                                   .node_begin = node_begin, .node_ranks = world_ranks };
}

static void close_side(side *s)
{
	ddp_beats_close(s->beats);
	ddp_roster_release(s->roster);
}

/* How the first side's watch looks from outside: the peer has a connection with each process that it believes. */
static void introduce(side *a, side *b, unsigned char to_b, unsigned char to_a)
{
	const ddp_token from_a = { .bytes = { 'a' } }, from_b = { .bytes = { 'b' } };
	const ddp_token seen_by_a = { .bytes = { to_a } }, seen_by_b = { .bytes = { to_b } };

	assert_int_equal(ddp_beats_learn(a->beats, 1, ddp_beats_port(b->beats), &loopback, 1), DDP_OK);
	assert_int_equal(ddp_beats_learn(b->beats, 0, ddp_beats_port(a->beats), &loopback, 1), DDP_OK);
	ddp_beats_trust(a->beats, 1, &from_a, &seen_by_a);
	ddp_beats_trust(b->beats, 0, &from_b, &seen_by_b);
	assert_int_equal(ddp_beats_watch(a->beats, &a->comm), DDP_OK);
	assert_int_equal(ddp_beats_watch(b->beats, &b->comm), DDP_OK);
}

static bool comes_to_hear(const side *s, int seconds)
{
	const uint64_t until_ns = ddp_now_ns() + (uint64_t)seconds * 1000 * MS;

	while (ddp_beats_heard(s->beats) == 0 && ddp_now_ns() < until_ns)
		usleep(10000);
	return ddp_beats_heard(s->beats) == 1;
}

/* Two sides that hear each other. */
static void open_pair(side *a, side *b)
{
	open_side(a, 0);
	open_side(b, 1);
	introduce(a, b, 'a', 'b');
	assert_true(comes_to_hear(a, 60));
	assert_true(comes_to_hear(b, 60));
}

TEST(nodes_with_the_key_hear_each_other)
{
	side a, b;

	open_pair(&a, &b);
	assert_int_equal(ddp_silence_count(a.roster), 0);
	/* Whoever ends is not silent. */
	close_side(&b);
	usleep(700000);
	assert_int_equal(ddp_silence_count(a.roster), 0);
	close_side(&a);
}

TEST(a_wrong_key_is_not_believed)
{
	for (int wrong = 0; wrong < 2; wrong++) {
		side a, b;
		open_side(&a, 0);
		open_side(&b, 1);
		/* One proves another key than the other side expects. */
		introduce(&a, &b, wrong == 0 ? 'x' : 'a', wrong == 1 ? 'y' : 'b');
		usleep(1500000);
		assert_int_equal(ddp_beats_heard(a.beats), 0);
		assert_true(wrong == 1 || ddp_beats_heard(b.beats) == 0);
		assert_int_equal(ddp_silence_count(a.roster), 0);
		close_side(&b);
		close_side(&a);
	}
}

static int connect_to(uint16_t port)
{
	const struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* Stands before the C library's. */
static atomic_int unaccepted; /* for want of a descriptor */

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	const int accepted = (int)syscall(SYS_accept4, fd, address, length, flags);

	if (accepted < 0 && errno == EMFILE)
		atomic_fetch_add(&unaccepted, 1);
	return accepted;
}

/* The process may open nothing more. Returns what it was allowed before. */
static struct rlimit leave_no_descriptor(void)
{
	struct rlimit before, none;
	const int lowest = dup(STDERR_FILENO);

	assert_true(lowest >= 0);
	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = (rlim_t)lowest;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	return before;
}

/* A connection that cannot be accepted does not keep the core busy, and is accepted later. */
TEST(beats_wait_for_a_descriptor)
{
	const uint64_t until_ns = ddp_now_ns() + 60000 * MS;
	ddp_beat_hello hello;
	char byte;
	side a, b;

	open_pair(&a, &b);
	const struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = ddp_beats_port(b.beats),
	                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_true(fd >= 0);
	const struct rlimit before = leave_no_descriptor();
	const int connected = connect(fd, (const struct sockaddr *)&to, sizeof(to));
	while (atomic_load(&unaccepted) == 0 && ddp_now_ns() < until_ns)
		usleep(1000);
	const int first = atomic_load(&unaccepted);
	usleep(300000);
	const int more = atomic_load(&unaccepted) - first;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(connected, 0);
	assert_true(first > 0);
	assert_in_range(more, 0, 20);
	memset(&hello, 0xff, sizeof(hello));
	assert_int_equal(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
	assert_int_equal(recv(fd, &byte, 1, 0), 0);
	close(fd);
	close_side(&b);
	close_side(&a);
}

TEST(unproven_peers_are_sent_away_and_harm_nobody)
{
	enum { UNPROVEN = 100 };
	ddp_beat_hello hello;
	int fds[UNPROVEN];
	side a, b;

	open_side(&a, 0);
	open_side(&b, 1);
	/* They come first; some say nothing, some say what they do not know. */
	for (int i = 0; i < UNPROVEN; i++) {
		fds[i] = connect_to(ddp_beats_port(b.beats));
		memset(&hello, i, sizeof(hello));
		hello.rank = i % 4 - 1;
		if (i % 3 > 0)
			(void)!send(fds[i], &hello, i % 3 == 1 ? sizeof(hello) : 7, MSG_NOSIGNAL);
	}
	introduce(&a, &b, 'a', 'b');
	assert_true(comes_to_hear(&a, 60));
	assert_true(comes_to_hear(&b, 60));
	for (int i = 0; i < UNPROVEN; i++)
		close(fds[i]);
	assert_int_equal(ddp_silence_count(a.roster), 0);
	assert_int_equal(ddp_silence_count(b.roster), 0);
	close_side(&b);
	close_side(&a);
}

/* A node that calls another one silent tells it so, once its network is back: neither waits for the other. */
TEST(a_node_learns_that_it_was_given_up)
{
	for (int deaf = 0; deaf < 2; deaf++) {
		side a, b;
		open_pair(&a, &b);
		atomic_store(&b.roster->deaf, deaf == 1);
		assert_true(ddp_silence_note(b.roster, 0, 5000));
		const uint64_t until_ns = ddp_now_ns() + 60000 * MS;
		while (ddp_silence_count(a.roster) == 0 && ddp_now_ns() < until_ns)
			usleep(10000);
		assert_true(ddp_silence_of(a.roster, 1));
		/* If b hears others, it is a that nobody hears. */
		assert_int_equal(atomic_load(&a.roster->deaf), deaf == 0);
		close_side(&b);
		close_side(&a);
	}
}

/* A proof that was sent on one connection is of no use on another one. */
TEST(a_hello_holds_on_its_connection_only)
{
	const ddp_proof_key key = { .bytes = { 1, 2, 3 } }, other = { .bytes = { 1, 2, 4 } };
	ddp_place near, far;
	ddp_beat_hello hello;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(listen(listener, 4), 0);
	assert_true(ddp_socket_places(listener, &near, &far));
	const int first = connect_to(near.port), first_there = accept(listener, NULL, NULL);
	const int second = connect_to(near.port), second_there = accept(listener, NULL, NULL);
	assert_true(ddp_beat_hello_send(first, 3, &key));
	assert_int_equal(recv(first_there, &hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
	assert_int_equal(hello.rank, 3);
	assert_true(ddp_beat_hello_holds(first_there, &hello, &key));
	assert_false(ddp_beat_hello_holds(first_there, &hello, &other));
	assert_false(ddp_beat_hello_holds(second_there, &hello, &key));
	close(first);
	close(first_there);
	close(second);
	close(second_there);
	close(listener);
}

/* Lets a beat act at its own time until it has made so many attempts to connect since its last connection. */
static void try_to_connect(ddp_beat *beat, int attempts, uint64_t *now_ns)
{
	while (beat->attempts < attempts && beat->state != DDP_BEAT_ENDED) {
		(void)ddp_beat_progress(beat, 5000, *now_ns);
		*now_ns += beat->state == DDP_BEAT_WAITS ? beat->until_ns - *now_ns : 0;
	}
}

/* The process of the other node takes the next connection that it should get, or another one. */
static void connect_beat(ddp_beat *beat, int listener, uint64_t *now_ns)
{
	const ddp_proof_key key = { .bytes = { 'k' } };
	ddp_beat_hello hello;
	int there = -1;

	for (; there < 0; (void)ddp_beat_progress(beat, 5000, *now_ns)) {
		there = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
		*now_ns += beat->state == DDP_BEAT_WAITS ? beat->until_ns - *now_ns : 0;
	}
	assert_int_equal(fcntl(there, F_SETFL, 0), 0);
	assert_true(ddp_beat_hello_send(there, beat->rank, &key));
	while (beat->state == DDP_BEAT_CONNECTS || beat->state == DDP_BEAT_PROVES)
		(void)ddp_beat_progress(beat, 5000, *now_ns);
	assert_int_equal(recv(there, &hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
	close(there);
	assert_int_equal(beat->state, DDP_BEAT_HEARS);
}

/* A firewall may be opened, and a network be mended, at any time. */
TEST(a_node_is_watched_again_however_late)
{
	const ddp_proof_key key = { .bytes = { 'k' } };
	ddp_beat beat = { .rank = 1, .connects = true, .ours = key, .theirs = key, .place_count = 2 };
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	uint64_t now_ns = ddp_now_ns();
	ddp_place near, far;

	/* Nobody listens at a port that is only bound. The other place is no address of any host. */
	assert_int_equal(bind(listener, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_true(ddp_socket_places(listener, &near, &far));
	beat.places[0] = (ddp_place){ .family = AF_INET, .address = { 255, 255, 255, 255 }, .port = near.port };
	beat.places[1] = near;
	ddp_beat_begin(&beat, 5000, now_ns);
	try_to_connect(&beat, 11, &now_ns);
	assert_false(ddp_beat_is_blind(&beat));
	try_to_connect(&beat, 100, &now_ns);
	assert_int_equal(beat.state, DDP_BEAT_WAITS);
	assert_true(ddp_beat_is_blind(&beat));
	/* Such attempts are rare, but each time all places are tried. */
	const uint64_t rare_ns = now_ns;
	assert_true(rare_ns >= ddp_now_ns() + 10000 * MS);
	try_to_connect(&beat, 102, &now_ns);
	assert_true(now_ns >= rare_ns + 30000 * MS && now_ns < rare_ns + 40000 * MS);
	assert_int_equal(listen(listener, 4), 0);
	for (int times = 0; times < 100; times++) {
		connect_beat(&beat, listener, &now_ns);
		assert_false(ddp_beat_is_blind(&beat));
		/* Each connection is lost again. */
		while (beat.state == DDP_BEAT_HEARS)
			(void)ddp_beat_progress(&beat, 5000, now_ns);
	}
	/* Where the process has listened, nobody does any more: it has ended. */
	close(listener);
	try_to_connect(&beat, 1000, &now_ns);
	assert_int_equal(beat.state, DDP_BEAT_ENDED);
	assert_false(ddp_beat_is_blind(&beat));
	ddp_beat_end(&beat);
}

/* ---- what is said ---------------------------------------------------------------------------------- */

/* The process there is killed while bytes wait for it, or a firewall resets the connection and refuses others. */
TEST(a_node_that_refuses_connections_is_not_forgotten)
{
	const struct linger reset = { .l_onoff = 1 };
	const ddp_proof_key key = { .bytes = { 'k' } };
	ddp_beat beat = { .rank = 1, .connects = true, .ours = key, .theirs = key, .place_count = 1 };
	ddp_beat_hello hello;
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int listener = socket(AF_INET, SOCK_STREAM, 0);
	uint64_t now_ns = ddp_now_ns();
	ddp_place far;

	assert_int_equal(bind(listener, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(listen(listener, 4), 0);
	assert_true(ddp_socket_places(listener, &beat.places[0], &far));
	ddp_beat_begin(&beat, 5000, now_ns);
	(void)ddp_beat_progress(&beat, 5000, now_ns);
	const int there = accept(listener, NULL, NULL);
	close(listener);
	while (beat.state == DDP_BEAT_CONNECTS)
		(void)ddp_beat_progress(&beat, 5000, now_ns);
	assert_int_equal(recv(there, &hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
	assert_true(ddp_beat_hello_send(there, beat.rank, &key));
	while (beat.state == DDP_BEAT_PROVES)
		(void)ddp_beat_progress(&beat, 5000, now_ns);
	assert_int_equal(beat.state, DDP_BEAT_HEARS);
	assert_int_equal(setsockopt(there, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	close(there);
	while (beat.state == DDP_BEAT_HEARS)
		(void)ddp_beat_progress(&beat, 5000, now_ns);
	try_to_connect(&beat, 59, &now_ns);
	/* If the process has ended, its step ends soon, or its ranks go on without it and are warned in vain. */
	assert_false(ddp_beat_is_blind(&beat));
	try_to_connect(&beat, 200, &now_ns);
	assert_int_equal(beat.state, DDP_BEAT_WAITS);
	assert_true(ddp_beat_is_blind(&beat));
	ddp_beat_end(&beat);
}

static atomic_int warnings;
static char warning[1024];

static void keep_warning(void *unused, ddp_log_level level, const char *text)
{
	if (level != DDP_LOG_WARN)
		return;
	snprintf(warning, sizeof(warning), "%s", text);
	atomic_fetch_add(&warnings, 1);
}

/* Nobody tries to connect, so that no attempt fails. */
TEST(a_node_without_an_address_is_told_once)
{
	const ddp_place link_local = { .family = AF_INET, .address = { 169, 254, 1, 2 } };
	const uint64_t until_ns = ddp_now_ns() + 60000 * MS;
	side a;

	open_side(&a, 0);
	ddp_set_log(keep_warning, NULL, DDP_LOG_WARN);
	assert_int_equal(ddp_beats_learn(a.beats, 1, 1, &link_local, 1), DDP_OK);
	assert_int_equal(ddp_beats_watch(a.beats, &a.comm), DDP_OK);
	while (atomic_load(&warnings) == 0 && ddp_now_ns() < until_ns)
		usleep(10000);
	assert_int_equal(ddp_beats_watch(a.beats, &a.comm), DDP_OK);
	usleep(100000);
	close_side(&a);
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
	assert_int_equal(warnings, 1);
	assert_string_equal(warning, "rank 0 on n0 cannot watch n1 for silence: none of the 1 addresses of that node reaches it from "
	                             "another node; give it one that is not link-local (DDP_SILENCE)");
}

TEST(the_sentence_names_the_node_and_its_ranks)
{
	static const int nodes[9] = { 0, 1, 1, 1, 0, 5, 1, 5, 8 };
	ddp_job job = { .world_size = 9 };
	int ranks[9] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
	char text[DDP_SILENCE_TEXT];
	ddp_roster *roster;

	assert_int_equal(ddp_roster_make(&job, NULL, &roster), DDP_OK);
	for (int r = 0; r < 9; r++) {
		roster->peers[r].node = nodes[r];
		snprintf(roster->peers[r].host, sizeof(roster->peers[r].host), "n%d", nodes[r]);
	}
	const ddp_comm comm = { .roster = roster, .size = 9, .topology.world_ranks = ranks };
	assert_int_equal(ddp_silence_find(&comm, text), DDP_NOBODY);
	assert_true(ddp_silence_note(roster, 3, 5040));
	assert_false(ddp_silence_note(roster, 6, 7000));
	assert_int_equal(ddp_silence_find(&comm, text), 1);
	assert_string_equal(text, "node n1 (ranks 1-3, 6) has been silent for 5.0 s: is its power or network lost? (silence=)");
	assert_true(ddp_silence_of(roster, 2));
	assert_false(ddp_silence_of(roster, 4));
	const ddp_comm part = { .roster = roster, .size = 2, .topology.world_ranks = ranks + 7 };
	assert_int_equal(ddp_silence_find(&part, text), DDP_NOBODY);
	assert_true(ddp_silence_note(roster, 8, 5000));
	assert_int_equal(ddp_silence_find(&part, text), 1);
	assert_string_equal(text, "node n8 (rank 8) has been silent for 5.0 s: is its power or network lost? (silence=)");
	assert_int_equal(ddp_silence_count(roster), 2);
	ddp_roster_release(roster);
}

TEST(many_ranks_are_cut_short)
{
	enum { MANY = 400 };
	ddp_job job = { .world_size = MANY };
	char text[DDP_SILENCE_TEXT];
	static int ranks[MANY];
	ddp_roster *roster;

	assert_int_equal(ddp_roster_make(&job, NULL, &roster), DDP_OK);
	for (int r = 0; r < MANY; r++) {
		ranks[r] = r;
		roster->peers[r].node = r % 2;
	}
	const ddp_comm comm = { .roster = roster, .size = MANY, .topology.world_ranks = ranks };
	assert_true(ddp_silence_note(roster, 399, 5000));
	assert_int_equal(ddp_silence_find(&comm, text), 1);
	assert_non_null(strstr(text, "(ranks 1, 3, 5"));
	assert_non_null(strstr(text, ", ...) has been silent"));
	ddp_roster_release(roster);
}
