/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* Wire-up by TCP where programs that are no ranks of the job interfere. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/support/flood.h"
#include "tests/support/hung.h"
#include "tests/support/tcp_ranks.h"
#include "tests/support/test.h"
#include "wireup/frame.h"
#include "wireup/resolve.h"

/* At MASTER_PORT. */
static int listen_as_impostor(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	int one = 1;

	address.sin_port = htons((uint16_t)ranks[0].job.master_port);
	inet_pton(AF_INET, ranks[0].job.master_addr, &address.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 5), 0);
	return fd;
}

/* A program that is no rank 0 listens, and says `text` to who comes. */
static pid_t start_impostor(const char *text, size_t bytes)
{
	int fd = listen_as_impostor();

	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		for (;;) {
			int peer = accept(fd, NULL, NULL);
			if (peer < 0 || send(peer, text, bytes, MSG_NOSIGNAL) < 0)
				_exit(1);
		}
	}
	close(fd);
	return pid;
}

static void end_process(pid_t pid)
{
	kill(pid, 9);
	waitpid(pid, NULL, 0);
}

TEST_WITH(other_program_in_rank_0s_place_is_recognised, begin, NULL)
{
	static const char banner[] = "220 mail.example ESMTP ready, and more so that it is long enough";

	arrange(2);
	ranks[0].absent = true;
	ranks[1].timeout_ms = SHORT_MS;
	pid_t impostor = start_impostor(banner, sizeof(banner));
	run(2);
	end_process(impostor);
	expect(1, DDP_ERR_AUTH, "is not rank 0 of a libddp job");
}

TEST_WITH(impostor_without_the_key_is_not_believed, begin, NULL)
{
	unsigned char text[sizeof(ddp_challenge) + sizeof(ddp_verdict)];

	arrange(2);
	ranks[0].absent = true;
	memset(text, 'x', sizeof(text));
	memcpy(text, "ddpwire2", 8);
	pid_t impostor = start_impostor((const char *)text, sizeof(text));
	run(2);
	end_process(impostor);
	expect(1, DDP_ERR_AUTH, "does not hold this step's key");
}

TEST_WITH(silent_program_in_rank_0s_place_ends_at_the_deadline, begin, NULL)
{
	arrange(2);
	ranks[0].absent = true;
	ranks[1].timeout_ms = 300;
	pid_t impostor = start_impostor("", 0);
	run(2);
	end_process(impostor);
	expect(1, DDP_ERR_TIMEOUT, "rank 0 did not come");
	expect(1, DDP_ERR_TIMEOUT, "what listens there says nothing");
}

/* It talks at MASTER_PORT, so that rank 0 has to listen elsewhere. */
static void meet_beside(const char *banner, size_t bytes)
{
	arrange(3);
	ranks[0].delay_ms = 300;
	pid_t impostor = start_impostor(banner, bytes);
	run(3);
	end_process(impostor);
	all_are_well(3);
	for (int r = 0; r < 3; r++)
		assert_true(outcomes[r].seconds < 5);
}

TEST_WITH(ranks_meet_beside_a_program_that_talks, begin, NULL)
{
	static const char banner[] = "220 mail.example ESMTP ready, and more so that it is long enough";

	meet_beside(banner, sizeof(banner));
}

/* Shorter than a challenge, and then silent. */
TEST_RUNS_BEHIND(begin, ranks_meet_beside_a_program_that_says_a_little, meet_beside("220 ready\r\n", 11));

/* A rank 0 that listens at this job's MASTER_PORT as at a port of libddp's own, and refuses. */
TEST_WITH(ranks_meet_beside_another_jobs_rank_0, begin, NULL)
{
	unsigned char text[sizeof(ddp_challenge) + sizeof(ddp_verdict)] = "ddpwire2";

	meet_beside((const char *)text, sizeof(text));
}

/* It speaks as rank 0 does up to the proof, and is silent then. */
TEST_WITH(ranks_meet_beside_a_program_that_ends_no_handshake, begin, NULL)
{
	ddp_challenge challenge;

	assert_int_equal(ddp_challenge_make(&challenge), DDP_OK);
	meet_beside((const char *)&challenge, sizeof(challenge));
}

/* Passes on what comes; the rank's first byte behind its hello is changed. */
static void pass_on(int rank, int centre)
{
	struct pollfd ends[2] = { { .fd = rank, .events = POLLIN }, { .fd = centre, .events = POLLIN } };
	size_t said = 0;

	while (poll(ends, 2, -1) > 0) {
		for (int i = 0; i < 2; i++) {
			char bytes[4096];
			const ssize_t got = ends[i].revents != 0 ? recv(ends[i].fd, bytes, sizeof(bytes), 0) : -1;
			if (ends[i].revents == 0)
				continue;
			const size_t first = sizeof(ddp_hello) + DDP_FRAME_HEADER_BYTES;
			if (i == 0 && got > 0 && said <= first && first < said + (size_t)got)
				bytes[first - said] ^= 1;
			said += i == 0 && got > 0 ? (size_t)got : 0;
			if (got <= 0 || send(ends[1 - i].fd, bytes, (size_t)got, MSG_NOSIGNAL) != got)
				return;
		}
	}
}

