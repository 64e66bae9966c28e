/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/wire/channel, node/link, srun/links, srun/requests: the link between a node and srun. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/bytes.h"
#include "spank/node/link.h"
#include "spank/srun/links.h"
#include "spank/srun/requests.h"
#include "spank/wire/channel.h"
#include "spank/wire/relay.h"
#include "tests/support/test.h"

#define MS 1000000ull

enum { SILENCE_MS = 5000, NODES = 3, LIMIT_S = 60 };

static const unsigned char secret[SIPHASH_KEY_BYTES] = "a secret of 16 b";
static const unsigned char nonce[FRAME_NONCE_BYTES] = "a nonce of 16 by";

/* ---- frames -------------------------------------------------------------------------------- */

/* Some frames in a row, as they go over a connection. */
static size_t write_frames(unsigned char *bytes, const unsigned char key[SIPHASH_KEY_BYTES],
                           const unsigned char of[FRAME_NONCE_BYTES], enum frame_side side)
{
	struct frame_stream stream;
	size_t used = 0;

	frame_begin(&stream, key, of, side);
	for (uint64_t i = 0; i < 4; i++) {
		const struct frame frame = { .type = FRAME_NEWS, .number = i + 1,
			                     .payload = (const unsigned char *)"0123456789", .bytes = i * 3 };
		frame_write(&stream, &frame, bytes + used);
		used += frame_size(frame.bytes);
	}
	return used;
}

/* How many frames a reader takes of them, fed with so many bytes at a time; -1: it calls them broken. */
static int read_frames(const unsigned char *bytes, size_t count, size_t at_once)
{
	struct frame_reader reader = { .bytes = NULL };
	struct frame frame;
	int taken = 0;

	frame_begin(&reader.stream, secret, nonce, FRAME_OF_NODE);
	for (size_t used = 0; used < count; used += at_once) {
		frame_add(&reader, bytes + used, count - used < at_once ? count - used : at_once);
		while (frame_next(&reader, &frame)) {
			assert_int_equal(frame.type, FRAME_NEWS);
			assert_int_equal(frame.number, taken + 1);
			assert_int_equal(frame.bytes, taken * 3);
			assert_memory_equal(frame.payload, "0123456789", frame.bytes);
			taken++;
		}
	}
	if (reader.broken)
		taken = -1;
	frame_end(&reader);
	return taken;
}

TEST(frames_come_whole_however_they_are_cut)
{
	unsigned char bytes[512];
	size_t count = write_frames(bytes, secret, nonce, FRAME_OF_NODE);

	for (size_t at_once = 1; at_once <= count; at_once++)
		assert_int_equal(read_frames(bytes, count, at_once), 4);
	for (size_t part = 0; part < count; part++)
		assert_in_range(read_frames(bytes, part, 7), 0, 3);
}

