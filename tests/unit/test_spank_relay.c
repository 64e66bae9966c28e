/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/wire/relay: whatever number of nodes speak, srun says one sentence. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/release.h"
#include "spank/base/worker.h"
#include "spank/node/link.h"
#include "spank/srun/relay_srun.h"
#include "spank/srun/requests.h"
#include "spank/srun/step.h"
#include "spank/wire/relay.h"
#include "spank/wire/timeline.h"
#include "tests/support/flood.h"
#include "tests/support/hung.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

static struct step_policy policy_with(uint32_t hold_ms)
{
	return (struct step_policy){ .hold_ms = hold_ms, .doubt_ms = DOUBT_MS, .grace_ms = 600000,
		                     .kill_on_failure = true };
}

/* Moves `bytes` one way; false where the other side does not. */
static bool send_bytes(int fd, const void *data, size_t bytes)
{
	return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static struct relay open_relay(uint32_t hold_ms)
{
	const struct step_policy policy = policy_with(hold_ms);

	return open_srun(&policy);
}

static atomic_bool answered;
static atomic_int questions;

/* Another srun's; `own` says what it does in place of open_relay()'s. */
static struct relay open_with(const struct relay_actions *own, const struct step_policy *policy)
{
	char spec[RELAY_SPEC_MAX];
	struct error error = { "" };

	said[0] = '\0';
	atomic_store(&answered, false);
	atomic_store(&times_said, 0);
	atomic_store(&times_ended, 0);
	atomic_store(&questions, 0);
	assert_true(relay_open(0, 0, policy, own, spec, &error));
	return relay_parse(spec);
}

static bool try_to_tell(const struct relay *relay, const char *text, uint32_t age_ms, bool hearsay)
{
	struct relay_news news = { .text = text, .age_ms = age_ms, .wait_status = 7 << 8,
		                   .facts = { .end = END_CODE, .sent = SENT_NOTHING,
		                              .blames_peer = hearsay } };

	return relay_tell(relay, "127.0.0.1", &news);
}

/* srun hangs up on a node that is kept from sending for long after it connected;
   it has then heard nothing. */
static bool tell(const struct relay *relay, const char *text, uint32_t age_ms, bool hearsay)
{
	for (int i = 0; i < 20; i++)
		if (try_to_tell(relay, text, age_ms, hearsay))
			return true;
	return false;
}

/* A failed test leaves its relay open, whose thread goes on to serve it, and which the next test would get. */
static int end_relay(void **state)
{
	atomic_store(&answered, true);
	relay_close();
	return 0;
}

/* Up to 63 bytes of the reference implementation's vectors, and one of OpenSSL's;
   each input is the bytes 0, 1, 2, ... */
TEST_WITH(siphash_gives_the_vectors_of_its_authors, NULL, end_relay)
{
	static const struct { size_t bytes; unsigned char tag[SIPHASH_BYTES]; } cases[] = {
		{ 0, { 0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72 } },
		{ 1, { 0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74 } },
		{ 7, { 0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab } },
		{ 8, { 0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93 } },
		{ 15, { 0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1 } },
		{ 63, { 0x72, 0x45, 0x06, 0xeb, 0x4c, 0x32, 0x8a, 0x95 } },
		{ 1044, { 0x82, 0xaf, 0xca, 0x74, 0x33, 0xf0, 0x79, 0xdf } },
	};
	unsigned char key[SIPHASH_KEY_BYTES], input[1100], tag[SIPHASH_BYTES];

	for (size_t i = 0; i < sizeof(key); i++)
		key[i] = (unsigned char)i;
	for (size_t i = 0; i < sizeof(input); i++)
		input[i] = (unsigned char)i;
	for (size_t i = 0; i < COUNT(cases); i++) {
		siphash(key, input, cases[i].bytes, tag);
		assert_memory_equal(tag, cases[i].tag, sizeof(tag));
	}
}

TEST_WITH(spec_is_read_or_refused_whole, NULL, end_relay)
{
	static const char *const bad[] = {
		"", "0:", "80", "80:", "x", "-1:000102030405060708090a0b0c0d0e0f",
		"65536:000102030405060708090a0b0c0d0e0f", " 80:000102030405060708090a0b0c0d0e0f",
		"80:000102030405060708090a0b0c0d0e0", "80:000102030405060708090a0b0c0d0e0f0",
		"80:000102030405060708090A0b0c0d0e0f", "80:000102030405060708090a0b0c0d0e0g",
		"99999999999999999999999:000102030405060708090a0b0c0d0e0f",
		"080:000102030405060708090a0b0c0d0e0f",
	};
	struct relay relay = relay_parse("8080:000102030405060708090a0b0c0d0eff");

	assert_int_equal(relay.port, 8080);
	assert_int_equal(relay.secret[1], 1);
	assert_int_equal(relay.secret[15], 255);
	assert_int_equal(relay_parse(NULL).port, 0);
	for (size_t i = 0; i < COUNT(bad); i++)
		if (relay_parse(bad[i]).port != 0)
			fail_msg("'%s' was taken", bad[i]);
}

TEST_WITH(of_many_nodes_at_once_one_is_heard, NULL, end_relay)
{
	struct relay relay = open_relay(1);
	int heard = 0;

	for (int i = 0; i < 64; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			char text[32];
			snprintf(text, sizeof(text), "rank %d", i);
			_exit(tell(&relay, text, 0, false) ? 0 : 1);
		}
	}
	for (int i = 0; i < 64; i++) {
		int status = -1;
		assert_true(wait(&status) > 0);
		heard += status == 0;
	}
	relay_close();
	assert_true(heard > 0);
	assert_int_equal(atomic_load(&times_said), 1);
	assert_memory_equal(said, "rank ", 5);
}

