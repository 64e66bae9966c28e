/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/wire/deal: orders come out as they went in, and what is cut or contradicts itself is none.
   spank/srun/dealer: what becomes of a node whose link closes. The relay is this file's. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/worker.h"
#include "spank/srun/dealer.h"
#include "spank/srun/relay_srun.h"
#include "spank/wire/channel.h"
#include "spank/wire/deal.h"
#include "spank/wire/relay.h"
#include "tests/support/test.h"

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

enum { ROOM = 256 };

/* A copy that ends where the payload does, so that a sanitizer sees who reads behind it. */
static unsigned char *exact(const unsigned char *bytes, size_t count)
{
	unsigned char *copy = malloc(count > 0 ? count : 1);

	assert_non_null(copy);
	memcpy(copy, bytes, count);
	return copy;
}

static struct deal_go some_go(void)
{
	return (struct deal_go){ .generation = 3, .restart_count = 2, .world_size = 6, .node_count = 3, .node_rank = 1,
		                 .master = 0, .local_count = 2, .port_seed = 0x12345678, .key = KEY,
		                 .nodes = "n0,n3,n2" };
}

static bool unpacks(const struct deal_go *go, const uint32_t *ranks, struct deal_go *got)
{
	unsigned char bytes[ROOM], *copy;
	size_t count = deal_pack_go(go, ranks, bytes);
	bool good;

	assert_int_equal(count, deal_go_bytes(go->local_count, go->nodes));
	copy = exact(bytes, count);
	good = deal_unpack_go(copy, count, got);
	if (good) {
		assert_string_equal(got->nodes, go->nodes);
		for (uint32_t i = 0; i < go->local_count; i++)
			assert_int_equal(deal_rank(got, i), ranks[i]);
	}
	free(copy);
	return good;
}

TEST(go_comes_out_as_it_went_in)
{
	const uint32_t ranks[] = { 2, 5 };
	struct deal_go go = some_go(), got;

	assert_true(unpacks(&go, ranks, &got));
	assert_int_equal(got.generation, 3);
	assert_int_equal(got.restart_count, 2);
	assert_int_equal(got.world_size, 6);
	assert_int_equal(got.node_count, 3);
	assert_int_equal(got.node_rank, 1);
	assert_int_equal(got.master, 0);
	assert_int_equal(got.local_count, 2);
	assert_int_equal(got.port_seed, 0x12345678);
	assert_string_equal(got.key, KEY);
	go.node_rank = DEAL_SPARE;
	go.local_count = 0;
	assert_true(unpacks(&go, ranks, &got));
	assert_int_equal(got.node_rank, DEAL_SPARE);
}

TEST(go_that_contradicts_itself_is_none)
{
	static const struct { size_t field; uint32_t value; } cases[] = {
		{ offsetof(struct deal_go, generation), 0 },
		{ offsetof(struct deal_go, generation), DEAL_GENERATIONS + 1 },
		{ offsetof(struct deal_go, restart_count), 3 },
		{ offsetof(struct deal_go, world_size), 5 }, /* there is a rank 5 */
		{ offsetof(struct deal_go, world_size), 2 },
		{ offsetof(struct deal_go, node_count), 0 },
		{ offsetof(struct deal_go, node_count), 7 },
		{ offsetof(struct deal_go, node_rank), 3 },
		{ offsetof(struct deal_go, node_rank), DEAL_SPARE }, /* with ranks */
		{ offsetof(struct deal_go, master), 3 },
		{ offsetof(struct deal_go, local_count), 0 },
	};
	static const char *const lists[] = { "", "n0 n1", "n0\n", "n\x7f" };
	const uint32_t ranks[] = { 2, 5 };
	struct deal_go go, got;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		go = some_go();
		memcpy((char *)&go + cases[i].field, &cases[i].value, sizeof(cases[i].value));
		if (unpacks(&go, ranks, &got))
			fail_msg("case %zu was taken", i);
	}
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		go = some_go();
		go.nodes = lists[i];
		assert_false(unpacks(&go, ranks, &got));
	}
	go = some_go();
	go.key[5] = 'A';
	assert_false(unpacks(&go, ranks, &got));
	go.key[5] = '\0';
	assert_false(unpacks(&go, ranks, &got));
}