TEST(a_wrong_frame_ends_the_connection)
{
	unsigned char bytes[512], other[FRAME_NONCE_BYTES] = "another nonce 16";
	size_t count = write_frames(bytes, secret, nonce, FRAME_OF_NODE), first = frame_size(0);

	/* A header that claims more than there is waits for it, and takes none of it. */
	for (size_t bit = 0; bit < 8 * count; bit++) {
		bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
		assert_int_not_equal(read_frames(bytes, count, count), 4);
		bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
	/* The second one once more, and without the first. */
	memmove(bytes + first + frame_size(3) * 2, bytes + first + frame_size(3), count - first - frame_size(3));
	memcpy(bytes + first + frame_size(3), bytes + first, frame_size(3));
	assert_int_equal(read_frames(bytes, count, count), -1);
	count = write_frames(bytes, secret, nonce, FRAME_OF_NODE);
	assert_int_equal(read_frames(bytes + first, count - first, count), -1);
	/* Of the other side, of another connection, and of another step. */
	count = write_frames(bytes, secret, nonce, FRAME_OF_SRUN);
	assert_int_equal(read_frames(bytes, count, count), -1);
	count = write_frames(bytes, secret, other, FRAME_OF_NODE);
	assert_int_equal(read_frames(bytes, count, count), -1);
	count = write_frames(bytes, other, nonce, FRAME_OF_NODE);
	assert_int_equal(read_frames(bytes, count, count), -1);
	/* Nobody keeps room for what is too long. */
	write_frames(bytes, secret, nonce, FRAME_OF_NODE);
	bytes_put32(bytes + 4, FRAME_PAYLOAD_MAX + 1);
	assert_int_equal(read_frames(bytes, FRAME_HEADER_BYTES, FRAME_HEADER_BYTES), -1);
}

TEST(an_opening_is_read_or_refused_whole)
{
	struct link_opening opening = { .node_id = 7, .rank = 12, .tasks = 4, .read = 1ull << 40, .node = "n7",
		                        .release = "0.2.0", .protocol = 3 }, read;
	unsigned char bytes[OPENING_BYTES];

	opening_pack(&opening, bytes);
	assert_true(opening_unpack(bytes, &read));
	assert_memory_equal(&opening, &read, sizeof(read));
	bytes[0]++;
	assert_false(opening_unpack(bytes, &read));
	memset(opening.node, 'x', sizeof(opening.node));
	opening_pack(&opening, bytes);
	assert_true(opening_unpack(bytes, &read));
	assert_int_equal(strlen(read.node), HOST_NAME_MAX_BYTES - 1);
	opening.node[0] = '\0';
	opening_pack(&opening, bytes);
	assert_false(opening_unpack(bytes, &read));
	strcpy(opening.node, "n\n7");
	opening_pack(&opening, bytes);
	assert_false(opening_unpack(bytes, &read));
}

/* ---- the lease ------------------------------------------------------------------------------ */

TEST(a_lease_is_as_old_as_the_newest_byte_that_has_come)
{
	struct lease lease;

	lease_begin(&lease, 100);
	assert_int_equal(lease.renewed_ns, 100);
	lease_write(&lease, 10, 200);
	lease_write(&lease, 20, 300);
	lease_write(&lease, 20, 350); /* nothing new */
	assert_int_equal(lease_waits_ns(&lease, 450), 250);
	lease_acknowledge(&lease, 9);
	assert_int_equal(lease.renewed_ns, 100);
	lease_acknowledge(&lease, 19);
	assert_int_equal(lease.renewed_ns, 200);
	assert_int_equal(lease_waits_ns(&lease, 450), 150);
	lease_acknowledge(&lease, 20);
	assert_int_equal(lease.renewed_ns, 300);
	assert_int_equal(lease_waits_ns(&lease, 450), 0);
	/* Another connection begins at 0, and renews nothing by itself. */
	lease_write(&lease, 30, 400);
	lease_reconnect(&lease);
	lease_write(&lease, 5, 500);
	assert_int_equal(lease.renewed_ns, 300);
	lease_acknowledge(&lease, 5);
	assert_int_equal(lease.renewed_ns, 500);
}

TEST(a_lease_is_never_younger_than_it_seems)
{
	struct lease lease;

	lease_begin(&lease, 0);
	for (uint64_t i = 1; i <= 1000; i++)
		lease_write(&lease, i, i);
	for (uint64_t i = 1; i <= 1000; i++) {
		lease_acknowledge(&lease, i);
		assert_true(lease.renewed_ns <= i);
	}
	assert_int_equal(lease.renewed_ns, LEASE_MARKS);
	assert_int_equal(lease.count, 0);
	/* The node acts first, also with the shortest silence. */
	for (uint32_t ms = 2000; ms <= 3600000; ms += 1000)
		assert_in_range(link_fence_ms(ms), ms / 2, ms - 1000);
}

/* ---- both sides ------------------------------------------------------------------------------ */

static struct side {
	struct links links;
	struct relay relay;
	int listener;
	int events[NODES][LINK_ALL_SILENT + 1];
	uint64_t next_of_node[NODES], next_of_srun; /* numbers that their frames have */
} srun;

static struct relay_sender senders[NODES];

static void note_event(uint32_t node, enum links_event event)
{
	assert_true(node < NODES);
	srun.events[node][event]++;
}

/* Each frame of a side has a number, so that one that is lost or doubled is seen; and a length of its own. */
static size_t numbered(unsigned char *payload, uint64_t number)
{
	size_t bytes = 8 + number * 7919 % 30000;

	bytes_put64(payload, number);
	memset(payload + 8, (int)(number & 0xff), bytes - 8);
	return bytes;
}

static void check_numbered(const struct frame *frame, uint64_t wanted)
{
	static unsigned char payload[FRAME_PAYLOAD_MAX];

	assert_int_equal(frame->type, FRAME_NEWS + 3);
	assert_int_equal(frame->bytes, numbered(payload, wanted));
	assert_memory_equal(frame->payload, payload, frame->bytes);
}

static void take_of_node(uint32_t node, const struct frame *frame)
{
	check_numbered(frame, srun.next_of_node[node]++);
}

static void take_of_srun(void *about, const struct frame *frame)
{
	struct side *side = about;

	check_numbered(frame, side->next_of_srun++);
}

static void begin_srun(uint32_t silence_ms)
{
	const struct links_actions actions = { .event = note_event, .take = take_of_node };
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t bytes = sizeof(address);

	srun = (struct side){ .listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) };
	assert_int_equal(bind(srun.listener, (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(listen(srun.listener, 16), 0);
	assert_int_equal(getsockname(srun.listener, (struct sockaddr *)&address, &bytes), 0);
	srun.relay = (struct relay){ .port = ntohs(address.sin_port) };
	memcpy(srun.relay.secret, secret, sizeof(secret));
	links_start(&srun.links, secret, silence_ms, &actions);
}

static void end_srun(void)
{
	links_end(&srun.links);
	close(srun.listener);
}

static void begin_node(struct link *link, uint32_t node, uint32_t silence_ms)
{
	struct relay relay = srun.relay;
	struct link_facts facts = { .relay = &relay, .address = "127.0.0.1", .silence_ms = silence_ms,
		                    .opening = { .node_id = node, .rank = 2 * node, .tasks = 2, .node = "n",
		                                 .protocol = FRAME_PROTOCOL },
		                    .take = take_of_srun, .about = &srun };

	memset(&senders[node], 0, sizeof(senders[node]));
	relay.sender = relay_start_sender(&senders[node]);
	assert_non_null(relay.sender);
	link_start(link, &facts);
}

/* As srun's relay thread does: takes one opening, if there is one. */
static bool accept_one(uint64_t now_ns)
{
	struct relay_message message;
	unsigned char tag[SIPHASH_BYTES];
	int fd = accept4(srun.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	if (fd < 0)
		return false;
	if (poll(&ready, 1, LIMIT_S * 1000) != 1 ||
	    recv(fd, &message, sizeof(message), MSG_WAITALL) != (ssize_t)sizeof(message)) {
		close(fd);
		return false;
	}
	relay_sign(&srun.relay, &message, tag);
	assert_memory_equal(tag, message.tag, sizeof(tag));
	if (!links_adopt(&srun.links, fd, &srun.relay, &message, now_ns)) {
		close(fd);
		return false;
	}
	return true;
}

static bool is_open(uint32_t node)
{
	const struct links_node *of = links_node(&srun.links, node);

	return of != NULL && of->open;
}

/* Both sides run until this is so. */
#define UNTIL(link, condition) do { \
	const uint64_t began_ns = ddp_now_ns(); \
	while (!(condition)) { \
		assert_true(ddp_now_ns() - began_ns < LIMIT_S * 1000 * MS); \
		turn(link); \
	} \
} while (0)

static void turn(struct link *link)
{
	struct pollfd ready[LINK_FDS + 1];

	link_tick(link);
	link_poll(link, ready);
	ready[LINK_FDS] = (struct pollfd){ .fd = links_descriptor(&srun.links), .events = POLLIN };
	poll(ready, LINK_FDS + 1, 2);
	accept_one(ddp_now_ns());
	links_read(&srun.links, ddp_now_ns());
}

/* srun, and node 0 with a link to it. */
static void begin_pair(struct link *link)
{
	begin_srun(SILENCE_MS);
	begin_node(link, 0, SILENCE_MS);
	UNTIL(link, is_open(0) && link_was_open(link));
}

static void end_pair(struct link *link)
{
	link_end(link);
	end_srun();
}

TEST(a_node_opens_a_link_and_both_sides_send)
{
	static unsigned char payload[FRAME_PAYLOAD_MAX];
	struct link link;

	begin_srun(SILENCE_MS);
	begin_node(&link, 0, SILENCE_MS);
	assert_int_equal(links_descriptor(&srun.links), -1);
	assert_false(link_was_open(&link));
	/* What is sent before there is a connection goes over the first one. */
	assert_true(link_send(&link, FRAME_NEWS + 3, payload, numbered(payload, 0)));
	UNTIL(&link, is_open(0) && link_was_open(&link) && srun.next_of_node[0] == 1);
	assert_true(links_node(&srun.links, 0)->own);
	assert_int_equal(srun.events[0][LINK_THERE], 1);
	assert_string_equal(links_node(&srun.links, 0)->opening.node, "n");
	assert_int_equal(links_node(&srun.links, 0)->opening.tasks, 2);
	assert_null(links_node(&srun.links, 1));
	for (uint64_t i = 0; i < 300; i++) {
		assert_true(links_send(&srun.links, 0, FRAME_NEWS + 3, payload, numbered(payload, i)));
		assert_true(link_send(&link, FRAME_NEWS + 3, payload, numbered(payload, i + 1)));
		UNTIL(&link, srun.next_of_srun + 20 > i && srun.next_of_node[0] + 20 > i);
	}
	UNTIL(&link, srun.next_of_srun == 300 && srun.next_of_node[0] == 301);
	/* Nothing is kept longer than it has to be. */
	UNTIL(&link, link.session.first == NULL && links_node(&srun.links, 0)->session.first == NULL);
	assert_in_range(link_lease_ms(&link), 0, LIMIT_S * 1000);
	assert_false(link_send(&link, FRAME_BEAT, NULL, 0));
	assert_false(link_send(&link, FRAME_NEWS, payload, FRAME_PAYLOAD_MAX + 1));
	assert_false(links_send(&srun.links, 1, FRAME_NEWS, payload, 1));
	link_end(&link);
	while (srun.events[0][LINK_BYE] == 0 || is_open(0))
		links_read(&srun.links, ddp_now_ns());
	assert_int_equal(srun.events[0][LINK_CLOSED], 0);
	end_srun();
}

/* The agents of a node may all be there before its thread has seen where srun is. */
TEST(nothing_is_taken_before_the_link_is_started)
{
	struct link link = { .now = { .channel = { .fd = -1 } }, .next = { .channel = { .fd = -1 } } };

	assert_false(link_send(&link, FRAME_NEWS + 3, "1", 1));
	assert_int_equal(link.session.sent, 0);
}

TEST(a_node_leaves_when_srun_lets_it)
{
	struct link link;

	begin_pair(&link);
	assert_false(link_may_leave(&link));
	links_let_go(&srun.links, UINT64_MAX);
	assert_false(links_any_waits(&srun.links));
	link_say_bye(&link);
	UNTIL(&link, links_any_waits(&srun.links));
	for (int i = 0; i < 20; i++)
		turn(&link);
	assert_int_equal(srun.events[0][LINK_BYE], 1);
	assert_false(link_may_leave(&link));
	/* A new connection begins with a good-bye, too. */
	assert_int_equal(shutdown(link.now.channel.fd, SHUT_RDWR), 0);
	UNTIL(&link, srun.events[0][LINK_BYE] == 2);
	assert_false(link_may_leave(&link));
	links_let_go(&srun.links, UINT64_MAX);
	UNTIL(&link, link_may_leave(&link));
	assert_int_equal(link.now.state, LINE_OPEN);
	link_end(&link);
	/* An srun that is gone lets all nodes leave. */
	begin_node(&link, 1, SILENCE_MS);
	UNTIL(&link, is_open(1) && link_was_open(&link));
	link_say_bye(&link);
	assert_false(link_may_leave(&link));
	end_srun();
	while (!link_may_leave(&link))
		link_tick(&link);
	link_end(&link);
}

/* The question goes again over a new connection, and each node has to answer. */
TEST(nodes_answer_when_they_have_told_all)
{
	struct link links[2];

	begin_srun(SILENCE_MS);
	for (uint32_t i = 0; i < 2; i++) {
		begin_node(&links[i], i, SILENCE_MS);
		UNTIL(&links[i], is_open(i) && link_was_open(&links[i]));
		assert_int_equal(link_asked(&links[i]), 0);
	}
	assert_false(links_any_untold(&srun.links));
	links_ask(&srun.links);
	assert_true(links_any_untold(&srun.links));
	for (uint32_t i = 0; i < 2; i++)
		UNTIL(&links[i], link_asked(&links[i]) != 0);
	link_answer(&links[0]);
	assert_int_equal(link_asked(&links[0]), 0);
	UNTIL(&links[0], links_node(&srun.links, 0)->asked == 0);
	assert_true(links_any_untold(&srun.links));
	links[1].asked = 0;
	assert_int_equal(shutdown(links[1].now.channel.fd, SHUT_RDWR), 0);
	UNTIL(&links[1], link_asked(&links[1]) != 0);
	link_answer(&links[1]);
	UNTIL(&links[1], !links_any_untold(&srun.links));
	for (uint32_t i = 0; i < 2; i++)
		link_end(&links[i]);
	end_srun();
}

/* With restart= each generation's first failure is a question of its own, and the answer to the last one may be late. */
TEST(a_late_answer_is_none_to_the_next_question)
{
	struct link link;
	uint64_t heard_ns;

	begin_pair(&link);
	links_ask(&srun.links);
	UNTIL(&link, link_asked(&link) == 1);
	links_ask_no_more(&srun.links);
	links_ask(&srun.links);
	links_read(&srun.links, ddp_now_ns());
	heard_ns = links_node(&srun.links, 0)->heard_ns;
	/* The node has not read the second question yet. */
	link_answer(&link);
	while (links_node(&srun.links, 0)->heard_ns == heard_ns)
		links_read(&srun.links, ddp_now_ns());
	assert_true(links_any_untold(&srun.links));
	UNTIL(&link, link_asked(&link) == 2);
	assert_true(links_any_untold(&srun.links));
	link_answer(&link);
	UNTIL(&link, !links_any_untold(&srun.links));
	/* A node that did not answer the second question, and was silent at the third one, has nothing to answer. */
	links_ask(&srun.links);
	UNTIL(&link, link_asked(&link) == 3);
	srun.links.nodes[0]->silent = true;
	links_ask(&srun.links);
	srun.links.nodes[0]->silent = false;
	assert_false(links_any_untold(&srun.links));
	end_pair(&link);
}

/* A node that comes, or comes back, after the question may know of an earlier end, too. */
TEST(nodes_that_come_later_are_asked_too)
{
	struct link links[3];

	begin_pair(&links[0]);
	assert_int_equal(shutdown(links[0].now.channel.fd, SHUT_RDWR), 0);
	UNTIL(&links[0], !is_open(0));
	links_ask(&srun.links);
	assert_false(links_any_untold(&srun.links));
	begin_node(&links[1], 1, SILENCE_MS);
	for (uint32_t i = 0; i < 2; i++) {
		UNTIL(&links[i], link_asked(&links[i]) != 0);
		assert_true(links_any_untold(&srun.links));
		link_answer(&links[i]);
		UNTIL(&links[i], links_node(&srun.links, i)->asked == 0);
	}
	links_ask_no_more(&srun.links);
	begin_node(&links[2], 2, SILENCE_MS);
	UNTIL(&links[2], is_open(2) && link_was_open(&links[2]));
	assert_false(links_any_untold(&srun.links));
	for (uint32_t i = 0; i < 3; i++)
		link_end(&links[i]);
	end_srun();
}

/* Cuts the connection at a random place of it, on a random side. */
static void cut(struct link *link, unsigned int *seed)
{
	struct links_node *node = srun.links.nodes[0];

	if (rand_r(seed) % 2 == 0 && link->now.state == LINE_OPEN)
		shutdown(link->now.channel.fd, SHUT_RDWR);
	else if (node->open)
		shutdown(node->channel.fd, SHUT_RDWR);
}

TEST(nothing_is_lost_or_doubled_by_new_connections)
{
	static unsigned char payload[FRAME_PAYLOAD_MAX];
	enum { FRAMES = 400 };
	unsigned int seed = 1;
	struct link link;
	int cuts = 0;

	begin_pair(&link);
	for (uint64_t i = 0; i < FRAMES; i++) {
		assert_true(links_send(&srun.links, 0, FRAME_NEWS + 3, payload, numbered(payload, i)));
		assert_true(link_send(&link, FRAME_NEWS + 3, payload, numbered(payload, i)));
		if (rand_r(&seed) % 3 == 0)
			turn(&link);
		if (rand_r(&seed) % 8 == 0) {
			cut(&link, &seed);
			cuts++;
			link.retry_ns = 0;
		}
	}
	UNTIL(&link, srun.next_of_srun == FRAMES && srun.next_of_node[0] == FRAMES);
	assert_true(cuts > 10);
	assert_int_equal(srun.links.count, 1);
	assert_int_equal(srun.events[0][LINK_THERE], 1);
	end_pair(&link);
}

TEST(a_second_connection_replaces_one_that_brings_nothing)
{
	struct link link;
	uint64_t number;

	begin_pair(&link);
	number = links_node(&srun.links, 0)->number;
	/* As if the kernel had had no acknowledgement for a while. */
	link.retry_ns = 0;
	link.lease.marks[0] = (struct lease_mark){ UINT64_MAX, ddp_now_ns() - 1500 * MS };
	link.lease.count = 1;
	UNTIL(&link, links_node(&srun.links, 0)->number != number && link.now.state == LINE_OPEN &&
	      link.next.state == LINE_NONE);
	assert_true(links_node(&srun.links, 0)->number > number);
	assert_int_equal(srun.events[0][LINK_CLOSED], 0);
	end_pair(&link);
}

/* An opening that an attacker has kept back, or an earlier attempt that comes late. */
TEST(an_older_opening_replaces_none)
{
	unsigned char packed[OPENING_BYTES];
	const struct link_opening opening = { .node = "n" };
	const struct relay_news news = { .text = "", .opening = packed };
	struct relay_message old = { .end = 0 };
	struct link link;
	int pair[2];

	begin_srun(SILENCE_MS);
	begin_node(&link, 0, SILENCE_MS);
	assert_true(relay_make_nonce(link.relay.sender, old.nonce));
	opening_pack(&opening, packed);
	relay_write(&old, &news);
	relay_sign(&srun.relay, &old, old.tag);
	UNTIL(&link, is_open(0) && link_was_open(&link));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_false(links_adopt(&srun.links, pair[0], &srun.relay, &old, ddp_now_ns()));
	assert_true(is_open(0));
	/* Nor does a node come again that was given up. */
	links_lose(&srun.links, 0);
	assert_true(relay_make_nonce(link.relay.sender, old.nonce));
	assert_false(links_adopt(&srun.links, pair[0], &srun.relay, &old, ddp_now_ns()));
	assert_false(links_send(&srun.links, 0, FRAME_NEWS, "", 1));
	/* Without silence= there are no links. */
	links_end(&srun.links);
	links_start(&srun.links, secret, 0, &(struct links_actions){ .event = NULL });
	assert_false(links_adopt(&srun.links, pair[0], &srun.relay, &old, ddp_now_ns()));
	assert_int_equal(links_descriptor(&srun.links), -1);
	close(pair[0]);
	close(pair[1]);
	end_pair(&link);
}

/* The network was away, and when it is back, nobody listens where srun was. Where srun leaves before that, or is only
   late, nothing follows. */
TEST(a_node_that_was_given_up_finds_out)
{
	const uint64_t long_ago_ns = 2 * SILENCE_MS * MS;
	struct link link;

	for (int leaves = 0; leaves < 2; leaves++) {
		begin_pair(&link);
		close(srun.listener);
		if (leaves == 1)
			links_lose(&srun.links, 0);
		for (int i = 0; leaves == 1 && i < 2000 && link.now.state == LINE_OPEN; i++) {
			link_tick(&link);
			poll(NULL, 0, 5);
		}
		assert_int_equal(link.now.state, leaves == 1 ? LINE_NONE : LINE_OPEN);
		/* A connection that the kernel has given up by itself says nothing of srun. */
		if (leaves == 0)
			link.now.channel.broken = true;
		link.lease.renewed_ns = ddp_now_ns() - long_ago_ns;
		link_tick(&link);
		assert_int_equal(link.now.state, LINE_NONE);
		for (int i = 0; i < 20 && !link_is_cut_off(&link); i++) {
			link.retry_ns = 0;
			link_tick(&link);
			poll(NULL, 0, 5);
		}
		assert_int_equal(link_is_cut_off(&link), leaves == 0);
		link_end(&link);
		links_end(&srun.links);
	}
}

/* ---- srun's own connections -------------------------------------------------------------------- */

static uint32_t node_away;

static bool is_away(uint32_t node)
{
	return node == node_away;
}

static int connect_from(const char *address)
{
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_addr = { inet_addr(address) } };
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(srun.relay.port),
	                          .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* Whether a connection on which nothing comes has ended. */
static bool has_ended(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

/* Of node 0: whether what it has opened to srun is ended. What others have opened never is, nor what srun has, nor links. */
static bool ends_srun(void)
{
	int far_ends[] = { connect_from("127.0.0.1"), connect_from("127.0.0.2") };
	int io = accept4(srun.listener, NULL, NULL, SOCK_CLOEXEC), other = accept4(srun.listener, NULL, NULL, SOCK_CLOEXEC);
	int outgoing = connect_from("127.0.0.1");
	bool done = links_end_srun(&srun.links, 0, is_away);

	assert_int_equal(has_ended(io), done);
	assert_false(has_ended(other) || has_ended(outgoing) || has_ended(srun.links.nodes[0]->channel.fd));
	assert_int_equal(is_open(1) && has_ended(srun.links.nodes[1]->channel.fd), 0);
	close(io);
	close(other);
	close(far_ends[0]);
	close(far_ends[1]);
	close(outgoing);
	/* Takes it from the queue. */
	close(accept4(srun.listener, NULL, NULL, SOCK_CLOEXEC));
	return done;
}

TEST(what_a_lost_node_has_opened_to_srun_ends)
{
	struct link link, second;

	node_away = 0;
	begin_pair(&link);
	srun.links.nodes[0]->own = false;
	assert_true(ends_srun());
	begin_node(&second, 1, SILENCE_MS);
	UNTIL(&second, is_open(1) && link_was_open(&second));
	assert_false(ends_srun());
	/* The other one is lost, too; and it is the same node, made anew. */
	node_away = 1;
	assert_true(ends_srun());
	node_away = 2;
	srun.links.nodes[1]->opening.node_id = 0;
	assert_true(ends_srun());
	link_end(&second);
	end_pair(&link);
}

/* ---- silence, with the time given -------------------------------------------------------------- */

static struct channel far[NODES]; /* the nodes' ends */

static void begin_nodes(uint64_t now_ns)
{
	begin_srun(SILENCE_MS);
	for (uint32_t i = 0; i < NODES; i++) {
		unsigned char packed[OPENING_BYTES];
		const struct link_opening opening = { .node_id = i, .node = "n" };
		const struct relay_news news = { .text = "", .opening = packed };
		struct relay_message message = { .end = 0 };
		int pair[2];

		memset(&senders[i], 0, sizeof(senders[i]));
		assert_true(relay_make_nonce(relay_start_sender(&senders[i]), message.nonce));
		opening_pack(&opening, packed);
		relay_write(&message, &news);
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		assert_true(links_adopt(&srun.links, pair[0], &srun.relay, &message, now_ns));
		channel_begin(&far[i], pair[1], secret, message.nonce, FRAME_OF_NODE);
	}
}

static void end_nodes(void)
{
	for (uint32_t i = 0; i < NODES; i++)
		channel_end(&far[i]);
	end_srun();
}

static void beat(uint32_t node, uint32_t type)
{
	channel_put(&far[node], type, 0, NULL, 0);
	channel_flush(&far[node]);
}

/* srun's thread runs every 100 ms until then, and node i beats if bit i is set. */
static void run(uint64_t *now_ns, uint64_t ms, unsigned int who)
{
	for (uint64_t end_ns = *now_ns + ms * MS; *now_ns < end_ns; *now_ns += 100 * MS) {
		for (uint32_t i = 0; i < NODES; i++)
			if ((who >> i & 1) != 0)
				beat(i, FRAME_BEAT);
		links_read(&srun.links, *now_ns);
		links_judge(&srun.links, *now_ns, *now_ns);
		assert_true(links_due(&srun.links, *now_ns) <= *now_ns + 1000 * MS);
	}
}

static int times_silent(void)
{
	int times = 0;

	for (uint32_t i = 0; i < NODES; i++)
		times += srun.events[i][LINK_SILENT];
	return times;
}

TEST(a_node_that_says_nothing_is_silent_once)
{
	uint64_t now_ns = 1000 * MS;

	begin_nodes(now_ns);
	run(&now_ns, 20000, 7);
	assert_int_equal(times_silent(), 0);
	assert_int_equal(links_doubt_until(&srun.links, now_ns), 0);
	run(&now_ns, 1000, 5);
	assert_int_equal(links_doubt_until(&srun.links, now_ns), 0);
	run(&now_ns, 3800, 5);
	/* What fails meanwhile on n0 may be n1's fault. */
	assert_in_range(links_doubt_until(&srun.links, now_ns), now_ns + 100 * MS, now_ns + 300 * MS);
	assert_int_equal(times_silent(), 0);
	run(&now_ns, 400, 5);
	assert_int_equal(srun.events[1][LINK_SILENT], 1);
	assert_int_equal(times_silent(), 1);
	assert_int_equal(links_doubt_until(&srun.links, now_ns), 0);
	run(&now_ns, 20000, 5);
	assert_int_equal(times_silent(), 1);
	run(&now_ns, 1000, 7);
	assert_int_equal(srun.events[1][LINK_SPOKE], 1);
	run(&now_ns, 6000, 5);
	assert_int_equal(srun.events[1][LINK_SILENT], 2);
	end_nodes();
}

TEST(no_node_is_silent_for_time_in_which_srun_did_not_run)
{
	uint64_t now_ns = 1000 * MS, boot_ns;

	begin_nodes(now_ns);
	run(&now_ns, 4000, 5);
	/* Stopped for 8 s. */
	now_ns += 8000 * MS;
	links_read(&srun.links, now_ns);
	links_judge(&srun.links, now_ns, now_ns);
	run(&now_ns, 4800, 5);
	assert_int_equal(times_silent(), 0);
	/* Its host sleeps, and the clock of links_judge() stands meanwhile. */
	boot_ns = now_ns + 60000 * MS;
	links_judge(&srun.links, now_ns, boot_ns);
	for (int i = 0; i < 48; i++) {
		now_ns += 100 * MS;
		boot_ns += 100 * MS;
		beat(0, FRAME_BEAT);
		beat(2, FRAME_BEAT);
		links_read(&srun.links, now_ns);
		links_judge(&srun.links, now_ns, boot_ns);
	}
	assert_int_equal(times_silent(), 0);
	now_ns += 300 * MS;
	links_read(&srun.links, now_ns);
	links_judge(&srun.links, now_ns, boot_ns + 300 * MS);
	assert_int_equal(times_silent(), 1);
	end_nodes();
}

TEST(all_nodes_at_once_are_told_and_not_given_up)
{
	uint64_t now_ns = 1000 * MS;

	begin_nodes(now_ns);
	run(&now_ns, 1000, 7);
	run(&now_ns, ALL_SILENT * SILENCE_MS - 300, 0);
	assert_int_equal(srun.events[0][LINK_ALL_SILENT], 0);
	assert_int_equal(links_doubt_until(&srun.links, now_ns), 0);
	run(&now_ns, 60000, 0);
	assert_int_equal(srun.events[0][LINK_ALL_SILENT], 1);
	assert_int_equal(times_silent(), 0);
	/* The network is back, and one node is faster than the others. */
	run(&now_ns, 4000, 4);
	assert_int_equal(times_silent(), 0);
	run(&now_ns, 6000, 7);
	assert_int_equal(times_silent(), 0);
	/* One after the other: the last one is again alone. */
	run(&now_ns, 6000, 6);
	assert_int_equal(srun.events[0][LINK_SILENT], 1);
	run(&now_ns, 6000, 4);
	assert_int_equal(srun.events[1][LINK_SILENT], 1);
	run(&now_ns, ALL_SILENT * SILENCE_MS - 300, 0);
	assert_int_equal(srun.events[2][LINK_SILENT], 0);
	run(&now_ns, 600, 0);
	assert_int_equal(srun.events[2][LINK_SILENT], 1);
	assert_int_equal(srun.events[0][LINK_ALL_SILENT] + srun.events[2][LINK_ALL_SILENT], 1);
	end_nodes();
}

TEST(a_node_on_sruns_host_shows_no_network)
{
	uint64_t now_ns = 1000 * MS;

	begin_nodes(now_ns);
	srun.links.nodes[0]->own = true;
	run(&now_ns, 1000, 7);
	run(&now_ns, ALL_SILENT * SILENCE_MS - 300, 1);
	assert_int_equal(srun.events[1][LINK_ALL_SILENT], 0);
	assert_int_equal(links_doubt_until(&srun.links, now_ns), 0);
	run(&now_ns, 600, 1);
	assert_int_equal(srun.events[1][LINK_ALL_SILENT], 1);
	assert_true(links_hears_own(&srun.links, now_ns));
	run(&now_ns, 60000, 1);
	assert_int_equal(times_silent(), 0);
	run(&now_ns, 6000, 7);
	assert_int_equal(times_silent(), 0);
	/* Of two other nodes one is silent, and then the one that is left. */
	run(&now_ns, 5200, 3);
	assert_int_equal(srun.events[2][LINK_SILENT], 1);
	run(&now_ns, 5200, 1);
	assert_int_equal(srun.events[1][LINK_SILENT], 1);
	run(&now_ns, ALL_SILENT * SILENCE_MS + 300, 0);
	assert_int_equal(srun.events[0][LINK_SILENT], 1);
	assert_false(links_hears_own(&srun.links, now_ns));
	end_nodes();
	/* Whoever does not wait for the network gives all others up. */
	begin_nodes(now_ns);
	srun.links.nodes[0]->own = true;
	run(&now_ns, ALL_SILENT * SILENCE_MS + 300, 1);
	assert_int_equal(times_silent(), 0);
	links_give_up(&srun.links, now_ns);
	assert_int_equal(srun.events[0][LINK_SILENT], 0);
	assert_int_equal(times_silent(), 2);
	end_nodes();
}

TEST(a_node_that_has_ended_is_not_silent)
{
	uint64_t now_ns = 1000 * MS;

	begin_nodes(now_ns);
	run(&now_ns, 500, 7);
	beat(0, FRAME_BYE);
	run(&now_ns, 100, 6);
	assert_int_equal(srun.events[0][LINK_BYE], 1);
	/* Without a good-bye its kernel at least is there. */
	channel_end(&far[1]);
	run(&now_ns, 100, 4);
	assert_int_equal(srun.events[1][LINK_CLOSED], 1);
	run(&now_ns, 20000, 4);
	assert_int_equal(times_silent(), 0);
	beat(2, FRAME_BYE);
	links_read(&srun.links, now_ns);
	assert_int_equal(links_due(&srun.links, now_ns), UINT64_MAX);
	end_nodes();
}

TEST(a_node_that_waits_shows_that_the_network_is_there)
{
	uint64_t now_ns = 1000 * MS, spoke_ns, bye_ns;

	begin_nodes(now_ns);
	run(&now_ns, 500, 7);
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_RUNS);
	bye_ns = now_ns;
	beat(0, FRAME_BYE);
	links_read(&srun.links, now_ns);
	/* The others may have lost their power since they spoke last. */
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_RUNS);
	assert_true(spoke_ns <= bye_ns);
	links_let_go(&srun.links, spoke_ns);
	assert_true(links_any_waits(&srun.links));
	run(&now_ns, 1000, 5);
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_RUNS);
	assert_true(spoke_ns > bye_ns);
	links_let_go(&srun.links, spoke_ns);
	assert_false(links_any_waits(&srun.links));
	beat(2, FRAME_BYE);
	run(&now_ns, 600, 5);
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_MISSING);
	assert_int_not_equal(links_doubt_until(&srun.links, now_ns), 0);
	run(&now_ns, 4000, 5);
	assert_int_equal(srun.events[1][LINK_SILENT], 1);
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_MISSING);
	run(&now_ns, 100, 7);
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_RUNS);
	/* A node whose kernel is there is not missing, unless the caller says so. */
	channel_end(&far[1]);
	links_read(&srun.links, now_ns);
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_NONE);
	assert_int_equal(links_rest(&srun.links, true, now_ns, &spoke_ns), REST_MISSING);
	links_lose(&srun.links, 1);
	assert_int_equal(links_rest(&srun.links, false, now_ns, &spoke_ns), REST_MISSING);
	end_nodes();
}