/* By member: what lies between members is nobody's. The policy is srun's own. */
static bool same_facts(const struct end_facts *a, const struct end_facts *b)
{
	return a->end == b->end && a->sent == b->sent && a->lone == b->lone &&
	       a->all_killed == b->all_killed && a->other_failed == b->other_failed &&
	       a->blames_peer == b->blames_peer && a->out_of_memory == b->out_of_memory &&
	       a->survived == b->survived &&
	       a->ending == b->ending;
}

/* What a node tells arrives as it was, and the code that srun leaves with. */
TEST_WITH(news_pass_the_wire, NULL, end_relay)
{
	static const struct relay_news cases[] = {
		{ .text = "a", .age_ms = 60000, .generation = 3, .wait_status = 0x0b,
		  .facts = { .end = END_CRASH, .sent = SENT_STOP, .lone = true, .other_failed = true } },
		{ .text = "b", .age_ms = UINT16_MAX, .generation = UINT16_MAX, .wait_status = 255 << 8,
		  .facts = { .end = END_BY_KILL, .sent = SENT_KILL, .all_killed = true, .blames_peer = true,
		             .out_of_memory = true } },
		{ .text = "c", .facts = { .end = END_CODE, .cause_late = true, .names_peer = true } },
		{ .text = "", .facts = { .end = END_FINE, .survived = true } },
		{ .text = "d", .node = "n1", .facts = { .end = END_BY_KILL, .sent = SENT_SIGNAL } },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct relay_message message;
		struct relay_news news;
		relay_write(&message, &cases[i]);
		news = relay_read(&message);
		assert_string_equal(news.text, cases[i].text);
		assert_string_equal(news.node, cases[i].node != NULL ? cases[i].node : "");
		assert_int_equal(news.age_ms, cases[i].age_ms);
		assert_int_equal(news.generation, cases[i].generation);
		assert_int_equal(news.wait_status, cases[i].wait_status);
		assert_true(same_facts(&news.facts, &cases[i].facts));
	}
	/* An age that does not fit is a minute, and does not reach into the generation. */
	struct relay_message old;
	relay_write(&old, &(struct relay_news){ .text = "e", .age_ms = UINT32_MAX });
	assert_int_equal(relay_read(&old).age_ms, UINT16_MAX);
	assert_int_equal(relay_read(&old).generation, 0);
	/* A text that leaves no room for the name. */
	char longest[RELAY_TEXT_MAX + 1];
	memset(longest, 'x', sizeof(longest) - 1);
	for (size_t short_of = 0; short_of <= 4; short_of++) {
		struct relay_message message;
		const struct relay_news what = { .text = longest, .node = "n1" };
		longest[RELAY_TEXT_MAX - short_of] = '\0';
		relay_write(&message, &what);
		assert_string_equal(relay_read(&message).node, short_of == 4 ? "n1" : "");
	}
	struct relay relay = open_relay(LONG_MS);
	assert_true(tell(&relay, "seven", 0, false));
	assert_int_equal(relay_close(), 7 << 8);
}

/* Message and answer are those of release 0.2, byte for byte: while a site is upgraded, a node and an
   srun of different releases tell each other what they know. */