TEST(join_comes_out_as_it_went_in)
{
	const uint32_t tasks[] = { 1, 4 };
	struct deal_join join = { .version = DEAL_VERSION, .node_id = 7, .generation = 2, .task_count = 2,
		                  .release = "0.2\n" }, got;
	unsigned char bytes[ROOM];
	size_t count = deal_pack_join(&join, tasks, bytes);

	assert_int_equal(count, deal_join_bytes(2));
	assert_true(deal_unpack_join(bytes, count, &got));
	assert_int_equal(got.version, DEAL_VERSION);
	assert_int_equal(got.node_id, 7);
	assert_int_equal(got.generation, 2);
	assert_int_equal(got.task_count, 2);
	assert_int_equal(deal_task(&got, 0), 1);
	assert_int_equal(deal_task(&got, 1), 4);
	assert_string_equal(got.release, "0.2?");
	join.task_count = 0;
	count = deal_pack_join(&join, tasks, bytes);
	assert_false(deal_unpack_join(bytes, count, &got));
}

TEST(small_orders_come_out_as_they_went_in)
{
	const struct deal_clear clear = { .generation = 4, .fenced = true, .step = 1ull << 40, .first = 7,
		                          .rest = DEAL_SOME };
	const struct deal_done done = { .generation = 4, .local_task = 1, .rank = 9, .wait_status = 0x4b00,
		                        .never_ran = true };
	const struct deal_lost lost = { .generation = 0, .local_task = 3 };
	struct deal_clear clear_got;
	struct deal_done done_got;
	struct deal_lost lost_got;
	unsigned char bytes[DEAL_SMALL_BYTES];
	uint32_t generation;
	bool keep;
	int status;

	assert_true(deal_unpack_end(bytes, deal_pack_end(6, true, bytes), &generation, &keep));
	assert_int_equal(generation, 6);
	assert_true(keep);
	assert_true(deal_unpack_quit(bytes, deal_pack_quit(DEAL_OWN_STATUS, bytes), &status));
	assert_int_equal(status, DEAL_OWN_STATUS);
	assert_true(deal_unpack_clear(bytes, deal_pack_clear(&clear, bytes), &clear_got));
	assert_int_equal(clear_got.generation, 4);
	assert_true(clear_got.fenced);
	assert_true(clear_got.step == 1ull << 40);
	assert_true(clear_got.first == 7);
	assert_int_equal(clear_got.rest, DEAL_SOME);
	assert_true(deal_unpack_done(bytes, deal_pack_done(&done, bytes), &done_got));
	assert_int_equal(done_got.generation, 4);
	assert_int_equal(done_got.local_task, 1);
	assert_int_equal(done_got.rank, 9);
	assert_int_equal(done_got.wait_status, 0x4b00);
	assert_true(done_got.never_ran);
	assert_true(deal_unpack_lost(bytes, deal_pack_lost(&lost, bytes), &lost_got));
	assert_int_equal(lost_got.local_task, 3);
}

TEST(lists_of_spares_come_out_as_they_went_in)
{
	static const char *const lists[] = { "", "n2", "n[2-5],m1" };
	unsigned char bytes[4 + DEAL_SPARES_MAX], *copy;
	char got[DEAL_SPARES_MAX + 1], longest[DEAL_SPARES_MAX + 2];
	size_t count;

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		count = deal_pack_spares(lists[i], bytes);
		copy = exact(bytes, count);
		assert_true(deal_unpack_spares(copy, count, got));
		assert_string_equal(got, lists[i]);
		for (size_t cut = 0; cut < count; cut++)
			assert_false(deal_unpack_spares(copy, cut, got));
		free(copy);
	}
	memset(longest, 'n', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	count = deal_pack_spares(longest, bytes);
	assert_int_equal(count, sizeof(bytes));
	assert_true(deal_unpack_spares(bytes, count, got));
	assert_int_equal(strlen(got), DEAL_SPARES_MAX);
	bytes[10] = '\n';
	assert_false(deal_unpack_spares(bytes, count, got));
	bytes[1] = 0xff;
	assert_false(deal_unpack_spares(bytes, count, got));
}

/* Each payload, cut at each length, is refused, and a longer one is taken. An older release sends the last byte of some
   not. */