TEST(lost_nodes_leave_the_job_together)
{
	struct losses losses = { .nodes = NULL };
	uint64_t now_ns = 1000 * MS;
	char *names;

	begin_nodes(now_ns);
	for (uint32_t i = 0; i < NODES; i++)
		snprintf(srun.links.nodes[i]->opening.node, sizeof(srun.links.nodes[i]->opening.node), "gpu%u", i);
	assert_null(losses_names(&losses, &srun.links));
	run(&now_ns, 5500, 2);
	losses_add_all(&losses, &srun.links);
	losses_add_all(&losses, &srun.links);
	assert_true(losses_any_new(&losses));
	names = losses_names(&losses, &srun.links);
	assert_string_equal(names, "gpu0,gpu2");
	free(names);
	losses_note_request(&losses);
	assert_false(losses_any_new(&losses));
	losses_add_all(&losses, &srun.links);
	assert_null(losses_names(&losses, &srun.links));
	losses_add(&losses, 1);
	names = losses_names(&losses, &srun.links);
	assert_string_equal(names, "gpu1");
	free(names);
	losses_end(&losses);
	end_nodes();
}

TEST(a_wrong_frame_closes_the_link)
{
	unsigned char bytes[FRAME_HEADER_BYTES + SIPHASH_BYTES] = { 0 };
	uint64_t now_ns = 1000 * MS;

	begin_nodes(now_ns);
	channel_put_bytes(&far[0], bytes, sizeof(bytes));
	channel_flush(&far[0]);
	/* A numbered frame is left out. */
	channel_put(&far[1], FRAME_NEWS, 2, NULL, 0);
	channel_flush(&far[1]);
	run(&now_ns, 100, 4);
	assert_false(is_open(0));
	assert_false(is_open(1));
	assert_true(is_open(2));
	end_nodes();
}