/* Holds `port`, and passes on who comes to `to`, where rank 0 listens. */
static pid_t start_relay(int port, int to)
{
	const int master_port = ranks[0].job.master_port;

	ranks[0].job.master_port = port;
	int fd = listen_as_impostor();
	ranks[0].job.master_port = master_port;
	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		ranks[0].job.master_port = to;
		for (int peer; (peer = accept(fd, NULL, NULL)) >= 0; close(peer)) {
			int centre = connect_raw();
			pass_on(peer, centre);
			close(centre);
		}
		_exit(1);
	}
	close(fd);
	return pid;
}

TEST_WITH(who_relays_a_handshake_is_not_believed, begin, NULL)
{
	ddp_ports ports;

	arrange(2);
	ranks[1].delay_ms = 500;
	ddp_ports_choose(ranks[0].job.master_port, &ports);
	pid_t relay = start_relay(ports.port[0], ports.port[1]);
	run(2);
	end_process(relay);
	all_are_well(2);
	for (int r = 0; r < 2; r++)
		assert_true(outcomes[r].seconds < 5);
}

/* As a NAT does; rank 1 knows no other way to rank 0. */
TEST_WITH(what_changes_addresses_between_ranks_is_said, begin, NULL)
{
	arrange(2);
	ranks[0].timeout_ms = 8000;
	ranks[1].job.master_port += 1000;
	pid_t relay = start_relay(ranks[1].job.master_port, ranks[0].job.master_port);
	run(2);
	end_process(relay);
	expect(1, DDP_ERR_AUTH, "sees other addresses of this connection than this rank");
	expect(0, DDP_ERR_AUTH, "rank 1 on node1 says that it connected from 127.");
	expect(0, DDP_ERR_AUTH, "a NAT, or a program that relays");
}

TEST_WITH(refusal_names_both_causes, begin, NULL)
{
	unsigned char text[sizeof(ddp_challenge) + sizeof(ddp_verdict)] = "ddpwire2";

	arrange(2);
	ranks[0].absent = true;
	pid_t impostor = start_impostor((const char *)text, sizeof(text));
	run(2);
	end_process(impostor);
	expect(1, DDP_ERR_AUTH, "DDP_KEY is not the same on all ranks");
	expect(1, DDP_ERR_AUTH, "another job's rank 0 holds the port");
	assert_true(outcomes[1].seconds < LONG_MS * 1e-3 / 2);
}

/* A rank 0 that says what is no message of the wire-up. */
static pid_t start_confused_centre(void)
{
	int fd = listen_as_impostor();

	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	for (int peer; pid == 0 && (peer = accept(fd, NULL, NULL)) >= 0; close(peer)) {
		ddp_challenge challenge;
		ddp_hello hello;
		struct {
			ddp_verdict verdict;
			unsigned char header[DDP_FRAME_HEADER_BYTES];
		} text;

		memset(&text, 0xff, sizeof(text));
		if (ddp_challenge_make(&challenge) != DDP_OK ||
		    send(peer, &challenge, sizeof(challenge), MSG_NOSIGNAL) < 0 ||
		    recv(peer, &hello, sizeof(hello), MSG_WAITALL) != (ssize_t)sizeof(hello) ||
		    ddp_verdict_make(&ranks[0].key, &hello, "node0", &text.verdict) != DDP_OK ||
		    send(peer, &text, sizeof(text), MSG_NOSIGNAL) < 0)
			_exit(1);
		sleep_ms(200);
	}
	close(fd);
	return pid;
}

TEST_WITH(rank_0_is_lost_only_if_it_is_gone, begin, NULL)
{
	arrange(2);
	ranks[0].absent = true;
	pid_t centre = start_confused_centre();
	run(2);
	end_process(centre);
	expect(1, DDP_ERR_FORMAT, "rank 1 on node1, during wire-up with rank 0 on node0");
	assert_int_equal(outcomes[1].about, -1);
}

/* As a proxy does whose own server is not there; counts those who come. */
static pid_t start_closer(atomic_int *visits)
{
	int fd = listen_as_impostor();

	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	for (int peer; pid == 0 && (peer = accept(fd, NULL, NULL)) >= 0; close(peer))
		atomic_fetch_add(visits, 1);
	close(fd);
	return pid;
}