TEST(cut_orders_are_none)
{
	const uint32_t numbers[] = { 2, 5 };
	const struct deal_go go = some_go();
	const struct deal_join join = { .version = 1, .task_count = 2 };
	unsigned char bytes[6][ROOM] = { { 0 } };
	const size_t counts[6] = { deal_pack_go(&go, numbers, bytes[0]), deal_pack_join(&join, numbers, bytes[1]),
		                   deal_pack_end(1, false, bytes[2]), deal_pack_clear(&(struct deal_clear){ 1, false, 2, 1, DEAL_NONE }, bytes[3]),
		                   deal_pack_done(&(struct deal_done){ 1, 0, 0, 0, false }, bytes[4]),
		                   deal_pack_lost(&(struct deal_lost){ 1, 0 }, bytes[5]) };
	static const size_t newer[6] = { 1, 0, 1, 1, 0, 0 };
	struct deal_go go_got;
	struct deal_join join_got;
	struct deal_clear clear_got;
	struct deal_done done_got;
	struct deal_lost lost_got;
	uint32_t generation;
	bool keep;

	for (int kind = 0; kind < 6; kind++) {
		for (size_t count = 0; count <= counts[kind] + 1; count++) {
			unsigned char *copy = exact(bytes[kind], count);
			const bool taken[] = { deal_unpack_go(copy, count, &go_got), deal_unpack_join(copy, count, &join_got),
				               deal_unpack_end(copy, count, &generation, &keep),
				               deal_unpack_clear(copy, count, &clear_got),
				               deal_unpack_done(copy, count, &done_got),
				               deal_unpack_lost(copy, count, &lost_got) };
			assert_int_equal(taken[kind], count + newer[kind] >= counts[kind]);
			free(copy);
		}
	}
}

/* ---- spank/srun/dealer ---------------------------------------------------------- */

#define MS 1000000ull

enum { NODES = 3, SILENCE_MS = 5000, LIMIT_MS = 60000 };

static const unsigned char secret[SIPHASH_KEY_BYTES] = "a secret of 16 b";

static struct links links;
static char said[4096];
static uint32_t generation;
static bool ended;

/* ---- the relay -------------------------------------------------------------------------------- */

struct links *relay_links(void)
{
	return &links;
}

void relay_say(const char *text)
{
	snprintf(said, sizeof(said), "%s", text);
}

void relay_begin_generation(uint32_t number)
{
	generation = number;
}

void relay_end_step(const char *text, int wait_status)
{
	relay_say(text);
	ended = true;
}

bool relay_take_rest(struct step_action *action)
{
	return false;
}

/* ---- the nodes -------------------------------------------------------------------------------- */

static struct far {
	struct relay_sender sender;
	struct channel channel;
	struct session session;
	char spares[DEAL_SPARES_MAX + 1];
	int times_told; /* of spares */
} far[NODES];

static void open_link(uint32_t node)
{
	unsigned char packed[OPENING_BYTES];
	struct link_opening opening = { .node_id = node, .rank = node, .tasks = 1 };
	const struct relay_news news = { .text = "", .opening = packed };
	struct relay relay = { .port = 1 };
	struct relay_message message = { .end = 0 };
	int pair[2];

	memcpy(relay.secret, secret, sizeof(secret));
	far[node] = (struct far){ .channel = { .fd = -1 } };
	snprintf(opening.node, sizeof(opening.node), "n%u", node);
	assert_true(relay_make_nonce(relay_start_sender(&far[node].sender), message.nonce));
	opening_pack(&opening, packed);
	relay_write(&message, &news);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_true(links_adopt(&links, pair[0], &relay, &message, ddp_now_ns()));
	channel_begin(&far[node].channel, pair[1], secret, message.nonce, FRAME_OF_NODE);
	assert_int_equal(recv(pair[1], message.tag, SIPHASH_BYTES, MSG_WAITALL), SIPHASH_BYTES);
}

static void say_join(uint32_t node)
{
	const struct deal_join join = { .version = DEAL_VERSION, .node_id = node, .task_count = 1, .release = "1" };
	unsigned char payload[256];

	assert_true(session_send(&far[node].session, &far[node].channel, DEAL_JOIN, payload,
	                         deal_pack_join(&join, &node, payload)));
}