TEST_WITH(wire_is_that_of_release_0_2, NULL, end_relay)
{
	enum { NONCE = 16, TEXT = 27, TAG = 1050, BYTES = 1058 };
	static const unsigned char note[STALL_NOTE_BYTES] = { 1, 2, 3 };
	static const struct {
		struct end_facts facts;
		const unsigned char *stall;
		unsigned char end, sent, flags;
	} cases[] = {
		{ .facts = { .end = END_FINE, .sent = SENT_UNKNOWN } },
		{ .facts = { .end = END_CODE, .sent = SENT_NOTHING, .lone = true }, .end = 1, .sent = 1, .flags = 1 },
		{ .facts = { .end = END_CRASH, .sent = SENT_STOP, .all_killed = true }, .end = 2, .sent = 2, .flags = 2 },
		{ .facts = { .end = END_BY_REQUEST, .sent = SENT_KILL, .other_failed = true },
		  .end = 3, .sent = 3, .flags = 4 },
		{ .facts = { .end = END_BY_KILL, .blames_peer = true }, .end = 4, .flags = 8 },
		{ .facts = { .out_of_memory = true }, .flags = 16 },
		{ .facts = { .cause_late = true }, .flags = 32 },
		{ .facts = { .names_peer = true }, .flags = 64 },
		{ .facts = { .end = END_BY_KILL, .survived = true }, .end = 0x84 },
		{ .stall = note, .flags = 128 },
	};
	const struct relay relay = relay_parse("4660:000102030405060708090a0b0c0d0e0f");

	assert_int_equal(relay.port, 4660);
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct relay_news news = { .text = "seven", .age_ms = 0x0304, .generation = 0x0102, .wait_status = 7 << 8,
			                         .facts = cases[i].facts, .stall = cases[i].stall };
		struct relay_message message = { .nonce = { 0 } };
		unsigned char wire[BYTES] = { 0 }, tag[SIPHASH_BYTES];
		const unsigned char numbers[] = { 4, 3, 2, 1, 0, 7, 0, 0, cases[i].end, cases[i].sent, cases[i].flags };
		memcpy(wire + NONCE, numbers, sizeof(numbers));
		memcpy(wire + TEXT, cases[i].stall != NULL ? (const char *)note : "seven", 5);
		relay_write(&message, &news);
		assert_int_equal(sizeof(message), BYTES);
		assert_memory_equal(&message, wire, BYTES);
		relay_sign(&relay, &message, message.tag);
		siphash(relay.secret, wire, TAG, tag);
		assert_memory_equal(message.tag, tag, sizeof(tag));
		relay_sign_answer(&relay, &message, message.tag);
		siphash(relay.secret, wire, NONCE, tag);
		assert_memory_equal(message.tag, tag, sizeof(tag));
	}
}

/* More connections than srun has places, all held and silent: a node gets through
   without a delay, and srun says its sentence and no other. */
TEST_WITH(held_connections_keep_nobody_waiting, NULL, end_relay)
{
	enum { HELD = 518 };
	struct relay relay = open_relay(LONG_MS);
	static int held[HELD];
	uint64_t start;

	for (int i = 0; i < HELD; i++) {
		held[i] = connect_here(relay.port);
		if (i % 2 == 0)
			send_bytes(held[i], "x", 1);
	}
	start = ddp_now_ns();
	assert_true(try_to_tell(&relay, "the cause", 0, false));
	assert_true(ddp_now_ns() - start < 2 * REPLY_MS * 1000000ull);
	relay_close();
	assert_int_equal(atomic_load(&times_said), 1);
	assert_string_equal(said, "the cause");
	for (int i = 0; i < HELD; i++)
		close(held[i]);
}

/* A node is heard while others connect again and again, say nothing, or say a byte now and then. */
TEST_WITH(floods_keep_nobody_waiting, NULL, end_relay)
{
	static const flood_kind kinds[] = { FLOOD_ENDLESS, FLOOD_SLOW };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct relay relay = open_relay(LONG_MS);
		const struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(relay.port),
		                                .sin_addr = { htonl(INADDR_LOOPBACK) } };
		const pid_t flood = flood_start(&to, kinds[i], 300);
		double longest = 0;
		for (int k = 0; k < 20; k++) {
			const uint64_t start_ns = ddp_now_ns();
			while (!try_to_tell(&relay, "the cause", 0, false))
				assert_true(ddp_seconds_since(start_ns) < test_slowness());
			longest = ddp_seconds_since(start_ns) > longest ? ddp_seconds_since(start_ns) : longest;
		}
		printf("# kind %d: a node is heard within %.3f s\n", (int)kinds[i], longest);
		flood_end(flood);
		relay_close();
	}
}

TEST_WITH(who_has_another_secret_is_neither_heard_nor_answered, NULL, end_relay)
{
	struct relay relay = open_relay(LONG_MS), intruder = relay;

	intruder.secret[3] ^= 1;
	assert_false(try_to_tell(&intruder, "a lie", 0, false));
	relay_close();
	assert_int_equal(atomic_load(&times_said), 0);
}