TEST_WITH(program_that_hangs_up_is_visited_at_leisure, begin, NULL)
{
	atomic_int *visits = test_share(sizeof(*visits));

	arrange(2);
	ranks[0].absent = true;
	ranks[1].timeout_ms = SHORT_MS;
	pid_t closer = start_closer(visits);
	run(2);
	end_process(closer);
	expect(1, DDP_ERR_TIMEOUT, "closed the connection without a handshake");
	assert_in_range(atomic_load(visits), 2, 30);
	test_unshare(visits, sizeof(*visits));
}

/* Port scanners and worse, for as long as the job wires up. */
static pid_t start_intruders(int silent)
{
	fflush(NULL);
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid != 0)
		return pid;
	srandom(1);
	for (int i = 0; i < silent; i++)
		connect_raw();
	for (;;) {
		unsigned char noise[4096];
		int fd = connect_raw();
		if (fd < 0)
			_exit(0);
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (unsigned char)random();
		/* from nothing to far more than a hello */
		if (send(fd, noise, (size_t)random() % sizeof(noise), MSG_NOSIGNAL) < 0)
			sleep_ms(1);
		close(fd);
	}
}

TEST_WITH(intruders_do_not_stop_the_job, begin, NULL)
{
	arrange(4);
	ranks[3].delay_ms = 500;
	pid_t intruders = start_intruders(10);
	run(4);
	end_process(intruders);
	all_are_well(4);
}

typedef struct warnings {
	atomic_int count, details;
	char last[300];
} warnings;

static void count_warning(void *user, ddp_log_level level, const char *message)
{
	warnings *w = user;

	if (level > DDP_LOG_WARN) {
		atomic_fetch_add(&w->details, 1);
		return;
	}
	atomic_fetch_add(&w->count, 1);
	snprintf(w->last, sizeof(w->last), "%s", message);
}

TEST_WITH(intruders_do_not_fill_the_log, begin, NULL)
{
	warnings *w = test_share(sizeof(*w));
	int more = 0;

	arrange(2);
	ranks[1].delay_ms = 1000;
	pid_t intruders = start_intruders(0);
	ddp_set_log(count_warning, w, DDP_LOG_DEBUG);
	run(2);
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
	end_process(intruders);
	all_are_well(2);
	assert_in_range(atomic_load(&w->details), 1, DDP_LOG_UNLIMITED + 4 + (int)outcomes[0].seconds);
	assert_int_equal(atomic_load(&w->count), 4);
	assert_int_equal(sscanf(w->last, "wire-up: rank 0 on node0 refused %d more connections", &more), 1);
	assert_true(more > 0);
	test_unshare(w, sizeof(*w));
}

TEST_WITH(intruders_cannot_use_the_descriptors_up, begin, NULL)
{
	arrange(2);
	ranks[0].descriptors = 80;
	ranks[1].delay_ms = 1000;
	pid_t intruders = start_intruders(300);
	run(2);
	end_process(intruders);
	all_are_well(2);
}

static int tests_of_floods; /* Each has a port of its own. */

/* As soon as rank 0 listens; `begun` becomes true when all connections have been asked for. */
static pid_t start_flood(flood_kind kind, int count, atomic_bool *begun)
{
	struct sockaddr_in address = { .sin_family = AF_INET };

	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid != 0)
		return pid;
	address.sin_port = htons((uint16_t)ranks[0].job.master_port);
	inet_pton(AF_INET, ranks[0].job.master_addr, &address.sin_addr);
	close(connect_raw());
	flood_start(&address, kind, count);
	atomic_store(begun, true);
	for (;;)
		pause();
}

static void flood(flood_kind kind, int count)
{
	atomic_bool *begun = test_share(sizeof(*begun));

	tests_of_floods++;
	arrange(3);
	for (int r = 0; r < 3; r++)
		ranks[r].job.master_port += 1000 * tests_of_floods;
	ranks[0].descriptors = 160;
	ranks[1].awaits = ranks[2].awaits = begun;
	const int slowness = test_slowness();
	pid_t pid = start_flood(kind, count, begun);
	run(3);
	end_process(pid);
	test_unshare(begun, sizeof(*begun));
	all_are_well(3);
	for (int r = 1; r < 3; r++) {
		const double seconds = outcomes[r].seconds;
		printf("# kind %d, %d connections: rank %d wires up within %.3f s\n", (int)kind, count, r, seconds);
		/* A flood without an end takes a part of the machine, too. */
		const int most = kind == FLOOD_ENDLESS ? 10 : 1;
		assert_true(seconds < most * slowness || seconds < most * test_slowness());
	}
}

TEST_WITH(idle_connections_delay_no_rank, begin, NULL)
{
	flood(FLOOD_IDLE, 100);
	flood(FLOOD_IDLE, 300);
	flood(FLOOD_IDLE, 2000);
}

TEST_RUNS_BEHIND(begin, endless_connections_delay_no_rank, flood(FLOOD_ENDLESS, 200));

TEST_RUNS_BEHIND(begin, slow_connections_delay_no_rank, flood(FLOOD_SLOW, 300));