/* Its ranks end at once when srun says so. */
static void obey(uint32_t node)
{
	unsigned char payload[DEAL_SMALL_BYTES];
	struct deal_clear clear = { .step = 0 };
	bool keep;
	struct far *of = &far[node];
	struct frame frame;

	channel_fill(&of->channel);
	while (channel_next(&of->channel, &of->session, &frame)) {
		if (frame.type == DEAL_END && deal_unpack_end(frame.payload, frame.bytes, &clear.generation, &keep))
			session_send(&of->session, &of->channel, DEAL_CLEAR, payload, deal_pack_clear(&clear, payload));
		of->times_told += frame.type == DEAL_SPARES && deal_unpack_spares(frame.payload, frame.bytes, of->spares);
	}
	channel_put(&of->channel, FRAME_BEAT, of->session.read, NULL, 0);
	channel_flush(&of->channel);
}

static void turn(void)
{
	for (uint32_t i = 0; i < NODES; i++)
		if (far[i].channel.fd >= 0)
			obey(i);
	links_read(&links, ddp_now_ns());
	links_judge(&links, ddp_now_ns(), ddp_now_ns());
	dealer_restart.act(ddp_now_ns());
	pause_ms(10);
}

static void until_generation(uint32_t number)
{
	uint64_t began_ns = ddp_now_ns();

	while (generation != number) {
		assert_true(ddp_now_ns() - began_ns < LIMIT_MS * MS);
		assert_false(ended);
		turn();
	}
}

static void begin_without_joins(void)
{
	const struct plan_policy policy = { .restarts = 2, .spares = 1, .silence_ms = SILENCE_MS };
	const struct links_actions actions = { .event = dealer_take_link, .take = dealer_take_frame };
	struct error error;

	generation = 0;
	ended = false;
	said[0] = '\0';
	links_start(&links, secret, SILENCE_MS, &actions);
	dealer_open(&policy);
	assert_true(dealer_begin(NODES, NODES, 1, 0, &error));
	for (uint32_t i = 0; i < NODES; i++)
		open_link(i);
}

static void begin(void)
{
	begin_without_joins();
	for (uint32_t i = 0; i < NODES; i++)
		say_join(i);
	until_generation(1);
}

static void until_end(void)
{
	uint64_t began_ns = ddp_now_ns();

	while (!ended) {
		assert_true(ddp_now_ns() - began_ns < LIMIT_MS * MS);
		turn();
	}
}

static void end(void)
{
	for (uint32_t i = 0; i < NODES; i++) {
		channel_end(&far[i].channel);
		session_end(&far[i].session);
	}
	dealer_close();
	links_end(&links);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void says(const char *words)
{
	if (strstr(said, words) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", said, words);
}

TEST(a_node_whose_slurmstepd_has_ended_is_replaced)
{
	begin();
	channel_fill(&far[1].channel);
	channel_end(&far[1].channel);
	until_generation(2);
	says("slurmstepd on node n1 has ended without a word, with rank 1");
	says("n2 takes the place of n1");
	end();
}

/* As libddp and slurm_ddp of Python tell of it, whichever rank's end is heard first. */
TEST(a_damaged_node_is_avoided)
{
	const struct step_action action = {
		.text = "rank 0 of 2 on n0 exited with code 1 after 9.0 s: step 7: rank 1 on n1 has other parameters than 7 of 8 ranks after "
		        "step 6: its memory or processor is damaged; go on without node n1 from the last checkpoint (train.py:7)",
		.end = { .wait_status = 256, .node = "n0" },
	};

	begin();
	(dealer_restart.fail)(&action); /* cmocka has a macro of that name */
	until_generation(2);
	says("n2 takes the place of n1");
	end();
}

/* A page of a rank has room for so many characters of an error. */
TEST(a_name_that_is_cut_is_no_node)
{
	const struct step_action action = {
		.text = "rank 0 of 2 on n0 exited with code 1 after 9.0 s: step 7: rank 1 on n10 has other parameters than 7 of 8 ranks "
		        "after step 6: its memory or processor is damaged; go on without node n1",
		.end = { .wait_status = 256, .node = "n0" },
	};

	begin();
	(dealer_restart.fail)(&action);
	until_generation(2);
	assert_null(strstr(said, "takes the place"));
	end();
}

static void until_told(uint32_t node, int times, const char *spares)
{
	uint64_t began_ns = ddp_now_ns();

	while (far[node].times_told < times) {
		assert_true(ddp_now_ns() - began_ns < LIMIT_MS * MS);
		turn();
	}
	assert_int_equal(far[node].times_told, times);
	assert_string_equal(far[node].spares, spares);
}

/* For ddp-status. */
TEST(the_node_of_rank_zero_knows_who_waits)
{
	begin();
	until_told(0, 1, "n2");
	/* The spare is lost, and no generation begins. */
	channel_fill(&far[2].channel);
	channel_end(&far[2].channel);
	until_told(0, 2, "");
	assert_int_equal(generation, 1);
	end();
	begin();
	until_told(0, 1, "n2");
	channel_fill(&far[0].channel);
	channel_end(&far[0].channel);
	until_generation(2);
	/* Rank 0 has moved. */
	until_told(2, 1, "");
	assert_int_equal(far[1].times_told, 0);
	end();
}

/* Gives srun's end of a connection that the node opens to srun itself, from 127.0.0.NODE. */
static int open_io(uint32_t node, int listener, int *far_end)
{
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_addr = { htonl(0x7f000000 + node) } }, to;
	socklen_t bytes = sizeof(to);

	links.nodes[node]->address[10] = links.nodes[node]->address[11] = 0xff;
	memcpy(links.nodes[node]->address + 12, &from.sin_addr, sizeof(from.sin_addr));
	*far_end = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(*far_end, (struct sockaddr *)&from, sizeof(from)), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&to, &bytes), 0);
	assert_int_equal(connect(*far_end, (struct sockaddr *)&to, sizeof(to)), 0);
	return accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/* When the step is over, output of a node that is silent, and speaks again, may still come. */