/* Silent, short, long and changed messages; the one that follows gets through. */
TEST_WITH(garbage_keeps_nobody_out, NULL, end_relay)
{
	struct relay relay = open_relay(LONG_MS);
	struct relay_message message = { .text = "changed" };
	unsigned char garbage[5000], answer;
	int silent = connect_here(relay.port), fd;

	memset(garbage, 0xa5, sizeof(garbage));
	for (size_t bytes = 1; bytes <= sizeof(garbage); bytes = bytes * 3 + 1) {
		fd = connect_here(relay.port);
		send_bytes(fd, garbage, bytes);
		close(fd);
	}
	relay_sign(&relay, &message, message.tag);
	message.text[0] = 'C';
	fd = connect_here(relay.port);
	assert_true(send_bytes(fd, &message, sizeof(message)));
	assert_true(recv(fd, &answer, 1, 0) <= 0);
	close(fd);
	assert_true(tell(&relay, "true", 0, false));
	close(silent);
	relay_close();
	assert_int_equal(atomic_load(&times_said), 1);
	assert_string_equal(said, "true");
}

TEST_WITH(control_bytes_never_reach_the_terminal, NULL, end_relay)
{
	struct relay relay = open_relay(LONG_MS);
	char text[2 * RELAY_TEXT_MAX];

	memset(text, '\033', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_true(tell(&relay, text, 0, false));
	relay_close();
	assert_int_equal(strlen(said), RELAY_TEXT_MAX);
	assert_int_equal(strspn(said, "?"), RELAY_TEXT_MAX);
}

/* A port on which somebody else listens: it accepts, or answers wrongly. */
TEST_WITH(node_gives_up_on_what_is_not_its_srun, NULL, end_relay)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t bytes = sizeof(address);
	struct relay relay = { .port = 0, .reply_ms = REPLY_MS };
	uint64_t start;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	pid_t pid;

	assert_false(try_to_tell(&relay, "nowhere to go", 0, false));
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
	relay.port = ntohs(address.sin_port);
	assert_false(try_to_tell(&relay, "refused", 0, false));
	assert_int_equal(listen(listener, 8), 0);
	start = ddp_now_ns();
	assert_false(try_to_tell(&relay, "accepted only", 0, false));
	assert_true(ddp_now_ns() - start >= (REPLY_MS - 1) * 1000000ull);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		/* "accepted only" waits in the queue before the one to answer. */
		for (int i = 0; i < 2; i++) {
			char answer[SIPHASH_BYTES] = "wrong";
			int fd = accept(listener, NULL, NULL);
			send_bytes(fd, answer, sizeof(answer));
			close(fd);
		}
		_exit(0);
	}
	assert_false(try_to_tell(&relay, "answered wrongly", 0, false));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(listener);
}

TEST_WITH(no_name_is_resolved, NULL, end_relay)
{
	static const char *const names[] = { "localhost", "", "127.1", "0x7f000001", "127.0.0.1 ",
	                                     "::1%lo", "127.0.0.1:80", "/etc/passwd" };
	struct relay relay = open_relay(LONG_MS);
	struct relay_news news = { .text = "text", .facts = { .end = END_CODE } };

	for (size_t i = 0; i < COUNT(names); i++)
		if (relay_tell(&relay, names[i], &news))
			fail_msg("'%s' was taken for an address", names[i]);
	relay_close();
	assert_int_equal(atomic_load(&times_said), 0);
}

TEST_WITH(port_comes_from_the_range, NULL, end_relay)
{
	char spec[RELAY_SPEC_MAX];
	struct error error = { "" };
	struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
	struct sockaddr_in any4 = { .sin_family = AF_INET };
	socklen_t bytes = sizeof(any);
	int taken = socket(AF_INET6, SOCK_STREAM, 0);
	const struct step_policy policy = policy_with(0);
	uint16_t port;

	if (taken < 0 || bind(taken, (struct sockaddr *)&any, sizeof(any)) < 0) {
		close(taken);
		taken = socket(AF_INET, SOCK_STREAM, 0);
		assert_int_equal(bind(taken, (struct sockaddr *)&any4, sizeof(any4)), 0);
	}
	assert_int_equal(listen(taken, 1), 0);
	assert_int_equal(getsockname(taken, (struct sockaddr *)&any, &bytes), 0);
	port = ntohs(any.sin6_port);
	assert_false(relay_open(port, port, &policy, &actions, spec, &error));
	assert_non_null(strstr(error.text, "in use"));
	assert_true(relay_open((uint16_t)(port - 40), port, &policy, &actions, spec, &error));
	assert_true(relay_parse(spec).port >= port - 40 && relay_parse(spec).port < port);
	relay_close();
	close(taken);
}

/* A busy machine takes less, and slurmctld more. */
enum { ANSWER_MS = 10000 };

/* slurmctld, which does not answer. */
static void ask_in_vain(void)
{
	while (!atomic_load(&answered))
		usleep(1000);
}