/* ---- a side that means ill ------------------------------------------------------------------- */

/* slurmstepd reads, as root, what the user's srun sends. */
TEST(bytes_wait_in_the_kernel_until_frames_are_taken)
{
	static unsigned char payload[FRAME_PAYLOAD_MAX];
	const size_t most = 2 * frame_size(FRAME_PAYLOAD_MAX);
	struct session session = { .read = 0 };
	struct channel from, to;
	struct frame frame;
	uint32_t taken = 0;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	channel_begin(&from, pair[0], secret, nonce, FRAME_OF_SRUN);
	channel_begin(&to, pair[1], secret, nonce, FRAME_OF_NODE);
	for (uint64_t i = 1; i <= 8; i++)
		channel_put(&from, FRAME_NEWS, i, payload, sizeof(payload));
	for (int i = 0; i < 1000; i++) {
		channel_flush(&from);
		channel_fill(&to);
		assert_in_range(to.in.end - to.in.begin, 0, most);
	}
	assert_true(channel_has_pending(&from));
	for (int i = 0; i < 1000; i++) {
		channel_flush(&from);
		channel_fill(&to);
		while (channel_next(&to, &session, &frame))
			taken += frame.bytes == sizeof(payload);
	}
	assert_int_equal(taken, 8);
	assert_in_range(to.in.room, 0, 2 * most);
	channel_end(&from);
	channel_end(&to);
}

TEST(frames_that_are_never_read_take_little_memory)
{
	struct session session = { .read = 0 };
	uint32_t sent = 0;

	/* Of a node that answers the same order again and again. */
	while (sent < 1000000 && session_send(&session, NULL, FRAME_NEWS, "", 0))
		sent++;
	assert_in_range(sent, 100000, 999999);
	session_end(&session);
}
