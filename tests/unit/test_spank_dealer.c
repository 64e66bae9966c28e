/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/srun/dealer: what becomes of a node whose link closes. The relay is this file's. */
#include <stdint.h>
#include <stdio.h>
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

static void take_link(void *about, uint32_t node, enum links_event event)
{
	dealer_take_link(node, event);
}

static void take_frame(void *about, uint32_t node, const struct frame *frame)
{
	dealer_take_frame(node, frame);
}

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
	const struct links_actions actions = { .event = take_link, .take = take_frame };
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