/* The request outlives srun's relay; the next one is not to find it. */
static void finish_answer(void)
{
	enum controller_request ignored;
	bool answer;

	atomic_store(&answered, true);
	assert_true(controller_finish(ANSWER_MS, &ignored, &answer));
}

/* srun leaves with the right code, though its request for the step's end hangs. */
TEST_WITH(controller_that_does_not_answer_holds_up_nobody, NULL, end_relay)
{
	const struct relay_actions in_vain = { .say = actions.say, .end_step = ask_in_vain };
	const struct step_policy policy = policy_with(0);
	struct relay relay = open_with(&in_vain, &policy);

	assert_true(tell(&relay, "seven", 0, false));
	while (atomic_load(&times_said) == 0)
		usleep(1000);
	/* Other nodes are answered meanwhile: they need not act themselves. */
	relay.reply_ms = ANSWER_MS;
	assert_true(tell(&relay, "eight", 0, false));
	assert_int_equal(relay_close(), 7 << 8);
	finish_answer();
	assert_int_equal(relay_close(), 0);
}

static bool ask_about_node_in_vain(const char *node)
{
	atomic_fetch_add(&questions, 1);
	ask_in_vain();
	return strcmp(node, "n1") == 0;
}

static struct relay open_asking(const struct step_policy *policy)
{
	const struct relay_actions slow = { .say = actions.say, .end_step = actions.end_step,
		                            .node_failed = ask_about_node_in_vain };

	return open_with(&slow, policy);
}

static void tell_killed(const struct relay *relay, const char *text, const char *node)
{
	const struct relay_news news = { .text = text, .node = node, .wait_status = SIGKILL,
		                         .facts = { .end = END_BY_KILL, .sent = SENT_KILL } };

	assert_true(relay_tell(relay, "127.0.0.1", &news));
}

/* It is asked whether a node has failed, and the other nodes' tasks end meanwhile. */
TEST_WITH(question_about_a_node_keeps_no_other_waiting, NULL, end_relay)
{
	const struct step_policy policy = policy_with(0);
	struct relay relay = open_asking(&policy);

	relay.reply_ms = ANSWER_MS;
	tell_killed(&relay, "all 2 tasks on n1", "n1");
	wait_for(&questions, 1);
	tell_killed(&relay, "all 2 tasks on n2", "n2");
	/* The case is held until the answer comes. */
	assert_int_equal(times_said, 0);
	atomic_store(&answered, true);
	wait_for(&times_said, 1);
	wait_for(&times_ended, 1);
	assert_string_equal(said, "node n1 has failed, says SLURM: all 2 tasks on n1");
	assert_int_equal(questions, 1);
	assert_int_equal(relay_close(), SIGKILL);
}

/* A failure that comes behind such news may be their consequence, and slurmctld may be slow. srun does not wait for long,
   and then names what was told first. */