TEST(what_a_lost_node_has_opened_to_srun_ends_while_ranks_are_replaced)
{
	const struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), io[NODES], far_io[NODES];
	char byte;

	assert_int_equal(bind(listener, (const struct sockaddr *)&any, sizeof(any)), 0);
	assert_int_equal(listen(listener, NODES), 0);
	begin();
	for (uint32_t i = 1; i < NODES; i++)
		io[i] = open_io(i, listener, &far_io[i]);
	for (uint32_t i = 1; i < NODES; i++) {
		assert_int_equal(recv(io[1], &byte, 1, 0), i == 1 ? -1 : 0);
		channel_fill(&far[i].channel);
		channel_end(&far[i].channel);
		if (i == 1)
			until_generation(2);
	}
	until_end();
	turn();
	says("no spare is left");
	assert_int_equal(recv(io[2], &byte, 1, 0), -1);
	for (uint32_t i = 1; i < NODES; i++) {
		close(io[i]);
		close(far_io[i]);
	}
	close(listener);
	end();
}

/* Something between the hosts may cut a connection whose node lives. Its ranks end by the fence, a little before
   silence= is over. */
TEST(a_node_whose_link_is_cut_keeps_its_place_until_its_ranks_have_ended)
{
	uint64_t heard_ns;

	begin();
	/* srun's GO is not read, so that the connection breaks instead of ending. */
	links_read(&links, ddp_now_ns());
	heard_ns = links_node(&links, 1)->heard_ns;
	channel_end(&far[1].channel);
	until_generation(2);
	assert_true(ddp_now_ns() - heard_ns >= SILENCE_MS * MS);
	says("node n1 has been silent for 5.");
	says("n2 takes the place of n1");
	end();
}

/* No program runs yet, and none could without the node. */
TEST(a_node_that_is_lost_before_it_joins_ends_the_step)
{
	int fd;

	begin_without_joins();
	say_join(0);
	say_join(2);
	turn();
	channel_fill(&far[1].channel);
	channel_end(&far[1].channel);
	until_end();
	says("slurmstepd on node n1 has ended before all of its tasks had started");
	end();
	begin_without_joins();
	say_join(0);
	say_join(1);
	/* It is there, and says nothing more. */
	fd = far[2].channel.fd;
	far[2].channel.fd = -1;
	until_end();
	far[2].channel.fd = fd;
	says("node n2 has been silent for 5.");
	says("s before all of its tasks had started");
	end();
}