TEST_WITH(question_about_a_node_goes_before_what_follows, NULL, end_relay)
{
	static const struct {
		struct end_facts first;
		bool hearsay; /* what follows blames another rank */
		bool in_time;
		const char *said;
	} cases[] = {
		{ { .end = END_BY_KILL, .sent = SENT_KILL }, true, true, "node n1 has failed, says SLURM: on n1" },
		{ { .end = END_BY_KILL, .sent = SENT_KILL }, true, false, "on n1" },
		{ { .end = END_BY_KILL, .sent = SENT_UNKNOWN, .lone = true }, true, false, "on n1" },
		{ { .end = END_BY_KILL, .sent = SENT_UNKNOWN, .lone = true }, false, false, "on n1" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct relay_news news = { .text = "on n1", .node = "n1", .wait_status = SIGKILL, .facts = cases[i].first };
		struct step_policy policy = policy_with(0);

		policy.ask_ms = cases[i].in_time ? LONG_MS : 200;
		struct relay relay = open_asking(&policy);
		relay.reply_ms = LONG_MS;
		assert_true(relay_tell(&relay, "127.0.0.1", &news));
		wait_for(&questions, 1);
		assert_true(tell(&relay, "later", 0, cases[i].hearsay));
		if (cases[i].in_time) {
			pause_ms(50);
			assert_int_equal(times_said, 0);
			atomic_store(&answered, true);
		}
		wait_for(&times_said, 1);
		assert_string_equal(said, cases[i].said);
		atomic_store(&answered, true);
		assert_int_equal(relay_close(), SIGKILL);
		/* The relay may have asked for the step's end meanwhile. */
		finish_answer();
		assert_int_equal(times_said, 1);
	}
}

/* srun ends before the answer: the failure is said without it. */
TEST_WITH(question_without_an_answer_loses_no_failure, NULL, end_relay)
{
	const struct relay_news news = { .text = "rank 1", .node = "n1", .wait_status = SIGKILL,
		                         .facts = { .end = END_BY_KILL, .sent = SENT_UNKNOWN, .lone = true } };
	const struct step_policy policy = policy_with(0);
	struct relay relay = open_asking(&policy);

	relay.reply_ms = ANSWER_MS;
	assert_true(relay_tell(&relay, "127.0.0.1", &news));
	wait_for(&questions, 1);
	assert_int_equal(relay_close(), SIGKILL);
	assert_int_equal(times_said, 1);
	assert_string_equal(said, "rank 1");
	finish_answer();
}

static atomic_int ended;

static char left_job[64];
static atomic_int order; /* of digits: 1: nodes leave the job, 2: the step ends */

static void note_loss(const char *nodes)
{
	const size_t used = strlen(left_job);

	snprintf(left_job + used, sizeof(left_job) - used, "%s%s", used > 0 ? "," : "", nodes);
	pause_ms(100);
	atomic_store(&order, 10 * atomic_load(&order) + 1);
}

static void note_end(void)
{
	pause_ms(100);
	atomic_store(&order, 10 * atomic_load(&order) + 2);
}

static const char *release_of_nodes = "";
static uint32_t protocol_of_nodes = FRAME_PROTOCOL;

static void begin_link(struct link *link, struct relay_sender *sender, struct relay relay, const char *name,
                       uint32_t node)
{
	struct link_facts facts = { .relay = &relay, .address = "127.0.0.1", .silence_ms = 2000,
		                    .opening = { .node_id = node, .rank = node, .tasks = 1,
		                                 .protocol = protocol_of_nodes } };

	memset(sender, 0, sizeof(*sender));
	relay.sender = relay_start_sender(sender);
	assert_non_null(relay.sender);
	snprintf(facts.opening.node, sizeof(facts.opening.node), "%s", name);
	snprintf(facts.opening.release, sizeof(facts.opening.release), "%s", release_of_nodes);
	link_start(link, &facts);
	while (!link_was_open(link)) {
		link_tick(link);
		pause_ms(1);
	}
}

/* n0 and n1 fall silent, the latter `apart_ms` later, and all other nodes' tasks end before that is noticed. */
static void lose_two_nodes(int apart_ms)
{
	const struct relay_actions slow = { .say = actions.say, .end_step = note_end, .lose_nodes = note_loss };
	struct step_policy policy = policy_with(0);
	static struct relay_sender senders[4];
	struct link nodes[4];
	uint64_t began_ns;

	policy.silence_ms = 2000;
	left_job[0] = '\0';
	atomic_store(&order, 0);
	const struct relay relay = open_with(&slow, &policy);
	for (uint32_t i = 0; i < 4; i++)
		begin_link(&nodes[i], &senders[i], relay, (const char *[]){ "n0", "n1", "n2", "n3" }[i], i);
	/* Another one speaks. */
	link_say_bye(&nodes[3]);
	began_ns = ddp_now_ns();
	while (!link_may_leave(&nodes[3]) || ddp_now_ns() - began_ns < (uint64_t)apart_ms * 1000000) {
		for (int i = apart_ms > 0 ? 1 : 2; i < 4; i++)
			link_tick(&nodes[i]);
		pause_ms(1);
	}
	assert_int_equal(order, 0);
	/* Nothing more comes of n0 and n1. */
	link_say_bye(&nodes[2]);
	while (!link_may_leave(&nodes[2])) {
		link_tick(&nodes[2]);
		pause_ms(1);
	}
	assert_int_equal(nodes[2].now.state, LINE_OPEN);
	for (int i = 0; i < 4; i++)
		link_end(&nodes[i]);
	relay_close();
}

/* One of the others waits until the silent nodes have left the job. A slow machine notices them one after the other:
   if the controller is busy with the first one then, the step ends behind both, and otherwise behind each. */
TEST_WITH(last_node_leaves_when_lost_nodes_have_left_the_job, NULL, end_relay)
{
	for (int apart_ms = 0; apart_ms <= 500; apart_ms += 500) {
		lose_two_nodes(apart_ms);
		if (strcmp(left_job, "n0,n1") != 0 && (strcmp(left_job, "n1,n0") != 0 || apart_ms > 0))
			fail_msg("'%s' left the job", left_job);
		if (order != 12 && order != 112 && order != 1212)
			fail_msg("losses (1) and ends (2) of the step: %d", order);
	}
}

/* Such a node sends no report of its own. */
TEST_WITH(link_tells_the_release_of_its_node, NULL, end_relay)
{
	struct step_policy policy = policy_with(0);
	static struct relay_sender sender;
	char text[RELAY_TEXT_MAX + 1];
	struct link node;

	policy.silence_ms = 2000;
	release_of_nodes = "0.0.1";
	begin_link(&node, &sender, open_with(&actions, &policy), "older", 0);
	release_of_nodes = "";
	link_end(&node);
	relay_close();
	assert_true(relay_has_other_releases(text));
	assert_non_null(strstr(text, ", of 0.0.1 on older:"));
}

/* A failure on n0 is told, and n1, which has a link, has seen an earlier one. */
static void tell_later(struct link *n1, struct relay_sender *sender, uint32_t protocol, uint32_t ask_ms)
{
	struct step_policy policy = policy_with(0);

	policy.silence_ms = LONG_MS;
	policy.ask_ms = ask_ms;
	struct relay relay = open_with(&actions, &policy);
	release_of_nodes = "0.0.1";
	protocol_of_nodes = protocol;
	begin_link(n1, sender, relay, "n1", 1);
	release_of_nodes = "";
	protocol_of_nodes = FRAME_PROTOCOL;
	relay.reply_ms = LONG_MS;
	/* It blames another rank, so that on a slow machine the cause wins, too. */
	assert_true(tell(&relay, "later", 0, true));
	if (ask_ms < LONG_MS || protocol == 0)
		return;
	alarm(60);
	while (link_asked(n1) == 0) {
		link_tick(n1);
		pause_ms(1);
	}
	alarm(0);
	/* However long the node takes. */
	pause_ms(50);
	assert_int_equal(times_said, 0);
	assert_true(tell(&relay, "earlier", 1000, false));
	assert_int_equal(times_said, 0);
	link_answer(n1);
}

TEST_WITH(an_earlier_failure_is_waited_for, NULL, end_relay)
{
	static struct relay_sender sender;
	struct link n1;

	tell_later(&n1, &sender, FRAME_PROTOCOL, LONG_MS);
	wait_for(&times_said, 1);
	assert_string_equal(said, "earlier");
	link_end(&n1);
	relay_close();
	/* A node that does not answer, and one that does not know the question. */
	tell_later(&n1, &sender, FRAME_PROTOCOL, 200);
	wait_for(&times_said, 1);
	assert_string_equal(said, "later");
	link_end(&n1);
	relay_close();
	tell_later(&n1, &sender, 0, LONG_MS);
	wait_for(&times_said, 1);
	assert_string_equal(said, "later");
	link_end(&n1);
	relay_close();
}

/* Nobody answers for tasks that have ended. */
TEST_WITH(a_node_whose_tasks_have_ended_is_not_waited_for, NULL, end_relay)
{
	static struct relay_sender sender;
	struct link n1;

	tell_later(&n1, &sender, FRAME_PROTOCOL, LONG_MS - 1);
	assert_int_equal(times_said, 0);
	link_say_bye(&n1);
	wait_for(&times_said, 1);
	assert_string_equal(said, "later");
	link_end(&n1);
	relay_close();
}

/* The relay tells a dealer these things: f: a failure, s: the silence of n1, S: of another node; and e: the step is ended. */
static char order_dealt[16];
static atomic_int dealt;
static _Atomic uint64_t silent_from_ns;
static char dealt_text[STEP_TEXT_MAX];

static void note_dealt(char what)
{
	order_dealt[atomic_load(&dealt)] = what;
	atomic_fetch_add(&dealt, 1);
}

static void deal_failure(const struct step_action *action)
{
	strcpy(dealt_text, action->text);
	note_dealt('f');
}

static void deal_silence(uint32_t node, enum links_event event)
{
	if (event != LINK_SILENT)
		return;
	if (node == 1)
		atomic_store(&silent_from_ns, links_node(relay_links(), node)->heard_ns);
	note_dealt(node == 1 ? 's' : 'S');
}

static void deal_end(void)
{
	note_dealt('e');
}

static uint64_t never_due(void)
{
	return UINT64_MAX;
}

static void nothing_due(uint64_t now_ns)
{
}

static const char *no_host(uint32_t rank)
{
	return NULL;
}

/* A rank fails on that node, n1 speaks no more, and n0 does. False: srun or n0 stood still behind the failure, so that srun
   began n1's time anew, and n1's last word counts as later than the failure. */
static bool try_to_fail_before_silence(const char *on, uint32_t ask_ms, bool restarts, const char *wanted)
{
	static const struct relay_restart restart = { .fail = deal_failure, .due = never_due, .act = nothing_due, .host = no_host };
	const struct relay_actions dealer = { .say = actions.say, .end_step = restarts ? deal_end : actions.end_step,
		                              .take_link = deal_silence, .restart = restarts ? &restart : NULL };
	const struct relay_news news = { .text = "failed", .node = on, .wait_status = W_EXITCODE(3, 0),
		                         .facts = { .end = END_CODE, .sent = SENT_NOTHING } };
	static struct relay_sender senders[2];
	struct step_policy policy = policy_with(0);
	struct link nodes[2];
	uint64_t told_ns;
	bool steady;

	policy.silence_ms = 1000;
	policy.ask_ms = ask_ms;
	policy.restarts = restarts;
	dealt_text[0] = '\0';
	memset(order_dealt, 0, sizeof(order_dealt));
	atomic_store(&dealt, 0);
	atomic_store(&silent_from_ns, 0);
	struct relay relay = open_with(&dealer, &policy);
	for (uint32_t i = 0; i < 2; i++)
		begin_link(&nodes[i], &senders[i], relay, i == 0 ? "n0" : "n1", i);
	relay.reply_ms = LONG_MS;
	told_ns = ddp_now_ns();
	assert_true(relay_tell(&relay, "127.0.0.1", &news));
	while (atomic_load(&dealt) < (int)strlen(wanted) && ddp_seconds_since(told_ns) < 20) {
		link_tick(&nodes[0]);
		if (link_asked(&nodes[0]) != 0)
			link_answer(&nodes[0]);
		pause_ms(1);
	}
	/* A request to end the step would come at once. */
	pause_ms(150);
	steady = atomic_load(&silent_from_ns) < told_ns;
	if (steady)
		assert_string_equal(order_dealt, wanted);
	assert_null(strchr(order_dealt, 'e'));
	assert_string_equal(dealt_text, restarts ? "failed" : "");
	for (int i = 0; i < 2; i++)
		link_end(&nodes[i]);
	relay_close();
	return steady;
}

static void fail_before_silence(const char *on, uint32_t ask_ms, bool restarts, const char *wanted)
{
	for (int tries = 0; tries < 20; tries++)
		if (try_to_fail_before_silence(on, ask_ms, restarts, wanted))
			return;
	fail_msg("srun or n0 stood still behind each of 20 failures");
}

/* The generation is being ended, or srun still waits for what n1 may have to tell. The dealer decides what follows. */
TEST_WITH(a_node_falls_silent_behind_a_failure, NULL, end_relay)
{
	fail_before_silence("n1", 0, true, "fs");
	fail_before_silence("n1", 1500, true, "fs");
	/* A node that tells something behind another node's last word may tell a consequence of the silence. */
	fail_before_silence("n0", 1500, true, "sf");
	fail_before_silence("n1", 1500, false, "s");
	assert_non_null(strstr(said, "failed; node n1 has been silent for "));
	fail_before_silence("n0", 1500, false, "s");
	assert_non_null(strstr(said, "node n1 has been silent for "));
	assert_null(strstr(said, "failed"));
}

static void count_end(void)
{
	atomic_fetch_add(&ended, 1);
}

/* A terminal that does not read, such as after Ctrl-S. */
static void say_in_vain(const char *text)
{
	while (!atomic_load(&answered))
		usleep(1000);
	actions.say(text);
}

TEST_WITH(reader_that_does_not_read_holds_up_nobody, NULL, end_relay)
{
	const struct relay_actions stuck = { .say = say_in_vain, .end_step = count_end };
	struct step_policy policy = policy_with(0);
	struct relay relay = open_with(&stuck, &policy);

	atomic_store(&ended, 0);
	assert_true(tell(&relay, "seven", 0, false));
	while (atomic_load(&ended) == 0)
		usleep(1000);
	/* The nodes get their answers, too. */
	assert_true(tell(&relay, "eight", 0, false));
	assert_int_equal(atomic_load(&times_said), 0);
	atomic_store(&answered, true);
	assert_int_equal(relay_close(), 7 << 8);
	assert_int_equal(atomic_load(&times_said), 1);
	assert_string_equal(said, "seven");
}

/* A signal of the process's is another thread's to take; by the clock that nobody sets. */
TEST_WITH(worker_takes_no_signal_and_is_waited_for_in_time, NULL, end_relay)
{
	struct worker worker;
	uint64_t start = ddp_now_ns();

	atomic_store(&answered, false);
	assert_true(worker_start(&worker, ask_in_vain));
	assert_int_equal(pthread_kill(worker.thread, SIGUSR1), 0);
	assert_false(worker_join(&worker, 50));
	assert_true(ddp_now_ns() - start >= 50000000);
	atomic_store(&answered, true);
	assert_true(worker_join(&worker, LONG_MS));
}

TEST_WITH(forked_child_of_srun_waits_for_no_thread, NULL, end_relay)
{
	struct relay relay = open_relay(LONG_MS);
	int status = -1;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		relay_close();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(tell(&relay, "still there", 0, false));
	relay_close();
	relay_close();
	assert_int_equal(atomic_load(&times_said), 1);
}
